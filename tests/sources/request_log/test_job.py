"""Invalid options and missing files are reported before a JVM starts."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.fidelity import main as fidelity
from jobs.ingest import main
from purgatory_udf.common import local_files
from purgatory_udf.launch.backend_choice import open_local
from tests.contract.examples import FETCH
from tests.sources.request_log.log_lines import T, fetch_line, log_line, message


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--topics", "t", "a.jsonl"], "--topics requires --from kafka or request-log, not --from jsonl"),
        (["--anonymise", "a.jsonl"], "--anonymise requires --from kafka or request-log, not --from jsonl"),
        (
            ["--from", "request-log", "--max-disorder-ms", "3", "a.log"],
            "--max-disorder-ms requires --from jsonl or kafka or parquet, not --from request-log",
        ),
        (["--from", "request-log"], "--from request-log needs the PATH of a file or folder"),
        (["--from", "request-log", "b.log"], "b.log: no such file or folder"),
        (["--from", "request-log", "empty"], "empty: contains no files"),
        (["--from", "request-log", "--isr", "none", "a.log"], "--isr none: cannot be read: No such file or directory"),
        (["--from", "request-log", "--anonymise-key", "k", "a.log"], "--anonymise-key needs --anonymise"),
        (
            ["--from", "request-log", "--zone", "Mars", "a.log"],
            "--zone Mars: 'Mars' is not a time zone; expected UTC or an offset such as +01:00",
        ),
    ],
)
def test_usage_error_is_one_sentence(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a.jsonl", "a.log"):
        (tmp_path / name).write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main.check([*arguments, "--out", "out"]) == 2
    assert capsys.readouterr().err == f"ingest: {error}\n"


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("empty.log", "", "empty.log: no lines; kafka.request.logger must have level DEBUG on the brokers"),
        (
            "x.jsonl",
            "\n" + json.dumps(FETCH),
            "x.jsonl: no request of Kafka's request log in 2 lines; the first line is an event: use --from jsonl",
        ),
        (
            "server.log",
            "[2026-11-21 02:54:27,702] INFO Rolled new log segment\n",
            "server.log: no request of Kafka's request log in 1 line; record it as docs/recording.md describes",
        ),
        (
            "request-1.log",
            "[2019-03-01 10:00:00,123] DEBUG Completed request:RequestHeader(apiKey=FETCH) -- {replica_id=1}\n",
            "request-1.log: no request in 1 line: Kafka before 2.8 wrote this log, as text; only the JSON that Kafka "
            "2.8 and newer write can be imported",
        ),
        (
            "packed.log",
            b"\x1f\x8b\x08\x00packed",
            "packed.log: no request of Kafka's request log in 1 line; packed.log is compressed: its name must end in "
            ".gz",
        ),
        (
            "wide.log",
            "[2026-11-21 02:54:27,702] DEBUG Completed request:{}".encode("utf-16"),
            "wide.log: no request of Kafka's request log in 1 line; wide.log is UTF-16: convert it to UTF-8",
        ),
    ],
)
def test_log_without_requests_is_refused(
    name: str,
    text: str | bytes,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.chdir(tmp_path)
    assert main.status(["--from", "request-log", name, "--out", "out"], open_local) == 2
    assert capsys.readouterr().err.endswith(f"ingest: {error}\n")
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_error_names_logs_without_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).write_text("\n")
    words = ["--from", "request-log", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main.status(words, open_local) == 2
    assert f"ingest: {tmp_path}/a.log and 2 more files: no request of Kafka's request log in 3 lines" in (
        capsys.readouterr().err
    )


def test_log_without_waiting_requests_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The controller's requests never wait in a purgatory of a broker, so nothing is left to replay."""
    log = tmp_path / "request-1.log"
    log.write_text(log_line(5, message("FETCH", {}, {}, listener="CONTROLLER")))
    assert main.status(["--from", "request-log", str(log), "--out", str(tmp_path / "out")], open_local) == 1
    printed = capsys.readouterr()
    assert "events    0 " in printed.out and "1  requests to the controller" in printed.out
    assert "ingest: no events: none of 1 request waits in a purgatory of a broker; import" in printed.err


def test_linked_log_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "request-1.log"
    log.parent.mkdir()
    log.write_text(fetch_line(5, {0: 3}))
    for link, target in (("request-1.log.1", log), ("all", log.parent)):
        (log.parent / link).symlink_to(target)
    assert main.status(["--from", "request-log", str(log.parent), "--out", str(tmp_path / "out")], open_local) == 0
    printed = capsys.readouterr().out.splitlines()
    (status,) = DeltaTable(f"{tmp_path}/out/runs").to_pyarrow_table().column("status").to_pylist()
    assert status == "finished"
    links = ", ".join(f"{log.parent}/{link}" for link in ("all", "request-1.log.1"))
    assert printed[:2] == ["input     1 line of 1 file", f"skipped   links to files that were read already: {links}"]


def test_truncated_log_has_rejected_line(tmp_path: Path) -> None:
    log, out = tmp_path / "request-1.log.gz", str(tmp_path / "out")
    packed = gzip.compress("".join(f"{fetch_line(at, {0: at})}\n" for at in range(200)).encode())
    log.write_bytes(packed[: len(packed) // 2])
    words = ["--from", "request-log", str(log), "--max-rejected", "10", "--out", out]
    assert main.status(words, open_local) == 0
    (reason,) = DeltaTable(f"{out}/rejected_events").to_pyarrow_table().column("reason").to_pylist()
    assert reason == "truncated gzip: its end is missing"


def test_anonymised_import_renames_clients(tmp_path: Path) -> None:
    log, out = tmp_path / "request-1.log", str(tmp_path / "out")
    log.write_text(fetch_line(5, {0: 3}, client="payments"))
    for options, same in (([], True), (["--anonymise", "--overwrite"], False)):
        assert main.status(["--from", "request-log", str(log), *options, "--out", out], open_local) == 0
        clients = DeltaTable(f"{out}/events").to_pyarrow_table().column("client_id").to_pylist()
        assert ("payments" in clients) is same


@pytest.mark.parametrize("name", ["request-1.log.1", "request-1.log.gz"])
def test_copy_of_log_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copy was made before the log grew, or has been compressed."""
    text = f"{fetch_line(5, {0: 3})}\n{fetch_line(6, {0: 4})}\n"
    (tmp_path / "request-1.log").write_text(text)
    copy = fetch_line(5, {0: 3}).encode()
    (tmp_path / name).write_bytes(gzip.compress(copy) if name.endswith("gz") else copy)
    (tmp_path / "request-2.log").write_text(fetch_line(7, {0: 3}))
    assert main.status(["--from", "request-log", str(tmp_path), "--out", str(tmp_path / "out")], open_local) == 2
    assert capsys.readouterr().err.endswith(
        f"ingest: {tmp_path}/request-1.log and {tmp_path}/{name}: begin with the same line, so one is a copy of the "
        "other; import only one\n"
    )


@contextmanager
def pipe_with(text: str) -> Iterator[str]:
    """Yield the path of a pipe, as `<(…)` of a shell names it."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write(text)
    try:
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
        local_files._pipes.clear()


def test_metadata_is_read_from_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks and the import both open it."""
    (tmp_path / "request-1.log").write_text(fetch_line(5, {0: 3}))
    arguments = ["--from", "request-log", str(tmp_path / "request-1.log"), "--out", str(tmp_path / "out")]
    with pipe_with(f"{T} orders\n") as path:
        assert main.check([*arguments, "--topics", path]) is None
        assert main.status([*arguments, "--topics", path], open_local) == 0
        assert list(local_files.pipes_read()) == [path]
    assert "topics without a name" not in capsys.readouterr().out
    with pipe_with("nothing\n") as path:
        assert main.status([*arguments, "--isr", path, "--overwrite"], open_local) == 2
    assert f"ingest: --isr {path}: no PARTITION_RECORD found" in capsys.readouterr().err
    with pipe_with(fetch_line(5, {0: 3})) as path:
        assert main.check(["--from", "request-log", path, "--out", "out"]) == 2
    error = f"ingest: {path}: is a pipe, but inputs of this kind are read in pieces; write it to a file\n"
    assert capsys.readouterr().err == error


def test_jmx_before_needs_jmx_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.check(["--out", "out", "--jmx-before", "b.json"]) == 2
    assert (
        capsys.readouterr().err
        == "fidelity: --jmx-before needs --jmx-after, because the increase between the two is compared\n"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--server-log", "server.log"], "--server-log server.log: no such file or folder"),
        (["--zone", "Mars"], "--zone Mars: 'Mars' is not a time zone; expected UTC or an offset such as +01:00"),
    ],
)
def test_fidelity_usage_error_is_one_sentence(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fidelity.check(["--out", "out", *arguments]) == 2
    assert capsys.readouterr().err == f"fidelity: {error}\n"

"""The size of a job's inputs, which decides on settings and on Spark before the job starts."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
import typer

from jobs import ingest, replay
from purgatory_udf.common import local_files
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import backend_choice
from purgatory_udf.launch import job as job_module


def _file(path: Path, length: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(length)
    return str(path)


@pytest.mark.parametrize(
    ("length", "settings"),
    [
        (2_000_000, backend_choice.TINY),
        (2_000_001, backend_choice.BRIEF),
        (backend_choice.LITTLE_BYTES, backend_choice.BRIEF),
        (backend_choice.LITTLE_BYTES + 1, ()),
    ],
)
def test_sizes_of_paths_are_summed(tmp_path: Path, length: int, settings: tuple[str, ...]) -> None:
    _file(tmp_path / "table" / "part" / "a.json", length // 2)
    _file(tmp_path / "b-1.jsonl", length - length // 2 - 10)
    _file(tmp_path / "b-2.jsonl", 10)
    assert backend_choice.settings_for([str(tmp_path / "table"), f"file://{tmp_path}/b-*.jsonl"]) == settings


@pytest.mark.parametrize("suffix", [".gz", ".parquet"])
def test_compressed_files_count_as_unpacked(tmp_path: Path, suffix: str) -> None:
    assert backend_choice.settings_for(
        [_file(tmp_path / f"a{suffix}", backend_choice.LITTLE_BYTES // local_files.UNPACKED_TIMES)]
    )
    assert not backend_choice.settings_for(
        [_file(tmp_path / f"b{suffix}", backend_choice.LITTLE_BYTES // local_files.UNPACKED_TIMES + 1)]
    )


def test_gzip_file_counts_with_its_stored_size(tmp_path: Path) -> None:
    """A damaged file ends with any number; one above gzip's highest ratio is not believed."""
    file = tmp_path / "request.log.gz"
    file.write_bytes(gzip.compress(bytes(3_000_000)))
    assert local_files.local_bytes([str(file)], 1 << 40) == 3_000_000
    file.write_bytes(gzip.compress(b"")[:-4] + b"\xff" * 4)
    assert local_files.local_bytes([str(file)], 1 << 40) == 10 * file.stat().st_size


def test_linked_folder_counts_once(tmp_path: Path) -> None:
    _file(tmp_path / "logs" / "a.jsonl", 9)
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    (tmp_path / "links").mkdir()
    for name in ("one", "two"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "logs")
    assert local_files.local_bytes([str(tmp_path / "links")], 100) == 9


def test_inputs_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job in this process needs no settings of Spark."""

    def run(trace: Annotated[list[str], typer.Option()]) -> None:
        """Replay a trace."""

    paths, search = [_file(tmp_path / name, 9) for name in "ab"], local_files._files
    searched: list[str] = []

    def counted_search(path: str) -> Iterator[Path]:
        searched.append(path)
        return search(path)

    monkeypatch.setattr(local_files, "_files", counted_search)
    job = job_module.Job(run, reads=("trace",))
    assert job.check(["--trace", *paths]) is None
    for most, is_small in ((18, True), (17, False), (backend_choice.ANY_BYTES, True)):
        searched.clear()
        assert (
            backend_choice.runs_in_process(job.inputs, [], most, spark_options=False, settings={}, environ={})
            == is_small
        )
        assert searched == paths


@pytest.mark.parametrize(
    ("words", "in_process"),
    [
        ([], True),
        (["--out", "s3a://bucket/out"], False),
        (["--large"], False),
        (["--trace", "missing"], False),
        (["--trace", "{trace}"], True),
        (["--trace", "{trace}", "--out", "s3a://bucket/out"], True),
    ],
)
def test_job_without_inputs_runs_where_its_outputs_are(tmp_path: Path, words: list[str], in_process: bool) -> None:
    def run(
        out: Annotated[str, typer.Option()] = "out",
        trace: Annotated[str | None, typer.Option()] = None,
        large: Annotated[bool, typer.Option("--large")] = False,
    ) -> None:
        """Generate a trace, or read one."""

    trace = _file(tmp_path / "trace", 9)
    job = job_module.Job(
        run, reads=("trace",), writes=("out",), max_local_bytes=18, needs_spark=lambda large, **_: bool(large)
    )
    assert job.check([word.format(trace=trace) for word in words]) is None
    chosen = backend_choice.runs_in_process(
        job.inputs, job.outputs, job.max_local_bytes, spark_options=False, settings={}, environ={}
    )
    assert chosen == in_process


@pytest.mark.parametrize(("limit", "is_enough"), [(resource.RLIM_INFINITY, True), (3 * 10**9, True), (2**31, False)])
def test_address_space_must_suffice(monkeypatch: pytest.MonkeyPatch, limit: int, is_enough: bool) -> None:
    """The libraries of this process would hang or crash."""
    monkeypatch.setattr(resource, "getrlimit", lambda number: {resource.RLIMIT_AS: (limit, limit)}[number])
    if is_enough:
        backend_choice.open_local()
        return
    with pytest.raises(UserError, match=r"\(ulimit -v\) is 2.1 GB, but needs to be at least 3 GB, and more"):
        backend_choice.open_local()


def test_remote_size_is_unknown() -> None:
    assert backend_choice.settings_for(["s3a://bucket/events"]) == ()
    assert backend_choice.settings_for([]) == ()
    assert backend_choice.settings_for(["nothing here"]) == backend_choice.TINY


@pytest.mark.parametrize(
    ("more", "local", "settings"), [([], True, backend_choice.TINY), (["--follow"], True, ()), ([], False, ())]
)
def test_small_inputs_select_settings(tmp_path: Path, more: list[str], local: bool, settings: tuple[str, ...]) -> None:
    """A job that follows a table or runs in a cluster gets no such settings."""

    def run(
        events: Annotated[str | None, typer.Option()] = None,
        trace: Annotated[list[str] | None, typer.Option()] = None,
        follow: Annotated[bool, typer.Option("--follow")] = False,
    ) -> None:
        """Replay a trace."""

    job = job_module.Job(run, reads=("events", "trace"))
    assert job.check(["--trace", _file(tmp_path / "a.jsonl", 9), *more], local) is None
    assert job.settings == settings


@pytest.mark.parametrize(
    ("form", "out", "settings"),
    [
        ("request-log", "out", backend_choice.PYTHON),
        ("request-log", "s3a://bucket/out", ()),
        ("jsonl", "out", ()),
    ],
)
def test_large_request_logs_leave_work_to_python(
    tmp_path: Path, form: str, out: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = _file(tmp_path / "request.log", backend_choice.LITTLE_BYTES + 1)
    assert ingest.main.check(["--from", form, log, "--out", out]) is None
    assert ingest.main.settings == settings


@pytest.mark.parametrize(
    ("words", "out", "settings"),
    [
        (["--events"], "out", backend_choice.PYTHON),
        (["--events"], "s3a://bucket/out", ()),
        (["--follow", "--events"], "out", ()),
        (["--trace"], "out", ()),
    ],
)
def test_large_replays_leave_work_to_python(
    tmp_path: Path, words: list[str], out: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = _file(tmp_path / "events.jsonl", backend_choice.LITTLE_BYTES + 1)
    assert replay.main.check([*words, events, "--out", out]) is None
    assert replay.main.settings == settings


def test_large_inputs_keep_defaults(tmp_path: Path) -> None:
    def run(out: Annotated[str, typer.Option()]) -> None:
        """Look at tables."""

    job = job_module.Job(run, reads=("out",))
    assert job.check(["--out", _file(tmp_path / "part.parquet", backend_choice.LITTLE_BYTES)]) is None
    assert job.settings == ()

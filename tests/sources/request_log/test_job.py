"""Invalid options and missing files are reported before a JVM starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fidelity import main as fidelity
from jobs.ingest import main


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
        (["--from", "request-log", "empty"], "empty: no * in it"),
        (["--from", "request-log", "--isr", "none", "a.log"], "none: cannot be read: No such file or directory"),
        (["--from", "request-log", "--anonymise-key", "k", "a.log"], "--anonymise-key needs --anonymise"),
        (
            ["--from", "request-log", "--zone", "Mars", "a.log"],
            "--zone Mars: 'Mars' is not a zone: expected UTC or an offset such as +01:00",
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


def test_jmx_before_needs_jmx_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.check(["--out", "out", "--jmx-before", "b.json"]) == 2
    assert capsys.readouterr().err == "fidelity: --jmx-before needs --jmx-after, because increases are compared\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--server-log", "server.log"], "server.log: no such file or folder"),
        (["--zone", "Mars"], "--zone Mars: 'Mars' is not a zone: expected UTC or an offset such as +01:00"),
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

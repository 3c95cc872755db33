"""The command `ingest`: options, output, exit status."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from jobs.ingest import main
from purgatory_udf.common import console
from purgatory_udf.common.console import Phases
from purgatory_udf.common.local_files import read_totals
from purgatory_udf.sources.trace_files.trace_reader import IngestReport
from tests.sources.trace_files.tables import events, rejected
from tests.sources.trace_files.traces import clock, write


@pytest.mark.nightly
def test_too_many_rejections_exit_with_status_1(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path / "a.jsonl", [clock(0), clock(1), clock(0), clock(2)]), tmp_path / "out"
    assert main.status(["--from", "jsonl", str(path), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == (
        f"input     4 lines of 1 file\n"
        f"events    3  {out}/events\n"
        f"rejected  1 (25 %)  {out}/rejected_events\n"
        f"          1 late\n"
        f"time      2023-11-14 22:13:20.000000 to 2023-11-14 22:13:20.000002\n"
    )
    assert printed.err.splitlines()[-1] == (
        "ingest: 1 of 4 lines was rejected (25 %), more than max_rejected (0 %); "
        f"the reasons are in {out}/rejected_events"
    )
    assert [len(events(out)), len(rejected(out))] == [3, 1]
    allowed = ["--max-rejected", "25", "--events-per-file", "2", "--run-id", "again", "--overwrite"]
    assert main.status([str(path), "--out", str(out), *allowed]) == 0
    assert {row["run_id"] for row in [*events(out), *rejected(out)]} == {"again"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nothing.jsonl"], "ingest: nothing.jsonl: no such file or folder"),
        (["a.jsonl", "*.json"], "ingest: *.json: no file matches"),
        (["--from", "parquet", "."], "ingest: .: contains no *.parquet"),
        (["--max-rejected", "101", "a.jsonl"], "ingest: --set max_rejected=101.0: max_rejected: Input should be less"),
        (["--max-disorder-ms", "-1", "a.jsonl"], "ingest: --set max_disorder_ms=-1: max_disorder_ms: Input should be"),
        (["--config", "none.yaml", "a.jsonl"], "ingest: --config none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_usage_error_exits_with_status_2(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "a.jsonl", [clock()])
    monkeypatch.chdir(tmp_path)
    assert main.check([*arguments, "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(error)


def test_summary_counts_rejections_by_frequency() -> None:
    report = IngestReport("r", 1200, 1_000_000, 999_990, {"late": 3, "not JSON": 7}, events="E", rejected_events="R")
    assert report.summary() == [
        "input     1,000,000 lines of 1,200 files",
        "events    999,990  E",
        "rejected  10 (0.001 %)  R",
        "          7 not JSON; 3 late",
    ]
    none_good = IngestReport("r", 1, 999, 0, {"not JSON": 999}, events="E", rejected_events="R")
    assert none_good.summary()[2] == "rejected  999 (100 %)  R"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_phase_and_tasks() -> None:
    terminal, calls = Terminal(), []

    def tasks() -> tuple[int, int]:
        calls.append(1)
        return 3, 40

    with Phases(tasks, terminal, every=0.001) as phases:
        phases("reading 2 files")
        while len(calls) < 100:
            pass
    assert "reading 2 files · 3 of 40 tasks" in terminal.getvalue()


def test_phases_are_logged_without_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Phases(lambda: (0, 0), io.StringIO()) as phases:
        phases("reading 2 files")
        phases("writing 5 events")
    assert caplog.messages == ["reading 2 files", "writing 5 events"]


def test_log_shows_lines_read(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed file of empty lines has progress long before it has rows."""
    monkeypatch.setattr(console, "FIRST_LINE_AFTER", 0.0)
    caplog.set_level("INFO")
    with Phases(lambda: (0, 0), io.StringIO(), every=0.001) as phases:
        phases("reading 1 file, 0 MB")
        if not os.fork():
            read_totals.add(3_000_000, 3_000_000)
            os._exit(0)
        os.wait()
        while len(caplog.messages) < 2:
            time.sleep(0.001)
    assert caplog.messages[:2] == ["reading 1 file, 0 MB", "3,000,000 lines, 3 MB of text"]

"""The command: its options, what it prints, its exit status."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from jobs.ingest import main
from purgatory_udf.backend.phase_progress import Phases
from purgatory_udf.sources.trace_files.import_report import IngestReport
from tests.sources.trace_files.tables import events, rejected
from tests.sources.trace_files.traces import clock, write


def test_too_many_rejected_lines_end_with_status_1_after_the_tables_are_written(
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
        f"ingest: 1 of 4 lines were rejected (25 %), more than max_rejected (0 %); {out}/rejected_events says why"
    )
    assert [len(events(out)), len(rejected(out))] == [3, 1]
    allowed = ["--max-rejected", "25", "--events-per-file", "2", "--run-id", "again", "--overwrite"]
    assert main.status([str(path), "--out", str(out), *allowed]) == 0
    assert {row["run_id"] for row in [*events(out), *rejected(out)]} == {"again"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.jsonl"], "ingest: nothing.jsonl: no such file or folder"),
        (["a.jsonl", "*.json"], "ingest: *.json: no file matches"),
        (["--from", "parquet", "."], "ingest: .: no *.parquet in it"),
        (["--max-rejected", "101", "a.jsonl"], "ingest: --set max_rejected=101.0: max_rejected: Input should be less"),
        (["--max-disorder-ms", "-1", "a.jsonl"], "ingest: --set max_disorder_ms=-1: max_disorder_ms: Input should be"),
        (["--config", "none.yaml", "a.jsonl"], "ingest: none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2_before_a_jvm_is_started(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "a.jsonl", [clock()])
    monkeypatch.chdir(tmp_path)
    assert main.check([*arguments, "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)


def test_the_summary_says_why_lines_were_rejected_the_most_frequent_first() -> None:
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


def test_a_terminal_shows_the_phase_and_the_tasks_that_are_done() -> None:
    terminal, looked = Terminal(), []

    def tasks() -> tuple[int, int]:
        looked.append(1)
        return 3, 40

    with Phases(tasks, terminal, every=0.001) as phases:
        phases("reading 2 files")
        while len(looked) < 100:
            pass
    assert "reading 2 files · 3 of 40 tasks" in terminal.getvalue()


def test_off_a_terminal_each_phase_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Phases(lambda: (0, 0), io.StringIO()) as phases:
        phases("reading 2 files")
        phases("writing 5 events")
    assert caplog.messages == ["reading 2 files", "writing 5 events"]

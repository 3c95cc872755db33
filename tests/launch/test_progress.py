"""The progress of a query, on a terminal and in a log."""

from __future__ import annotations

import io
import logging
from datetime import UTC, datetime

import pytest

from purgatory_udf.streaming.query_monitor import Progress, describe

END = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)


def test_a_batch_is_described_in_one_line() -> None:
    watermark = datetime(2026, 3, 1, 12, 0, 3, 250_000, tzinfo=UTC)
    assert describe(12, 600_000, 41_230.4, 312, watermark, END) == (
        "batch 12 · 600,000 events · 41,230 events/s · 312 open"
        " · watermark 2026-03-01 12:00:03.250 of 2026-03-01 12:00:10.000"
    )


def test_what_nobody_knows_is_left_out() -> None:
    assert describe(0, 10, 5.0, None, None, None) == "batch 0 · 10 events · 5 events/s"


def test_off_a_terminal_lines_are_logged_now_and_then_and_the_last_one_always(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = iter([0.0, 1.0, 2.5, 3.0])
    caplog.set_level(logging.INFO, "purgatory_udf")
    with Progress("partitions", io.StringIO(), every=2.0, clock=lambda: next(seconds)) as progress:
        for batch in range(4):
            progress.update(batch, 100 * (batch + 1), 50.0, None, None, None)
    assert caplog.messages == [
        "partitions: batch 0 · 100 events · 50 events/s",
        "partitions: batch 2 · 300 events · 50 events/s",
        "partitions: batch 3 · 400 events · 50 events/s",
    ]


def test_a_clock_that_runs_on_past_the_end_is_said_to_do_so() -> None:
    late = datetime(2026, 3, 27, tzinfo=UTC)
    assert describe(3, 10, 0.0, 0, late, END) == (
        "batch 3 · 10 events · 0 events/s · 0 open · watermark past the end at 2026-03-01 12:00:10.000"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_moves_and_the_last_one_stays_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    caplog.set_level(logging.INFO, "purgatory_udf")
    terminal = _Terminal()
    with Progress("partitions", terminal) as progress:
        progress.update(0, 100, 50.0, 3, None, None)
        progress.update(1, 200, 50.0, 2, None, None)
    assert "partitions" in terminal.getvalue()
    assert caplog.messages == ["partitions: batch 1 · 200 events · 50 events/s · 2 open"]

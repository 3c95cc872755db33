"""The progress of a streaming query, on a terminal and in a log."""

from __future__ import annotations

import io
import logging
from datetime import UTC, datetime

import pytest

from purgatory_udf.streaming.progress_line import ProgressLine, format_progress

END = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)


def test_batch_is_one_line() -> None:
    watermark = datetime(2026, 3, 1, 12, 0, 3, 250_000, tzinfo=UTC)
    assert format_progress(12, 600_000, 41_230.4, 312, watermark, END) == (
        "batch 12 · 600,000 events · 41,230 events/s · 312 open operations"
        " · watermark 2026-03-01 12:00:03.250 of 2026-03-01 12:00:10.000"
    )


def test_unknown_values_are_omitted() -> None:
    assert format_progress(0, 10, 5.0, None, None, None) == "batch 0 · 10 events · 5 events/s"


def test_log_has_periodic_and_last_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = iter([0.0, 1.0, 2.5, 3.0])
    caplog.set_level(logging.INFO, "purgatory_udf")
    with ProgressLine("partitions", io.StringIO(), every=2.0, clock=lambda: next(seconds)) as progress:
        for batch in range(4):
            progress.update(batch, 100 * (batch + 1), 50.0, None, None, None)
    assert caplog.messages == [
        "partitions: batch 0 · 100 events · 50 events/s",
        "partitions: batch 2 · 300 events · 50 events/s",
        "partitions: batch 3 · 400 events · 50 events/s",
    ]


def test_watermark_past_the_end_is_marked() -> None:
    late = datetime(2026, 3, 27, tzinfo=UTC)
    assert format_progress(3, 10, 0.0, 0, late, END) == (
        "batch 3 · 10 events · 0 events/s · 0 open operations · "
        "watermark past the trace's end at 2026-03-01 12:00:10.000"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_line_and_logs_last(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    caplog.set_level(logging.INFO, "purgatory_udf")
    terminal = _Terminal()
    with ProgressLine("partitions", terminal) as progress:
        progress.update(0, 100, 50.0, 3, None, None)
        progress.update(1, 200, 50.0, 2, None, None)
    assert "partitions" in terminal.getvalue()
    assert caplog.messages == ["partitions: batch 1 · 200 events · 50 events/s · 2 open operations"]

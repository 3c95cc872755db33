"""The progress line of a running query: `partitions: batch 12 · 600,000 events · 41,230 events/s · …`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console
from rich.status import Status

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from purgatory_udf.streaming.event_source import Survey

log = logging.getLogger(__name__)


class BatchProgress:
    """Filter that returns each batch of a query once, although Spark repeatedly reports the last hundred batches.

    A query may run for months, so a batch is forgotten as soon as Spark no longer reports it. `events` is the number of
    rows that the query has read from its first source.
    """

    def __init__(self) -> None:
        self.events = 0
        self._rows: dict[int, int] = {}

    def new_reports(self, recent: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        """Return the reports that were not returned before, or that have more rows by now.

        Args:
            recent: The query's `recentProgress`.
        """
        fresh = []
        for progress in recent:
            known = self._rows.get(progress.batchId)
            # An idle query reports the number of its next batch, which is then reported again with rows.
            if known is None or known < progress.numInputRows:
                self._rows[progress.batchId] = progress.numInputRows
                self.events += progress.sources[0].numInputRows if progress.sources else 0
                fresh.append(progress)
        self._rows = {progress.batchId: self._rows[progress.batchId] for progress in recent}
        return fresh

    def __len__(self) -> int:
        """Return the number of batches in memory."""
        return len(self._rows)


class ProgressLine:
    """The progress of a query: one line that is updated on a terminal, otherwise log lines.

    At most one line per `every` seconds is logged; the last one is always logged.
    """

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        every: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._every = every
        self._clock = clock
        self._logged: float | None = None
        self._pending_line: str | None = None
        console = Console(file=stream or sys.stderr)
        self._status: Status | None = console.status(title) if console.is_terminal else None

    def __enter__(self) -> ProgressLine:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()
        if self._pending_line:
            log.info(self._pending_line)
            self._pending_line = None

    def update(
        self,
        batch: int,
        events: int,
        rate: float,
        open_operations: int | None,
        watermark: datetime | None,
        trace_end: datetime | None,
    ) -> None:
        """Show a batch. For the arguments see `format_progress`."""
        line = f"{self._title}: {format_progress(batch, events, rate, open_operations, watermark, trace_end)}"
        self._pending_line = line
        if self._status:
            self._status.update(line)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= self._every:
            log.info(line)
            self._logged = now
            self._pending_line = None


def format_progress(
    batch: int,
    events: int,
    rate: float,
    open_operations: int | None,
    watermark: datetime | None,
    trace_end: datetime | None,
) -> str:
    """Return the numbers of a batch in one line. Arguments that are None are left out.

    Args:
        batch: Number of the batch.
        events: Number of events read since the query started.
        rate: Events per second.
        open_operations: Number of open operations.
        watermark: Spark's watermark.
        trace_end: Time of the trace's last event.
    """
    parts = [f"batch {batch}", f"{events:,} events", f"{rate:,.0f} events/s"]
    if open_operations is not None:
        parts.append(f"{open_operations:,} open operations")
    if watermark is not None and trace_end is not None and watermark > trace_end:
        parts.append(f"watermark past the trace's end at {_clock_time(trace_end)}")
    elif watermark is not None:
        end = f" of {_clock_time(trace_end)}" if trace_end else ""
        parts.append(f"watermark {_clock_time(watermark)}{end}")
    return " · ".join(parts)


def _clock_time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


class LiveCounts(Protocol):
    """Counts of a followed replay. `refresh` is called about once a second."""

    @property
    def open(self) -> int: ...
    def refresh(self) -> None: ...


def show_batch(
    line: ProgressLine, progress: StreamingQueryProgress, events: int, survey: Survey | None, live: LiveCounts | None
) -> None:
    """Show a batch that a query reports in its progress line.

    Args:
        line: The progress line.
        progress: Spark's report of the batch.
        events: Number of events read since the query started.
        survey: Facts of the trace, for the time of its end; None if it is unknown.
        live: Counts of a followed replay.
    """
    first = progress.sources[0] if progress.sources else None
    end = survey.last_us if survey else None
    line.update(
        batch=progress.batchId,
        events=events,
        rate=first.processedRowsPerSecond if first and first.numInputRows else 0.0,
        open_operations=None if live is None else live.open,
        watermark=_moment(progress.eventTime.get("watermark") if progress.eventTime else None),
        trace_end=datetime.fromtimestamp(end / 1e6, UTC) if end else None,
    )


def _moment(text: str | None) -> datetime | None:
    moment = datetime.fromisoformat(text) if text else None
    return moment if moment and moment.year > 1970 else None

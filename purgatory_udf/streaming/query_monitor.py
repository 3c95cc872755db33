"""Following a running query: its progress line, and its end."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

from rich.console import Console
from rich.status import Status

from purgatory_udf.common.errors import CheckFailedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from purgatory_udf.streaming.event_source import Survey


# What a query's batches have said of themselves: each once, though Spark shows the last hundred of them at every look.
#
# A query may go on for months: nothing is kept of a batch that Spark does not show any more.


class BatchProgress:
    """`events`: how many rows of its first source the query has taken."""

    def __init__(self) -> None:
        self.events = 0
        self._rows: dict[int, int] = {}

    def new(self, recent: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        """Those that were not told of before."""
        fresh = []
        for progress in recent:
            known = self._rows.get(progress.batchId)
            # A query without input says so under the number that its next batch will have.
            if known is None or known < progress.numInputRows:
                self._rows[progress.batchId] = progress.numInputRows
                self.events += progress.sources[0].numInputRows if progress.sources else 0
                fresh.append(progress)
        self._rows = {progress.batchId: self._rows[progress.batchId] for progress in recent}
        return fresh

    def __len__(self) -> int:
        """How many are kept in mind."""
        return len(self._rows)


# What a streaming query is doing: one moving line on a terminal, a log line now and then elsewhere.


log = logging.getLogger(__name__)


class ProgressLine:
    """A context manager fed with each batch's numbers; it shows the newest ones, and the last ones always.

    Off a terminal at most one line per `every` seconds is logged, however short the batches are.
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
        self._held: str | None = None
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
        if self._held:
            log.info(self._held)
            self._held = None

    def update(
        self,
        batch: int,
        events: int,
        rate: float,
        open_operations: int | None,
        watermark: datetime | None,
        trace_end: datetime | None,
    ) -> None:
        """Show a batch: `events` are those read so far, `rate` is events per second, unknown numbers are None."""
        line = f"{self._title}: {format_progress(batch, events, rate, open_operations, watermark, trace_end)}"
        self._held = line
        if self._status:
            self._status.update(line)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= self._every:
            log.info(line)
            self._logged = now
            self._held = None


def format_progress(
    batch: int,
    events: int,
    rate: float,
    open_operations: int | None,
    watermark: datetime | None,
    trace_end: datetime | None,
) -> str:
    """The numbers of a batch in one line, without those that nobody knows."""
    parts = [f"batch {batch}", f"{events:,} events", f"{rate:,.0f} events/s"]
    if open_operations is not None:
        parts.append(f"{open_operations:,} open")
    if watermark is not None and trace_end is not None and watermark > trace_end:
        parts.append(f"watermark past the end at {_clock_time(trace_end)}")
    elif watermark is not None:
        end = f" of {_clock_time(trace_end)}" if trace_end else ""
        parts.append(f"watermark {_clock_time(watermark)}{end}")
    return " · ".join(parts)


def _clock_time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


_POLL_SECONDS = 1
_STOP_POLL_SECONDS = 0.05
_MAX_BATCH_WAIT_SECONDS = 30


class LiveCounts(Protocol):
    """What a followed replay says of itself."""

    @property
    def open(self) -> int: ...
    def refresh(self) -> None: ...


def monitor_query(
    query: StreamingQuery,
    title: str,
    survey: Survey | None,
    others: Sequence[StreamingQuery] = (),
    live: LiveCounts | None = None,
) -> None:
    """Show batches until the query ends. Raised is what a query `beside` it dies of, and that rows were dropped as late
    (at once with queries `beside`, for these may never end)."""
    batches = BatchProgress()
    late: dict[tuple[str, int], int] = {}
    with ProgressLine(title) as line:
        try:
            while True:
                ended = query.awaitTermination(_POLL_SECONDS)
                if live is not None:
                    live.refresh()
                recent = query.recentProgress
                for progress in batches.new(recent):
                    _show(line, progress, batches.events, survey, live)
                reports = [(query, recent), *((other, other.recentProgress) for other in others)]
                late |= {
                    (each.id, progress.batchId): dropped
                    for each, shown in reports
                    for progress in shown
                    if (dropped := _dropped(progress))
                }
                if late and (ended or others):
                    raise CheckFailedError(
                        f"{sum(late.values())} packed rows came later than max_disorder_ms allows and were not "
                        "replayed; ingest rejects such events by name, or allow more disorder"
                    )
                if ended:
                    break
                for other in others:
                    if not other.isActive:
                        other.awaitTermination()
        except KeyboardInterrupt:
            # With others beside it, whoever started them all stops them all.
            if not others:
                query.stop()
            raise


def _dropped(progress: Any) -> int:
    return sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)


def stop_queries(queries: Sequence[StreamingQuery]) -> None:
    """Stop them in this order, each after the batch that it is at, if that does not take too long: a batch that is
    interrupted is done again, but Spark says so in many lines."""
    for query in queries:
        # The interrupt that stops us may have stopped the JVM, too.
        with suppress(Exception):
            began = time.monotonic()
            while query.status["isTriggerActive"] and time.monotonic() - began < _MAX_BATCH_WAIT_SECONDS:
                time.sleep(_STOP_POLL_SECONDS)
            query.stop()


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Whoever asks the process to end (SIGTERM) interrupts it, as the keyboard does: what is in here stops first."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(line: ProgressLine, progress: Any, events: int, survey: Survey | None, live: LiveCounts | None) -> None:
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

"""Following a running query: its progress line, and its end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from purgatory_udf.errors import LawBrokenError
from purgatory_udf.progress import Progress
from purgatory_udf.stream.batches import Batches

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from purgatory_udf.stream.survey import Survey

_LOOK_EVERY_SECONDS = 1
_A_MOMENT_SECONDS = 0.05
_PATIENCE_SECONDS = 30


class Live(Protocol):
    """What a followed replay says of itself."""

    @property
    def open(self) -> int: ...
    def look(self) -> None: ...


def follow_to_end(
    query: StreamingQuery,
    title: str,
    survey: Survey | None,
    beside: Sequence[StreamingQuery] = (),
    live: Live | None = None,
) -> None:
    """Show batches until the query ends. Raised is what a query `beside` it dies of, and that rows were dropped as late
    (at once with queries `beside`, for these may never end)."""
    batches = Batches()
    late: dict[tuple[str, int], int] = {}
    with Progress(title) as line:
        try:
            while True:
                ended = query.awaitTermination(_LOOK_EVERY_SECONDS)
                if live is not None:
                    live.look()
                recent = query.recentProgress
                for progress in batches.new(recent):
                    _show(line, progress, batches.events, survey, live)
                reports = [(query, recent), *((other, other.recentProgress) for other in beside)]
                late |= {
                    (each.id, progress.batchId): dropped
                    for each, shown in reports
                    for progress in shown
                    if (dropped := _dropped(progress))
                }
                if late and (ended or beside):
                    raise LawBrokenError(
                        f"{sum(late.values())} packed rows came later than max_disorder_ms allows and were not "
                        "replayed; ingest rejects such events by name, or allow more disorder"
                    )
                if ended:
                    break
                for other in beside:
                    if not other.isActive:
                        other.awaitTermination()
        except KeyboardInterrupt:
            # With others beside it, whoever started them all stops them all.
            if not beside:
                query.stop()
            raise


def _dropped(progress: Any) -> int:
    return sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)


def stop_all(queries: Sequence[StreamingQuery]) -> None:
    """Stop them in this order, each after the batch that it is at, if that does not take too long: a batch that is
    interrupted is done again, but Spark says so in many lines."""
    for query in queries:
        # The interrupt that stops us may have stopped the JVM, too.
        with suppress(Exception):
            began = time.monotonic()
            while query.status["isTriggerActive"] and time.monotonic() - began < _PATIENCE_SECONDS:
                time.sleep(_A_MOMENT_SECONDS)
            query.stop()


@contextmanager
def stopped_by_signal() -> Iterator[None]:
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


def _show(line: Progress, progress: Any, events: int, survey: Survey | None, live: Live | None) -> None:
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

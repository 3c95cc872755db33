"""What a streaming query is doing: one moving line on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.status import Status

log = logging.getLogger(__name__)


class Progress:
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

    def __enter__(self) -> Progress:
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
        line = f"{self._title}: {describe(batch, events, rate, open_operations, watermark, trace_end)}"
        self._held = line
        if self._status:
            self._status.update(line)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= self._every:
            log.info(line)
            self._logged = now
            self._held = None


def describe(
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

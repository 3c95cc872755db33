"""Replays a growing table: runs all queries at the same time until interrupted.

Nothing is drained. The number of open operations is shown at once, and the run's counts are saved to `runs` every
minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.backend import SparkBackend
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import Survey, growing_stream
from purgatory_udf.streaming.query_monitor import interrupt_on_sigterm, monitor_query, stop_queries
from purgatory_udf.streaming.query_plan import BROKERS, QUERIES, Queries, stream_queries
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.stateful_rules import Plan
from purgatory_udf.streaming.status_file import StatusFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_POLL_SECONDS = 1
# Each save is one more version of the `runs` table.
_SAVE_SECONDS = 60.0


def follow(backend: SparkBackend, options: ReplayOptions, layout: Layout, run: Run) -> Run:
    """Replay a growing table until the process is interrupted."""
    most_bytes = options.config.fetch.max_bytes
    with interrupt_on_sigterm():
        began_ms = _first_event_ms(backend, options.events)
        status_files = StatusFiles(backend, layout, run.run_id, QUERIES)
        counts = RunningCounts(backend, layout, run, status_files)

        def events() -> DataFrame:
            return growing_stream(backend, options.events)

        plan = Plan(run.run_id, options.config.max_disorder_ms > 0, None, is_followed=True)
        queries = Queries(backend, options.config, layout, run, plan, began_ms, status_files)
        make = stream_queries(backend, events, options.config)
        made = [make(*each) for each in (*queries.partition_sinks(most_bytes), queries.group_sink())]
        # A query that others read from starts first, and stops first.
        running = [query.start() for query in sorted(made, key=lambda query: query.name == BROKERS)]
        try:
            monitor_query(running[0], "replay", Survey(0, 0, 0, None, None, most_bytes), running[1:], counts)
        finally:
            stop_queries(running)
            counts.stop()
    return run


def _first_event_ms(backend: SparkBackend, events: str) -> int:
    """Wait for the first event and return its time, at which gauges are first read."""
    while True:
        first = backend.query("SELECT min(time_us) AS first_us FROM {events}", {"events": events})
        first_us = first.column("first_us")[0].as_py()
        if first_us is not None:
            return int(first_us) // 1000
        log.info("waiting for the first event")
        time.sleep(_POLL_SECONDS)


class RunningCounts:
    """The counts of a run that follows a table."""

    def __init__(
        self,
        backend: SparkBackend,
        layout: Layout,
        run: Run,
        status_files: StatusFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._table, self._run, self._status_files = backend, layout.table("runs"), run, status_files
        self._clock = clock
        self._saved: dict[str, Any] = run.counts
        self._saved_at: float | None = None

    @property
    def open(self) -> int:
        """Number of open operations."""
        return self._status_files.open

    def refresh(self) -> None:
        """Save the counts if they are due; the first ones at once."""
        now = self._clock()
        if self._saved_at is None or now - self._saved_at >= _SAVE_SECONDS:
            self._save(now)

    def stop(self) -> None:
        """Save the counts a last time."""
        self._save(self._clock())

    def _save(self, now: float) -> None:
        counts = self._status_files.counts()
        if counts == self._saved or not counts["events"]:
            return
        self._saved_at = now
        try:
            run_records.save(self._backend, self._table, replace(self._run, counts=counts))
            self._saved = counts
        except Exception as error:
            # Another job may be writing its row, or the interrupt that stops this process has stopped the JVM. The next
            # save will do as well.
            log.debug("counts are not saved: %s", error)

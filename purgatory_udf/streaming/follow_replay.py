"""A replay that follows a table which still grows: all queries side by side, until they are interrupted; nothing is
drained. Meanwhile it says how much is open, at once, and its counts in `runs`, now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.storage import run_records
from purgatory_udf.storage.delta_tables import asked
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import Survey, growing_stream
from purgatory_udf.streaming.query_monitor import interrupt_on_sigterm, monitor_query, stop_queries
from purgatory_udf.streaming.query_plan import BROKERS, QUERIES, Queries
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.stateful_rules import Plan
from purgatory_udf.streaming.status_file import StatusFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1
# Each time is one more version of the table.
_SAVE_EVERY_SECONDS = 60.0


def follow(spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run) -> Run:
    most_bytes = options.config.fetch.max_bytes
    with interrupt_on_sigterm():
        began_ms = _first_event_ms(spark, options.events)
        status_files = StatusFiles(spark, layout, run.run_id, QUERIES)
        counts = RunningCounts(spark, layout, run, status_files)

        def events() -> DataFrame:
            return growing_stream(spark, options.events)

        plan = Plan(run.run_id, options.config.max_disorder_ms > 0, None, is_followed=True)
        queries = Queries(spark, options.config, layout, run, plan, began_ms, events, status_files)
        # What others read from comes first, and stops first.
        those = [*queries.of_partitions(most_bytes), queries.of_groups()]
        running = [query.start() for query in sorted(those, key=lambda query: query.name == BROKERS)]
        try:
            monitor_query(running[0], "replay", Survey(0, 0, 0, None, None, most_bytes), running[1:], counts)
        finally:
            stop_queries(running)
            counts.stop()
    return run


def _first_event_ms(spark: SparkSession, events: str) -> int:
    """When the trace begins: gauges are read from there on. Waits for a first event."""

    def first(session: SparkSession) -> int | None:
        row = session.read.format("delta").load(events).agg(sf.min("time_us")).first()
        return row[0] if row is not None else None

    while True:
        first_us = asked(spark, events, first)
        if first_us is not None:
            return first_us // 1000
        log.info("waiting for a first event")
        time.sleep(_LOOK_EVERY_SECONDS)


class RunningCounts:
    """The counts of a run that goes on."""

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        run: Run,
        status_files: StatusFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._table, self._run, self._status_files = spark, layout.table("runs"), run, status_files
        self._clock = clock
        self._saved: dict[str, Any] = run.counts
        self._saved_at: float | None = None

    @property
    def open(self) -> int:
        return self._status_files.open

    def refresh(self) -> None:
        """The first counts are saved at once."""
        now = self._clock()
        if self._saved_at is None or now - self._saved_at >= _SAVE_EVERY_SECONDS:
            self._save(now)

    def stop(self) -> None:
        self._save(self._clock())

    def _save(self, now: float) -> None:
        counts = self._status_files.counts()
        if counts == self._saved or not counts["events"]:
            return
        self._saved_at = now
        try:
            run_records.save(self._spark, self._table, replace(self._run, counts=counts))
            self._saved = counts
        except Exception as error:
            # Another job may have written its row at this moment; and the interrupt that stops us may have stopped the
            # JVM, too. It is no reason to stop, and there is a next time.
            log.debug("counts are not saved: %s", error)

"""Request-log lines from a growing topic: each step appends the events that are settled by now, in their total order.

A step of few lines is taken in this process (`small`). Steps of either kind may follow each other.

Its rejected lines are written first, then what the brokers recorded, its events last, each once (`once`); then what is
left for the next step.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from glob import escape
from typing import TYPE_CHECKING

from purgatory_udf.kafka import small
from purgatory_udf.kafka.options import KafkaTopic
from purgatory_udf.query import functions as sf
from purgatory_udf.requestlog.following.carried import Carried
from purgatory_udf.requestlog.following.remains import Remains, step_folder
from purgatory_udf.requestlog.following.step import Step
from purgatory_udf.requestlog.importing import reading
from purgatory_udf.requestlog.importing.frames import mapped
from purgatory_udf.requestlog.importing.options import RequestLogOptions
from purgatory_udf.requestlog.importing.spark_import import given_by
from purgatory_udf.requestlog.importing.spark_tables import (
    EVENTS_TABLE,
    RECORDED_TABLE,
    REJECTED_TABLE,
    Finished,
    numbered,
    recorded,
    rejections,
)
from purgatory_udf.requestlog.lines.stamp import zone_of
from purgatory_udf.requestlog.report import Report
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.once import once
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class LogSteps:
    """Takes one step after the other."""

    def __init__(
        self, spark: SparkSession, layout: Layout, run: Run, topic: KafkaTopic, options: RequestLogOptions, folder: str
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._run = run
        self._options = options
        self._given = given_by(options)
        self._topic = topic.topic
        self._folder = folder
        self._carried: Carried | None = None

    def write(self, messages: DataFrame, step: int) -> None:
        before = [escape(step_folder(self._folder, step - 1))]
        small.taken(self._spark, messages, self._folder, lambda spark, rows: self.take(spark, rows, step), before)

    def take(self, spark: SparkSession, messages: DataFrame, step: int) -> None:
        """With this session, whoever took the step before."""
        remains = Remains(spark, self._folder)
        left = remains.begin(step)
        first = left.carried.seq
        read_lines = reading.read_messages(zone_of(self._options.zone), left.carried.until_us)
        read = remains.stage(step, "read", mapped(messages, read_lines, reading.READ))

        def stage(name: str, frame: DataFrame) -> DataFrame:
            return remains.stage(step, name, frame)

        hold_us = self._options.hold_ms * 1000
        source = sf.concat(sf.lit(f"{self._topic}-"), sf.col("file"))
        taken = Step(spark, self._given, hold_us, source, stage).take(left, read)
        carried = taken.left.carried
        # What the contract refuses keeps its number, so that nothing else's depends on it.
        carried.seq += taken.finished.events.count()
        written = self._append(spark, taken.finished, first, step)
        held_back = remains.end(step, taken.left)
        self._carried = carried
        until = datetime.fromtimestamp(max(0, carried.until_us) / 1e6, UTC)
        log.info(
            "written up to %s: %s events more; %s requests held back",
            f"{until:%F %T}",
            f"{written:,}",
            f"{held_back:,}",
        )

    def summary(self) -> list[str]:
        if self._carried is None:
            return []
        path = self._layout.table(EVENTS_TABLE)
        return [f"{self._carried.seq:,} events  {path}", *Report(self._carried.counts).sentences()]

    def _append(self, spark: SparkSession, finished: Finished, first: int, step: int) -> int:
        """How many events the step had; the first is numbered `first`."""
        events = numbered(spark, finished, self._run.run_id, first).where("rule IS NULL")
        rejected = rejections(finished, self._run.run_id)
        if rejected.head(1):
            self._write(rejected, REJECTED_TABLE, step)
        count = events.count()
        if count:
            self._write(recorded(events), RECORDED_TABLE, step)
            path, each = self._layout.table(EVENTS_TABLE), self._options.events_per_file
            rows = events.select(*TABLES[EVENTS_TABLE].names)
            write_in_time_order(rows, path, count, each, "append", **once(self._run, EVENTS_TABLE, step))
        return count

    def _write(self, rows: DataFrame, table: str, step: int) -> None:
        writer = rows.write.format("delta").mode("append").options(**once(self._run, table, step))
        writer.save(self._layout.table(table))

"""Events from a growing topic: each step appends what has come, in time order, for a replay that follows the table.

    topic ─► judged, line by line ─┬─► later than allowed, or no event ─► rejected_events
                                   └─► in order of time, numbered ──────► events

A step is written once, however often it is repeated after a crash: its rejected lines first, its events last, then
how far the table has come, from where the next step goes on (one that is repeated must not find its own events). The
order within a step is whole; an event that lies further back than `max_disorder_ms` before what an earlier step has
written is rejected as late. `seq` is given here: the messages' own only orders those of one microsecond.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from glob import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import Window, locally_in_this_thread
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.input_size import FOLLOWED_BYTES, held, is_here
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.contract import Rejection, read_line
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.launch.spark_session import session_for
from purgatory_udf.sources.kafka.kafka_topic import KafkaTopic
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.following.carried_state import Carried, Remains, step_folder
from purgatory_udf.sources.request_log.following.follow_step import Step
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.import_passes import mapped
from purgatory_udf.sources.request_log.importing.import_tables import (
    EVENTS_TABLE,
    RECORDED_TABLE,
    REJECTED_TABLE,
    Finished,
    numbered,
    recorded,
    rejections,
)
from purgatory_udf.sources.request_log.importing.log_import import given_by
from purgatory_udf.sources.request_log.lines.log_files import zone_of
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.sources.trace_files.typed_columns import FIELDS, take
from purgatory_udf.storage.checkpoints import Snapshots
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run, once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Steps of little text, taken in this process: what Spark plans and starts for one costs more than its lines.


Take = Callable[["SparkSession", "DataFrame"], None]


def taken(spark: SparkSession, messages: DataFrame, folder: str, take: Take, before: Sequence[str] = ()) -> None:
    """The step, taken once: here, if the messages and what it goes on with, the files `before`, are few bytes and lie
    on this machine; else by Spark."""
    if _is_small(spark, messages, folder, before):
        with suppress(NeedsSparkError), locally_in_this_thread():
            here: Any = session_for("purgatory-ingest")
            take(here, here.frame_of(messages.toArrow()))
            return
    take(spark, messages)


def _is_small(spark: SparkSession, messages: DataFrame, folder: str, before: Sequence[str]) -> bool:
    from pyspark.sql import functions

    if not (spark.sparkContext.master or "").startswith("local") or not is_here(folder):
        return False
    gone_on_with = held(before, FOLLOWED_BYTES)
    if gone_on_with is None:
        return False
    total = messages.agg(functions.sum(functions.octet_length("value"))).first()
    return total is not None and gone_on_with + (total[0] or 0) <= FOLLOWED_BYTES


EVENTS, REJECTED = "events", "rejected_events"

# A message, judged: an event's fields, or the reason why it is none.
JUDGED = pa.schema(
    [
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        *FIELDS,
    ]
)


class EventSteps:
    """Writes one step after the other; remembers, in the folder, how far the table has come."""

    def __init__(
        self, spark: SparkSession, layout: Layout, run: Run, topic: KafkaTopic, options: IngestOptions, folder: str
    ) -> None:
        self._layout = layout
        self._run = run
        self._topic = topic
        self._options = options
        self._spark, self._folder = spark, folder
        self._latest_us, self._last_seq = 0, 0

    def write(self, messages: DataFrame, step: int) -> None:
        taken(self._spark, messages, self._folder, lambda spark, rows: self.take(spark, rows, step))

    def take(self, spark: SparkSession, messages: DataFrame, step: int) -> None:
        """With this session, whoever took the step before."""
        self._latest_us, self._last_seq = self._before(spark, step)
        judged = messages.mapInArrow(_judge, from_arrow_schema(JUDGED)).persist()
        try:
            horizon = self._latest_us - self._options.max_disorder_ms * 1000
            late = f"late: more than {self._options.max_disorder_ms} ms behind what was there before it"
            decided = judged.withColumn(
                "reason",
                sf.coalesce("reason", sf.when(sf.col("time_us") < horizon, sf.lit(late))),
            ).withColumns(
                {
                    "run_id": sf.lit(self._run.run_id),
                    "source": sf.concat(sf.lit(f"{self._topic.topic}-"), sf.col("kafka_partition")),
                    "line": sf.col("kafka_offset"),
                }
            )
            self._reject(decided.where("reason IS NOT NULL"), step)
            self._append(decided.where("reason IS NULL"), step)
        finally:
            judged.unpersist()
        Snapshots(spark, self._folder).keep(step, json.dumps([self._latest_us, self._last_seq]).encode())

    def summary(self) -> list[str]:
        return [f"{self._last_seq:,} events  {self._layout.table(EVENTS)}"]

    def _before(self, spark: SparkSession, step: int) -> tuple[int, int]:
        """The latest time and the last number that earlier steps have written."""
        left = Snapshots(spark, self._folder).before(step)
        if left is not None:
            latest_us, last_seq = json.loads(left)
            return latest_us, last_seq
        if not step:
            return 0, 0
        # Followed so far by a version that kept nothing of it beside the table.
        written = spark.read.format("delta").load(self._layout.table(EVENTS))
        latest = written.agg(sf.max("time_us"), sf.max("seq")).first()
        assert latest is not None
        return latest[0] or 0, latest[1] or 0

    def _reject(self, rows: DataFrame, step: int) -> None:
        if rows.head(1):
            rejected = rows.select(*TABLES[REJECTED].names).write.format("delta").mode("append")
            rejected.options(**once(self._run, REJECTED, step)).save(self._layout.table(REJECTED))

    def _append(self, rows: DataFrame, step: int) -> None:
        order = Window.orderBy("time_us", sf.col("seq").isNull(), "seq", "kafka_partition", "kafka_offset")
        numbered = rows.withColumns(
            {
                "event_time": sf.timestamp_micros("time_us"),
                "seq": sf.row_number().over(order).cast("bigint") + self._last_seq,
            }
        ).select(*TABLES[EVENTS].names)
        totals = numbered.agg(sf.count("*"), sf.max("time_us"), sf.max("seq")).first()
        assert totals is not None
        if totals[0]:
            path, each = self._layout.table(EVENTS), self._options.events_per_file
            write_in_time_order(numbered, path, totals[0], each, "append", **once(self._run, EVENTS, step))
            self._latest_us, self._last_seq = max(self._latest_us, totals[1]), totals[2]


def _judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = [text.encode() for text in batch.column("value").to_pylist()]
        taken = take(lines)
        for events, numbers in zip(taken.events, taken.numbers, strict=True):
            place = batch.take(pa.array(numbers))
            given = {
                "kafka_partition": place.column("partition"),
                "kafka_offset": place.column("offset"),
                "raw": place.column("value"),
                **dict(zip(events.schema.names, events.columns, strict=True)),
            }
            columns = [given.get(field.name, pa.nulls(len(numbers), field.type)).cast(field.type) for field in JUDGED]
            yield pa.RecordBatch.from_arrays(columns, schema=JUDGED)
        left = batch.take(pa.array(taken.left, pa.int64())).to_pylist()
        rows = [row for message in left if (row := _judged(message)) is not None]
        yield pa.RecordBatch.from_pylist(rows, schema=JUDGED)


def _judged(message: dict[str, Any]) -> dict[str, Any] | None:
    """None for a message without anything in it."""
    row = {"kafka_partition": message["partition"], "kafka_offset": message["offset"], "raw": message["value"]}
    try:
        event = read_line(message["value"].encode())
    except Rejection as rejection:
        return {**row, "reason": rejection.reason}
    return None if event is None else {**row, **event}


# Request-log lines from a growing topic: each step appends the events that are settled by now, in their total order.
#
# A step of few lines is taken in this process (`small`). Steps of either kind may follow each other.
#
# Its rejected lines are written first, then what the brokers recorded, its events last, each once (`once`); then what
# is left for the next step.


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
        taken(self._spark, messages, self._folder, lambda spark, rows: self.take(spark, rows, step), before)

    def take(self, spark: SparkSession, messages: DataFrame, step: int) -> None:
        """With this session, whoever took the step before."""
        remains = Remains(spark, self._folder)
        left = remains.begin(step)
        first = left.carried.seq
        read_lines = log_reader.read_messages(zone_of(self._options.zone), left.carried.until_us)
        read = remains.stage(step, "read", mapped(messages, read_lines, log_reader.READ))

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

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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.contract import Rejection, read_line
from purgatory_udf.ingest.columns import FIELDS, take
from purgatory_udf.ingest.report import IngestOptions
from purgatory_udf.kafka import small
from purgatory_udf.kafka.options import KafkaTopic
from purgatory_udf.query import Window
from purgatory_udf.query import functions as sf
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.once import once
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.snapshots import Snapshots
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        small.taken(self._spark, messages, self._folder, lambda spark, rows: self.take(spark, rows, step))

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

"""The two partition queries: events to watches, watches to operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from purgatory_udf.columnar.codec import unpack
from purgatory_udf.columnar.records import outcome_tables, watch_table
from purgatory_udf.columnar.settle import Settled
from purgatory_udf.config import Config
from purgatory_udf.stream import adapter
from purgatory_udf.stream.adapter import Limits
from purgatory_udf.stream.buckets import BUCKETED, splitter
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.packing import PACKED, packer
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# What the partition query reads of an event.
COLUMNS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "acks", "timeout_ms", "replica_id", "max_wait_ms",
    "min_bytes", "max_bytes", "isolation", "partitions", "topics", "topic", "partition", "change", "offset", "bytes",
    "leader_epoch", "isr", "min_isr",
)  # fmt: skip

# Bytes of files of ended watches that a batch of the second query takes: about two hundred thousand operations.
SETTLED_AT_ONCE = 16 << 20

OUTCOMES = ("completions", "expirations", "watches")


def packed(events: DataFrame, config: Config) -> DataFrame:
    """Events as one value per group and Arrow batch."""
    return events.select(*COLUMNS).mapInArrow(packer(config), from_arrow_schema(PACKED))


def watches_query(events: DataFrame, control: DataFrame, config: Config, limits: Limits) -> DataFrame:
    """Query 1: watcher lists by group of keys; watches as they end, packed."""
    rows = packed(events, config).unionByName(control.select(*PACKED.names))
    return (
        rows.withWatermark("event_time", f"{config.max_disorder_ms + 1} milliseconds")
        .groupBy("group")
        .applyInPandasWithState(
            adapter.keyed(limits),
            adapter.OUTPUT_SCHEMA,
            adapter.STATE_SCHEMA,
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def operations_query(settling: DataFrame, buckets: int) -> DataFrame:
    """Query 2: ended watches by bucket of operations; whole operations, packed. Counting settles them, not waiting."""
    return (
        settling.mapInArrow(splitter(buckets), from_arrow_schema(BUCKETED))
        .groupBy("bucket")
        .applyInPandasWithState(
            adapter.settling(),
            adapter.SETTLED_SCHEMA,
            adapter.PENDING_SCHEMA,
            "append",
            GroupStateTimeout.NoTimeout,
        )
    )


def rows_of(
    table: str, run_id: str, trace_end_us: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` that turns packed operations into one table's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("payload"):
                frames = unpack(value.as_py())
                settled, keys = Settled(frames["operations"], frames["watches"]), list(frames["keys"].name)
                if table == "watches":
                    found = watch_table(settled, keys, run_id)
                else:
                    found = outcome_tables(settled, keys, run_id, trace_end_us)[table == "expirations"]
                yield from found.to_batches()

    return run


def write_outcomes(
    layout: Layout, run_id: str, stream_id: str, trace_end_us: int | None, drain: bool
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`: each table once, however often a batch is repeated after a crash.

    What would expire only after the trace's end is written if the run drains, and left open if it does not.
    """

    def run(batch: DataFrame, number: int) -> None:
        # Delta skips a write it has seen and would leave the frame unread, which Spark takes for lost state.
        batch = batch.persist()
        try:
            if not batch.count():
                return
            (
                batch.write.format("delta")
                .mode("append")
                .option("txnAppId", f"{stream_id}/ended")
                .option("txnVersion", number)
                .save(layout.ended)
            )
            for table in OUTCOMES:
                rows = batch.mapInArrow(rows_of(table, run_id, trace_end_us), from_arrow_schema(TABLES[table]))
                if table == "expirations" and not drain:
                    rows = rows.where("NOT after_end")
                (
                    rows.write.format("delta")
                    .mode("append")
                    .option("txnAppId", f"{stream_id}/{table}")
                    .option("txnVersion", number)
                    .save(layout.table(table))
                )
        finally:
            batch.unpersist()

    return run


def delta_stream(
    spark: SparkSession, path: str, files: int | None = None, since: int | None = None, most_bytes: int | None = None
) -> DataFrame:
    """A table as a stream. Given the version that its content began with, its commits come one after the other, each in
    the order of its files; otherwise Delta begins with a snapshot whose files are sorted by when they were finished.
    A batch takes so many files, or so many bytes of them, and at least one."""
    reader = spark.readStream.format("delta")
    if since is not None:
        reader = reader.option("startingVersion", since)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    if most_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", f"{most_bytes}b")
    return reader.load(path)


def settling_stream(spark: SparkSession, path: str) -> DataFrame:
    """Ended watches, a bounded share at a time: settling holds a batch of them in memory, however long the trace."""
    return delta_stream(spark, path, most_bytes=SETTLED_AT_ONCE)


def to_delta(frame: DataFrame, path: str, checkpoint: str, name: str) -> DataStreamWriter:
    return (
        frame.writeStream.format("delta").option("checkpointLocation", checkpoint).queryName(name).option("path", path)
    )

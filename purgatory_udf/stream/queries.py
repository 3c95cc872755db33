"""The partition queries: events to what became of them, by groups of keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from purgatory_udf.config import Config
from purgatory_udf.live.boards import Boards
from purgatory_udf.loop.explode import columns_of
from purgatory_udf.loop.grouping import GroupOf
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.adapter import LIVE, OUTPUT_SCHEMA, RELAY, STATE_SCHEMA, Plan, keyed
from purgatory_udf.stream.gauges import closing_ms
from purgatory_udf.stream.packing import PACKED, packer
from purgatory_udf.tables import ENDS, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WRITTEN = (*ENDS, "watches", "purgatory_gauges")
_ALL_FILES = 2**31 - 1


def packed(events: DataFrame, config: Config, group: GroupOf) -> DataFrame:
    """Events as one value per group and Arrow batch."""
    return events.select(*columns_of(events.columns)).mapInArrow(packer(config, group), from_arrow_schema(PACKED))


def by_group(packed: DataFrame, control: DataFrame | None, config: Config, plan: Plan) -> DataFrame:
    """Watcher lists by group of keys; what became of the operations, packed."""
    rows = packed.select(*PACKED.names)
    if control is not None:
        rows = rows.unionByName(control.select(*PACKED.names))
    return (
        rows.withWatermark("event_time", f"{config.max_disorder_ms + 1} milliseconds")
        .groupBy("group")
        .applyInPandasWithState(keyed(plan), OUTPUT_SCHEMA, STATE_SCHEMA, "append", GroupStateTimeout.EventTimeTimeout)
    )


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: a table's rows out of their Arrow streams."""
    for batch in batches:
        for value in batch.column("payload"):
            with pa.ipc.open_stream(value.as_buffer()) as stream:
                yield from stream


@dataclass
class Sink:
    """Where a query's batches go: each table once, however often a batch is repeated after a crash.

    What would expire only after the trace's end is written if the run drains, and left open if it does not. Gauges go
    on until everything has ended: of a query whose only batch decides all there is, this is known before they are
    written (`closes`); else they are cut when all is over.
    """

    layout: Layout
    stream_id: str
    trace_end_us: int | None
    drain: bool
    name: str = ""
    boards: Boards | None = None
    closes: bool = False
    # When the last operation ended, and how many rows each table was given, if this process has seen every batch.
    latest_us: int | None = None
    rows: Counter[str] | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        """The function for `foreachBatch`."""
        # Delta skips a write it has seen and would leave the frame unread, which Spark takes for lost state.
        batch = batch.persist()
        try:
            said = sf.when(sf.col("table") == LIVE, sf.col("payload"))
            rows = batch.select("table", "group", "time_us", "rows", said.alias("said")).collect()
            self._note(number, rows)
            present = {row.table for row in rows}
            tables = [table for table in (*WRITTEN, RELAY) if table in present]
            if tables:
                # Most of a small write is planning and committing, of which one table need not wait for another.
                with ThreadPoolExecutor(len(tables)) as pool:
                    list(pool.map(lambda table: self._append(batch, table, number), tables))
            if self.boards is not None:
                live = [row for row in rows if row.table == LIVE]
                latest_ms = max((row.time_us for row in live), default=0) // 1000
                self.boards.note(self.name, number, latest_ms, ((row.group, json.loads(row.said)) for row in live))
        finally:
            batch.unpersist()

    def _note(self, number: int, rows: Sequence[Any]) -> None:
        if number == 0:
            self.latest_us, self.rows = 0, Counter()
        if self.latest_us is not None and self.rows is not None:
            self.latest_us = max([self.latest_us, *(row.time_us for row in rows if row.table in ENDS)])
            for row in rows:
                self.rows[row.table] += row.rows

    def _append(self, batch: DataFrame, table: str, number: int) -> None:
        mine = batch.where(sf.col("table") == table)
        if table == RELAY:
            # One file a batch: whoever reads on never takes half of one.
            rows = mine.select("group", sf.timestamp_micros("time_us").alias("event_time"), "payload").repartition(1)
            path = self.layout.relay
        else:
            rows, path = self._rows(mine, table), self.layout.table(table)
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", f"{self.stream_id}/{table}")
            .option("txnVersion", number)
            .save(path)
        )

    def _rows(self, batch: DataFrame, table: str) -> DataFrame:
        rows = batch.select("payload").mapInArrow(unpacked, from_arrow_schema(TABLES[table]))
        if self.closes and self.drain and table == "purgatory_gauges":
            assert self.trace_end_us is not None
            rows = rows.where(
                sf.col("at") <= sf.timestamp_millis(sf.lit(closing_ms(self.trace_end_us, self.latest_us)))
            )
        if self.drain or self.trace_end_us is None:
            return rows
        if table == "expirations":
            return rows.where("NOT after_end")
        if table == "watches":
            end = sf.timestamp_millis(sf.lit(self.trace_end_us // 1000))
            return rows.where((sf.col("status") != "expired") | (sf.col("deadline") <= end))
        if table == "purgatory_gauges":
            return rows.where(sf.col("at") <= sf.timestamp_micros(sf.lit(self.trace_end_us)))
        return rows


def to_tables(frame: DataFrame, sink: Sink, checkpoint: str, name: str) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint).queryName(name)


def delta_stream(spark: SparkSession, path: str, files: int | None = None, since: int | None = None) -> DataFrame:
    """A table as a stream. Given the version that its content began with, its commits come one after the other, each in
    the order of its files; otherwise Delta begins with a snapshot whose files are sorted by when they were finished.
    A batch takes so many files."""
    reader = spark.readStream.format("delta")
    if since is not None:
        reader = reader.option("startingVersion", since)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    return reader.load(path)


@dataclass(frozen=True)
class TraceSource:
    """The events of a finished trace: so many files of theirs a batch, or, without a number, all at once."""

    path: str
    files: int | None = None

    @property
    def at_once(self) -> bool:
        return self.files is None

    def stream(self, spark: SparkSession) -> DataFrame:
        if self.files is None:
            return delta_stream(spark, self.path, _ALL_FILES)
        return delta_stream(spark, self.path, self.files, delta.began(spark, self.path))

"""Where a query's batches go: each table once, however often a batch is repeated after a crash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.common.worker_memory import freeze_in_workers
from purgatory_udf.contract.tables import COMMENTED_TABLES, ENDS, with_comments
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage.checkpoints import Snapshots
from purgatory_udf.storage.delta_tables import commented_writer, is_near
from purgatory_udf.storage.event_staging import UNTIL
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.stateful_rules import INPUT_SCHEMA, RELAY, STATUS, WAITS, AnyRules
from purgatory_udf.streaming.status_file import StatusFiles
from purgatory_udf.streaming.trace_end import closing_ms, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Gauges that no call sees whole: those of the purgatories that all consumer groups of a broker share.
#
# Who waits there, and when purgatories read what, follows from all of a broker's groups together. It is little,
# whatever the batch: so it is worked out where batches are written, and kept for the next batch.


@dataclass
class CoordinatorGauges:
    gauge_state: GaugeState
    snapshots: Snapshots
    run_id: str

    def readings(self, number: int, waits: Iterable[bytes], horizon_ms: int) -> pa.Table:
        """What is known for good once the calls of this batch have said who waits, and how far all have come."""
        before = self.snapshots.before(number)
        if before is not None:
            self.gauge_state.restore(before)
        return self.gauge_state.advance(waits, horizon_ms, self.run_id)

    def keep(self, number: int) -> None:
        self.snapshots.keep(number, self.gauge_state.to_bytes())

    def said(self) -> dict[str, Any]:
        """For `top`."""
        return {"open": self.gauge_state.open, "purgatories": self.gauge_state.current_gauges()}

    def left_open(self) -> int:
        """Of a trace that has ended: how many operations end only after it."""
        latest = self.snapshots.latest()
        if latest is not None:
            self.gauge_state.restore(latest)
        return self.gauge_state.left_open


# A batch's rows, written by this process: for less than a million, what Spark plans, starts and commits for a table
# costs more than they do.
#
# Their commits name the same transactions as Spark's own, so batches of either kind follow each other, and none is
# written twice.


# A replay of 500,000 events, all its rows written so, took 0.8 of its floor; 1.2 with Spark's writers, on two cores.
MOST_ROWS = 1_000_000


def is_small_batch(spark: SparkSession, out: str, rows: int) -> bool:
    """Whether so many rows below `out` are better written by this process, and Spark has them so far."""
    return rows <= MOST_ROWS and is_near(spark, out)


def append_small_batch(rows: pa.Table, path: str, **once: str | int) -> bool:
    """Whether that could be done; what is in the way is for Spark to say."""
    from purgatory_udf.backend.local.delta_files import Writer

    try:
        Writer(lambda: rows).mode("append").options(**once).save(path)
    except NeedsSparkError:
        return False
    return True


GAUGES, TOLD = "purgatory_gauges", "told"
# What one task writes without being long: a file for each task that has only a few is dear, to write and to read.
_ROWS_A_TASK = 1 << 18
# What is surely one file, where this process writes it.
_BYTES_OF_A_FILE = 1 << 26


@dataclass
class Sink:
    """`stream_id` is the query's own: Delta knows by it which batches a table has.

    What would expire only after the trace's end is written if the run drains, and left open if it does not. Gauges go
    on until everything has ended: of a query whose only batch decides all there is, this is known before they are
    written (`closes`); else they are cut when all is over.
    """

    name: str
    layout: Layout
    stream_id: str
    rules: AnyRules
    drain: bool
    closes: bool = False
    gauges: CoordinatorGauges | None = None
    status_files: StatusFiles | None = None
    # When the last operation ended, and how many rows each table was given, if this process has seen every batch.
    latest_us: int | None = None
    rows: Counter[str] | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        """The function for `foreachBatch`."""
        # Delta skips a write it has seen and would leave the frame unread, which Spark takes for lost state.
        batch = batch.persist()
        try:
            said = sf.when(sf.col("table").isin(STATUS, WAITS), sf.col("payload"))
            chunks = batch.select("table", "group", "time_us", "rows", said.alias("said")).collect()
            rows = Counter[str]()
            for row in chunks:
                rows[row.table] += row.rows
            self._note(number, chunks, rows)
            wanted = {*rows} - self._unwritten
            readings = self._readings(number, chunks)
            if is_small_batch(batch.sparkSession, self.layout.out, rows.total()):
                wanted -= self._written_here(batch, wanted, number)
                if readings is not None and append_small_batch(
                    readings, self.layout.table(GAUGES), **self._once(GAUGES, number)
                ):
                    readings = None
            frames = {table: self._rows(batch, table, rows[table]) for table in wanted}
            if RELAY in frames:
                until_ms = max(row.time_us for row in chunks if row.table == RELAY) // 1000
                frames[RELAY] = frames[RELAY].withColumn(UNTIL, sf.lit(until_ms).cast("bigint"))
            if readings is not None:
                frames[GAUGES] = batch.sparkSession.createDataFrame(readings).coalesce(1)
            if frames:
                # Most of a small write is planning and committing, of which one table need not wait for another.
                with ThreadPoolExecutor(len(frames)) as pool:
                    list(pool.map(lambda table: self._append(frames[table], table, number), frames))
            if self.gauges is not None:
                self.gauges.keep(number)
            if self.status_files is not None:
                times = [row.time_us for row in chunks if row.said is not None]
                self.status_files.add_batch(
                    self.name, number, max(times, default=0) // 1000, self._status_updates(chunks)
                )
        finally:
            batch.unpersist()

    def _note(self, number: int, chunks: Sequence[Any], rows: Counter[str]) -> None:
        if number == 0:
            self.latest_us, self.rows = 0, Counter()
        if self.latest_us is not None and self.rows is not None:
            self.latest_us = max([self.latest_us, *(row.time_us for row in chunks if row.table in ENDS)])
            self.rows += rows

    def _readings(self, number: int, chunks: Sequence[Any]) -> pa.Table | None:
        waits = [row for row in chunks if row.table == WAITS]
        if self.gauges is None or not waits:
            return None
        horizon_ms = max(row.time_us for row in waits) // 1000
        readings = self.gauges.readings(number, [bytes(row.said) for row in waits if row.said], horizon_ms)
        end_ms = self._end_ms(GAUGES)
        kept = readings if end_ms is None else until(readings, GAUGES, end_ms)
        return kept if len(kept) else None

    @property
    def _unwritten(self) -> set[str]:
        """What was told is held against what was recorded when a trace has ended, which a followed one never has."""
        return {STATUS, WAITS, TOLD} if self.rules.plan.is_followed else {STATUS, WAITS}

    def _written_here(self, batch: DataFrame, tables: set[str], number: int) -> set[str]:
        """Those of the tables that this process has appended the batch's rows to."""
        if not tables:
            return set()
        chunks = batch.where(sf.col("table").isin(*tables)).select("table", "group", "time_us", "payload").toArrow()

        def written(table: str) -> bool:
            mine = chunks.filter(pc.equal(chunks.column("table"), table))
            if table == RELAY:
                return mine.nbytes <= _BYTES_OF_A_FILE and self._append_here(_relayed(mine), table, number)
            rows = unpacked(self.rules, table, self._end_ms(table))(iter(mine.to_batches()))
            return self._append_here(pa.Table.from_batches(rows, self.rules.schema(table)), table, number)

        with ThreadPoolExecutor(len(tables)) as pool:
            return {table for table, done in zip(tables, pool.map(written, tables), strict=True) if done}

    def _append_here(self, rows: pa.Table, table: str, number: int) -> bool:
        if self._creates(table):
            rows = rows.cast(with_comments(rows.schema, COMMENTED_TABLES[table]))
        return append_small_batch(rows, self.layout.path_of(table), **self._once(table, number))

    def _append(self, rows: DataFrame, table: str, number: int) -> None:
        writer = commented_writer(rows, COMMENTED_TABLES[table]) if self._creates(table) else rows.write
        (
            writer.format("delta")
            .mode("append")
            .partitionBy(*([UNTIL] if table == RELAY else []))
            .options(**self._once(table, number))
            .save(self.layout.path_of(table))
        )

    def _creates(self, table: str) -> bool:
        """Whether the write of a batch creates the table, which then gets the column comments."""
        return self.rules.plan.is_one_batch and table in COMMENTED_TABLES

    def _once(self, table: str, number: int) -> dict[str, str | int]:
        """By which Delta knows a batch that the table has already."""
        return {"txnAppId": f"{self.stream_id}/{table}", "txnVersion": number}

    def _rows(self, batch: DataFrame, table: str, count: int) -> DataFrame:
        mine = batch.where(sf.col("table") == table)
        if table == RELAY:
            # One file a batch: whoever reads on never takes half of one.
            return mine.select("group", sf.timestamp_micros("time_us").alias("event_time"), "payload").repartition(1)
        schema = from_arrow_schema(self.rules.schema(table))
        payloads = mine.select("payload").coalesce(max(1, -(-count // _ROWS_A_TASK)))
        return payloads.mapInArrow(freeze_in_workers(unpacked(self.rules, table, self._end_ms(table))), schema)

    def _end_ms(self, table: str) -> int | None:
        """Up to when the table goes, if that is known."""
        end_us = self.rules.plan.trace_end_us
        if end_us is None:
            return None
        if not self.drain:
            return end_us // 1000
        return closing_ms(end_us, self.latest_us) if self.closes and table == GAUGES else None

    def _status_updates(self, chunks: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in chunks:
            if row.table == STATUS:
                yield row.group, json.loads(row.said)
        if self.gauges is not None:
            yield "coordinators", self.gauges.said()


def _relayed(chunks: pa.Table) -> pa.Table:
    """All of a batch, in a partition of its own."""
    times_us = chunks.column("time_us")
    until_ms = pa.array(np.full(len(chunks), pc.max(times_us).as_py() // 1000))
    columns = [chunks.column("group"), times_us.cast(INPUT_SCHEMA.field("event_time").type), chunks.column("payload")]
    return pa.table([*columns, until_ms], names=[*INPUT_SCHEMA.names, UNTIL])


def unpacked(
    rules: AnyRules, table: str, end_ms: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: a table's rows out of their chunks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in rules.decode_table(table, (payload.as_buffer() for payload in batch.column("payload"))):
                yield rows if end_ms is None else until(rows, table, end_ms)

    return run

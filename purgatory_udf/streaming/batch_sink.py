"""The sink of a query: writes each micro-batch to the tables exactly once, however often it is repeated."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.delta_store import SparkDelta, Transaction
from purgatory_udf.backend.spark_workers import freeze_in_workers
from purgatory_udf.contract.tables import COMMENTED_TABLES, ENDS, with_comments
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage.event_staging import UNTIL
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.checkpoints import Snapshots
from purgatory_udf.streaming.stateful_adapter import (
    INPUT_SCHEMA,
    RELAY,
    STATUS,
    WAITS,
    AnyRules,
    closing_ms,
    rows_until,
)
from purgatory_udf.streaming.status_file import StatusFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAUGES, ANSWERS = "purgatory_gauges", "group_answers"
# Up to this many rows of a batch are written by this process instead of Spark: planning, tasks and commits cost Spark
# more than the rows do. A replay of 500,000 events written so took 0.8 times its floor on two cores; 1.2 times with
# Spark.
MOST_LOCAL_ROWS = 1_000_000
# Rows that one task writes quickly: a file per task that has only a few rows is expensive to write and to read.
_ROWS_PER_TASK = 1 << 18
# Maximum size, in bytes, of rows that this process writes as one file.
_BYTES_OF_ONE_FILE = 1 << 26


@dataclass
class CoordinatorGauges:
    """The gauges of the purgatories that all consumer groups of a broker share.

    They depend on reports from every group of a broker. These reports are small however large the batch is, so the sink
    computes the gauges, and keeps their state between batches.
    """

    gauge_state: GaugeState
    snapshots: Snapshots
    run_id: str

    def readings(self, number: int, waits: Iterable[bytes], horizon_ms: int) -> pa.Table:
        """Return the gauge readings that are final after this batch.

        Args:
            number: Number of the batch.
            waits: Serialized reports of the batch's calls (`group_waits`).
            horizon_ms: Time up to which all groups have been called, in epoch milliseconds.
        """
        before = self.snapshots.before(number)
        if before is not None:
            self.gauge_state.restore(before)
        return self.gauge_state.advance(waits, horizon_ms, self.run_id)

    def keep(self, number: int) -> None:
        """Store the state after batch `number`, from which the next batch starts."""
        self.snapshots.keep(number, self.gauge_state.to_bytes())

    def status(self) -> dict[str, Any]:
        """Return the values for the status file: open operations, and the current gauges of each purgatory."""
        return {"open": self.gauge_state.open, "purgatories": self.gauge_state.current_gauges()}

    def left_open(self) -> int:
        """Return the number of operations that were open at the end of the trace, from the latest stored state."""
        latest = self.snapshots.latest()
        if latest is not None:
            self.gauge_state.restore(latest)
        return self.gauge_state.left_open


class ChunkBatch(ABC):
    """The output chunks of one micro-batch."""

    @abstractmethod
    def heads(self) -> list[dict[str, Any]]:
        """Return table, group, time and number of rows of each chunk, and `report`: the payload of status and waits."""

    @abstractmethod
    def chunks(self, tables: Iterable[str]) -> pa.Table:
        """Return the chunks of these tables."""

    @abstractmethod
    def is_small(self, rows: int) -> bool:
        """Return whether a table with this number of rows is small enough for this process to write, without Spark."""


class LocalChunks(ChunkBatch):
    """Chunks that are in memory."""

    def __init__(self, chunks: pa.Table) -> None:
        self._chunks = chunks

    def heads(self) -> list[dict[str, Any]]:
        report = pc.if_else(
            pc.is_in(self._chunks.column("table"), pa.array([STATUS, WAITS])), self._chunks.column("payload"), None
        )
        return self._chunks.drop_columns(["payload"]).append_column("report", report).to_pylist()

    def chunks(self, tables: Iterable[str]) -> pa.Table:
        return self._chunks.filter(pc.is_in(self._chunks.column("table"), pa.array(list(tables), pa.string())))

    def is_small(self, rows: int) -> bool:
        return True


class SparkChunks(ChunkBatch):
    """Chunks of a persisted DataFrame."""

    def __init__(self, backend: SparkBackend, frame: DataFrame, out: str) -> None:
        self.frame = frame
        self._backend, self._out = backend, out

    def heads(self) -> list[dict[str, Any]]:
        from pyspark.sql import functions as sf

        report = sf.when(sf.col("table").isin(STATUS, WAITS), sf.col("payload"))
        rows = self.frame.select("table", "group", "time_us", "rows", report.alias("report")).collect()
        return [row.asDict() for row in rows]

    def chunks(self, tables: Iterable[str]) -> pa.Table:
        from pyspark.sql import functions as sf

        of_table = self.frame.where(sf.col("table").isin(*tables))
        return of_table.select("table", "group", "time_us", "payload").toArrow()

    def is_small(self, rows: int) -> bool:
        return rows <= MOST_LOCAL_ROWS and self._backend.is_local(self._out)


@dataclass
class Sink:
    """Writes the batches of a query.

    Operations that expire only after the end of the trace are written if the run drains, and otherwise left open.
    Gauges are read until every operation has ended. If the query has only one batch (`closes`), it knows that time
    before it writes the gauges. Otherwise later readings are deleted at the end of the run.

    Attributes:
        name: Name of the query.
        backend: Backend that writes the tables.
        layout: The run's tables.
        stream_id: Id of the query in the transactions by which Delta skips batches that a table already has.
        rules: Rules that the query executes.
        drain: Whether the run drains.
        closes: Whether the query's only batch decides every operation.
        gauges: The purgatories that consumer groups of a broker share.
        status_files: Status files for `top`, while the run follows a table.
        latest_us: When the last operation ended; None unless this process has seen every batch.
        rows: Number of rows written to each table; None unless this process has seen every batch.
    """

    name: str
    backend: Backend
    layout: Layout
    stream_id: str
    rules: AnyRules
    drain: bool
    closes: bool = False
    gauges: CoordinatorGauges | None = None
    status_files: StatusFiles | None = None
    latest_us: int | None = None
    rows: Counter[str] | None = None

    def write(self, frame: DataFrame, number: int) -> None:
        """Write micro-batch `number`. This is the function for `foreachBatch`; a restarted query may repeat a batch."""
        assert isinstance(self.backend, SparkBackend)
        # A write that Delta skips leaves the frame unread, which Spark would take for lost state.
        frame = frame.persist()
        try:
            self.process(SparkChunks(self.backend, frame, self.layout.out), number)
        finally:
            frame.unpersist()

    def process(self, batch: ChunkBatch, number: int) -> None:
        """Write the tables of a batch, and the state for the next batch."""
        heads = batch.heads()
        rows = Counter[str]()
        for head in heads:
            rows[head["table"]] += head["rows"]
        self._count(number, heads, rows)
        writes: list[Callable[[], None]] = []
        wanted = {*rows} - self._unwritten
        small = batch.is_small(rows.total())
        if wanted and small:
            chunks = batch.chunks(wanted)
            for table in sorted(wanted):
                of_table = chunks.filter(pc.equal(chunks.column("table"), table))
                if table == RELAY and of_table.nbytes > _BYTES_OF_ONE_FILE and isinstance(batch, SparkChunks):
                    writes.append(self._spark_write(batch, table, rows[table], heads, number))
                else:
                    writes.append(self._local_write(of_table, table, number))
        elif wanted:
            assert isinstance(batch, SparkChunks)
            writes += [self._spark_write(batch, table, rows[table], heads, number) for table in sorted(wanted)]
        readings = self._readings(number, heads)
        if readings is not None:
            writes.append(lambda: self._append(readings, GAUGES, number))
        if writes:
            # Most of a small write is planning and committing, so the tables are written concurrently.
            with ThreadPoolExecutor(len(writes)) as pool:
                list(pool.map(lambda write: write(), writes))
        if self.gauges is not None:
            self.gauges.keep(number)
        if self.status_files is not None:
            times = [head["time_us"] for head in heads if head["report"] is not None]
            self.status_files.add_batch(self.name, number, max(times, default=0) // 1000, self._status(heads))

    def _count(self, number: int, heads: Sequence[dict[str, Any]], rows: Counter[str]) -> None:
        if number == 0:
            self.latest_us, self.rows = 0, Counter()
        if self.latest_us is not None and self.rows is not None:
            self.latest_us = max([self.latest_us, *(head["time_us"] for head in heads if head["table"] in ENDS)])
            self.rows += rows

    def _readings(self, number: int, heads: Sequence[dict[str, Any]]) -> pa.Table | None:
        waits = [head for head in heads if head["table"] == WAITS]
        if self.gauges is None or not waits:
            return None
        horizon_ms = max(head["time_us"] for head in waits) // 1000
        readings = self.gauges.readings(number, [bytes(head["report"]) for head in waits if head["report"]], horizon_ms)
        end_ms = self._end_ms(GAUGES)
        kept = readings if end_ms is None else rows_until(readings, GAUGES, end_ms)
        return kept if len(kept) else None

    @property
    def _unwritten(self) -> set[str]:
        """Return the internal tables that are not written.

        A followed trace has no end, at which answers to group members would be compared.
        """
        return {STATUS, WAITS, ANSWERS} if self.rules.plan.is_followed else {STATUS, WAITS}

    def _local_write(self, chunks: pa.Table, table: str, number: int) -> Callable[[], None]:
        """Return a function by which this process unpacks the chunks of a table and appends the rows.

        `number` is the number of the batch, by which Delta skips a repeated write.
        """

        def write() -> None:
            if table == RELAY:
                self._append(_relayed(chunks), table, number)
                return
            unpack = table_unpacker(self.rules, table, self._end_ms(table))
            rows = pa.Table.from_batches(unpack(iter(chunks.to_batches())), self.rules.schema(table))
            self._append(rows, table, number)

        return write

    def _append(self, rows: pa.Table, table: str, number: int) -> None:
        path = self.layout.path_of(table)
        if table in COMMENTED_TABLES:
            rows = rows.cast(with_comments(rows.schema, COMMENTED_TABLES[table]))
        self.backend.delta(path).append(path, rows, self._transaction(table, number))

    def _spark_write(
        self, batch: SparkChunks, table: str, count: int, heads: Sequence[dict[str, Any]], number: int
    ) -> Callable[[], None]:
        """Return a function by which Spark unpacks the chunks of a table and appends the rows.

        Args:
            batch: The chunks of the batch.
            table: The table.
            count: Number of its rows, which determines the number of tasks.
            heads: The result of `batch.heads()`.
            number: Number of the batch, by which Delta skips a repeated write.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.types import from_arrow_schema

        of_table = batch.frame.where(sf.col("table") == table)
        partitioned_by: tuple[str, ...] = ()
        if table == RELAY:
            until_ms = max(head["time_us"] for head in heads if head["table"] == RELAY) // 1000
            # One file per batch: a reader takes a batch as a whole.
            rows = of_table.select(
                "group",
                sf.timestamp_micros("time_us").alias("event_time"),
                "payload",
                sf.lit(until_ms).cast("bigint").alias(UNTIL),
            ).repartition(1)
            partitioned_by = (UNTIL,)
        else:
            payloads = of_table.select("payload").coalesce(max(1, -(-count // _ROWS_PER_TASK)))
            unpack = freeze_in_workers(table_unpacker(self.rules, table, self._end_ms(table)))
            rows = payloads.mapInArrow(unpack, from_arrow_schema(self.rules.schema(table)))
        store = SparkDelta(batch.frame.sparkSession)
        path, transaction = self.layout.path_of(table), self._transaction(table, number)
        return lambda: store.append_frame(path, rows, transaction, partitioned_by)

    def _transaction(self, table: str, number: int) -> Transaction:
        return Transaction(f"{self.stream_id}/{table}", number)

    def _end_ms(self, table: str) -> int | None:
        """Return the last millisecond that the table's rows may have, or None if it is not known yet."""
        end_us = self.rules.plan.trace_end_us
        if end_us is None:
            return None
        if not self.drain:
            return end_us // 1000
        return closing_ms(end_us, self.latest_us) if self.closes and table == GAUGES else None

    def _status(self, heads: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for head in heads:
            if head["table"] == STATUS:
                yield head["group"], json.loads(head["report"])
        if self.gauges is not None:
            yield "coordinators", self.gauges.status()


def _relayed(chunks: pa.Table) -> pa.Table:
    """Return a batch's chunks as rows of the relay table, in a separate partition."""
    times_us = chunks.column("time_us")
    until_ms = pa.array(np.full(len(chunks), pc.max(times_us).as_py() // 1000))
    columns = [chunks.column("group"), times_us.cast(INPUT_SCHEMA.field("event_time").type), chunks.column("payload")]
    return pa.table([*columns, until_ms], names=[*INPUT_SCHEMA.names, UNTIL])


def table_unpacker(
    rules: AnyRules, table: str, end_ms: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that unpacks a table's rows from their chunks.

    Args:
        rules: Rules of the query that made the chunks.
        table: The table.
        end_ms: Last millisecond of the table's rows, in epoch milliseconds; None for no limit.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in rules.decode_table(table, (payload.as_buffer() for payload in batch.column("payload"))):
                yield rows if end_ms is None else rows_until(rows, table, end_ms)

    return run

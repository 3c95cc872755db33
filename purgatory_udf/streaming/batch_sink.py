"""The sink of a query: writes each micro-batch to the tables exactly once, however often it is repeated.

This process writes a small batch of a local output folder, table by table; Spark writes larger batches and remote
folders (`BatchWriter`). Both unpack the rows from the output chunks of the rules (`table_unpacker`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.delta_store import SparkDelta, Transaction
from purgatory_udf.backend.process_pool import release_free_memory
from purgatory_udf.backend.spark_workers import freeze_in_workers
from purgatory_udf.contract.tables import COMMENTED_TABLES, ENDS, with_comments
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.checkpoints import Snapshots
from purgatory_udf.streaming.stateful_adapter import STATUS, WAITS, AnyRules, closing_ms, rows_until
from purgatory_udf.streaming.status_file import StatusFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAUGES, ANSWERS = "purgatory_gauges", "group_answers"
# Up to this many rows of a batch are written by this process instead of Spark: it encodes a row in a tenth of the CPU
# time, because Spark converts nested columns to rows and back. The compressed rows of a batch are in memory.
MOST_LOCAL_ROWS = 4_000_000
# Rows that one task writes quickly: a file per task that has only a few rows is expensive to write and to read.
_ROWS_PER_TASK = 1 << 18


@dataclass
class CoordinatorGauges:
    """The gauges of the purgatories that all consumer groups of a broker share.

    They depend on reports from every group of a broker. These reports are small however large the batch is, so the sink
    computes the gauges, and keeps their state between batches.
    """

    gauge_state: GaugeState
    snapshots: Snapshots
    run_id: str
    # The batch after which `gauge_state` is the state; None at first, and if a batch has failed.
    _after: int | None = None

    def readings(self, number: int, waits: Iterable[bytes], horizon_ms: int) -> pa.Table:
        """Return the gauge readings that are final after this batch.

        Args:
            number: Number of the batch.
            waits: Serialized reports of the batch's calls (`group_waits`).
            horizon_ms: Time up to which all groups have been called, in epoch milliseconds.
        """
        self._require_state_before(number)
        self._after = None
        rows = self.gauge_state.advance(waits, horizon_ms, self.run_id)
        self._after = number
        return rows

    def keep(self, number: int) -> None:
        """Store the state after batch `number`, from which the next batch starts."""
        if self._after != number:
            # The batch has no reports.
            self._require_state_before(number)
        self.snapshots.keep(number, self.gauge_state.to_bytes())
        self._after = number

    def _require_state_before(self, number: int) -> None:
        if self._after != number - 1 and (before := self.snapshots.before(number)) is not None:
            self.gauge_state.restore(before)

    def status(self) -> dict[str, Any]:
        """Return the values for the status file: open operations, and the current gauges of each purgatory."""
        return {"open": self.gauge_state.open, "purgatories": self.gauge_state.current_gauges()}

    def left_open(self) -> int:
        """Return the number of operations that were open at the end of the trace, from the latest stored state."""
        latest = self.snapshots.latest()
        if latest is not None:
            self.gauge_state.restore(latest)
        return self.gauge_state.left_open


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
            # Batch by batch, the memory that the C library keeps would grow to a multiple of what a batch needs.
            release_free_memory()

    def process(self, batch: ChunkBatch, number: int) -> None:
        """Write the tables of a batch, and the state for the next batch."""
        heads = batch.heads()
        rows = Counter[str]()
        for head in heads:
            rows[head["table"]] += head["rows"]
        self._count(number, heads, rows)
        writer = BatchWriter(self.backend, self.layout, self.stream_id, self.rules, number, self._end_ms)
        wanted = {name: count for name, count in rows.items() if name not in self._unwritten}
        writes = writer.writes(batch, wanted, rows.total())
        if self.gauges is not None:
            writes.append(lambda: self._write_gauges(writer, number, heads))
        if writes:
            # Most of a small write is planning and committing, so the tables are written concurrently. The gauges of a
            # large batch take as long as its largest table.
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

    def _write_gauges(self, writer: BatchWriter, number: int, heads: Sequence[dict[str, Any]]) -> None:
        waits = [head for head in heads if head["table"] == WAITS]
        if self.gauges is None or not waits:
            return
        horizon_ms = max(head["time_us"] for head in waits) // 1000
        readings = self.gauges.readings(number, [bytes(head["report"]) for head in waits if head["report"]], horizon_ms)
        end_ms = self._end_ms(GAUGES)
        kept = readings if end_ms is None else rows_until(readings, GAUGES, end_ms)
        if len(kept):
            writer.append(kept, GAUGES)

    @property
    def _unwritten(self) -> set[str]:
        """Return the internal tables that are not written.

        A followed trace has no end, at which answers to group members would be compared.
        """
        return {STATUS, WAITS, ANSWERS} if self.rules.plan.is_followed else {STATUS, WAITS}

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
        return rows <= MOST_LOCAL_ROWS and self._backend.is_on_this_machine(self._out)


@dataclass(frozen=True)
class BatchWriter:
    """Writes the tables of one micro-batch.

    Attributes:
        backend: Backend that writes the tables.
        layout: The run's tables.
        stream_id: Id of the query in the transactions by which Delta skips batches that a table already has.
        rules: Rules that the query executes.
        number: Number of the batch.
        end_ms: Returns the last millisecond that a table's rows may have; None for no limit.
    """

    backend: Backend
    layout: Layout
    stream_id: str
    rules: AnyRules
    number: int
    end_ms: Callable[[str], int | None]

    def writes(self, batch: ChunkBatch, wanted: Mapping[str, int], total: int) -> list[Callable[[], None]]:
        """Return a function for each table of the batch, which writes it by this process or by Spark.

        Args:
            batch: The chunks of the batch.
            wanted: The tables to write, with their numbers of rows.
            total: Number of rows of all tables of the batch, by which a batch counts as small.
        """
        if not wanted:
            return []
        if not batch.is_small(total):
            assert isinstance(batch, SparkChunks)
            return [self._spark_write(batch, table, wanted[table]) for table in sorted(wanted)]
        writes = []
        chunks = batch.chunks(wanted)
        for table in sorted(wanted):
            writes.append(self._local_write(chunks.filter(pc.equal(chunks.column("table"), table)), table))
        return writes

    def append(self, rows: pa.Table, table: str) -> None:
        """Append rows to a table from this process. Delta skips a repeated write by the number of the batch."""
        path = self.layout.path_of(table)
        self.backend.delta(path).append(path, rows.cast(self._commented(table, rows.schema)), self._transaction(table))

    def _commented(self, table: str, schema: pa.Schema) -> pa.Schema:
        return with_comments(schema, COMMENTED_TABLES[table]) if table in COMMENTED_TABLES else schema

    def _local_write(self, chunks: pa.Table, table: str) -> Callable[[], None]:
        """Return a function by which this process unpacks the chunks of a table and appends the rows."""

        def write() -> None:
            unpack = table_unpacker(self.rules, table, self.end_ms(table))
            schema, path = self._commented(table, self.rules.schema(table)), self.layout.path_of(table)

            def batches() -> Iterator[pa.RecordBatch]:
                # Unpacked one by one while they are written: a large batch needs little memory.
                for rows in unpack(iter(chunks.to_batches())):
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)

            self.backend.delta(path).append_batches(path, schema, batches, self._transaction(table))

        return write

    def _spark_write(self, batch: SparkChunks, table: str, count: int) -> Callable[[], None]:
        """Return a function by which Spark unpacks the chunks of a table and appends the rows.

        Args:
            batch: The chunks of the batch.
            table: The table.
            count: Number of its rows, which determines the number of tasks.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.types import from_arrow_schema

        payloads = batch.frame.where(sf.col("table") == table).select("payload")
        unpack = freeze_in_workers(table_unpacker(self.rules, table, self.end_ms(table)))
        rows = payloads.coalesce(max(1, -(-count // _ROWS_PER_TASK))).mapInArrow(
            unpack, from_arrow_schema(self.rules.schema(table))
        )
        store = SparkDelta(batch.frame.sparkSession)
        path, transaction = self.layout.path_of(table), self._transaction(table)
        return lambda: store.append_frame(path, rows, transaction)

    def _transaction(self, table: str) -> Transaction:
        return Transaction(f"{self.stream_id}/{table}", self.number)


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

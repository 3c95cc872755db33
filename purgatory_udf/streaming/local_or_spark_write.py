"""Decides whether this process or Spark writes the rows of a micro-batch, and writes them.

This process writes a small batch of a local output folder, table by table; Spark writes larger batches and remote
folders. Both unpack the rows from the output chunks of the rules (`table_unpacker`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.delta_store import SparkDelta, Transaction
from purgatory_udf.backend.spark_workers import freeze_in_workers
from purgatory_udf.contract.tables import COMMENTED_TABLES, with_comments
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.stateful_adapter import STATUS, WAITS, AnyRules, rows_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Up to this many rows of a batch are written by this process instead of Spark: it encodes a row in a tenth of the CPU
# time, because Spark converts nested columns to rows and back. The compressed rows of a batch are in memory.
MOST_LOCAL_ROWS = 4_000_000
# Rows that one task writes quickly: a file per task that has only a few rows is expensive to write and to read.
_ROWS_PER_TASK = 1 << 18


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

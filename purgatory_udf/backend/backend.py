"""The backend of a job: Spark, or this process. It is chosen once, when the job starts, and handed down.

A backend has four parts. `delta` reads and writes Delta tables by path, `files` other files, datasets execute the steps
of imports, and a `database` executes SQL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory_udf.backend.dataset import Dataset, LocalDataset, without_garbage_collection
from purgatory_udf.backend.delta_store import DeltaStore, FallbackDelta, SparkDelta
from purgatory_udf.backend.file_system import Files, HadoopFiles, LocalFiles
from purgatory_udf.backend.spark_dataset import Branch, SparkDataset, parquet_rows
from purgatory_udf.backend.spilled_dataset import Spill, SpilledDataset
from purgatory_udf.backend.sql_database import DuckDatabase, SparkDatabase, SqlDatabase
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.common.local_files import is_local_path, local_bytes, require_local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Public functions accept a backend or a Spark session.
Session: TypeAlias = "Backend | SparkSession"

# Bytes of tables up to which a backend of Spark reads them by DuckDB, which is faster to start.
_DUCKDB_BYTES = 256_000_000

Part = TypeVar("Part")
Value = TypeVar("Value")
Database = TypeVar("Database", bound=SqlDatabase)


class Backend(ABC):
    """Interface of a backend: executes queries, imports and writes."""

    files: Files
    # Maximum size of an input piece per task, in bytes; None: the job's options decide.
    piece_bytes: int | None = None

    @abstractmethod
    def delta(self, path: str) -> DeltaStore:
        """Return the store for a table at this path."""

    @abstractmethod
    def run_tasks(
        self,
        tasks: Sequence[Sequence[Part]],
        work: Callable[[Part], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        in_threads: bool = False,
    ) -> Dataset:
        """Return the rows that `work` yields for each part.

        Args:
            tasks: The parts of each task, which are processed in sequence.
            work: Called with each part.
            schema: Schema of the rows.
            in_threads: Whether threads execute the tasks, unless Spark does: libraries do most of the work.
        """

    @abstractmethod
    def dataset_of(self, rows: pa.Table) -> Dataset:
        """Return a dataset of rows that are in memory."""

    @abstractmethod
    def read_rows(self, folder: str, schema: pa.Schema) -> Dataset:
        """Return the rows that `write_rows` wrote to a folder."""

    @abstractmethod
    def write_rows(self, rows: Dataset, folder: str) -> Dataset:
        """Write rows as Parquet files to a folder, replacing it, and return them."""

    @abstractmethod
    def broadcast(self, value: Value) -> Callable[[], Value]:
        """Return a function that returns the value. Steps call it; the value is sent to each worker only once."""

    @abstractmethod
    def database(self) -> SqlDatabase:
        """Return a new, empty database."""

    @abstractmethod
    def select(self, sql: str, tables: Mapping[str, str]) -> Dataset:
        """Return the rows of a query as a dataset. `tables` has the path of each Delta table that the query names."""

    def query(self, sql: str, tables: Mapping[str, str]) -> pa.Table:
        """Return the rows of a query as an Arrow table. `tables` has the path of each Delta table that it names."""
        return self.select(sql, tables).collect()

    def totals(self, sql: str, tables: Mapping[str, str]) -> pa.Table:
        """Return the rows of a query that needs little memory for tables of any size: counts, sums and extremes."""
        with suppress(NeedsSparkError):
            return self.for_totals(*tables.values()).query(sql, tables)
        return self.query(sql, tables)

    def for_totals(self, *paths: str) -> Backend:
        """Return the backend that executes `totals` on tables at these paths.

        A backend of Spark returns this process for local tables, because Spark takes seconds for a first query. If this
        process raises `NeedsSparkError`, Spark executes them.
        """
        return self

    @abstractmethod
    def is_on_this_machine(self, *paths: str) -> bool:
        """Return whether all tasks run on this machine and all paths are on its disk."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the software that executes queries and tasks."""

    @abstractmethod
    def stop(self) -> None:
        """End the Spark session, if there is one. Only the tables that the backend has written remain usable."""


class LocalBackend(Backend):
    """Backend for inputs and tables on the local disk: this process, its threads and forks, DuckDB and deltalake."""

    # Small pieces keep all forked processes busy until the end of the input.
    piece_bytes = 4 << 20

    def __init__(self, spill: Spill | None = None) -> None:
        """Create a backend that keeps the rows of datasets in memory or, if given, in the folder of `spill`."""
        # Spark's workers import this module too, and have no deltalake.
        from purgatory_udf.backend.local_delta import LocalDelta

        self._spill = spill

        self.files = LocalFiles()
        self._delta = LocalDelta()

    def delta(self, path: str) -> DeltaStore:
        return self._delta

    def run_tasks(
        self,
        tasks: Sequence[Sequence[Part]],
        work: Callable[[Part], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        in_threads: bool = False,
    ) -> Dataset:
        def part_of(task: Sequence[Part]) -> Callable[[], Iterator[pa.RecordBatch]]:
            return lambda: without_garbage_collection(lambda: chain.from_iterable(map(work, task)))()

        parts = [part_of(task) for task in tasks]
        if self._spill:
            return SpilledDataset(schema, parts, self._spill, in_threads=in_threads)
        return LocalDataset(schema, parts, in_threads=in_threads)

    def dataset_of(self, rows: pa.Table) -> Dataset:
        if self._spill is None:
            return LocalDataset.of(rows)
        return SpilledDataset(rows.schema, [rows.to_batches], self._spill)

    def broadcast(self, value: Value) -> Callable[[], Value]:
        return lambda: value

    def database(self) -> SqlDatabase:
        return DuckDatabase()

    def select(self, sql: str, tables: Mapping[str, str]) -> Dataset:
        return LocalDataset.of(_with_tables(DuckDatabase(), tables).query(sql))

    def read_rows(self, folder: str, schema: pa.Schema) -> Dataset:
        from purgatory_udf.backend.local_delta import needing_spark

        with needing_spark():
            return LocalDataset.of(pq.read_table(str(require_local_path(folder))).select(schema.names).cast(schema))

    def write_rows(self, rows: Dataset, folder: str) -> Dataset:
        from purgatory_udf.backend.local_delta import needing_spark

        stored = rows.keep(folder)
        self.files.remove(folder)
        self.files.make_folder(folder)
        with needing_spark():
            pq.write_table(stored.collect(), require_local_path(folder) / "part-0.parquet")
        return stored

    def is_on_this_machine(self, *paths: str) -> bool:
        return all(map(is_local_path, paths))

    def versions(self) -> Mapping[str, str]:
        return _local_versions()

    def stop(self) -> None:
        """Do nothing: there is no session."""


@cache
def _local_versions() -> Mapping[str, str]:
    """Return the versions of the libraries that `LocalBackend` uses; reading each takes a millisecond."""
    return {name: version(name) for name in ("duckdb", "deltalake")}


class SparkBackend(Backend):
    """Backend that uses a Spark session.

    If the session runs on this machine (`local[*]`), small reads and writes of local Delta tables use deltalake instead
    of Spark: they take milliseconds instead of most of a second.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.files = HadoopFiles(spark)
        self._spark_delta = SparkDelta(spark)
        self._is_local_master = (spark.sparkContext.master or "").startswith("local")

    def delta(self, path: str) -> DeltaStore:
        if not self.is_on_this_machine(path):
            return self._spark_delta
        from purgatory_udf.backend.local_delta import LocalDelta

        return FallbackDelta(LocalDelta(), self._spark_delta)

    def is_on_this_machine(self, *paths: str) -> bool:
        return self._is_local_master and all(map(is_local_path, paths))

    def run_tasks(
        self,
        tasks: Sequence[Sequence[Part]],
        work: Callable[[Part], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        in_threads: bool = False,
    ) -> Dataset:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch.column("id").to_pylist():
                    for part in tasks[task]:
                        yield from work(part)

        # A range of n rows in n partitions has row i in partition i: the task's number, without a shuffle.
        numbers = self.spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return SparkDataset([Branch(numbers, run)], schema)

    def dataset_of(self, rows: pa.Table) -> Dataset:
        return SparkDataset.of(self.spark.createDataFrame(rows), rows.schema)

    def broadcast(self, value: Value) -> Callable[[], Value]:
        sent = self.spark.sparkContext.broadcast(value)
        return lambda: sent.value

    def database(self) -> SqlDatabase:
        return SparkDatabase(self.spark)

    def select(self, sql: str, tables: Mapping[str, str]) -> Dataset:
        from pyspark.sql.pandas.types import to_arrow_schema

        # Larger tables could fill memory or disk; Spark reads those.
        if self.is_on_this_machine(*tables.values()) and local_bytes(tables.values(), _DUCKDB_BYTES) is not None:
            with suppress(NeedsSparkError):
                return LocalBackend().select(sql, tables)
        rows = _with_tables(SparkDatabase(self.spark), tables).frame(sql)
        return SparkDataset.of(rows, to_arrow_schema(rows.schema, timezone="UTC"))

    def for_totals(self, *paths: str) -> Backend:
        return LocalBackend() if self.is_on_this_machine(*paths) else self

    def read_rows(self, folder: str, schema: pa.Schema) -> Dataset:
        from pyspark.sql.pandas.types import from_arrow_schema

        return SparkDataset.of(parquet_rows(self.spark, from_arrow_schema(schema), folder), schema)

    def write_rows(self, rows: Dataset, folder: str) -> Dataset:
        assert isinstance(rows, SparkDataset)
        rows.frame.write.mode("overwrite").parquet(folder)
        return self.read_rows(folder, rows.schema)

    def versions(self) -> Mapping[str, str]:
        return {"spark": self.spark.version, "delta": version("delta-spark")}

    def stop(self) -> None:
        self.spark.stop()


def _with_tables(database: Database, tables: Mapping[str, str]) -> Database:
    for name, path in tables.items():
        database.add_table(name, path)
    return database


def backend_of(session: Session) -> Backend:
    """Return the session itself if it is a backend, otherwise the backend of the Spark session."""
    return session if isinstance(session, Backend) else SparkBackend(session)


def running_tasks(backend: Backend) -> Callable[[], tuple[int, int]]:
    """Return a function that counts the tasks of Spark's running stages: how many are done, and how many there are.

    It returns zeros if the JVM does not answer: Ctrl-C stops the JVM, too, while a thread still shows the numbers.
    """
    if not isinstance(backend, SparkBackend):
        return lambda: (0, 0)
    tracker = backend.spark.sparkContext.statusTracker()

    def count() -> tuple[int, int]:
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:
            return 0, 0
        known = [stage for stage in stages if stage]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)

    return count

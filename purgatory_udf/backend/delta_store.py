"""Delta tables by path: the interface, and its implementation by Spark.

`LocalDelta` (`backend.local_delta`) implements it with deltalake for tables on the local disk. An operation on a small
table takes it milliseconds; Spark takes most of a second to plan, start and commit it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from purgatory_udf.backend.file_system import HadoopFiles
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.contract.tables import COMMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Result = TypeVar("Result")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Without a limit, the log of a table that grows batch by batch would outgrow the table within a month; and readers
# would open up to a hundred commits, because deltalake writes checkpoints no more often by default.
LOG_PROPERTIES = {"delta.logRetentionDuration": "interval 7 days", "delta.checkpointInterval": "10"}
# This file of the log shows that a version exists, although its name is not a version number.
_LAST_CHECKPOINT = "_last_checkpoint"

# Delta's own retention: longer than any reader or writer is expected to take.
RETENTION_HOURS = 168
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
# Number of tasks that list a folder; Spark's default of ten thousand is meant for more folders than a table has.
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


class Condition(NamedTuple):
    """A condition on one column; `operator` is one of `=`, `<`, `>`."""

    column: str
    operator: str
    value: str | int | datetime


class Transaction(NamedTuple):
    """Transaction id of an idempotent write. A table accepts each version of an application only once."""

    application: str
    version: int


@dataclass(frozen=True)
class Commit:
    """One commit of a table's log; `mode` is Append or Overwrite for writes, `metadata` the writer's user metadata."""

    version: int
    operation: str
    mode: str | None
    metadata: str | None


class Identity(NamedTuple):
    """Id of a table, its newest version and the number of its files."""

    table: str
    version: int
    files: int


class Size(NamedTuple):
    """Files and bytes of a table's newest version."""

    files: int
    bytes: int


class DeltaStore(ABC):
    """Delta tables by path.

    Reads return Arrow tables and are meant for small tables; large ones are read by a `SqlDatabase` or a stream.
    """

    @abstractmethod
    def is_table(self, path: str) -> bool:
        """Return whether there is a table at the path. A folder that an interrupted write left has no first commit."""

    @abstractmethod
    def create(self, path: str, schema: pa.Schema) -> None:
        """Create an empty table unless it exists.

        Concurrent writers need an existing table, because two first commits conflict.
        """

    @abstractmethod
    def identity(self, path: str) -> Identity:
        """Return the table's id, newest version and number of files."""

    @abstractmethod
    def columns(self, path: str) -> list[str]:
        """Return the names of the table's columns."""

    @abstractmethod
    def history(self, path: str) -> list[Commit]:
        """Return the commits that the log still has, oldest first."""

    @abstractmethod
    def read(self, path: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """Return the rows that meet all conditions in `where`, with all columns or only `columns`."""

    @abstractmethod
    def count(self, path: str, where: Sequence[Condition] = ()) -> int:
        """Return the number of rows that meet all conditions in `where`; without conditions, of all rows."""

    @abstractmethod
    def append(self, path: str, rows: pa.Table, transaction: Transaction | None = None) -> None:
        """Append rows in one commit. Does nothing if the table already has the transaction.

        Args:
            path: Folder of the table, which is created if it does not exist.
            rows: The rows.
            transaction: Id of the write; None for a write that is never repeated.
        """

    def append_batches(
        self,
        path: str,
        schema: pa.Schema,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        transaction: Transaction | None = None,
    ) -> None:
        """Append rows as `append` does, if possible without all rows in memory.

        Args:
            path: Folder of the table.
            schema: Schema of the rows.
            batches: Yields the rows; called again if a second store has to write them.
            transaction: Id of the write; None for a write that is never repeated.
        """
        self.append(path, pa.Table.from_batches(batches(), schema), transaction)

    @abstractmethod
    def overwrite(
        self, path: str, rows: pa.Table, where: Sequence[Condition] = (), replace_schema: bool = False
    ) -> None:
        """Replace all rows, or the rows that meet the conditions; create the table if it does not exist.

        Args:
            path: Folder of the table.
            rows: The new rows.
            where: Conditions on the rows to replace; none: all rows.
            replace_schema: Whether the table gets the schema of the rows.
        """

    @abstractmethod
    def delete(self, path: str, where: Sequence[Condition]) -> None:
        """Delete the rows that meet all conditions in `where`."""

    @abstractmethod
    def size(self, path: str) -> Size:
        """Return the files and bytes of the newest version."""

    @abstractmethod
    def compact(self, path: str, large_enough: int, largest: int) -> None:
        """Merge files that are smaller than `large_enough` bytes into files of at most `largest` bytes."""

    @abstractmethod
    def vacuum(self, path: str, keep_hours: int) -> None:
        """Delete files that only versions older than `keep_hours` need."""

    def create_all(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Create empty tables, given by path. They are created concurrently, because each waits for its log."""
        with ThreadPoolExecutor(len(schemas)) as pool:
            list(pool.map(lambda path: self.create(path, schemas[path]), schemas))


class SparkDelta(DeltaStore):
    """The `DeltaStore` that uses a Spark session, for tables on any file system."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._files = HadoopFiles(spark)

    def is_table(self, path: str) -> bool:
        from delta.tables import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._spark, path))

    def create(self, path: str, schema: pa.Schema) -> None:
        from delta.tables import DeltaTable

        if self.is_table(path):
            return
        if not has_log(self._files.names(f"{path}/_delta_log")):
            # Files of an interrupted first commit: Delta creates no table in a folder that has files.
            self._files.remove(path)
        if "`" in path:
            # DeltaTable builds an identifier from the path, quoted by this letter: write no rows instead.
            empty = self._spark.createDataFrame([], spark_schema(schema))
            empty.write.format("delta").options(**LOG_PROPERTIES).save(path)
            return
        # Delta compares the location as given with Hadoop's form of it, letter by letter.
        builder = (
            DeltaTable.createIfNotExists(self._spark)
            .location(self._files.qualified(path))
            .addColumns(spark_schema(schema))
        )
        for name, value in LOG_PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()

    def identity(self, path: str) -> Identity:
        table = self._table(path)
        detail = table.detail().select("id", "numFiles").first()
        latest = table.history(1).select("version").first()
        assert detail is not None and latest is not None
        return Identity(detail.id, latest.version, detail.numFiles)

    def columns(self, path: str) -> list[str]:
        return list(self._where(path, ()).columns)

    def history(self, path: str) -> list[Commit]:
        columns = ("version", "operation", "operationParameters['mode'] mode", "userMetadata")
        rows = self._table(path).history().selectExpr(*columns).collect()
        commits = [Commit(row.version, row.operation, row.mode, row.userMetadata) for row in rows]
        return sorted(commits, key=lambda commit: commit.version)

    def read(self, path: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        frame = self._where(path, where)
        return (frame if columns is None else frame.select(*columns)).toArrow()

    def count(self, path: str, where: Sequence[Condition] = ()) -> int:
        return self._where(path, where).count()

    def append(self, path: str, rows: pa.Table, transaction: Transaction | None = None) -> None:
        self.append_frame(path, self._frame_of(rows), transaction)

    def append_frame(self, path: str, rows: DataFrame, transaction: Transaction | None = None) -> None:
        """Append a DataFrame's rows, as `append` does.

        Args:
            path: Folder of the table.
            rows: The rows.
            transaction: Id of the write; None for a write that is never repeated.
        """
        writer = rows.write.format("delta").mode("append")
        writer.options(**transaction_options(transaction)).save(path)

    def overwrite(
        self, path: str, rows: pa.Table, where: Sequence[Condition] = (), replace_schema: bool = False
    ) -> None:
        writer = self._frame_of(rows).write.format("delta").mode("overwrite")
        if where and self.is_table(path):
            writer = writer.option("replaceWhere", _predicate(where))
        if replace_schema:
            writer = writer.option("overwriteSchema", "true")
        writer.save(path)

    def delete(self, path: str, where: Sequence[Condition]) -> None:
        self._table(path).delete(_predicate(where))

    def size(self, path: str) -> Size:
        detail = self._table(path).detail().select("numFiles", "sizeInBytes").first()
        assert detail is not None
        return Size(detail.numFiles, detail.sizeInBytes)

    def compact(self, path: str, large_enough: int, largest: int) -> None:
        settings = {
            "spark.databricks.delta.optimize.minFileSize": str(large_enough),
            "spark.databricks.delta.optimize.maxFileSize": str(largest),
        }
        with _settings(self._spark, settings):
            self._table(path).optimize().executeCompaction()

    def vacuum(self, path: str, keep_hours: int) -> None:
        # Delta refuses a shorter retention than its own unless this check is off.
        settings = {_RETENTION_CHECK: "false" if keep_hours < RETENTION_HOURS else "true", _LISTING_TASKS: "8"}
        with _settings(self._spark, settings):
            self._table(path).vacuum(keep_hours)

    def _frame_of(self, rows: pa.Table) -> DataFrame:
        return with_column_comments(self._spark.createDataFrame(rows).coalesce(1), rows.schema)

    def _table(self, path: str) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, path)

    def _where(self, path: str, where: Sequence[Condition]) -> DataFrame:
        frame = self._spark.read.format("delta").load(path)
        return frame.where(_predicate(where)) if where else frame


class FallbackDelta(DeltaStore):
    """A store with a fallback: if the first store raises `NeedsSparkError`, the second store executes the call."""

    def __init__(self, first: DeltaStore, second: DeltaStore) -> None:
        self._first, self._second = first, second

    def _either(self, call: Callable[[DeltaStore], Result]) -> Result:
        try:
            return call(self._first)
        except NeedsSparkError:
            return call(self._second)

    def is_table(self, path: str) -> bool:
        return self._either(lambda store: store.is_table(path))

    def create(self, path: str, schema: pa.Schema) -> None:
        self._either(lambda store: store.create(path, schema))

    def identity(self, path: str) -> Identity:
        return self._either(lambda store: store.identity(path))

    def columns(self, path: str) -> list[str]:
        return self._either(lambda store: store.columns(path))

    def history(self, path: str) -> list[Commit]:
        return self._either(lambda store: store.history(path))

    def read(self, path: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        return self._either(lambda store: store.read(path, columns, where))

    def count(self, path: str, where: Sequence[Condition] = ()) -> int:
        return self._either(lambda store: store.count(path, where))

    def append(self, path: str, rows: pa.Table, transaction: Transaction | None = None) -> None:
        self._either(lambda store: store.append(path, rows, transaction))

    def append_batches(
        self,
        path: str,
        schema: pa.Schema,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        transaction: Transaction | None = None,
    ) -> None:
        self._either(lambda store: store.append_batches(path, schema, batches, transaction))

    def overwrite(
        self, path: str, rows: pa.Table, where: Sequence[Condition] = (), replace_schema: bool = False
    ) -> None:
        self._either(lambda store: store.overwrite(path, rows, where, replace_schema))

    def delete(self, path: str, where: Sequence[Condition]) -> None:
        self._either(lambda store: store.delete(path, where))

    def size(self, path: str) -> Size:
        return self._either(lambda store: store.size(path))

    def compact(self, path: str, large_enough: int, largest: int) -> None:
        self._either(lambda store: store.compact(path, large_enough, largest))

    def vacuum(self, path: str, keep_hours: int) -> None:
        self._either(lambda store: store.vacuum(path, keep_hours))


def has_log(names: Sequence[str]) -> bool:
    """Return whether a `_delta_log` folder with these files contains a commit."""
    return any(name[0].isdigit() or name == _LAST_CHECKPOINT for name in names)


def transaction_options(transaction: Transaction | None) -> dict[str, str | int]:
    """Return the options by which Spark's Delta writer skips a transaction that the table already has."""
    if transaction is None:
        return {}
    return {"txnAppId": transaction.application, "txnVersion": transaction.version}


def with_column_comments(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return the frame with the column comments of a schema, for a table that is created from it.

    Nested fields get no comments, because Spark would have to copy every row.
    """
    from pyspark.sql import functions as sf

    comments = {field.name: metadata for field in schema if (metadata := _metadata(field)) is not None}
    if not comments:
        return frame

    def column(name: str) -> Column:
        plain = sf.col(f"`{name.replace('`', '``')}`")
        return plain.alias(name, metadata=comments[name]) if name in comments else plain

    return frame.select(*map(column, frame.columns))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's, with the comments of columns and nested fields."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return _commented(from_arrow_schema(schema), schema)


def _commented(struct: StructType, fields: Iterable[pa.Field]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(
                field.name, _commented_type(field.dataType, commented.type), field.nullable, _metadata(commented)
            )
            for field, commented in zip(struct.fields, fields, strict=True)
        ]
    )


def _commented_type(kind: DataType, commented: pa.DataType) -> DataType:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_commented_type(kind.elementType, commented.value_type), kind.containsNull)
    return _commented(kind, commented) if isinstance(kind, StructType) else kind


def _metadata(field: pa.Field) -> dict[str, str] | None:
    comment = (field.metadata or {}).get(COMMENT.encode())
    return None if comment is None else {COMMENT: comment.decode()}


def _predicate(where: Sequence[Condition]) -> str:
    """Return the conditions as Spark SQL. Strings are written as hex digits, so that no character needs escaping."""

    def literal(value: str | int | datetime) -> str:
        if isinstance(value, datetime):
            return f"timestamp_micros({int((value - EPOCH) / timedelta(microseconds=1))})"
        return str(value) if isinstance(value, int) else f"decode(X'{value.encode().hex()}', 'UTF-8')"

    return " AND ".join(f"`{column}` {operator} {literal(value)}" for column, operator, value in where)


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply settings of the session within the `with` block."""
    usual: dict[str, Any] = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, before in usual.items():
            if before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, before)

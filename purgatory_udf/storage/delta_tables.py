"""Delta tables by path: is there one, which, since when; make an empty one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import is_local, local, locally_in_this_thread
from purgatory_udf.backend.file_system import HadoopFiles, files_of
from purgatory_udf.backend.input_size import is_here
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.contract.tables import COMMENT, with_comments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession


# What is asked of tables of this machine's disk, or written to them, and is little, is done by this process: for a
# local Spark each such thing is a query, which takes it most of a second to plan, start and commit.


Answer = TypeVar("Answer")


def is_near(spark: SparkSession, *paths: str) -> bool:
    """Whether Spark has them so far, all of it on this machine, and they lie there."""
    if is_local() or local(spark) or not all(map(is_here, paths)):
        return False
    return (spark.sparkContext.master or "").startswith("local")


def asked(spark: SparkSession, path: str, question: Callable[[SparkSession], Answer]) -> Answer:
    """`question` is asked of a session that suits; twice if it turns out to be for Spark."""
    if is_near(spark, path):
        from purgatory_udf.backend.local.session import LocalSession

        session: SparkSession = LocalSession()  # type: ignore[assignment]
        try:
            with locally_in_this_thread():
                return question(session)
        except NeedsSparkError:
            pass
    return question(spark)


LOG_KEPT = "interval 7 days"
# In a table's log, what is no version of it by its name and yet says that there is one.
_LAST = "_last_checkpoint"
# Of a table that grows batch by batch, the log of a month would be larger than the table; and whoever opens it would
# read up to a hundred commits, for who writes without Spark sums them up no more often by default.
OF_LOG = {"delta.logRetentionDuration": LOG_KEPT, "delta.checkpointInterval": "10"}


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether a first commit has been made there: a folder left by an interrupted write is none."""

    def answer(session: SparkSession) -> bool:
        here = local(session)
        return here.table_at(path) is not None if here else bool(DeltaTable.isDeltaTable(session, path))

    return asked(spark, path, answer)


def as_of_now(spark: SparkSession, path: str) -> DataFrame:
    """The table as it is at this moment, however often it is read, and whoever goes on writing."""
    if local(spark):
        return spark.read.format("delta").load(path)
    return spark.read.format("delta").option("versionAsOf", identity(spark, path)["version"]).load(path)


def create(spark: SparkSession, path: str, schema: pa.Schema, partitioned_by: Sequence[str] = ()) -> None:
    """An empty table, unless there is one: two first writes to one path would conflict."""
    if is_table(spark, path):
        return
    asked(spark, path, lambda session: _create(session, path, schema, partitioned_by))


def _create(spark: SparkSession, path: str, schema: pa.Schema, partitioned_by: Sequence[str]) -> None:
    here, files = local(spark), files_of(spark)
    if not any(name[0].isdigit() or name == _LAST for name in files.names(f"{path}/_delta_log")):
        # What a kill has left of a first commit: Delta makes no table where anything lies.
        files.remove(path)
    elif here:
        raise NeedsSparkError(f"{path}: has a log that is not read here")
    if here:
        here.create_table(path, schema, OF_LOG, partitioned_by)
        return
    if "`" in path:
        # Delta makes a name of the path, in these quotes. The long way is a write of no rows.
        empty = spark.createDataFrame([], spark_schema(schema))
        empty.write.format("delta").partitionBy(*partitioned_by).options(**OF_LOG).save(path)
        return
    # Delta holds the location as it was given against what Hadoop makes of it, letter by letter.
    made = (
        DeltaTable.createIfNotExists(spark)
        .location(HadoopFiles(spark).qualified(path))
        .addColumns(spark_schema(schema))
    )
    for name, value in OF_LOG.items():
        made = made.property(name, value)
    made.partitionedBy(*partitioned_by).execute()


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's, with the comments of columns and nested fields."""
    return _commented(from_arrow_schema(schema), schema)


def _commented(struct: StructType, fields: Iterable[pa.Field]) -> StructType:
    return StructType(
        [
            StructField(field.name, _commented_type(field.dataType, of.type), field.nullable, _metadata(of))
            for field, of in zip(struct.fields, fields, strict=True)
        ]
    )


def _commented_type(kind: DataType, of: pa.DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_commented_type(kind.elementType, of.value_type), kind.containsNull)
    return _commented(kind, of) if isinstance(kind, StructType) else kind


def _metadata(field: pa.Field) -> dict[str, str] | None:
    comment = (field.metadata or {}).get(COMMENT.encode())
    return None if comment is None else {COMMENT: comment.decode()}


def commented_writer(frame: DataFrame, commented: pa.Schema) -> DataFrameWriter:
    """Return the frame's writer; a table that it creates has the comments of the columns of `commented`.

    Nested fields get none: Spark would have to copy every row.
    """
    if is_local():
        from purgatory_udf.backend.local.delta_files import Writer

        def rows() -> pa.Table:
            plain = frame.toArrow()
            return plain.cast(with_comments(plain.schema, commented))

        return Writer(rows)  # type: ignore[return-value]
    comments = {field.name: _metadata(field) for field in commented}

    def column(name: str) -> Column:
        plain, metadata = sf.col(f"`{name.replace('`', '``')}`"), comments.get(name)
        return plain.alias(name, metadata=metadata) if metadata else plain

    return frame.select(*map(column, frame.columns)).write


def create_all(spark: SparkSession, schemas: Mapping[str, pa.Schema]) -> None:
    """Empty tables by their paths; one waits for its log while others are planned."""
    with ThreadPoolExecutor(len(schemas)) as pool:
        list(pool.map(lambda path: create(spark, path, schemas[path]), schemas))


def identity(spark: SparkSession, path: str) -> dict[str, Any]:
    """Which table this is, and which version of it."""
    return asked(spark, path, lambda session: _identity(session, path))


def _identity(spark: SparkSession, path: str) -> dict[str, Any]:
    here = local(spark)
    if here:
        local_table = here.table_at(path)
        assert local_table is not None
        return {
            "table": local_table.metadata().id,
            "version": local_table.version(),
            "files": len(local_table.file_uris()),
        }
    table = DeltaTable.forPath(spark, path)
    detail = table.detail().select("id", "numFiles").first()
    latest = table.history(1).select("version").first()
    assert detail is not None and latest is not None
    return {"table": detail.id, "version": latest.version, "files": detail.numFiles}


# What a table's log says of the commits that it still has: which of them its content consists of, and in which order
# it can be read.


@dataclass(frozen=True)
class Commit:
    version: int
    operation: str
    # Of a write: whether it added to the table, or replaced all of it.
    mode: str | None
    # What the writer said of it.
    said: str | None


def commits(spark: SparkSession, path: str) -> list[Commit]:
    """In their order."""
    return sorted(asked(spark, path, lambda session: asked_of(session, path)), key=lambda commit: commit.version)


def asked_of(spark: SparkSession, path: str) -> list[Commit]:
    """The same by this session, in whatever order."""
    here = local(spark)
    if here:
        table = here.table_at(path)
        assert table is not None
        return [
            Commit(
                entry["version"],
                entry.get("operation") or "",
                (entry.get("operationParameters") or {}).get("mode"),
                entry.get("userMetadata"),
            )
            for entry in table.history()
        ]
    history = DeltaTable.forPath(spark, path).history()
    told = history.selectExpr("version", "operation", "operationParameters['mode'] mode", "userMetadata")
    return [Commit(row.version, row.operation, row.mode, row.userMetadata) for row in told.collect()]


def began(spark: SparkSession, path: str) -> int:
    """The version that the table's present content began with: its first, or the last that replaced everything."""
    return _first_of(commits(spark, path))


def _first_of(known: Sequence[Commit]) -> int:
    return max((commit.version for commit in known if commit.mode == "Overwrite"), default=0)


def since_began(spark: SparkSession, path: str) -> list[Commit]:
    """Those that all the table holds can be read by, one after the other, in the order in which it was written; none
    where the first of them, or the files that they added, are gone by now."""
    known = commits(spark, path)
    first = _first_of(known)
    since = [commit for commit in known if commit.version >= first]
    if since and since[0].version != first:
        return []
    # Only what was put together since is ever deleted, and what was so first goes first.
    if any(commit.operation == "OPTIMIZE" for commit in since) and not _has_all_files(spark, path, since):
        return []
    return since


def _has_all_files(spark: SparkSession, path: str, known: Sequence[Commit]) -> bool:
    """Whether the files are there that the first of these commits has added which added any."""
    files = files_of(spark)
    for commit in known:
        lines = (files.read(f"{path}/_delta_log/{commit.version:020}.json") or b"").splitlines()
        added = [unquote(action["add"]["path"]) for line in lines if "add" in (action := json.loads(line))]
        if added:
            return all(files.exists(f"{path}/{file}") for file in added)
    return True

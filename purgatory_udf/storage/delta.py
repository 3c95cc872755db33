"""Delta tables by path: is there one, which, since when; make an empty one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.query import local
from purgatory_udf.storage.files import HadoopFiles, files_of
from purgatory_udf.storage.near import asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        empty = spark.createDataFrame([], from_arrow_schema(schema))
        empty.write.format("delta").partitionBy(*partitioned_by).options(**OF_LOG).save(path)
        return
    # Delta holds the location as it was given against what Hadoop makes of it, letter by letter.
    made = (
        DeltaTable.createIfNotExists(spark)
        .location(HadoopFiles(spark).qualified(path))
        .addColumns(from_arrow_schema(schema))
    )
    for name, value in OF_LOG.items():
        made = made.property(name, value)
    made.partitionedBy(*partitioned_by).execute()


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

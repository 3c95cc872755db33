"""Tables of events as streams: how much of one makes a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.query import local
from purgatory_udf.storage.commits import began, since_began

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ALL_FILES = 2**31 - 1


def delta_stream(
    spark: SparkSession, path: str, files: int | None = None, since: int | None = None, shrinks: bool = False
) -> DataFrame:
    """A table as a stream. Given the version that its content began with, its commits come one after the other, each in
    the order of its files; otherwise Delta begins with a snapshot whose files are sorted by when they were finished.
    A batch takes so many files. A table that `shrinks` loses what has come before."""
    reader = spark.readStream.format("delta")
    if shrinks:
        reader = reader.option("ignoreDeletes", True)
    if since is not None:
        reader = reader.option("startingVersion", since)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    return reader.load(path)


def growing_stream(spark: SparkSession, path: str) -> DataFrame:
    """A table that others add to: commit by commit from its first on. Where that is gone, everything that is there now
    is one batch, because files that were put together are in no order any more."""
    since = since_began(spark, path)
    return delta_stream(spark, path, None, since[0].version) if since else delta_stream(spark, path, _ALL_FILES)


@dataclass(frozen=True)
class TraceSource:
    """The events of a finished trace: so many files of theirs a batch, or, without a number, all at once."""

    path: str
    files: int | None = None

    @property
    def at_once(self) -> bool:
        return self.files is None

    def stream(self, spark: SparkSession) -> DataFrame:
        if local(spark):
            return spark.read.format("delta").load(self.path)
        if self.files is None:
            # Of one commit, Delta reads the log's line; a snapshot's files it sorts with queries of its own.
            since = since_began(spark, self.path)
            return delta_stream(spark, self.path, _ALL_FILES, since[0].version if len(since) == 1 else None)
        return delta_stream(spark, self.path, self.files, began(spark, self.path))

"""Tables of events as streams: how much of one makes a batch."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.input_size import REPLAYED_BYTES, held
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.groups.group_codes import API_OF
from purgatory_udf.storage.delta_tables import asked, began, since_began

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


# One look over a trace before its replay: how much there is, when it ends, and how far behind a fetch may ask.


PARTITION_KINDS = ("produce", "fetch", "delete_records", "create_topics")


@dataclass(frozen=True)
class Survey:
    events: int
    operations: int
    of_groups: int
    first_us: int | None
    last_us: int | None
    most_bytes: int  # the greatest partition max_bytes of any fetch


def survey(events: DataFrame) -> Survey:
    caps = sf.array_max(sf.transform("partitions", lambda part: part["max_bytes"]))
    row = events.agg(
        sf.count(sf.lit(1)).alias("events"),
        sf.count_if(sf.col("type").isin(*PARTITION_KINDS)).alias("operations"),
        sf.count_if(sf.col("type").isin(*API_OF)).alias("of_groups"),
        sf.min("time_us").alias("first"),
        sf.max("time_us").alias("last"),
        sf.max(caps).alias("most"),
    ).first()
    assert row is not None
    return Survey(row.events, row.operations, row.of_groups, row["first"], row["last"], row.most or 0)


class TraceSurvey:
    """The events of a trace that is finished, looked over when somebody asks for the first time; or `ahead` of that,
    beside whatever comes before."""

    def __init__(self, spark: SparkSession, events: str) -> None:
        self._spark, self._events = spark, events
        self._ahead: Future[Survey] | None = None

    def look_ahead(self) -> None:
        beside = ThreadPoolExecutor(1)
        self._ahead = beside.submit(self._look)
        beside.shutdown(wait=False)

    @cached_property
    def survey(self) -> Survey:
        known = self._ahead.result() if self._ahead else self._look()
        if not known.events:
            raise UserError(f"{self._events}: the table holds no event")
        return known

    def _look(self) -> Survey:
        def look(session: SparkSession) -> Survey:
            return survey(session.read.format("delta").load(self._events))

        # What fills memory or disk is for Spark to read.
        return asked(self._spark, self._events, look) if held([self._events], REPLAYED_BYTES) else look(self._spark)


# Up to so many TopicPartitions each is a group by itself, which is the simplest to inspect; a group costs Spark a
# millisecond or two a batch, so many are better taken by broker.
_FEW_EVENTS, _FEW_PARTITIONS = 20_000, 50


def grouping_for(spark: SparkSession, events: str, count: int) -> str:
    """What `grouping: auto` chooses for a trace of so many events."""
    if count > _FEW_EVENTS:
        return "broker"

    def is_of_few(session: SparkSession) -> bool:
        table = session.read.format("delta").load(events)
        named = table.select(sf.explode("partitions").alias("part")).select("part.topic", "part.partition")
        return len(named.distinct().head(_FEW_PARTITIONS + 1)) <= _FEW_PARTITIONS

    return "partition" if asked(spark, events, is_of_few) else "broker"

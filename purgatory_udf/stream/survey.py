"""One look over a trace before its replay: how much there is, when it ends, and how far behind a fetch may ask."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError
from purgatory_udf.groups.words import API_OF
from purgatory_udf.query import functions as sf
from purgatory_udf.size import REPLAYED_BYTES, held
from purgatory_udf.storage.near import asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

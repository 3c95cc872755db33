"""Kafka's expiration meters, by their own names.

| `ExpiresPerSec` of | marks |
|---|---|
| `DelayedProduceMetrics`, `DelayedDeleteRecordsMetrics` | each partition still pending when its request expires |
| the same, with `topic` and `partition` | the same, by partition |
| `DelayedFetchMetrics`, with `fetcherType` | each request that expires, of a follower or of a consumer |

Other purgatories have no such meter in Kafka: their expirations are counted by `operations` and `waits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.query import functions as sf
from purgatory_udf.storage.run_tables import window_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PENDING = "REQUEST_TIMED_OUT"
_TYPES = {"produce": "DelayedProduceMetrics", "delete_records": "DelayedDeleteRecordsMetrics"}
_FETCH = "DelayedFetchMetrics"


def expires(expirations: DataFrame, window_ms: int) -> DataFrame:
    """`mbean` by broker and window: how often it was marked (`expired`), and per second; no row where never."""
    windowed = expirations.withColumn("window_start", window_start("expired_at", window_ms))
    counted = _per_partition(windowed).unionByName(_per_fetch(windowed))
    return counted.withColumns(
        {"window_ms": sf.lit(window_ms), "per_second": sf.col("expired") * 1000.0 / sf.lit(window_ms)}
    )


def _per_partition(expirations: DataFrame) -> DataFrame:
    pending = sf.filter("partitions", lambda part: part["error"] == PENDING)
    marks = (
        expirations.where(sf.col("kind").isin(*_TYPES))
        .select("broker", "kind", "window_start", "after_end", sf.explode(pending).alias("part"))
        .select("broker", "kind", "window_start", "after_end", "part.topic", "part.partition")
    )
    by_partition = marks.groupBy("broker", "kind", "window_start", "topic", "partition").agg(*_counts())
    # The aggregate meter is the sum of the others, and they are few.
    aggregate = by_partition.groupBy("broker", "kind", "window_start").agg(
        sf.sum("expired").alias("expired"), sf.sum("after_end").alias("after_end")
    )
    kind = sf.col("kind")
    types = sf.when(kind == "produce", _TYPES["produce"]).otherwise(_TYPES["delete_records"])
    nothing = sf.lit(None)
    both = by_partition.unionByName(aggregate.withColumns({"topic": nothing, "partition": nothing}))
    tags = sf.concat(sf.lit(",topic="), "topic", sf.lit(",partition="), sf.col("partition").cast("string"))
    return both.select(
        _mbean(types, sf.coalesce(tags, sf.lit(""))).alias("mbean"),
        "broker",
        "topic",
        "partition",
        nothing.cast("string").alias("fetcher"),
        "window_start",
        "expired",
        "after_end",
    )


def _per_fetch(expirations: DataFrame) -> DataFrame:
    marks = expirations.where("kind = 'fetch'").groupBy("broker", "window_start", "fetcher").agg(*_counts())
    return marks.select(
        _mbean(sf.lit(_FETCH), sf.concat(sf.lit(",fetcherType="), "fetcher")).alias("mbean"),
        "broker",
        sf.lit(None).cast("string").alias("topic"),
        sf.lit(None).cast("int").alias("partition"),
        "fetcher",
        "window_start",
        "expired",
        "after_end",
    )


def _counts() -> list[Column]:
    return [sf.count("*").alias("expired"), sf.count_if("after_end").alias("after_end")]


def _mbean(type_: Column, tags: Column) -> Column:
    return sf.concat(sf.lit("kafka.server:type="), type_, sf.lit(",name=ExpiresPerSec"), tags)

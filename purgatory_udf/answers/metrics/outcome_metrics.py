"""How operations ended, window by window, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.storage.run_tables import window_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


def by_window(ended: DataFrame, window_ms: int) -> DataFrame:
    """By kind, broker, and the window in which they ended: how many on arrival, after a wait, by the timer."""
    expired, watched = sf.col("expired"), sf.col("watched")
    counts = ended.groupBy("kind", "broker", window_start("ended_at", window_ms).alias("window_start")).agg(
        sf.count("*").alias("operations"),
        sf.count_if(~expired & ~watched).alias("on_arrival"),
        sf.count_if(~expired & watched).alias("after_a_wait"),
        sf.count_if(expired).alias("expired"),
        sf.count_if("after_end").alias("after_end"),
        sf.sum("wait_ms").alias("waited_ms"),
    )
    return counts.withColumn("window_ms", sf.lit(window_ms))


def causes(ended: DataFrame) -> DataFrame:
    """By kind and what ended them: how many, and how long they had waited."""
    # Equal waits are counted first: exact quantiles of millions of waits then need memory for the different ones only.
    alike = ended.groupBy("kind", "expired", "watched", "completed_by", "wait_ms").agg(sf.count("*").alias("n"))
    return alike.groupBy("kind", "expired", "watched", "completed_by").agg(
        sf.sum("n").alias("operations"), *quantiles(sf.col("n")), sf.max("wait_ms").alias("max_ms")
    )


def quantiles(times: Column) -> list[Column]:
    """Exact quantiles of `wait_ms`, each value counted that many times, interpolated between neighbours."""
    return [sf.percentile("wait_ms", share, times).alias(name) for name, share in QUANTILES.items()]


# Kafka's expiration meters, by their own names.
#
# | `ExpiresPerSec` of | marks |
# |---|---|
# | `DelayedProduceMetrics`, `DelayedDeleteRecordsMetrics` | each partition still pending when its request expires |
# | the same, with `topic` and `partition` | the same, by partition |
# | `DelayedFetchMetrics`, with `fetcherType` | each request that expires, of a follower or of a consumer |
#
# Other purgatories have no such meter in Kafka: their expirations are counted by `operations` and `waits`.


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


# Waits by kind and by whatever else an operation has: its broker, topics, partitions, client, group.
#
# Quantiles are of the operations that had to wait at all; `waited_share` says how many of all these are.


# The dimension of the rows that count every operation of a kind.
ALL = "all"
_ROUNDS = ("join", "initial_join", "sync")


def waits(ended: DataFrame, transitions: DataFrame, by: Sequence[str]) -> DataFrame:
    """One row for each kind, dimension and value. An operation on several topics counts for each of them."""
    if "group" in by:
        ended = _with_group(ended, transitions)
    places = sf.explode(sf.array_distinct(sf.concat(*map(_places, (ALL, *by))))).alias("place")
    alike = (
        ended.select("kind", "expired", "watched", "wait_ms", places)
        .groupBy("kind", "place.by", "place.value", "expired", "watched", "wait_ms")
        .agg(sf.count("*").alias("n"))
    )
    n, waited = sf.col("n"), sf.when(sf.col("watched"), sf.col("n")).otherwise(0)
    counted = alike.groupBy("kind", "by", "value").agg(
        sf.sum("n").alias("operations"),
        sf.sum(waited).alias("waited"),
        sf.sum(sf.when(sf.col("expired"), n).otherwise(0)).alias("expired"),
        sf.sum(sf.col("wait_ms") * n).alias("waited_ms"),
        *quantiles(waited),
        sf.max(sf.when(sf.col("watched"), sf.col("wait_ms"))).alias("max_ms"),
    )
    return counted.withColumn("waited_share", sf.col("waited") / sf.col("operations"))


def _places(dimension: str) -> Column:
    """The values that an operation counts for, as (by, value); none if it has none."""

    def place(value: Column) -> Column:
        return sf.struct(sf.lit(dimension).alias("by"), value.cast("string").alias("value"))

    def if_known(value: Column) -> Column:
        return sf.filter(sf.array(place(value)), lambda placed: placed["value"].isNotNull())

    match dimension:
        case "topic":
            return sf.transform("partitions", lambda part: place(part["topic"]))
        case "partition":
            # A topic that is being created has no partitions to wait for by number.
            numbered = sf.filter("partitions", lambda part: part["partition"] >= 0)
            return sf.transform(numbered, lambda part: place(sf.concat_ws("-", part["topic"], part["partition"])))
        case "client":
            return if_known(sf.col("client_id"))
        case "all":
            return sf.array(place(sf.lit("")))
        case _:
            return if_known(sf.col(dimension))


def _with_group(ended: DataFrame, transitions: DataFrame) -> DataFrame:
    """A round's key is its group; a session's is `group-member`, which only the group's members can take apart."""
    members = (
        transitions.select("broker", "group", sf.explode("members").alias("member"))
        .select("broker", sf.concat_ws("-", "group", "member").alias("key"), sf.col("group").alias("member_of"))
        .groupBy("broker", "key")
        .agg(sf.min("member_of").alias("member_of"))
    )
    kind = sf.col("kind")
    group = sf.when(kind.isin(*_ROUNDS), sf.col("key")).when(kind == "heartbeat", sf.col("member_of"))
    return ended.join(sf.broadcast(members), ["broker", "key"], "left").withColumn("group", group)

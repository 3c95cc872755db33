"""Waits by kind and by whatever else an operation has: its broker, topics, partitions, client, group.

Quantiles are of the operations that had to wait at all; `waited_share` says how many of all these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_udf.metrics.operations import quantiles
from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

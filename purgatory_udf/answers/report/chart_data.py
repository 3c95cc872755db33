"""What each picture shows, as a small frame: counted by Spark, so that it is small whatever the trace's size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.metrics.group_rebalances import in_order
from purgatory_udf.answers.metrics.metrics_run import SIDE_BY_SIDE
from purgatory_udf.backend.dialect import Window
from purgatory_udf.backend.dialect import functions as sf

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

    from purgatory_udf.answers.metrics.metrics_run import Metrics


# How coarse a picture's time axis is: as fine as the metrics, but never more columns than a screen can show.


# A column is then some four pixels wide.
MOST_BINS = 240
# Steps between which people see at once what one column stands for, in milliseconds.
_NICE_MS = tuple(
    step * unit
    for unit, steps in ((1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)))
    for step in steps
) + tuple(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))


def bin_ms(windows: DataFrame, window_ms: int) -> int:
    """The least nice multiple of the window with which all windows make no more than `MOST_BINS` columns."""
    start = sf.unix_millis("window_start")
    first = windows.agg(sf.min(start), sf.max(start)).first()
    assert first is not None
    span_ms = (first[1] - first[0] if first[0] is not None else 0) + window_ms
    nice = [step for step in _NICE_MS if step % window_ms == 0 and span_ms / step <= MOST_BINS]
    return nice[0] if nice else -(-span_ms // (MOST_BINS * window_ms)) * window_ms


def binned(moment: str, width_ms: int) -> Column:
    """The beginning of the moment's column, in milliseconds since the epoch: no time zone has a say in it."""
    ms = sf.unix_millis(moment)
    return (ms - sf.pmod(ms, sf.lit(width_ms))).alias("t")


# More rows than this fit on no page.
MOST_PURGATORIES = 8
MOST_TOPICS = 25
MOST_GROUPS = 20
MOST_SPANS = 2_000

ON_ARRIVAL, AFTER_A_WAIT, EXPIRED = "completed on arrival", "completed after a wait", "expired"


@dataclass(frozen=True)
class Pictures:
    """A frame for each picture; `width_ms`: what one column of a time axis stands for."""

    width_ms: int
    ends: pd.DataFrame
    purgatories: pd.DataFrame
    waits: pd.DataFrame
    topics: pd.DataFrame
    groups: pd.DataFrame


def pictures(metrics: Metrics) -> Pictures:
    tables = metrics.tables
    width_ms = bin_ms(metrics["operations"], metrics.options.window_ms)
    drawn = (
        _ends(metrics["operations"], width_ms),
        _purgatories(metrics["purgatories"], width_ms),
        _waits(tables.ended()),
        topics(tables.table("expirations"), width_ms),
        _groups(tables.table("group_transitions")),
    )
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return Pictures(width_ms, *pool.map(lambda frame: frame.toPandas(), drawn))


def _ends(operations: DataFrame, width_ms: int) -> DataFrame:
    """`t`, `kind`, `end`, `operations`."""
    ends = {"on_arrival": ON_ARRIVAL, "after_a_wait": AFTER_A_WAIT, "expired": EXPIRED}
    counts = operations.groupBy(binned("window_start", width_ms), "kind").agg(*(sf.sum(n).alias(n) for n in ends))
    long = counts.unpivot(["t", "kind"], [*ends], "end", "operations").where("operations > 0")
    named = sf.col("end")
    for column, words in ends.items():
        named = sf.when(sf.col("end") == column, words).otherwise(named)
    of_kind = sf.sum("operations").over(Window.partitionBy("kind"))
    return long.withColumns({"end": named, "of_kind": of_kind}).orderBy(sf.desc("of_kind"), "kind", "t", "end")


def _purgatories(sizes: DataFrame, width_ms: int) -> DataFrame:
    """`t`, `purgatory` (and broker), `gauge`, `most`, `purged`: of the fullest ones."""
    name = sf.concat("purgatory", sf.lit(" at broker "), sf.col("broker").cast("string")).alias("purgatory")
    most = {
        "purgatory_size_max": "PurgatorySize",
        "num_delayed_max": "NumDelayedOperations",
        "dead_watches_max": "dead entries",
    }
    per_bin = sizes.groupBy(binned("window_start", width_ms), name).agg(
        *(sf.max(column).alias(column) for column in most), sf.sum("purged").alias("purged")
    )
    fullest = (
        per_bin.groupBy("purgatory")
        .agg(sf.max("purgatory_size_max").alias("fullest"))
        .orderBy(sf.desc("fullest"), "purgatory")
        .limit(MOST_PURGATORIES)
    )
    long = (
        per_bin.join(sf.broadcast(fullest), "purgatory")
        .unpivot(["t", "purgatory", "purged", "fullest"], [*most], "gauge", "most")
        .where("most IS NOT NULL")
    )
    gauge = sf.col("gauge")
    for column, words in most.items():
        gauge = sf.when(sf.col("gauge") == column, words).otherwise(gauge)
    return long.withColumn("gauge", gauge).orderBy(sf.desc("fullest"), "purgatory", "gauge", "t")


def _waits(ended: DataFrame) -> DataFrame:
    """`kind`, `cause`, `low`, `high`, `operations`: of those that had to wait."""
    cause = sf.when(sf.col("completed_by") == "timeout", EXPIRED).otherwise(sf.col("completed_by")).alias("cause")
    counted = wait_ranges(ended, "kind", cause)
    of_kind = sf.sum("operations").over(Window.partitionBy("kind"))
    return counted.withColumn("of_kind", of_kind).orderBy(sf.desc("of_kind"), "kind", "low", "cause")


def wait_ranges(ended: DataFrame, *by: str | Column) -> DataFrame:
    """How many operations that had to wait did so from `low` to `high` ms: ranges twice as wide as the one before."""
    ms = sf.col("wait_ms")
    power = sf.floor(sf.log2(sf.greatest(ms, sf.lit(1)))).cast("int")
    # 0 has a range of its own: the timer knows no part of a millisecond.
    low = sf.when(ms == 0, 0).otherwise(sf.pow(sf.lit(2), power)).cast("long").alias("low")
    high = sf.when(ms == 0, 0).otherwise(sf.pow(sf.lit(2), power + 1) - 1).cast("long").alias("high")
    return ended.where("watched").groupBy(*by, low, high).agg(sf.count("*").alias("operations"))


def topics(expirations: DataFrame, width_ms: int) -> DataFrame:
    """`t`, `topic` (and kind), `expired`: of the topics with most expirations; a request counts once for a topic."""
    named = sf.explode(sf.array_distinct(sf.transform("partitions", lambda part: part["topic"])))
    per_bin = (
        expirations.select("kind", binned("expired_at", width_ms), named.alias("topic"))
        .groupBy("t", sf.concat("topic", sf.lit(" "), sf.col("kind")).alias("topic"))
        .agg(sf.count("*").alias("expired"))
    )
    worst = (
        per_bin.groupBy("topic")
        .agg(sf.sum("expired").alias("all_expired"))
        .orderBy(sf.desc("all_expired"), "topic")
        .limit(MOST_TOPICS)
    )
    return per_bin.join(sf.broadcast(worst), "topic").orderBy(sf.desc("all_expired"), "topic", "t")


def _groups(transitions: DataFrame) -> DataFrame:
    """`group` (and broker), `state`, `t`, `until`, `reason`, `members`: of the groups that changed most."""
    name = sf.concat("group", sf.lit(" at broker "), sf.col("broker").cast("string"))
    changed = transitions.groupBy("broker", "group").agg(sf.count("*").alias("changes"))
    busiest = changed.orderBy(sf.desc("changes"), "broker", "group").limit(MOST_GROUPS)
    begun = sf.unix_millis("at")
    following = sf.lead(begun).over(in_order())
    whole = sf.max(begun).over(Window.partitionBy())
    return (
        transitions.join(sf.broadcast(busiest), ["broker", "group"])
        .select(
            name.alias("name"),
            sf.col("to_state").alias("state"),
            begun.alias("t"),
            # The last state lasts to the end of the picture.
            sf.coalesce(following, whole).alias("until"),
            "reason",
            sf.size("members").alias("members"),
            sf.col("changes"),
            sf.row_number().over(in_order()).alias("place"),
        )
        .orderBy(sf.desc("changes"), "name", "place")
        .limit(MOST_SPANS)
        .drop("place")
        .withColumnRenamed("name", "group")
    )

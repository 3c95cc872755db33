"""`PurgatorySize` and `NumDelayedOperations` by window, and what dead watchers hold between purges.

An entry is dead when its operation has ended and a list still holds it. The gauges count entries without telling; but
how many are alive at a step follows from the operations: each has its keys' entries from the step that first sees it
to the step that first sees its end.

      step      1     2     3     4
    watched     2     2     3     0     (the gauge)
    live        2     1     1     0     (from starts and ends)
    dead        0     1     2     0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import Window
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.rules.purgatory.clock import STEP_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PURGATORIES = {
    "produce": "Produce",
    "fetch": "Fetch",
    "delete_records": "DeleteRecords",
    "create_topics": "topic",
    **dict.fromkeys(("join", "initial_join", "sync"), "Rebalance"),
    "heartbeat": "Heartbeat",
}
_LEVELS = ("purgatory_size", "num_delayed", "dead_watches")


def purgatories(gauges: DataFrame, ended: DataFrame, window_ms: int, bytes_per_watch: int) -> DataFrame:
    """By broker, purgatory and window: last, greatest and mean reading; dead entries, and the bytes they hold."""
    spans = _spans(with_dead_watches(gauges, ended))
    begin, until = sf.col("at_ms"), sf.col("until_ms")
    first = begin - sf.pmod(begin, sf.lit(window_ms))
    windows = sf.sequence(first, until - 1, sf.lit(window_ms).cast("long"))
    parts = spans.withColumn("window", sf.explode(windows)).withColumns(
        {
            "held": sf.least(until, sf.col("window") + window_ms) - sf.greatest(begin, sf.col("window")),
            "purged": sf.when(sf.col("window") == first, sf.col("purged")).otherwise(0),
        }
    )
    held = sf.sum("held")
    readings = [column for name in _LEVELS for column in _readings(name, held)]
    figures = parts.groupBy("broker", "purgatory", "window").agg(*readings, sf.sum("purged").alias("purged"))
    return figures.withColumns(
        {
            "window_start": sf.timestamp_millis("window"),
            "window_ms": sf.lit(window_ms),
            "dead_bytes_max": sf.col("dead_watches_max") * bytes_per_watch,
        }
    )


def with_dead_watches(gauges: DataFrame, ended: DataFrame) -> DataFrame:
    """Every step at which a purgatory changed (`at_ms`): its gauges, and `dead_watches`.

    Operations that had no end when the replay ended are in no table; where the gauge counts such, how many of the
    entries are dead is not known: null.
    """
    read = gauges.select(
        "broker",
        "purgatory",
        sf.unix_millis("at").alias("at_ms"),
        sf.col("watched").alias("purgatory_size"),
        sf.col("delayed").alias("num_delayed"),
        "purged",
    )
    keys = ["broker", "purgatory", "at_ms"]
    so_far = Window.partitionBy("broker", "purgatory").orderBy("at_ms").rowsBetween(Window.unboundedPreceding, 0)

    def level(name: str) -> Column:
        return sf.coalesce(sf.last(name, ignorenulls=True).over(so_far), sf.lit(0))

    def total(name: str) -> Column:
        return sf.sum(sf.coalesce(name, sf.lit(0))).over(so_far)

    both = read.join(_changes(ended), keys, "full").select(
        *keys,
        level("purgatory_size").alias("purgatory_size"),
        level("num_delayed").alias("num_delayed"),
        sf.coalesce("purged", sf.lit(0)).alias("purged"),
        total("entries").alias("live"),
        total("operations").alias("known"),
    )
    dead = sf.when(sf.col("known") == sf.col("num_delayed"), sf.col("purgatory_size") - sf.col("live"))
    return both.select(*keys, "purgatory_size", "num_delayed", "purged", dead.alias("dead_watches"))


def _changes(ended: DataFrame) -> DataFrame:
    """By step: how many operations and entries came alive, less those that ended."""
    waited = ended.where("watched").where(sf.col("kind").isin(*_PURGATORIES))
    purgatory = sf.lit(None).cast("string")
    for kind, name in _PURGATORIES.items():
        purgatory = sf.when(sf.col("kind") == kind, name).otherwise(purgatory)
    begun_ms, ended_ms = sf.unix_millis("started_at"), sf.unix_millis("ended_at")
    # A group's operations have no partitions, and one key.
    keys = sf.greatest(sf.size("partitions"), sf.lit(1))
    # A step sees what the clock did in its millisecond, and what events did in those before.
    by_clock = sf.col("expired") & (ended_ms > begun_ms)
    # A round that no request began, at a whole millisecond, was begun by a timer.
    by_timer = sf.col("request_id").isNull() & (sf.unix_micros("started_at") % 1000 == 0)
    come = _step(sf.when(purgatory.eqNullSafe("Rebalance") & by_timer, begun_ms).otherwise(begun_ms + 1))
    gone = sf.greatest(come, _step(sf.when(by_clock, ended_ms).otherwise(ended_ms + 1)))
    change = sf.explode(
        sf.array(*(sf.struct(at.alias("at_ms"), sf.lit(sign).alias("sign")) for at, sign in ((come, 1), (gone, -1))))
    )
    return (
        waited.select("broker", purgatory.alias("purgatory"), keys.alias("keys"), change.alias("to"))
        .groupBy("broker", "purgatory", "to.at_ms")
        .agg(sf.sum(sf.col("to.sign") * sf.col("keys")).alias("entries"), sf.sum("to.sign").alias("operations"))
        .where("entries != 0 OR operations != 0")
    )


def _step(ms: Column) -> Column:
    return (sf.ceil(ms / sf.lit(STEP_MS)) * STEP_MS).cast("long")


def _spans(changes: DataFrame) -> DataFrame:
    """Each reading holds until the next one; the last one for its step."""
    following = Window.partitionBy("broker", "purgatory").orderBy("at_ms")
    until = sf.coalesce(sf.lead("at_ms").over(following), sf.col("at_ms") + STEP_MS)
    return changes.withColumn("until_ms", until)


def _readings(name: str, held: Column) -> list[Column]:
    return [
        sf.max_by(name, "at_ms").alias(f"{name}_last"),
        sf.max(name).alias(f"{name}_max"),
        (sf.sum(sf.col(name) * sf.col("held")) / held).alias(f"{name}_mean"),
    ]

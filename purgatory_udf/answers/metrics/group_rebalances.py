"""A group's rebalances: how long each took, why it began, who was waited for, and who was missing in the end.

A rebalance goes from the group's change to PreparingRebalance to its next change to Stable, Empty or Dead; another
change to PreparingRebalance before that interrupts it.

    Stable {a b c} ──► PreparingRebalance {a b} ──► CompletingRebalance {a b} ──► Stable
                       started_at                   joined_at                     ended_at
                       missing: c (was in the group before, is not after); last_to_join: who joined last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import Window
from purgatory_udf.backend.dialect import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

PREPARING, COMPLETING = "PreparingRebalance", "CompletingRebalance"
_ENDS = ("Stable", "Empty", "Dead")
# Changes of one moment, in the order in which a group can go through them within a generation.
_WITHIN = {COMPLETING: 0, "Empty": 0, "Stable": 1, PREPARING: 2, "Dead": 3}


def rebalances(transitions: DataFrame, events: DataFrame) -> DataFrame:
    """One row for each rebalance; `ended_as` is interrupted, or open, where it did not come to an end of its own."""
    begun = sf.col("to_state") == PREPARING
    order = in_order()
    numbered = transitions.select(
        "broker",
        "group",
        "at",
        "to_state",
        "reason",
        "generation",
        "members",
        sf.sum(begun.cast("int")).over(order).alias("round"),
        sf.lag("members").over(order).alias("members_before"),
        sf.row_number().over(order).alias("place"),
    ).where("round > 0")
    joined = sf.col("to_state").isin(COMPLETING, "Empty", "Dead")
    ended = sf.col("to_state").isin(*_ENDS)
    rounds = numbered.groupBy("broker", "group", "round").agg(
        sf.min("at").alias("started_at"),
        _first("reason", begun).alias("reason"),
        _first("members_before", begun).alias("members_before"),
        _first("at", joined).alias("joined_at"),
        _first("reason", joined).alias("joined_because"),
        _first("members", joined).alias("members"),
        _first("generation", joined).alias("generation"),
        _first("at", ended).alias("settled_at"),
        _first("to_state", ended).alias("settled_as"),
    )
    following = sf.lead("started_at").over(Window.partitionBy("broker", "group").orderBy("round"))
    ends = rounds.withColumn("next_at", following).select(
        "*",
        sf.coalesce("settled_at", "next_at").alias("ended_at"),
        sf.coalesce("settled_as", sf.when(sf.col("next_at").isNotNull(), "interrupted"), sf.lit("open")).alias(
            "ended_as"
        ),
    )
    before, after = (sf.coalesce(name, sf.array().cast("array<string>")) for name in ("members_before", "members"))
    came_to_join = sf.col("joined_at").isNotNull()
    trace_end = events.agg(sf.max("event_time").alias("trace_end"))
    return (
        _with_last_to_join(ends, events)
        .crossJoin(sf.broadcast(trace_end))
        .withColumns(
            {
                # Members fall silent with the trace: what a drained replay makes of that never happened.
                "after_end": sf.coalesce(sf.col("started_at") > sf.col("trace_end"), sf.lit(False)),
                "length_ms": _ms("ended_at") - _ms("started_at"),
                "joining_ms": _ms("joined_at") - _ms("started_at"),
                "missing": sf.when(came_to_join, sf.array_sort(sf.array_except(before, after))),
                "joined": sf.when(came_to_join, sf.array_sort(sf.array_except(after, before))),
            }
        )
    )


def in_order() -> WindowSpec:
    """A group's changes of state as they followed each other, those of one moment included."""
    return Window.partitionBy("broker", "group").orderBy("at", "generation", _within())


def _with_last_to_join(rounds: DataFrame, events: DataFrame) -> DataFrame:
    """Who sent the last join request of the round: the rebalance waited for that member longest."""
    member = sf.coalesce(
        sf.when(sf.col("member_id") != "", sf.col("member_id")),
        "assigned_member_id",
        "client_id",
    )
    joins = events.where("type = 'join_group'").select(
        sf.coalesce("broker", sf.lit(0)).alias("broker"),
        "group",
        sf.col("event_time").alias("asked_at"),
        "seq",
        member.alias("member"),
    )
    within = (sf.col("asked_at") >= sf.col("started_at")) & (
        sf.col("asked_at") <= sf.coalesce("joined_at", "ended_at", sf.col("asked_at"))
    )
    last = (
        rounds.select("broker", "group", "round", "started_at", "joined_at", "ended_at")
        .join(joins, ["broker", "group"])
        .where(within)
        .groupBy("broker", "group", "round")
        .agg(sf.max_by("member", sf.struct("asked_at", "seq")).alias("last_to_join"))
    )
    return rounds.join(last, ["broker", "group", "round"], "left")


def _first(column: str, where: Column) -> Column:
    return sf.min_by(column, sf.when(where, sf.col("place")))


def _within() -> Column:
    order = sf.lit(len(_WITHIN))
    for state, place in _WITHIN.items():
        order = sf.when(sf.col("to_state") == state, place).otherwise(order)
    return order


def _ms(moment: str) -> Column:
    return sf.unix_millis(sf.col(moment))

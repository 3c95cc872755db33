"""The tables of a fidelity report, from the rows of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from purgatory_udf.answers.fidelity.broker_readings import COUNTERS, Counted
from purgatory_udf.answers.fidelity.outcome_comparison import ACCURACY, AT_ONCE, BY_ID, CAUSES, COMPLETED, EXPIRED, NONE
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

ALL = "all"
CLASSES = (AT_ONCE, COMPLETED, EXPIRED)
WORST = 3


def agreement(pairs: DataFrame) -> Table:
    """By kind and broker: how many ended alike, and how many in each way on either side."""
    sides = [(f"{side}_{outcome}", side, outcome) for outcome in CLASSES for side in ("recorded", "replayed")]
    counts = [sf.count_if(sf.col(f"{side}_outcome") == outcome).alias(name) for name, side, outcome in sides]
    same = sf.count_if("agrees").alias("same")
    rows = _by_kind_and_broker(pairs.where(sf.col("kind").isin(*BY_ID)), [same, *counts])
    return Table(
        "Operations recorded / replayed, by how they ended",
        ("kind", "broker", "operations", "end alike", "%", "at once", "completed", "expired"),
        [
            (
                *_names(row),
                row.n,
                row.same,
                round(100 * row.same / row.n, 2),
                *(f"{row[f'recorded_{outcome}']:,} / {row[f'replayed_{outcome}']:,}" for outcome in CLASSES),
            )
            for row in rows
        ],
    )


def two_way(pairs: DataFrame) -> Table:
    """Recorded ends down, replayed ends across."""
    across = (*CLASSES, NONE)
    counts = [sf.count_if(sf.col("replayed_outcome") == outcome).alias(outcome) for outcome in across]
    by = pairs.where(sf.col("kind").isin(*BY_ID)).groupBy("kind", "recorded_outcome").agg(*counts)
    rows = sorted(by.collect(), key=lambda row: (BY_ID.index(row.kind), CLASSES.index(row.recorded_outcome)))
    return Table(
        "Recorded end, down, against replayed end, across",
        ("kind", "recorded", "at once", "completed", "expired", "no outcome"),
        [(row.kind, row.recorded_outcome, *(row[outcome] for outcome in across)) for row in rows],
    )


def waits(pairs: DataFrame) -> Table:
    """How far the waits lie apart, of all that both sides know."""
    apart = sf.abs("difference_ms")
    shares = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    figures = [sf.percentile_approx(apart, share, ACCURACY).alias(name) for name, share in shares.items()]
    rows = _by_kind_and_broker(pairs.where("difference_ms IS NOT NULL"), [*figures, sf.max(apart).alias("worst")])
    return Table(
        "Difference of waits, recorded against replayed, in ms",
        ("kind", "broker", "operations", "median", "p95", "p99", "worst"),
        [(*_names(row), row.n, *(round(row[name], 2) for name in (*shares, "worst"))) for row in rows],
    )


def lateness(pairs: DataFrame, phases: Mapping[int, float]) -> Table:
    """By how much brokers missed the deadlines of what expired on both sides, the phase of each one's timer where it is
    known, and what is left of a difference when what these explain is taken off."""
    expired = pairs.where((sf.col("recorded_outcome") == EXPIRED) & (sf.col("replayed_outcome") == EXPIRED))
    late = sf.col("recorded_ms") - sf.col("replayed_ms")
    figures = {"median": (late, 0.5), "p95": (late, 0.95), "left": (sf.abs("difference_ms"), 0.5)}
    named = [sf.percentile_approx(of, share, ACCURACY).alias(name) for name, (of, share) in figures.items()]
    rows = expired.groupBy("broker").agg(sf.count("*").alias("n"), *named).orderBy("broker").collect()
    return Table(
        "How late brokers ended what expired, in ms: what is usual for its timer is taken off differences of waits",
        ("broker", "operations", "median", "p95", "phase of the timer", "left, median"),
        [
            (
                str(row.broker),
                row.n,
                round(row.median, 2),
                round(row.p95, 2),
                round(phases[row.broker], 2) if row.broker in phases else None,
                round(row.left, 2),
            )
            for row in rows
        ],
    )


def worst(pairs: DataFrame) -> Table:
    """The operations behind the worst differences, of each kind."""
    rows = [
        row
        for kind in _kinds(pairs)
        for row in pairs.where((sf.col("kind") == kind) & sf.col("difference_ms").isNotNull())
        .orderBy(sf.desc(sf.abs("difference_ms")), "operation_id")
        .limit(WORST)
        .collect()
    ]
    return Table(
        "Worst differences of waits",
        ("kind", "request", "operation", "recorded", "ms", "replayed", "ms"),
        [
            (
                row.kind,
                row.request_id,
                str(row.operation_id),
                row.recorded_outcome,
                round(row.recorded_ms, 2),
                row.replayed_outcome,
                round(row.replayed_ms, 2),
            )
            for row in rows
        ],
    )


def causes(pairs: DataFrame) -> Table:
    """Every disagreement, by the cause it falls under."""
    grouped = pairs.where("NOT agrees").groupBy("kind", "recorded_outcome", "replayed_outcome", "cause").count()
    rows = grouped.orderBy("kind", sf.desc("count"), "recorded_outcome", "replayed_outcome", "cause").collect()
    return Table(
        "Disagreements and their causes",
        ("kind", "recorded", "replayed", "operations", "cause"),
        [
            (row.kind, row.recorded_outcome, row.replayed_outcome, row["count"], f"{row.cause}: {CAUSES[row.cause]}")
            for row in rows
        ],
    )


def expirations(ends: DataFrame, counted: Sequence[Counted]) -> Table:
    """How often operations expired, as recorded, as replayed, and as the broker counted if it was asked.

    `ends` has a row an operation of the kinds that are counted: `recorded_expired` and `replayed_expired` (how often,
    at `recorded_end_us` and `replayed_end_us`): produces count by partition.
    """
    by_broker = ends.groupBy("kind", "broker").agg(
        *(sf.sum(f"{side}_expired").alias(side) for side in ("recorded", "replayed"))
    )
    beans = {(bean.kind, bean.broker): bean for bean in counted}
    rows = []
    for row in sorted(by_broker.collect(), key=lambda row: (BY_ID.index(row.kind), row.broker)):
        bean = beans.get((row.kind, row.broker))
        recorded, replayed = row.recorded, row.replayed
        if bean is not None:
            recorded, replayed = (_within(ends, bean, side) for side in ("recorded", "replayed"))
        rows.append((row.kind, str(row.broker), recorded, replayed, bean.count if bean else None))
    return Table(
        "Expirations (of produces: partitions timed out)",
        ("kind", "broker", "recorded", "replayed", "counted by the broker"),
        rows,
    )


def _within(ends: DataFrame, bean: Counted, side: str) -> int:
    """Between the broker's two readings."""
    its_ends = ends.where((sf.col("kind") == bean.kind) & (sf.col("broker") == bean.broker))
    ended = sf.col(f"{side}_end_us")
    total = its_ends.where((ended > bean.since_us) & (ended <= bean.until_us)).agg(sf.sum(f"{side}_expired")).first()
    return int(total[0] or 0) if total else 0


def group_answers(pairs: DataFrame) -> Table:
    """Joins, syncs and heartbeats: were they answered alike."""
    answers = pairs.where(~sf.col("kind").isin(*BY_ID))
    rows = answers.groupBy("kind").agg(sf.count("*").alias("n"), sf.count_if("agrees").alias("same")).orderBy("kind")
    return Table(
        "Answers of group coordinators",
        ("kind", "answers", "alike", "%"),
        [(row.kind, row.n, row.same, round(100 * row.same / row.n, 2)) for row in rows.collect()],
    )


def _by_kind_and_broker(pairs: DataFrame, figures: Sequence[Column]) -> list[Row]:
    """A row for each kind and broker, and first one for all brokers together, whose `broker` is null."""
    counted = [sf.count("*").alias("n"), *figures]
    single = pairs.groupBy("kind", "broker").agg(*counted)
    together = pairs.groupBy("kind", sf.lit(None).cast("int").alias("broker")).agg(*counted)
    order = {kind: place for place, kind in enumerate(_kinds(pairs))}
    rows = together.unionByName(single).collect()
    return sorted(rows, key=lambda row: (order[row.kind], -1 if row.broker is None else row.broker))


def _kinds(pairs: DataFrame) -> list[str]:
    """Those that occur, groups last."""
    kinds = {row.kind for row in pairs.select("kind").distinct().collect()}
    return [kind for kind in BY_ID if kind in kinds] + sorted(kinds.difference(BY_ID))


def _names(row: Row) -> tuple[str, str]:
    return row.kind, ALL if row.broker is None else str(row.broker)


__all__ = ["COUNTERS", "agreement", "causes", "expirations", "group_answers", "lateness", "two_way", "waits", "worst"]

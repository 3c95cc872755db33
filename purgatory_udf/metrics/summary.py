"""The metrics as some lines to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.metrics.waits import ALL
from purgatory_udf.printing import Cell, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from purgatory_udf.metrics.run import Metrics

_NOT_YET = {
    "purgatory_gauges": "purgatory sizes (a replay works them out when it ends)",
    "group_transitions": "rebalances (the trace has no groups, or their turn has not come)",
    "events": "who joined last (the replayed events are not where they were)",
}


def summary(metrics: Metrics) -> list[str]:
    """Every table's essence, at most `top` rows of each."""
    kinds = metrics["waits"].where(sf.col("by") == ALL).orderBy("kind").collect()
    blocks = [[_head(metrics, kinds)]]
    blocks += [table.lines() for table in _tables(metrics, kinds) if table.rows]
    missing = [_NOT_YET[name] for name in metrics.tables.missing if name in _NOT_YET]
    blocks += [[f"Without: {'; '.join(missing)}"]] if missing else []
    blocks.append([f"Tables: {', '.join(sorted(metrics.frames))} in {metrics.tables.layout.out}"])
    return [line for block in blocks for line in ["", *block]][1:]


def _head(metrics: Metrics, kinds: list[Row]) -> str:
    tables = metrics.tables
    state = "" if tables.finished else " (still running, or interrupted: what it has written so far)"
    operations, waited, expired = (sum(row[name] for row in kinds) for name in ("operations", "waited", "expired"))
    after = metrics["operations"].agg(sf.sum("after_end")).first()
    late = f" ({after[0]:,} of them after the trace's end)" if after and after[0] else ""
    share = f"{percent(waited / operations)} % had to wait" if operations else "none had to wait"
    return f"Run {tables.run.run_id}{state}: {operations:,} operations, {share}, {expired:,} expired{late}"


def _tables(metrics: Metrics, kinds: list[Row]) -> list[Table]:
    top = metrics.options.top
    waits = metrics["waits"].where(sf.col("by") != ALL)
    return [
        Table("Waits (quantiles of those that had to)", ("kind", *_WAITS), [(row.kind, *_wait(row)) for row in kinds]),
        _expires(metrics, top),
        _purgatories(metrics["purgatories"], top),
        _causes(metrics["causes"]),
        *(_by(waits.where(sf.col("by") == by), by, top) for by in metrics.options.by),
        _offenders(waits, kinds, top),
        _rebalances(metrics["rebalances"], top),
    ]


_WAITS = ("operations", "waited", "waited %", "expired", "p50 ms", "p95 ms", "p99 ms", "max ms", "waited s in all")


def _wait(row: Row) -> tuple[Cell, ...]:
    quantiles = (_rounded(row.p50_ms), _rounded(row.p95_ms), _rounded(row.p99_ms))
    seconds = _rounded(row.waited_ms / 1000)
    return (row.operations, row.waited, percent(row.waited_share), row.expired, *quantiles, row.max_ms, seconds)


def _expires(metrics: Metrics, top: int) -> Table:
    """Totals of the meters; the rate is over all windows from the trace's first to its last."""
    window = sf.col("window_start")
    span = metrics["operations"].agg(sf.unix_millis(sf.max(window)) - sf.unix_millis(sf.min(window))).first()
    seconds = ((span[0] if span and span[0] else 0) + metrics.options.window_ms) / 1000
    found = (
        metrics["expires"]
        .groupBy("mbean", "broker", "topic")
        .agg(
            sf.sum("expired").alias("expired"),
            sf.max("per_second").alias("busiest"),
            sf.date_format(sf.max_by("window_start", "expired"), "HH:mm:ss").alias("at"),
        )
        .orderBy(sf.col("topic").isNotNull(), sf.desc("expired"), "mbean", "broker")
        .limit(top)
        .collect()
    )
    rows = [
        (row.mbean, row.broker, row.expired, round(row.expired / seconds, 2), _rounded(row.busiest), row.at)
        for row in found
    ]
    return Table("Kafka's meters", ("mbean", "broker", "total", "per second", "busiest", "at"), rows)


def _purgatories(frame: DataFrame, top: int) -> Table:
    found = (
        frame.groupBy("broker", "purgatory")
        .agg(
            sf.max("purgatory_size_max").alias("size"),
            sf.date_format(sf.max_by("window_start", "purgatory_size_max"), "HH:mm:ss").alias("at"),
            sf.max("num_delayed_max").alias("delayed"),
            sf.max("dead_watches_max").alias("dead"),
            sf.max("dead_bytes_max").alias("bytes"),
            sf.sum("purged").alias("purged"),
        )
        .orderBy(sf.desc("size"), "broker", "purgatory")
        .limit(top)
        .collect()
    )
    columns = ("purgatory", "broker", "PurgatorySize, most", "at", "NumDelayedOperations, most")
    rows = [
        (row.purgatory, row.broker, row.size, row.at, row.delayed, row.dead, row.bytes, row.purged) for row in found
    ]
    return Table("Purgatories", (*columns, "dead entries, most", "bytes they held", "purged"), rows)


def _causes(frame: DataFrame) -> Table:
    rows = [
        (
            row.kind,
            "expired" if row.expired else "completed" if row.watched else "completed on arrival",
            row.completed_by,
            row.operations,
            _rounded(row.p50_ms),
            _rounded(row.p99_ms),
            row.max_ms,
        )
        for row in frame.orderBy("kind", "expired", sf.desc("operations"), "completed_by").collect()
    ]
    return Table("Causes", ("kind", "end", "by", "operations", "p50 ms", "p99 ms", "max ms"), rows)


def _by(frame: DataFrame, by: str, top: int) -> Table:
    found = frame.orderBy(sf.desc("waited_ms"), "kind", "value").limit(top).collect()
    return Table(f"Waits by {by}", (by, "kind", *_WAITS), [(row.value, row.kind, *_wait(row)) for row in found])


def _offenders(waits: DataFrame, kinds: list[Row], top: int) -> Table:
    of_kind = {row.kind: row.expired for row in kinds}
    found = waits.where("expired > 0").orderBy(sf.desc("expired"), sf.desc("waited_ms"), "by", "value").limit(top)
    rows = [
        (row.by, row.value, row.kind, row.expired, percent(row.expired / of_kind[row.kind]), _rounded(row.max_ms))
        for row in found.collect()
    ]
    return Table("Most expirations", ("by", "value", "kind", "expired", "% of the kind's", "longest ms"), rows)


def _rebalances(frame: DataFrame, top: int) -> Table:
    longest = frame.orderBy("after_end", sf.desc("length_ms"), "broker", "group", "started_at").limit(top)
    worst = longest.withColumn("began", sf.date_format("started_at", "HH:mm:ss.SSS"))
    rows = [
        (
            row.group,
            row.broker,
            row.generation,
            row.began,
            row.length_ms,
            row.reason,
            row.joined_because,
            row.ended_as + (" after the trace's end" if row.after_end else ""),
            row.last_to_join,
            ", ".join(row.missing or []) or None,
        )
        for row in worst.collect()
    ]
    columns = ("group", "broker", "generation", "began", "ms", "because", "joined as", "ended", "last to join")
    return Table("Rebalances", (*columns, "missing"), rows)


def percent(share: float) -> float:
    return round(100 * share, 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)

"""The essence of each table of the metrics, as small tables to read: the worst and the longest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.metrics.outcome_metrics import ALL
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Cell, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from purgatory_udf.answers.metrics.metrics_run import Metrics


@dataclass(frozen=True)
class Totals:
    """Of all operations that ended; `kinds` has the row of each kind in `metrics/waits`."""

    kinds: list[Row]
    first: str
    last: str
    seconds: float
    after_end: int

    @property
    def operations(self) -> int:
        return sum(row.operations for row in self.kinds)

    @property
    def waited(self) -> int:
        return sum(row.waited for row in self.kinds)

    @property
    def expired(self) -> int:
        return sum(row.expired for row in self.kinds)

    @property
    def waited_percent(self) -> float:
        return percent(self.waited / self.operations) if self.operations else 0.0


def totals(metrics: Metrics) -> Totals:
    """`seconds` are those from the first window's beginning to the last one's end."""
    kinds = metrics["waits"].where(sf.col("by") == ALL).orderBy("kind").collect()
    window, window_ms = sf.col("window_start"), metrics.options.window_ms
    first, last = sf.min(window), sf.max(window)
    span = metrics["operations"].agg(
        sf.date_format(first, _MOMENT).alias("first"),
        sf.date_format(last, _MOMENT).alias("last"),
        (sf.unix_millis(last) - sf.unix_millis(first) + window_ms).alias("span_ms"),
        sf.sum("after_end").alias("after_end"),
    )
    row = span.first()
    assert row is not None
    return Totals(kinds, row.first or "-", row.last or "-", (row.span_ms or window_ms) / 1000, row.after_end or 0)


_MOMENT = "yyyy-MM-dd HH:mm:ss"


def overview(metrics: Metrics, totals: Totals) -> list[Table]:
    """At most `top` rows of each table; one without rows has nothing to say."""
    top = metrics.options.top
    waits = metrics["waits"].where(sf.col("by") != ALL)
    rows = [(row.kind, *_wait(row)) for row in totals.kinds]
    return [
        Table("Waits (quantiles of those that had to)", ("kind", *_WAITS), rows),
        _expires(metrics["expires"], totals.seconds, top),
        _purgatories(metrics["purgatories"], top),
        _causes(metrics["causes"]),
        *(_by(waits.where(sf.col("by") == by), by, top) for by in metrics.options.by),
        _offenders(waits, totals.kinds, top),
        _rebalances(metrics["rebalances"], top),
    ]


_WAITS = ("operations", "waited", "waited %", "expired", "p50 ms", "p95 ms", "p99 ms", "max ms", "waited s in all")


def _wait(row: Row) -> tuple[Cell, ...]:
    quantiles = (_rounded(row.p50_ms), _rounded(row.p95_ms), _rounded(row.p99_ms))
    seconds = _rounded(row.waited_ms / 1000)
    return (row.operations, row.waited, percent(row.waited_share), row.expired, *quantiles, row.max_ms, seconds)


def _expires(frame: DataFrame, seconds: float, top: int) -> Table:
    """Totals of the meters; the rate is over all windows from the trace's first to its last."""
    meters = (
        frame.groupBy("mbean", "broker", "topic")
        .agg(
            sf.sum("expired").alias("expired"),
            sf.max("per_second").alias("busiest"),
            _latest("expired").alias("at"),
        )
        .orderBy(sf.col("topic").isNotNull(), sf.desc("expired"), "mbean", "broker")
        .limit(top)
        .collect()
    )
    rows = [
        (row.mbean, row.broker, row.expired, round(row.expired / seconds, 2), _rounded(row.busiest), row.at)
        for row in meters
    ]
    return Table("Kafka's meters", ("mbean", "broker", "total", "per second", "busiest", "at"), rows)


def _purgatories(frame: DataFrame, top: int) -> Table:
    readings = (
        frame.groupBy("broker", "purgatory")
        .agg(
            sf.max("purgatory_size_max").alias("size"),
            _latest("purgatory_size_max").alias("at"),
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
        (row.purgatory, row.broker, row.size, row.at, row.delayed, row.dead, row.bytes, row.purged) for row in readings
    ]
    return Table("Purgatories", (*columns, "dead entries, most", "bytes they held", "purged"), rows)


def _latest(most: str) -> Column:
    """When the last of the windows began that have the most."""
    return sf.date_format(sf.max_by("window_start", sf.struct(most, "window_start")), "HH:mm:ss")


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
    longest = frame.orderBy(sf.desc("waited_ms"), "kind", "value").limit(top).collect()
    return Table(f"Waits by {by}", (by, "kind", *_WAITS), [(row.value, row.kind, *_wait(row)) for row in longest])


def _offenders(waits: DataFrame, kinds: list[Row], top: int) -> Table:
    of_kind = {row.kind: row.expired for row in kinds}
    worst = waits.where("expired > 0").orderBy(sf.desc("expired"), sf.desc("waited_ms"), "by", "value").limit(top)
    rows = [
        (row.by, row.value, row.kind, row.expired, percent(row.expired / of_kind[row.kind]), _rounded(row.max_ms))
        for row in worst.collect()
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


# The metrics as some lines to read.


_NOT_YET = {
    "purgatory_gauges": "purgatory sizes (none has been read)",
    "group_transitions": "rebalances (the trace has no groups, or their turn has not come)",
    "events": "who joined last (the replayed events are not where they were)",
}


def summary(metrics: Metrics) -> list[str]:
    """Totals, then the essence of every table that has any, then what could not be said yet."""
    sums = totals(metrics)
    blocks = [[_head(metrics, sums)]]
    blocks += [table.lines() for table in overview(metrics, sums) if table.rows]
    missing = [_NOT_YET[name] for name in metrics.tables.missing if name in _NOT_YET]
    blocks += [[f"Without: {'; '.join(missing)}"]] if missing else []
    blocks.append([f"Tables: {', '.join(sorted(metrics.frames))} in {metrics.tables.layout.out}"])
    return [line for block in blocks for line in ["", *block]][1:]


def _head(metrics: Metrics, totals: Totals) -> str:
    tables = metrics.tables
    state = "" if tables.finished else " (still running, or interrupted: what it has written so far)"
    late = f" ({totals.after_end:,} of them after the trace's end)" if totals.after_end else ""
    share = f"{totals.waited_percent} % had to wait"
    return (
        f"Run {tables.run.run_id}{state}: {totals.operations:,} operations, {share}, {totals.expired:,} expired{late}"
    )

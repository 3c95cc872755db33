"""What came of a replay, in some lines to read: how operations ended, what ended them, which waited longest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Table

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row, SparkSession

    from purgatory_udf.storage.run_records import Run


SLOWEST = 5
_COMMON = ("operation_id", "kind", "request_id", "key", "wait_ms", "watched", "completed_by", "trigger")


def summary(spark: SparkSession, out: str, run: Run) -> list[str]:
    """The lines that a replay ends with; `run` is its record, `out` the folder of its tables."""
    ends = outcomes(spark, out)
    groups = _groups(ends)
    counts = run.counts
    took = f" in {run.wall_seconds:,.1f} s" if run.wall_seconds is not None else ""
    events, rejected = counts.get("events", 0), counts.get("rejected", 0)
    left_out = f" ({rejected:,} lines rejected)" if rejected else ""
    tables = "completions, expirations, cancellations, watches, runs"
    blocks = [
        [f"Run {run.run_id}: {counts.get('operations', 0):,} operations in {events:,} events{left_out}{took}"],
        _by_kind(groups, counts.get("open", 0), counts.get("cancellations", 0)).lines(),
        _by_rule(groups).lines(),
        _slowest(ends).lines(),
        [f"Tables: {tables} in {out.removeprefix('file://')}"],
    ]
    return [line for block in blocks for line in ["", *block]][1:]


def outcomes(spark: SparkSession, out: str) -> DataFrame:
    """Completions and expirations in one frame, told apart by `expired`."""
    completed, expired = (spark.read.format("delta").load(f"{out.rstrip('/')}/{name}") for name in _TABLES)
    return completed.select(*_COMMON, sf.col("completed_at").alias("ended_at"), sf.lit(False).alias("expired")).union(
        expired.select(*_COMMON, sf.col("expired_at").alias("ended_at"), sf.lit(True).alias("expired"))
    )


_TABLES = ("completions", "expirations")


def _groups(ends: DataFrame) -> list[Row]:
    wait = sf.col("wait_ms")
    return (
        ends.groupBy("kind", "expired", "watched", "completed_by")
        .agg(
            sf.count("*").alias("operations"),
            sf.percentile_approx(wait, 0.5).alias("median_ms"),
            sf.max(wait).alias("longest_ms"),
        )
        .orderBy("kind", "expired", sf.desc("operations"), "completed_by", "watched")
        .collect()
    )


def _by_kind(groups: list[Row], still_open: int, cancelled: int) -> Table:
    def total(kind: str, watched: bool | None, expired: bool) -> int:
        return sum(
            group.operations
            for group in groups
            if (group.kind, group.expired) == (kind, expired) and (expired or group.watched == watched)
        )

    kinds = list(dict.fromkeys(group.kind for group in groups))
    rows = [
        (
            kind,
            sum(group.operations for group in groups if group.kind == kind),
            total(kind, False, False),
            total(kind, True, False),
            total(kind, None, True),
        )
        for kind in kinds
    ]
    more = [f"{still_open:,} more were still open at the end"] if still_open else []
    more += [f"{cancelled:,} more waited at a broker that stopped"] if cancelled else []
    title = "Operations" + (f" ({'; '.join(more)})" if more else "")
    return Table(title, ("kind", "ended", "completed on arrival", "completed after a wait", "expired"), rows)


def _by_rule(groups: list[Row]) -> Table:
    rows = [
        (
            group.kind,
            "expired" if group.expired else "completed" if group.watched else "completed on arrival",
            group.completed_by,
            group.operations,
            group.median_ms,
            group.longest_ms,
        )
        for group in groups
    ]
    return Table("What ended them", ("kind", "end", "by", "operations", "median wait ms", "longest wait ms"), rows)


def _slowest(ends: DataFrame) -> Table:
    rows = [
        (
            row.request_id or f"operation {row.operation_id}",
            row.kind,
            row.key,
            row.wait_ms,
            "expired" if row.expired else f"{row.completed_by} at {row.trigger}" if row.trigger else row.completed_by,
        )
        for row in ends.orderBy(sf.desc("wait_ms"), "ended_at", "operation_id").limit(SLOWEST).collect()
    ]
    return Table("Slowest waits", ("request", "kind", "key", "wait ms", "ended by"), rows)


# One picture of a run: every operation a point, when it began against how long it waited, in the colour of its end.


# More points than this neither fit on a screen nor into a handy file.
MOST_POINTS = 5_000

ON_ARRIVAL, AFTER_A_WAIT, EXPIRED = "completed on arrival", "completed after a wait", "expired"
# Told apart by colour-blind eyes too.
COLOURS = {ON_ARRIVAL: "#999999", AFTER_A_WAIT: "#0072b2", EXPIRED: "#d55e00"}


def save_waits(spark: SparkSession, out: str, file: Path) -> Path:
    """Draw the run under `out` into an SVG (or PNG) that needs no network to be made or seen."""
    ends = outcomes(spark, out)
    total = ends.count()
    chart = waits(points(ends), total)
    file.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(file))
    return file


def points(ends: DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """The operations to draw: all, or as many as `most`, chosen by their ids alone."""
    end = sf.when(sf.col("expired"), EXPIRED).when(sf.col("watched"), AFTER_A_WAIT).otherwise(ON_ARRIVAL).alias("end")
    # Milliseconds since the epoch: neither Spark's nor the browser's time zone has a say.
    began = (sf.unix_millis("ended_at") - sf.col("wait_ms")).alias("began")
    chosen = ends.orderBy(sf.xxhash64("operation_id"), "operation_id").limit(most)
    return chosen.select("kind", began, "wait_ms", end).toPandas()


def waits(frame: pd.DataFrame, total: int) -> alt.Chart:
    """A row a kind of operation, the most frequent first; the root scale shows short waits beside long ones."""
    shown = f"{len(frame):,} of {total:,}" if len(frame) < total else f"{total:,}"
    return (
        alt.Chart(frame, title=f"How long {shown} operations waited, and how they ended", width=900, height=150)
        .mark_circle(size=14, opacity=0.6)
        .encode(
            x=alt.X("began:T", title="began (UTC)", scale=alt.Scale(type="utc")).axis(format="%H:%M:%S", tickCount=8),
            y=alt.Y("wait_ms:Q", title="waited, ms", scale=alt.Scale(type="sqrt")),
            color=alt.Color(
                "end:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ).legend(orient="top"),
            row=alt.Row("kind:N", title=None, sort=list(frame["kind"].value_counts().index)),
        )
        .resolve_scale(y="independent")
    )

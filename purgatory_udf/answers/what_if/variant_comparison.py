"""What the variants change, counted: by variant and kind, and purgatory by purgatory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import altair as alt
from pyspark.sql import Window
from pyspark.sql import functions as sf

from purgatory_udf.answers.report import charts
from purgatory_udf.answers.report.chart_data import round_bin_ms
from purgatory_udf.answers.what_if import BASELINE
from purgatory_udf.common.console import Table
from purgatory_udf.rules.purgatory.clock import STEP_MS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, Row

    from purgatory_udf.storage.run_tables import RunFrames


def bin_ms(windows: DataFrame, window_ms: int) -> int:
    """Return the width of a bin for all these windows, in milliseconds."""
    start = sf.unix_millis("window_start")
    first = windows.agg(sf.min(start), sf.max(start)).first()
    assert first is not None
    return round_bin_ms((first[1] - first[0] if first[0] is not None else 0) + window_ms, window_ms)


def binned(moment: str, width_ms: int) -> Column:
    """Return the start of the moment's bin, in milliseconds since the epoch."""
    ms = sf.unix_millis(moment)
    return (ms - sf.pmod(ms, sf.lit(width_ms))).alias("t")


def wait_ranges(ended: DataFrame, *by: str | Column) -> DataFrame:
    """Return how many operations waited from `low` to `high` ms: ranges twice as wide as the one before."""
    ms = sf.col("wait_ms")
    power = sf.floor(sf.log2(sf.greatest(ms, sf.lit(1)))).cast("int")
    low = sf.when(ms == 0, 0).otherwise(sf.pow(sf.lit(2), power)).cast("long").alias("low")
    high = sf.when(ms == 0, 0).otherwise(sf.pow(sf.lit(2), power + 1) - 1).cast("long").alias("high")
    return ended.where("watched").groupBy(*by, low, high).agg(sf.count("*").alias("operations"))


# Every operation under the baseline beside the same one under a variant.


SAME, APPEARS, VANISHES, OTHERWISE, LONGER, SHORTER, ONLY_ONE = (
    "same",
    "expiration appears",
    "expiration vanishes",
    "ended by something else",
    "waits longer",
    "waits less",
    "in one of both only",
)
CHANGES = (APPEARS, VANISHES, OTHERWISE, LONGER, SHORTER, ONLY_ONE)

_NAMED = ("operation_id", "broker", "request_id", "client_id", "key", "started_at")
# What two operations are the same by. In one trace: by what began them.
_OF_ONE_TRACE = ("kind", "began")
# In two: by whose n-th they are. A group's own rounds are nobody's request, and a join may open several windows.
_OF_TWO_TRACES = ("kind", "who", "request", "nth")


def pairs(baseline: RunFrames, variant: RunFrames, reacting: bool = False) -> DataFrame:
    """One row an operation, with its `change`. What one side has no end for (it was open, or its group never began
    it) is null there. Where clients were `reacting`, each side is of a trace of its own."""
    same = _OF_TWO_TRACES if reacting else _OF_ONE_TRACE
    left, right = (_side(tables, name, same) for tables, name in ((baseline, "baseline"), (variant, "variant")))
    both = left.join(right, [*same], "full")
    named = [sf.coalesce(f"baseline_{name}", f"variant_{name}").alias(name) for name in _NAMED]
    ends = [
        f"{side}_{what}"
        for what in ("expired", "completed_by", "wait_ms", "watched", "bytes")
        for side in ("baseline", "variant")
    ]
    shift = (sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")).alias("shift_ms")
    return both.select("kind", *named, *ends, shift, _change().alias("change"))


def differing(paired: DataFrame) -> DataFrame:
    """Those that a variant changes anything of."""
    return paired.where(sf.col("change") != SAME)


def _side(tables: RunFrames, name: str, same: tuple[str, ...]) -> DataFrame:
    ended = tables.ended().withColumn("began", sf.col("operation_id"))
    if same == _OF_TWO_TRACES:
        ended = _numbered(ended)
    columns = (*_NAMED, "expired", "completed_by", "wait_ms", "watched", "bytes")
    return ended.select(*same, *(sf.col(column).alias(f"{name}_{column}") for column in columns))


def _numbered(ended: DataFrame) -> DataFrame:
    """With `who` asked, their `request`, and the `nth` operation of this kind that came of it."""
    who = sf.coalesce("client_id", sf.lit("")).alias("who")
    request = sf.coalesce("request_id", "key", sf.lit("")).alias("request")
    of_one = Window.partitionBy("kind", "who", "request").orderBy("started_at", "operation_id")
    return ended.select("*", who, request).withColumn("nth", sf.row_number().over(of_one))


def _change() -> Column:
    before, after = sf.col("baseline_expired"), sf.col("variant_expired")
    same_end = (sf.col("baseline_completed_by") == sf.col("variant_completed_by")) & sf.col(
        "baseline_bytes"
    ).eqNullSafe(sf.col("variant_bytes"))
    shift = sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")
    return (
        sf.when(before.isNull() | after.isNull(), ONLY_ONE)
        .when(~before & after, APPEARS)
        .when(before & ~after, VANISHES)
        .when(shift > 0, LONGER)
        .when(shift < 0, SHORTER)
        .when(~same_end, OTHERWISE)
        .otherwise(SAME)
    )


def counted(paired: DataFrame) -> list[Row]:
    """Of one variant, a row for each kind; quantiles are of those that had to wait."""
    # Equal pairs first: what is left to sort is small, and the quantiles are exact.
    sides = ("baseline", "variant")
    keys = [f"{side}_{what}" for side in sides for what in ("expired", "wait_ms", "watched")]
    alike = paired.groupBy("kind", "change", *keys).agg(sf.count("*").alias("n"))
    n = sf.col("n")
    changes = [
        sf.sum(sf.when(sf.col("change") == change, n).otherwise(0)).alias(f"change_{place}")
        for place, change in enumerate(CHANGES)
    ]
    waits = []
    for side in sides:
        waited = sf.when(sf.col(f"{side}_watched"), n).otherwise(0)
        waits += [
            sf.sum(sf.when(sf.col(f"{side}_expired"), n).otherwise(0)).alias(f"{side}_expired"),
            *(
                sf.percentile(f"{side}_wait_ms", share, waited).alias(f"{side}_p{int(100 * share)}")
                for share in (0.5, 0.99)
            ),
        ]
    shift = sf.sum((sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")) * n).alias("shift_ms")
    return alike.groupBy("kind").agg(sf.sum(n).alias("operations"), *changes, *waits, shift).orderBy("kind").collect()


def ends_table(variant: str, rows: list[Row]) -> Table:
    """Baseline and variant beside each other; one line says so where nothing differs."""
    changed = sum(_changed(row) for row in rows)
    operations = sum(row.operations for row in rows)
    title = (
        f"{variant}: {changed:,} of {operations:,} operations end otherwise"
        if changed
        else (f"{variant}: no difference in any of {operations:,} operations")
    )
    columns = ("kind", "operations", "differ", "expired", "would expire", "appear", "vanish", "other end", "one only")
    waits = ("p50 ms", "would be", "p99 ms", "would be", "wait in all, s")
    cells = [
        (
            row.kind,
            row.operations,
            _changed(row),
            row.baseline_expired,
            row.variant_expired,
            *(row[f"change_{CHANGES.index(change)}"] for change in (APPEARS, VANISHES, OTHERWISE, ONLY_ONE)),
            *(_rounded(row[name]) for name in ("baseline_p50", "variant_p50", "baseline_p99", "variant_p99")),
            f"{(row.shift_ms or 0) / 1000:+,.1f}",
        )
        for row in rows
    ]
    return Table(title, (*columns, *waits), cells if changed else [])


def purgatories_table(runs: dict[str, RunFrames]) -> Table:
    """The most that each gauge read, under each configuration."""
    sizes = []
    for name, tables in runs.items():
        gauges = tables.table("purgatory_gauges")
        most = gauges.groupBy("purgatory", "broker").agg(
            sf.max("watched").alias("size"), sf.max("delayed").alias("delayed"), sf.sum("purged").alias("purged")
        )
        sizes.append(most.withColumn("variant", sf.lit(name)))
    every = sizes[0]
    for more in sizes[1:]:
        every = every.unionByName(more)
    first = sf.col("variant") != BASELINE
    rows = [
        (row.purgatory, row.broker, row.variant, row.size, row.delayed, row.purged)
        for row in every.orderBy("purgatory", "broker", first, "variant").collect()
    ]
    columns = ("purgatory", "broker", "variant", "PurgatorySize, most", "NumDelayedOperations, most", "purged")
    return Table("Purgatories", columns, rows)


def _changed(row: Row) -> int:
    return sum(row[f"change_{place}"] for place in range(len(CHANGES)))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


# The variants drawn over each other: expirations over time, waits, purgatory sizes.


def what_if_charts(runs: dict[str, RunFrames]) -> dict[str, charts.Spec]:
    """The specification of each picture that has anything to show, by name."""
    first = next(iter(runs.values()))
    times = first.ended().select(sf.col("ended_at").alias("window_start"))
    width_ms = bin_ms(times, STEP_MS)
    expired = _of_all(runs, lambda tables: _expired(tables, width_ms)).orderBy("kind", "variant", "t").toPandas()
    waits = _of_all(runs, lambda tables: wait_ranges(tables.ended(), "kind")).orderBy("kind", "low").toPandas()
    sizes = _of_all(runs, lambda tables: _sizes(tables, width_ms)).orderBy("purgatory", "variant", "t").toPandas()
    colours = dict(zip(runs, (charts.GREY, *charts.CAUSE_COLOURS), strict=False))
    with alt.data_transformers.disable_max_rows():
        drawn = {
            "expired": _over_time(expired, "expired", "kind", width_ms, colours),
            "waits": _ranges(waits, colours),
            "sizes": _over_time(sizes, "size", "purgatory", width_ms, colours, joined=True),
        }
        shown = {"expired": expired, "waits": waits, "sizes": sizes}
        return {name: chart.to_dict() for name, chart in drawn.items() if len(shown[name])}


def _of_all(runs: dict[str, RunFrames], of_one: Callable[[RunFrames], DataFrame]) -> DataFrame:
    frames = [of_one(tables).withColumn("variant", sf.lit(name)) for name, tables in runs.items()]
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def _expired(tables: RunFrames, width_ms: int) -> DataFrame:
    windows = tables.table("expirations").groupBy(binned("expired_at", width_ms), "kind")
    return windows.agg(sf.count("*").alias("expired"))


def _sizes(tables: RunFrames, width_ms: int) -> DataFrame:
    name = sf.concat("purgatory", sf.lit(" at broker "), sf.col("broker").cast("string")).alias("purgatory")
    return tables.table("purgatory_gauges").groupBy(binned("at", width_ms), name).agg(sf.max("watched").alias("size"))


def _over_time(
    frame: pd.DataFrame, what: str, row: str, width_ms: int, colours: dict[str, str], joined: bool = False
) -> alt.Chart:
    """A level holds until the next reading; a count is of its column alone, and those between have none."""
    placed, x = charts.time_axis(frame, width_ms)
    chart = alt.Chart(placed, width=charts.WIDTH, height=90).encode(
        x=x,
        y=charts.count_axis(what),
        color=charts.colours_of("variant", colours),
        tooltip=["time:N", f"{row}:N", "variant:N", f"{what}:Q"],
        row=charts.rows_of(row, frame),
    )
    if joined:
        marked = chart.mark_line(interpolate="step-after", strokeWidth=1.5)
    else:  # rings within each other: where variants agree, each is still seen
        widths = [30 + 60 * (len(colours) - 1 - place) for place in range(len(colours))]
        size = alt.Size("variant:N", scale=alt.Scale(domain=list(colours), range=widths), legend=None)
        marked = chart.mark_point(strokeWidth=1.5, filled=False).encode(size=size)
    return marked.resolve_scale(y="independent")


def _ranges(frame: pd.DataFrame, colours: dict[str, str]) -> alt.Chart:
    placed, order = charts.wait_labels(frame)
    return (
        alt.Chart(placed, width=charts.WIDTH, height=90)
        .mark_bar()
        .encode(
            x=alt.X("waited:O", title="waited, ms", sort=order).axis(labelAngle=0, labelOverlap=True),
            xOffset=alt.XOffset("variant:N", sort=list(colours)),
            y=charts.count_axis("operations"),
            color=charts.colours_of("variant", colours),
            tooltip=["kind:N", "variant:N", alt.Tooltip("waited:O", title="waited, ms"), "operations:Q"],
            row=charts.rows_of("kind", frame),
        )
        .resolve_scale(y="independent")
    )

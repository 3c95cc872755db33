"""The variants drawn over each other: expirations over time, waits, purgatory sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import altair as alt
from pyspark.sql import functions as sf

from purgatory_udf.purgatory.gauges import STEP_MS
from purgatory_udf.report import charts
from purgatory_udf.report.bins import bin_ms, binned
from purgatory_udf.report.pictures import wait_ranges

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from purgatory_udf.storage.run_tables import RunTables


def what_if_charts(runs: dict[str, RunTables]) -> dict[str, charts.Spec]:
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


def _of_all(runs: dict[str, RunTables], of_one: Callable[[RunTables], DataFrame]) -> DataFrame:
    frames = [of_one(tables).withColumn("variant", sf.lit(name)) for name, tables in runs.items()]
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def _expired(tables: RunTables, width_ms: int) -> DataFrame:
    windows = tables.table("expirations").groupBy(binned("expired_at", width_ms), "kind")
    return windows.agg(sf.count("*").alias("expired"))


def _sizes(tables: RunTables, width_ms: int) -> DataFrame:
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

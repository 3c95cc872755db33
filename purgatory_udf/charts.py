"""One picture of a run: every operation a point, when it began against how long it waited, in the colour of its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt

from purgatory_udf.query import functions as sf
from purgatory_udf.summary import outcomes

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

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

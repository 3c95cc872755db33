"""Recorded against replayed waits: a point an operation; what the replay got right lies on the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from purgatory_udf.fidelity.comparison import BY_ID
from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

# More points than this neither fit on a screen nor into a handy file.
MOST_POINTS = 4_000
ALIKE, OTHERWISE = "ended alike", "ended otherwise"
# Told apart by colour-blind eyes too.
COLOURS = {ALIKE: "#0072b2", OTHERWISE: "#d55e00"}


def points(pairs: DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """All that disagree, and of the others as many as fit, chosen by their ids alone."""
    known = pairs.where(sf.col("kind").isin(*BY_ID) & sf.col("replayed_ms").isNotNull())
    waited = known.where("recorded_ms > 0 OR replayed_ms > 0")
    chosen = waited.orderBy("agrees", sf.xxhash64("operation_id"), "operation_id").limit(most)
    end = sf.when(sf.col("agrees"), ALIKE).otherwise(OTHERWISE).alias("end")
    return chosen.select("kind", "recorded_ms", "replayed_ms", end, "request_id").toPandas()


def recorded_against_replayed(frame: pd.DataFrame) -> alt.Chart:
    """One square a kind; the root scale shows short waits beside long ones."""
    scale = alt.Scale(type="sqrt", zero=True)
    return (
        alt.Chart(frame, width=260, height=260)
        .mark_circle(size=16, opacity=0.5)
        .encode(
            x=alt.X("recorded_ms:Q", title="recorded wait, ms", scale=scale),
            y=alt.Y("replayed_ms:Q", title="replayed wait, ms", scale=scale),
            color=alt.Color(
                "end:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ).legend(orient="top"),
            tooltip=["request_id:N", "recorded_ms:Q", "replayed_ms:Q"],
            facet=alt.Facet("kind:N", title=None, columns=3, sort=list(BY_ID)),
        )
        .resolve_scale(x="independent", y="independent")
    )


def as_svg(chart: alt.Chart) -> str:
    """Drawn here: neither making nor seeing it needs a network."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_json()))

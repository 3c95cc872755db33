"""What one would draw on a whiteboard: clients' rates and waits beside each other, and what a setting costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from purgatory_udf.report import charts

if TYPE_CHECKING:
    from purgatory_udf.fitted.figures import Figures
    from purgatory_udf.fitted.tuning import Tried

Spec = dict[str, Any]
_COLOURS = (charts.GREY, *charts.CAUSE_COLOURS)
_SHOWN = {"per_s": "requests a second", "expired": "share that expired", "kb": "KiB a request"}


def beside(of: Mapping[str, Figures], ranges: Mapping[str, tuple[Figures, Figures]]) -> dict[str, Spec]:
    """`rates` and `waits`, a bar for each of `of` (recorded, unchanged, a variant); seeds' ranges as whiskers."""
    colours = dict(zip(of, _COLOURS * (len(of) // len(_COLOURS) + 1), strict=False))
    figures = _frame(of, ranges, tuple(_SHOWN), _SHOWN)
    waits = _frame(of, ranges, ("p50_ms", "p95_ms"), {"p50_ms": "median wait, ms", "p95_ms": "p95 of waits, ms"})
    drawn = {"rates": _bars(figures, colours), "waits": _bars(waits, colours)}
    return {name: chart.to_dict() for name, chart in drawn.items()}


def _frame(
    of: Mapping[str, Figures],
    ranges: Mapping[str, tuple[Figures, Figures]],
    names: Sequence[str],
    titles: Mapping[str, str],
) -> pd.DataFrame:
    rows = []
    for source, figures in of.items():
        for who, apis in figures.items():
            for api, values in apis.items():
                low, high = (each.get(who, {}).get(api, values) for each in ranges.get(source, (figures, figures)))
                rows += [(f"{who} {api}", source, titles[name], values[name], low[name], high[name]) for name in names]
    return pd.DataFrame(rows, columns=["who", "source", "figure", "value", "low", "high"])


def _bars(frame: pd.DataFrame, colours: dict[str, str]) -> alt.Chart:
    sources = list(colours)
    base = alt.Chart(frame).encode(
        x=alt.X("who:N", title=None).axis(labelAngle=-30),
        xOffset=alt.XOffset("source:N", sort=sources),
        tooltip=["who:N", "source:N", "figure:N", "value:Q", "low:Q", "high:Q"],
    )
    bars = base.mark_bar().encode(y=alt.Y("value:Q", title=None), color=charts.colours_of("source", colours))
    whiskers = base.mark_rule(color="#5b6470").encode(y="low:Q", y2="high:Q")
    layered = alt.layer(bars, whiskers).properties(width=charts.WIDTH, height=130)
    return layered.facet(row=charts.rows_of("figure", frame)).resolve_scale(y="independent")


def frontier(tried: Sequence[Tried], goal: str, within: str) -> dict[str, Spec]:
    """Every setting that was tried: what it brings against what it costs; those that nothing beats are joined."""
    frame = pd.DataFrame(
        [(one.text, one.goal, one.within, "on the frontier" if one.best else "tried", one.allowed) for one in tried],
        columns=["settings", "goal", "within", "kind", "allowed"],
    )
    colours = {"on the frontier": charts.BLUE, "tried": charts.GREY}
    base = alt.Chart(frame, width=charts.WIDTH, height=320).encode(
        x=alt.X("within:Q", title=within).scale(zero=False),
        y=alt.Y("goal:Q", title=goal).scale(zero=False),
        tooltip=["settings:N", alt.Tooltip("goal:Q", title=goal), alt.Tooltip("within:Q", title=within), "kind:N"],
    )
    line = base.transform_filter("datum.kind == 'on the frontier'").mark_line(color=charts.BLUE, strokeWidth=1)
    points = base.mark_point(filled=True, size=60).encode(
        color=charts.colours_of("kind", colours), opacity=alt.condition("datum.allowed", alt.value(1), alt.value(0.35))
    )
    return {"frontier": alt.layer(line, points).to_dict()}

"""The pages of a fit, of a prediction and of a search: the report's, with these tables and pictures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from purgatory_udf.answers.report import charts
from purgatory_udf.answers.report.html_page import Section, facts, figure, page, table
from purgatory_udf.backend.file_system import write_whole
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.prediction.fit_check import FitCheck
from purgatory_udf.prediction.model_host import FETCH, PRODUCE
from purgatory_udf.prediction.prediction_runs import UNCHANGED, Prediction
from purgatory_udf.prediction.tuning import TuningResult

if TYPE_CHECKING:
    from purgatory_udf.prediction.fit_check import Effects, Figures


# What one would draw on a whiteboard: clients' rates and waits beside each other, and what a setting costs.


Spec = dict[str, Any]
_COLOURS = (charts.GREY, *charts.CAUSE_COLOURS)
_FRONTIER, _UNCHANGED = "on the frontier", "unchanged"
# More clients than these do not fit side by side: the busiest are drawn.
MAX_CLIENTS_DRAWN = 24
_RATES = {"per_s": "requests a second", "expired": "share that expired", "kb": "KiB a request"}
_WAITS = {"p50_ms": "median wait, ms", "p95_ms": "p95 of waits, ms"}
# What an effect's name ends with, and what is drawn of it beside each other.
_EFFECTS = {
    ": requests_per_s": "requests a second, by broker",
    ": append_to_answer_p95_ms": "p95 from a record's append to a consumer's answer, ms",
    ": produce_latency_p95_ms": "p95 from a batch's first record to its producer's answer, ms",
    ": Fetch PurgatorySize, mean": "PurgatorySize of Fetch, mean",
    ": Produce PurgatorySize, mean": "PurgatorySize of Produce, mean",
}


def client_charts(of: Mapping[str, Figures], ranges: Mapping[str, tuple[Figures, Figures]]) -> dict[str, Spec]:
    """`rates`, `waits` of fetches and `produces`, theirs, which are far shorter: a bar for each of `of` (recorded,
    unchanged, a variant); seeds' ranges as whiskers."""
    drawn = busiest_clients(of)
    frames = {
        "rates": _frame(of, ranges, drawn, _RATES),
        "waits": _frame(of, ranges, [pair for pair in drawn if pair[1] == FETCH], _WAITS),
        "produces": _frame(of, ranges, [pair for pair in drawn if pair[1] == PRODUCE], _WAITS),
    }
    with alt.data_transformers.disable_max_rows():
        return {name: _bars(frame, _coloured(of)).to_dict() for name, frame in frames.items() if len(frame)}


def busiest_clients(of: Mapping[str, Figures]) -> list[tuple[str, str]]:
    """Whom to draw, with their api."""
    most: dict[tuple[str, str], float] = {}
    for figures in of.values():
        for who, apis in figures.items():
            for api, values in apis.items():
                most[who, api] = max(values["per_s"], most.get((who, api), 0.0))
    return sorted(sorted(most, key=lambda pair: -most[pair])[:MAX_CLIENTS_DRAWN])


def _frame(
    of: Mapping[str, Figures],
    ranges: Mapping[str, tuple[Figures, Figures]],
    drawn: Sequence[tuple[str, str]],
    titles: Mapping[str, str],
) -> pd.DataFrame:
    apis = {api for _, api in drawn}
    rows = []
    for source, figures in of.items():
        for who, api in drawn:
            values = figures.get(who, {}).get(api)
            if values is None:
                continue
            low, high = (each.get(who, {}).get(api, values) for each in ranges.get(source, (figures, figures)))
            label = who if len(apis) == 1 else f"{who} {api}"
            rows += [(label, source, title, values[name], low[name], high[name]) for name, title in titles.items()]
    return pd.DataFrame(rows, columns=["who", "source", "figure", "value", "low", "high"])


def _coloured(of: Iterable[str]) -> dict[str, str]:
    return dict(zip(of, cycle(_COLOURS), strict=False))


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


def effect_charts(of: Mapping[str, Effects]) -> dict[str, Spec]:
    """`effects`: brokers' load and purgatories, and records' way, for each of `of`, in the colours of the clients'."""
    # The first colour is that of what was recorded.
    colours = dict(list(_coloured(["recorded", *of]).items())[1:])
    rows = []
    for end, title in _EFFECTS.items():
        whose = sorted({name.removesuffix(end) for effects in of.values() for name in effects if name.endswith(end)})
        for each in whose[:MAX_CLIENTS_DRAWN]:
            rows += [(title, each, source, effects.get(f"{each}{end}")) for source, effects in of.items()]
    frame = pd.DataFrame(rows, columns=["figure", "who", "source", "value"])
    drawn = [_effect(mine, str(title), colours) for title, mine in frame.groupby("figure", sort=False)]
    with alt.data_transformers.disable_max_rows():
        return {"effects": alt.vconcat(*drawn).resolve_scale(xOffset="independent").to_dict()} if drawn else {}


def _effect(frame: pd.DataFrame, title: str, colours: dict[str, str]) -> alt.Chart:
    return (
        alt.Chart(frame, title=alt.Title(title, anchor="start", fontSize=13), width=charts.WIDTH, height=100)
        .mark_bar()
        .encode(
            x=alt.X("who:N", title=None).axis(labelAngle=-30),
            xOffset=alt.XOffset("source:N", sort=list(colours)),
            y=alt.Y("value:Q", title=None),
            color=charts.colours_of("source", colours),
            tooltip=["who:N", "source:N", "value:Q"],
        )
    )


def frontier_chart(tuned: TuningResult) -> dict[str, Spec]:
    """Every setting that was tried: what it brings against what it costs; those that nothing beats are joined. Dashed:
    the goal and the limit."""
    rows = [
        (trial.text, trial.goal, trial.within, _FRONTIER if trial.best else "tried", trial.allowed and trial.reached)
        for trial in sorted(tuned.tried, key=lambda trial: trial.best)
    ]
    rows.append((_UNCHANGED, *tuned.unchanged, _UNCHANGED, True))
    goal, within = tuned.goal.figure, tuned.within.figure
    frame = pd.DataFrame(rows, columns=["settings", "goal", "within", "kind", "good"])
    colours = {_FRONTIER: charts.BLUE, "tried": charts.GREY, _UNCHANGED: charts.ORANGE}
    base = alt.Chart(frame, width=charts.WIDTH, height=340).encode(
        x=alt.X("within:Q", title=within).scale(zero=False, nice=True),
        y=alt.Y("goal:Q", title=goal).scale(zero=False),
        tooltip=["settings:N", alt.Tooltip("goal:Q", title=goal), alt.Tooltip("within:Q", title=within), "kind:N"],
    )
    line = base.transform_filter(f"datum.kind == '{_FRONTIER}'").mark_line(color=charts.BLUE, strokeWidth=1)
    points = base.mark_point(filled=True, size=70).encode(
        color=charts.colours_of("kind", colours), opacity=alt.condition("datum.good", alt.value(1), alt.value(0.4))
    )
    limits = pd.DataFrame([(tuned.wanted, tuned.within.limit)], columns=["goal", "within"])
    dashed = alt.Chart(limits).mark_rule(color=charts.VERMILLION, strokeDash=[5, 4])
    across, down = dashed.encode(y="goal:Q"), dashed.encode(x="within:Q")
    return {"frontier": alt.layer(across, down, line, points).to_dict()}


RECORDED = "recorded"
# How a line of a fit begins that says what no log tells.
UNKNOWN_PREFIX = "unknown: "


def fit_page(checked: FitCheck, said: list[str]) -> str:
    """`said`: what was found, then what is unknown."""
    specs = client_charts({RECORDED: checked.recorded, "simulated": checked.simulated}, {})
    unknown = [line.removeprefix(UNKNOWN_PREFIX) for line in said if line.startswith(UNKNOWN_PREFIX)]
    findings = [line for line in said if not line.startswith(UNKNOWN_PREFIX)]
    sections = [
        *_clients(specs, "What each client asked for, and got."),
        Section("Every figure", _trust(checked), table(checked.table())),
    ]
    if unknown:
        rows: list[tuple[Cell, ...]] = [(line,) for line in unknown]
        advice = "And what was taken instead; the scenario can be edited."
        sections.append(Section("What the log does not tell", advice, table(Table("", ("unknown",), rows))))
    cards = facts([(f"{checked.near} of {checked.judged}", "figures reproduced")])
    return page("A scenario fitted to a recording", f"{'; '.join(findings)}.", cards, sections, specs)


def prediction_page(prediction: Prediction) -> str:
    of = {RECORDED: prediction.checked.recorded, **{name: played.median for name, played in prediction.played.items()}}
    specs = client_charts(of, {name: played.range for name, played in prediction.played.items()})
    specs |= effect_charts({name: played.median_effects for name, played in prediction.played.items()})
    sections = [
        *_clients(specs, "Recorded, simulated without a change, predicted; whiskers over seeds."),
        Section("Every figure", _trust(prediction.checked), table(prediction.clients(with_ranges=False))),
        Section(
            "Effects on the others",
            "Brokers' load, records' way to consumers, purgatories.",
            "".join(figure(name) for name in specs if name == "effects") + table(prediction.effects()),
        ),
        Section(
            "Is the model right?",
            "What was recorded, and what the unchanged scenario does.",
            table(prediction.checked.table()),
        ),
        Section("Over seeds", "Medians, and from the least to the greatest.", table(prediction.clients())),
    ]
    variants = len(prediction.variants)
    cards = facts(
        [
            (str(variants), "variant" if variants == 1 else "variants"),
            (str(prediction.seeds), "seed" if prediction.seeds == 1 else "seeds each"),
            (
                f"{prediction.checked.near} of {prediction.checked.judged}",
                f"recorded figures that {UNCHANGED} reproduces",
            ),
        ]
    )
    return page("What would happen if", f"Variants: {', '.join(prediction.variants)}.", cards, sections, specs)


def tuning_page(tuned: TuningResult) -> str:
    chosen = tuned.chosen
    sections = [
        Section(
            "The frontier",
            "Every setting that was tried; dashed are the goal and the limit, pale is what is beyond either. "
            "Nothing beats those that are joined.",
            figure("frontier"),
        ),
        Section("What each costs", "", table(tuned.table())),
        Section(
            "Is the model right?",
            "What was recorded, and what the unchanged scenario does.",
            table(tuned.checked.table()),
        ),
    ]
    cards = facts(
        [
            (str(len(tuned.tried)), "settings tried"),
            (chosen.text if chosen else "none", "reaches the goal at the least cost"),
        ]
    )
    said = f"{tuned.goal.text} within {tuned.within.text}. {_trust(tuned.checked)}"
    return page("Settings, searched", said, cards, sections, frontier_chart(tuned))


def _clients(specs: Collection[str], said: str) -> list[Section]:
    """The pictures of clients that there are."""
    drawn = {
        "rates": ("Rates", f"{said} At most {MAX_CLIENTS_DRAWN} are drawn, the busiest; all are below."),
        "waits": ("Waits of fetches", "How long they are in the purgatory."),
        "produces": ("Waits of produces", "How long they are in the purgatory."),
    }
    return [Section(title, text, figure(name)) for name, (title, text) in drawn.items() if name in specs]


def write_page(text: str, file: Path | None) -> list[str]:
    """The line that says where it is."""
    if file is None:
        return []
    write_whole(file, text)
    return [f"Page: {file}"]


def _trust(checked: FitCheck) -> str:
    reasons = checked.reasons()
    return f"Not to be trusted: {'; '.join(reasons)}." if reasons else "The unchanged scenario does what was recorded."

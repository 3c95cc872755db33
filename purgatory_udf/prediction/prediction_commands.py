"""The commands `fit`, `what-if --like` and `tune`, and their HTML pages, in the layout of the report.

Each command returns the lines to print.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd
import yaml

from purgatory_udf.answers import charts
from purgatory_udf.answers.page_template import Section, facts, figure, page, sentences, table
from purgatory_udf.backend.file_system import replace_file, write_json
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.fit_check import FitCheck, check_fit
from purgatory_udf.prediction.model_broker import FETCH, PRODUCE
from purgatory_udf.prediction.prediction_runs import (
    SEEDS,
    UNCHANGED,
    Prediction,
    parse_variants,
    predict,
    simulate_all,
)
from purgatory_udf.prediction.simulation_plan import build_plan, require_fitted, require_supported_settings
from purgatory_udf.prediction.tuning import TuningResult, parse_goal, parse_limit, parse_ranges, tune
from purgatory_udf.simulation.scenario import Scenario, read_scenario
from purgatory_udf.storage.output_folder import require_folder

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend, Session
    from purgatory_udf.prediction.fit_check import Effects, Figures

# Opens the backend that reads a recording; a scenario file needs none.
OpenBackend = Callable[[], "Backend"]
Spec = dict[str, Any]
_COLOURS = (charts.GREY, *charts.CAUSE_COLOURS)
_FRONTIER, _UNCHANGED = "on the frontier", "unchanged"
# Maximum number of clients in a chart; the busiest are drawn.
MAX_CLIENTS_DRAWN = 24
_RATES = {"per_s": "requests per second", "expired": "share of expired requests", "kb": "KiB per request"}
_WAITS = {"p50_ms": "median wait, ms", "p95_ms": "p95 of waits, ms"}
# The effects in charts: the end of their name, and the title.
_EFFECTS = {
    ": requests_per_s": "requests per second, by broker",
    ": append_to_answer_p95_ms": "p95 from the append of a record to the response to a consumer, ms",
    ": produce_latency_p95_ms": "p95 from the first record of a batch to the producer's response, ms",
    ": Fetch PurgatorySize, mean": "PurgatorySize of Fetch, mean",
    ": Produce PurgatorySize, mean": "PurgatorySize of Produce, mean",
}


def require_source(like: str) -> None:
    """Raise UserError if `--like` names neither a scenario file nor a folder."""
    if is_scenario_file(like):
        if not Path(like).is_file():
            raise UserError(f"{like}: no such file; create it with fit")
    else:
        require_folder(like)


def is_scenario_file(like: str) -> bool:
    """Return whether `--like` names a scenario file: by its extension, or because the file exists."""
    return like.endswith((".yaml", ".yml")) or Path(like).is_file()


def load_or_fit_scenario(open_backend: OpenBackend, like: str) -> Scenario:
    """Read a scenario file, or fit a scenario to the tables of a folder.

    `like` is the path of the file or the folder. A backend is opened only for a folder.
    """
    if is_scenario_file(like):
        scenario = read_scenario(Path(like))
        try:
            require_supported_settings(scenario, require_fitted(scenario))
        except UserError as error:
            raise UserError(f"{like}: {error}") from None
        return scenario
    from purgatory_udf.prediction.fit import fit
    from purgatory_udf.prediction.recording import read_recording

    return fit(read_recording(open_backend(), like))


_HEAD = """\
# A scenario fitted to a recording. Everything above `fitted` is a setting that may be edited; the cluster is then
# simulated under that setting. `min_isr` changes nothing: the model's followers stay in the in-sync set. `fitted`
# describes the recording: distributions by evenly spaced quantiles, and each record of the producers (gap to the
# previous record, partition, bytes).
"""


def scenario_yaml(scenario: Scenario) -> str:
    """Return the scenario as YAML with comments. Long lists of numbers are wrapped."""
    values = scenario.model_dump(exclude_unset=True)
    fitted = values.pop("fitted")
    unknown = "".join(f"#   {each}\n" for each in fitted.get("unknown", []))
    head = (
        f"{_HEAD}# Values that the request log does not contain, with the assumed ones:\n{unknown}"
        if unknown
        else _HEAD
    )
    return f"{head}{_dumped(values)}{_dumped({'fitted': fitted})}"


def write_scenario(scenario: Scenario, file: Path) -> None:
    """Write the scenario to a YAML file."""
    replace_file(file, scenario_yaml(scenario))


def _dumped(values: dict[str, Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(values, Dumper=dumper, default_flow_style=None, sort_keys=False, width=118))


def run_fit(session: Session, out: str, events: str | None, file: Path, seeds: int, html: Path | None) -> list[str]:
    """Fit a scenario, write it, check it by a simulation, and write the page; return the lines to print.

    Args:
        session: Spark session or backend that reads the tables.
        out: Folder of the recording.
        events: Path of another table of events, or None.
        file: File for the scenario.
        seeds: Number of simulations for the check.
        html: File of the page; None for none.
    """
    from purgatory_udf.prediction.recording import read_recording

    scenario = fit(read_recording(session, out, events))
    write_scenario(scenario, file)
    checked = check_by_simulation(scenario, seeds)
    summary = _summary(scenario)
    page = write_page(fit_page(checked, summary), html)
    return [*summary, "", *checked.lines(), "", f"Scenario: {file}", *page]


def run_prediction(
    open_backend: OpenBackend, like: str, words: list[str], seeds: int | None, json: Path | None, html: Path | None
) -> list[str]:
    """Simulate the unchanged scenario and the variants, and write figures and page; return the lines to print.

    If the figures are printed, no other lines are.

    Args:
        open_backend: Opens the backend, if a scenario must be fitted first.
        like: Scenario file, or folder of an imported request log.
        words: Words of `--variant`: names and settings.
        seeds: Number of runs per variant; None for the default.
        json: File for the figures, or `-` to print them; None for none.
        html: File of the page; None for none.
    """
    variants = parse_variants(words)
    scenario = load_or_fit_scenario(open_backend, like)
    prediction = predict(scenario, variants, seeds or SEEDS)
    if json is not None:
        write_json(json, prediction.as_json())
    page = write_page(prediction_page(prediction), html)
    if json == Path("-"):
        return []
    return [*prediction.lines(), "", *page]


def run_tuning(
    open_backend: OpenBackend, like: str, goal: str, within: str, over: list[str], seeds: int, html: Path | None
) -> list[str]:
    """Search for settings that reach a goal, and write the page; return the lines to print.

    Args:
        open_backend: Opens the backend, if a scenario must be fitted first.
        like: Scenario file, or folder of an imported request log.
        goal: Value of `--goal`.
        within: Value of `--within`.
        over: Values of `--over`.
        seeds: Number of runs per setting on the frontier.
        html: File of the page; None for none.
    """
    search = parse_goal(goal), parse_limit(within), parse_ranges(over)
    tuned = tune(load_or_fit_scenario(open_backend, like), *search, seeds)
    return [*tuned.lines(), "", *write_page(tuning_page(tuned), html)]


def check_by_simulation(scenario: Scenario, seeds: int) -> FitCheck:
    """Simulate the unchanged scenario with `seeds` random seeds, and compare its figures with the recorded ones."""
    simulated = simulate_all({UNCHANGED: build_plan(scenario)}, seeds)[UNCHANGED]
    return check_fit(require_fitted(scenario), simulated.median)


def _summary(scenario: Scenario) -> list[str]:
    fitted = require_fitted(scenario)
    host = fitted.host
    shared = (
        f"clients and brokers share {host.cores:g} cores (correlation of work and concurrency {host.correlation:+.2f}, "
        f"without sharing {host.correlation_unshared:+.2f})"
        if host.cores
        else "the times of clients and brokers show no shared cores"
    )
    followers = sum(reader.replica >= 0 for reader in fitted.readers.values())
    return [
        f"Fitted to {scenario.duration_s:.1f} s from {fitted.begin_s:.1f} s on: {len(scenario.producers)} producers, "
        f"{len(scenario.consumers)} consumers, {followers} followers, {len(fitted.partitions)} partitions",
        shared,
        *(f"{UNKNOWN_PREFIX}{each}" for each in fitted.unknown),
    ]


def client_charts(by_run: Mapping[str, Figures], ranges: Mapping[str, tuple[Figures, Figures]]) -> dict[str, Spec]:
    """Return the charts `rates`, `waits` (of fetches) and `produces` (waits of produces, which are much shorter).

    Each client has one bar per run in `by_run` (recorded, unchanged, variants), with the range over seeds as whiskers.
    """
    drawn = busiest_clients(by_run)
    frames = {
        "rates": _frame(by_run, ranges, drawn, _RATES),
        "waits": _frame(by_run, ranges, [pair for pair in drawn if pair[1] == FETCH], _WAITS),
        "produces": _frame(by_run, ranges, [pair for pair in drawn if pair[1] == PRODUCE], _WAITS),
    }
    with alt.data_transformers.disable_max_rows():
        return {name: _bars(frame, _coloured(by_run)).to_dict() for name, frame in frames.items() if len(frame)}


def busiest_clients(by_run: Mapping[str, Figures]) -> list[tuple[str, str]]:
    """Return the (client, API) pairs with the highest rates, at most `MAX_CLIENTS_DRAWN`, sorted by name."""
    most: dict[tuple[str, str], float] = {}
    for figures in by_run.values():
        for client, apis in figures.items():
            for api, values in apis.items():
                most[client, api] = max(values["per_s"], most.get((client, api), 0.0))
    return sorted(sorted(most, key=lambda pair: -most[pair])[:MAX_CLIENTS_DRAWN])


def _frame(
    by_run: Mapping[str, Figures],
    ranges: Mapping[str, tuple[Figures, Figures]],
    drawn: Sequence[tuple[str, str]],
    titles: Mapping[str, str],
) -> pd.DataFrame:
    apis = {api for _, api in drawn}
    rows = []
    for source, figures in by_run.items():
        for client, api in drawn:
            values = figures.get(client, {}).get(api)
            if values is None:
                continue
            low, high = (each.get(client, {}).get(api, values) for each in ranges.get(source, (figures, figures)))
            label = client if len(apis) == 1 else f"{client} {api}"
            rows += [(label, source, title, values[name], low[name], high[name]) for name, title in titles.items()]
    return pd.DataFrame(rows, columns=["client", "source", "figure", "value", "low", "high"])


def _coloured(by_run: Iterable[str]) -> dict[str, str]:
    return dict(zip(by_run, cycle(_COLOURS), strict=False))


def _bars(frame: pd.DataFrame, colours: dict[str, str]) -> alt.Chart:
    sources = list(colours)
    base = alt.Chart(frame).encode(
        x=alt.X("client:N", title=None).axis(labelAngle=-30),
        xOffset=alt.XOffset("source:N", sort=sources),
        tooltip=["client:N", "source:N", "figure:N", "value:Q", "low:Q", "high:Q"],
    )
    bars = base.mark_bar().encode(y=alt.Y("value:Q", title=None), color=charts.colours_of("source", colours))
    whiskers = base.mark_rule(color="#5b6470").encode(y="low:Q", y2="high:Q")
    layered = alt.layer(bars, whiskers).properties(width=charts.WIDTH, height=130)
    return layered.facet(row=charts.rows_of("figure", frame)).resolve_scale(y="independent")


def effect_charts(by_run: Mapping[str, Effects]) -> dict[str, Spec]:
    """Return the chart `effects`: load, purgatories and latencies of each run, coloured as in `client_charts`."""
    # The first colour belongs to the recorded figures, which have no effects.
    colours = dict(list(_coloured(["recorded", *by_run]).items())[1:])
    rows = []
    for end, title in _EFFECTS.items():
        prefixes = sorted(
            {name.removesuffix(end) for effects in by_run.values() for name in effects if name.endswith(end)}
        )
        for each in prefixes[:MAX_CLIENTS_DRAWN]:
            rows += [(title, each, source, effects.get(f"{each}{end}")) for source, effects in by_run.items()]
    frame = pd.DataFrame(rows, columns=["figure", "client", "source", "value"])
    drawn = [_effect(of_figure, str(title), colours) for title, of_figure in frame.groupby("figure", sort=False)]
    with alt.data_transformers.disable_max_rows():
        return {"effects": alt.vconcat(*drawn).resolve_scale(xOffset="independent").to_dict()} if drawn else {}


def _effect(frame: pd.DataFrame, title: str, colours: dict[str, str]) -> alt.Chart:
    return (
        alt.Chart(frame, title=alt.Title(title, anchor="start", fontSize=13), width=charts.WIDTH, height=100)
        .mark_bar()
        .encode(
            x=alt.X("client:N", title=None).axis(labelAngle=-30),
            xOffset=alt.XOffset("source:N", sort=list(colours)),
            y=alt.Y("value:Q", title=None),
            color=charts.colours_of("source", colours),
            tooltip=["client:N", "source:N", "value:Q"],
        )
    )


def frontier_chart(tuned: TuningResult) -> dict[str, Spec]:
    """Return the chart `frontier`: every trial by the goal's and the limited figure, with a line through the frontier.

    Dashed lines show the goal and the limit.
    """
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
# The start of lines about values that the request log does not contain.
UNKNOWN_PREFIX = "unknown: "


def fit_page(checked: FitCheck, summary: list[str]) -> str:
    """Return the page of a fit. Lines of `summary` that start with `UNKNOWN_PREFIX` are about unknown values."""
    specs = client_charts({RECORDED: checked.recorded, "simulated": checked.simulated}, {})
    unknown = [line.removeprefix(UNKNOWN_PREFIX) for line in summary if line.startswith(UNKNOWN_PREFIX)]
    findings = [line for line in summary if not line.startswith(UNKNOWN_PREFIX)]
    sections = [
        *_client_sections(specs, "Figures of each client, recorded and simulated."),
        Section("All figures", _trust_note(checked), table(checked.table())),
    ]
    if unknown:
        rows: list[tuple[Cell, ...]] = [(line,) for line in unknown]
        advice = "The assumed values can be edited in the scenario."
        sections.append(Section("Values that the log does not contain", advice, table(Table("", ("unknown",), rows))))
    cards = facts([(f"{checked.reproduced} of {checked.compared}", "figures reproduced")])
    return page("Fitted scenario", f"{'; '.join(findings)}.", cards, sections, specs)


def prediction_page(prediction: Prediction) -> str:
    """Return the page of a prediction."""
    by_run = {
        RECORDED: prediction.checked.recorded,
        **{name: results.median for name, results in prediction.results.items()},
    }
    specs = client_charts(by_run, {name: results.range for name, results in prediction.results.items()})
    specs |= effect_charts({name: results.median_effects for name, results in prediction.results.items()})
    sections = [
        *_client_sections(specs, "Recorded, simulated without a change, and predicted; whiskers show the seeds."),
        Section("All figures", _trust_note(prediction.checked), table(prediction.clients(with_ranges=False))),
        Section(
            "Effects on the cluster",
            "Load of the brokers, latency of records, sizes of purgatories.",
            "".join(figure(name) for name in specs if name == "effects") + table(prediction.effects()),
        ),
        Section(
            "Check of the model",
            "Recorded figures, and those of the unchanged scenario.",
            table(prediction.checked.table()),
        ),
        Section("Variation over seeds", "Median, minimum and maximum.", table(prediction.clients())),
    ]
    variants = len(prediction.variants)
    cards = facts(
        [
            (str(variants), "variant" if variants == 1 else "variants"),
            (str(prediction.seeds), "seed" if prediction.seeds == 1 else "seeds each"),
            (
                f"{prediction.checked.reproduced} of {prediction.checked.compared}",
                "recorded figures reproduced",
            ),
        ]
    )
    top = f"{sentences(prediction.headlines())}\n{cards}"
    return page("Prediction", f"Variants: {', '.join(prediction.variants)}.", top, sections, specs)


def tuning_page(tuned: TuningResult) -> str:
    """Return the page of a search for settings."""
    chosen = tuned.chosen
    sections = [
        Section(
            "Frontier",
            "All tried settings. No other setting beats those on the line in both figures. Dashed lines show the goal "
            "and the limit; settings that miss either are pale.",
            figure("frontier"),
        ),
        Section("Settings on the frontier", "", table(tuned.table())),
        Section(
            "Check of the model",
            "Recorded figures, and those of the unchanged scenario.",
            table(tuned.checked.table()),
        ),
    ]
    cards = facts(
        [
            (str(len(tuned.tried)), "settings tried"),
            (chosen.text if chosen else "none", "best setting within the limit"),
        ]
    )
    summary = f"{tuned.goal.text} within {tuned.within.text}. {_trust_note(tuned.checked)}"
    return page("Search for settings", summary, cards, sections, frontier_chart(tuned))


def _client_sections(specs: Collection[str], caption: str) -> list[Section]:
    """Return a section for each chart of clients that `specs` contains."""
    drawn = {
        "rates": ("Rates", f"{caption} Charts show the {MAX_CLIENTS_DRAWN} busiest clients, the tables below all."),
        "waits": ("Waits of fetches", "Time in the purgatory."),
        "produces": ("Waits of produces", "Time in the purgatory."),
    }
    return [Section(title, text, figure(name)) for name, (title, text) in drawn.items() if name in specs]


def write_page(text: str, file: Path | None) -> list[str]:
    """Write the page and return the line that names its file; without a file, write and return nothing."""
    if file is None:
        return []
    replace_file(file, text)
    return [f"Page: {file}"]


def _trust_note(checked: FitCheck) -> str:
    reasons = checked.reasons()
    return f"Not to be trusted: {'; '.join(reasons)}." if reasons else "The recording is reproduced."

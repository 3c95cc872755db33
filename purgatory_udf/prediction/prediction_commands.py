"""The commands `fit`, `what-if --like` and `tune`. Each returns the lines to print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from purgatory_udf.backend.file_system import replace_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.fit_check import FitCheck, check_fit
from purgatory_udf.prediction.prediction_pages import UNKNOWN_PREFIX, fit_page, prediction_page, tuning_page, write_page
from purgatory_udf.prediction.prediction_runs import SEEDS, UNCHANGED, parse_variants, predict, simulate_all
from purgatory_udf.prediction.simulation_plan import build_plan, require_fitted, require_supported_settings
from purgatory_udf.prediction.tuning import parse_goal, parse_limit, parse_ranges, tune
from purgatory_udf.simulation.scenario import Scenario, read_scenario
from purgatory_udf.storage.output_folder import require_folder

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend, Session

# Opens the backend that reads a recording; a scenario file needs none.
OpenBackend = Callable[[], "Backend"]


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

    Args:
        open_backend: Opens the backend, if a scenario must be fitted first.
        like: Scenario file, or folder of an imported request log.
        words: Words of `--variant`: names and settings.
        seeds: Number of runs per variant; None for the default.
        json: File for the figures; None for none.
        html: File of the page; None for none.
    """
    variants = parse_variants(words)
    scenario = load_or_fit_scenario(open_backend, like)
    prediction = predict(scenario, variants, seeds or SEEDS)
    if json is not None:
        replace_file(json, prediction.as_json())
    return [*prediction.lines(), "", *write_page(prediction_page(prediction), html)]


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

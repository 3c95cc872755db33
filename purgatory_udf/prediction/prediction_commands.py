"""The commands: from tables to a scenario, from a scenario to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from purgatory_udf.backend.file_system import write_whole
from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.fit_check import FitCheck, check_fit
from purgatory_udf.prediction.plan_builder import build_plan, require_fitted
from purgatory_udf.prediction.prediction_pages import UNKNOWN_PREFIX, fit_page, prediction_page, tuning_page, write_page
from purgatory_udf.prediction.prediction_runs import SEEDS, UNCHANGED, parse_variants, predict, simulate_all
from purgatory_udf.prediction.tuning import parse_goal, parse_limit, parse_ranges, tune
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.scenario_file import read_scenario
from purgatory_udf.storage.output_folder import require_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What `--like` names: a scenario that was fitted before, or a recording to fit one to.


def require_source(like: str) -> None:
    if is_scenario_file(like):
        if not Path(like).is_file():
            raise UserError(f"{like}: no such file (fit writes it)")
    else:
        require_folder(like)


def is_scenario_file(like: str) -> bool:
    """Whatever `fit` was told to call it."""
    return like.endswith((".yaml", ".yml")) or Path(like).is_file()


def load_or_fit_scenario(like: str) -> Scenario:
    """A file needs no session; a folder's tables are read by one."""
    if is_scenario_file(like):
        scenario = read_scenario(Path(like))
        require_fitted(scenario)
        return scenario
    from purgatory_udf.launch.spark_session import session_for
    from purgatory_udf.prediction.fit import fit
    from purgatory_udf.prediction.recording import read_recording

    return fit(read_recording(session_for("purgatory-fit"), like))


# A fitted scenario as a file that people read and edit.


_HEAD = """\
# A scenario fitted to a recording. Everything down to `fitted` is a setting, and may be edited: what is played then is
# this cluster under that setting. `fitted` is what the recording told: distributions as their evenly spaced quantiles,
# producers' records one by one (the time since the one before, the partition, the bytes).
"""


def scenario_yaml(scenario: Scenario) -> str:
    """What was found; lists of numbers in lines."""
    values = scenario.model_dump(exclude_unset=True)
    fitted = values.pop("fitted")
    unknown = "".join(f"#   {each}\n" for each in fitted.get("unknown", []))
    head = f"{_HEAD}# What no request log tells, and what was taken:\n{unknown}" if unknown else _HEAD
    return f"{head}{_dumped(values)}{_dumped({'fitted': fitted})}"


def write_scenario(scenario: Scenario, file: Path) -> None:
    write_whole(file, scenario_yaml(scenario))


def _dumped(values: dict[str, Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(values, Dumper=dumper, default_flow_style=None, sort_keys=False, width=118))


def run_fit(spark: SparkSession, out: str, events: str | None, file: Path, seeds: int, html: Path | None) -> list[str]:
    """Fit, write the scenario, check it, draw the page: lines to read."""
    from purgatory_udf.prediction.recording import read_recording

    scenario = fit(read_recording(spark, out, events))
    write_scenario(scenario, file)
    checked = check_by_simulation(scenario, seeds)
    said = _what(scenario)
    page = write_page(fit_page(checked, said), html)
    return [*said, "", *checked.lines(), "", f"Scenario: {file}", *page]


def run_prediction(like: str, words: list[str], seeds: int | None, json: Path | None, html: Path | None) -> list[str]:
    """Play the unchanged scenario and the variants; write the figures and the page: lines to read."""
    variants = parse_variants(words)
    scenario = load_or_fit_scenario(like)
    prediction = predict(scenario, variants, seeds or SEEDS)
    if json is not None:
        write_whole(json, prediction.as_json())
    return [*prediction.lines(), "", *write_page(prediction_page(prediction), html)]


def run_tuning(like: str, goal: str, within: str, over: list[str], seeds: int, html: Path | None) -> list[str]:
    """Search; draw the page: lines to read."""
    asked = parse_goal(goal), parse_limit(within), parse_ranges(over)
    tuned = tune(load_or_fit_scenario(like), *asked, seeds)
    return [*tuned.lines(), "", *write_page(tuning_page(tuned), html)]


def check_by_simulation(scenario: Scenario, seeds: int) -> FitCheck:
    played = simulate_all({UNCHANGED: build_plan(scenario)}, seeds)[UNCHANGED]
    return check_fit(require_fitted(scenario), played.median)


def _what(scenario: Scenario) -> list[str]:
    fitted = require_fitted(scenario)
    host = fitted.host
    shared = (
        f"clients and brokers share {host.cores:g} cores (work and crowd correlate by {host.correlation:+.2f}, "
        f"unshared {host.correlation_unshared:+.2f})"
        if host.cores
        else "clients and brokers share no cores, as far as their times tell"
    )
    followers = sum(reader.replica >= 0 for reader in fitted.readers.values())
    return [
        f"Fitted to {scenario.duration_s:.1f} s, from {fitted.begin_s:.1f} s on: {len(scenario.producers)} producers, "
        f"{len(scenario.consumers)} consumers, {followers} followers, {len(fitted.partitions)} partitions",
        shared,
        *(f"{UNKNOWN_PREFIX}{each}" for each in fitted.unknown),
    ]

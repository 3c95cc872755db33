"""The commands: from tables to a scenario, from a scenario to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.fitted.check import Checked, check
from purgatory_udf.fitted.fit import fit
from purgatory_udf.fitted.pages import UNKNOWN, fit_page, prediction_page, tuning_page, write_page
from purgatory_udf.fitted.plans import fitted_of, plan_of
from purgatory_udf.fitted.prediction import UNCHANGED, predict
from purgatory_udf.fitted.scenario_file import write
from purgatory_udf.fitted.seeds import SEEDS, play_all
from purgatory_udf.fitted.source import scenario_like
from purgatory_udf.fitted.tuning import goal_of, over_of, tune, within_of
from purgatory_udf.fitted.words import variants_of
from purgatory_udf.simulate.scenario import Scenario
from purgatory_udf.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_fit(spark: SparkSession, out: str, events: str | None, file: Path, seeds: int, html: Path | None) -> list[str]:
    """Fit, write the scenario, check it, draw the page: lines to read."""
    from purgatory_udf.fitted.tables import read_recording

    scenario = fit(read_recording(spark, out, events))
    write(scenario, file)
    checked = checked_by_play(scenario, seeds)
    said = _what(scenario)
    page = write_page(fit_page(checked, said), html)
    return [*said, "", *checked.lines(), "", f"Scenario: {file}", *page]


def run_prediction(like: str, words: list[str], seeds: int | None, json: Path | None, html: Path | None) -> list[str]:
    """Play the unchanged scenario and the variants; write the figures and the page: lines to read."""
    variants = variants_of(words)
    scenario = scenario_like(like)
    prediction = predict(scenario, variants, seeds or SEEDS)
    if json is not None:
        write_whole(json, prediction.as_json())
    return [*prediction.lines(), "", *write_page(prediction_page(prediction), html)]


def run_tuning(like: str, goal: str, within: str, over: list[str], seeds: int, html: Path | None) -> list[str]:
    """Search; draw the page: lines to read."""
    asked = goal_of(goal), within_of(within), over_of(over)
    tuned = tune(scenario_like(like), *asked, seeds)
    return [*tuned.lines(), "", *write_page(tuning_page(tuned), html)]


def checked_by_play(scenario: Scenario, seeds: int) -> Checked:
    played = play_all({UNCHANGED: plan_of(scenario)}, seeds)[UNCHANGED]
    return check(fitted_of(scenario), played.median)


def _what(scenario: Scenario) -> list[str]:
    fitted = fitted_of(scenario)
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
        *(f"{UNKNOWN}{each}" for each in fitted.unknown),
    ]

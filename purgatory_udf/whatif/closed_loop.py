"""A scenario played once under each variant, its clients reacting, and replayed: a trace and its tables for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.simulate.output import Output
from purgatory_udf.simulate.run import Say, ScenarioRun, play_and_write
from purgatory_udf.simulate.scenario import Scenario
from purgatory_udf.storage import runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.options import semantic_settings
from purgatory_udf.whatif.replays import replay_once
from purgatory_udf.whatif.variants import Variant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Stage:
    """What all variants have in common."""

    scenario: Scenario
    seed: int | None = None
    duration_s: float | None = None
    scale: float = 1.0

    def played(self, variant: Variant) -> ScenarioRun:
        return ScenarioRun(self.scenario, self.seed, self.duration_s, self.scale, variant.config)


def play(spark: SparkSession, stage: Stage, out: str, variants: list[Variant], say: Say) -> dict[str, str]:
    """The folder of each variant's trace and tables, by name; settings that mean the same are played once.

    A folder that holds the same play of an earlier time is taken as it is.
    """
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    for variant in variants:
        asked = semantic_settings(variant.config)
        same = next((folder for settings, folder in done if settings == asked), None)
        if same is None:
            same = Layout(out).table(f"_what_if/{variant.name}")
            done.append((asked, same))
            _play(spark, stage.played(variant), same, variant, say)
        folders[variant.name] = same
    return folders


def _play(spark: SparkSession, played: ScenarioRun, folder: str, variant: Variant, say: Say) -> None:
    known = runs.load(spark, Layout(folder).table("runs"), "simulate")
    if known is None or known.run_id != played.run_id or known.status != runs.FINISHED:
        say(f"variant {variant.name}: simulating")
        play_and_write(spark, played, Output(folder, played.run_id, overwrite=True), say)
    say(f"variant {variant.name}: replaying")
    replay_once(spark, Layout(folder).table("events"), folder, variant.config)

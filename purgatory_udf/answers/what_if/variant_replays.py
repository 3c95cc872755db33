"""Each variant replayed, once: a folder that holds the same trace under the same settings is taken as it is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from purgatory_udf.answers.what_if.variants import Variant
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import Table
from purgatory_udf.simulation.output import Output
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.simulation_run import ReportPhase, ScenarioRun, simulate_and_write
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout, same_place
from purgatory_udf.streaming.replay_options import ReplayOptions, semantic_settings
from purgatory_udf.streaming.replay_run import run_replay

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from purgatory_udf.storage.run_records import Run


log = logging.getLogger(__name__)


def replays(spark: SparkSession, events: str, out: str, variants: list[Variant]) -> dict[str, str]:
    """The folder of each variant's tables, by name: the baseline's may be `out` itself."""
    here = Layout(out)
    known = run_records.load(spark, here.table("runs"), "replay")
    identity = _identity(spark, events)
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    if known and known.status == run_records.FINISHED and _is_of(known, events, identity):
        done.append((_asked(known), out))
    for variant in variants:
        asked = semantic_settings(variant.config)
        same = next((folder for settings, folder in done if settings == asked), None)
        if same is None:
            same = here.table(f"_what_if/{variant.name}")
            log.info("variant %s", variant.name)
            replay_once(spark, events, same, variant.config)
            done.append((asked, same))
        folders[variant.name] = same
    return folders


def replay_once(spark: SparkSession, events: str, out: str, config: Config) -> None:
    """A folder of another trace, or of other settings, is one of our own of an earlier time: it is replaced."""
    identity = _identity(spark, events)
    known = run_records.load(spark, Layout(out).table("runs"), "replay")
    stale = known is not None and (not _is_of(known, events, identity) or _asked(known) != semantic_settings(config))
    run_replay(spark, ReplayOptions(events, out, config, overwrite=stale))


def _identity(spark: SparkSession, events: str) -> dict[str, Any]:
    return delta_tables.identity(spark, events) if delta_tables.is_table(spark, events) else {}


def _asked(run: Run) -> dict[str, Any]:
    return {key: run.configuration.get(key) for key in semantic_settings(Config())}


def _is_of(run: Run, events: str, identity: dict[str, Any]) -> bool:
    """Whether the run replayed this table as it is now; one that ingested it itself has only its path to tell."""
    trace = run.trace
    return same_place(str(trace.get("events")), events) and (
        "ingest" in trace or all(trace.get(key) == identity.get(key) for key in ("table", "version"))
    )


# A scenario played once under each variant, its clients reacting, and replayed: a trace and its tables for each.


@dataclass(frozen=True)
class Stage:
    """What all variants have in common."""

    scenario: Scenario
    seed: int | None = None
    duration_s: float | None = None
    scale: float = 1.0

    def played(self, variant: Variant) -> ScenarioRun:
        return ScenarioRun(self.scenario, self.seed, self.duration_s, self.scale, variant.config)


def play_variants(
    spark: SparkSession, stage: Stage, out: str, variants: list[Variant], say: ReportPhase
) -> dict[str, str]:
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


def _play(spark: SparkSession, played: ScenarioRun, folder: str, variant: Variant, say: ReportPhase) -> None:
    known = run_records.load(spark, Layout(folder).table("runs"), "simulate")
    if known is None or known.run_id != played.run_id or known.status != run_records.FINISHED:
        say(f"variant {variant.name}: simulating")
        simulate_and_write(spark, played, Output(folder, played.run_id, overwrite=True), say)
    say(f"variant {variant.name}: replaying")
    replay_once(spark, Layout(folder).table("events"), folder, variant.config)


# How simulated clients reacted: what they sent under each variant, and how long an answer was on its way.


def clients_table(spark: SparkSession, folders: dict[str, str]) -> Table:
    """A row for each type of request under each variant; times are those that the client saw."""
    sent = [(row, name) for name, folder in folders.items() for row in _requests(spark, folder)]
    rows = [
        (row.type, name, row.requests, row.unanswered, row.p50, row.p99, row.throttled_ms)
        for row, name in sorted(sent, key=lambda pair: str(pair[0].type))
    ]
    columns = ("request", "variant", "sent", "never answered", "p50 ms", "p99 ms", "throttled, ms in all")
    return Table("Clients", columns, rows)


def _requests(spark: SparkSession, folder: str) -> list[Row]:
    layout = Layout(folder)
    types = spark.read.format("delta").load(layout.table("events")).select(sf.col("seq").alias("operation_id"), "type")
    asked = spark.read.format("delta").load(layout.table("truth_requests"))
    micros = sf.unix_micros("received_at") - sf.unix_micros("sent_at")
    times = [sf.round(sf.percentile(micros / 1000, share), 1).alias(f"p{int(100 * share)}") for share in (0.5, 0.99)]
    unanswered = sf.count_if(sf.col("received_at").isNull()).alias("unanswered")
    throttled = sf.sum("throttle_ms").alias("throttled_ms")
    grouped = asked.join(types, "operation_id").groupBy("type")
    return grouped.agg(sf.count("*").alias("requests"), unanswered, *times, throttled).collect()

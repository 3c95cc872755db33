"""Replays, or simulations and replays, of the variants.

Equivalent settings are replayed once, and the folder of an earlier replay is reused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.answers.what_if.variants import Variant
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import Table
from purgatory_udf.contract.tables import TRUTH_REQUESTS
from purgatory_udf.simulation.output import Output
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.simulation_run import ReportPhase, ScenarioRun, simulate_and_write
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout, same_place
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions, semantic_settings

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session
    from purgatory_udf.storage.run_records import Run


log = logging.getLogger(__name__)


def replay_variants(session: Session, events: str, out: str, variants: list[Variant]) -> dict[str, str]:
    """Replay the events under each variant; return the folder of each variant, which may be `out` for the baseline."""
    layout = Layout(out)
    known = run_records.load(session, layout.table("runs"), "replay")
    identity = _identity(session, events)
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    if known and known.status == run_records.FINISHED and _is_replay_of(known, events, identity):
        done.append((_settings_of(known), out))
    for variant in variants:
        settings = semantic_settings(variant.config)
        folder = next((folder for known_settings, folder in done if known_settings == settings), None)
        if folder is None:
            folder = layout.table(f"_what_if/{variant.name}")
            log.info("variant %s", variant.name)
            replay_once(session, events, folder, variant.config)
            done.append((settings, folder))
        folders[variant.name] = folder
    return folders


def replay_once(session: Session, events: str, out: str, config: Config) -> None:
    """Replay the events to `out`, and overwrite an earlier replay of other events or settings."""
    identity = _identity(session, events)
    known = run_records.load(session, Layout(out).table("runs"), "replay")
    stale = known is not None and (
        not _is_replay_of(known, events, identity) or _settings_of(known) != semantic_settings(config)
    )
    run_replay(session, ReplayOptions(events, out, config, overwrite=stale))


def _identity(session: Session, events: str) -> dict[str, Any]:
    return delta_tables.identity(session, events) if delta_tables.is_table(session, events) else {}


def _settings_of(run: Run) -> dict[str, Any]:
    return {key: run.configuration.get(key) for key in semantic_settings(Config())}


def _is_replay_of(run: Run, events: str, identity: dict[str, Any]) -> bool:
    """Return whether the run replayed this version of the table; a run that also ingested it records only its path."""
    trace = run.trace
    return same_place(str(trace.get("events")), events) and (
        "ingest" in trace or all(trace.get(key) == identity.get(key) for key in ("table", "version"))
    )


@dataclass(frozen=True)
class ScenarioOptions:
    """The common options of the simulations of a comparison."""

    scenario: Scenario
    seed: int | None = None
    duration_s: float | None = None
    scale: float = 1.0

    def run_of(self, variant: Variant) -> ScenarioRun:
        """Return the simulation of a variant."""
        return ScenarioRun(self.scenario, self.seed, self.duration_s, self.scale, variant.config)


def simulate_variants(
    session: Session, stage: ScenarioOptions, out: str, variants: list[Variant], say: ReportPhase
) -> dict[str, str]:
    """Simulate and replay each variant; return the folder of each variant's trace and tables."""
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    for variant in variants:
        settings = semantic_settings(variant.config)
        folder = next((folder for known_settings, folder in done if known_settings == settings), None)
        if folder is None:
            folder = Layout(out).table(f"_what_if/{variant.name}")
            done.append((settings, folder))
            _simulate_and_replay(session, stage.run_of(variant), folder, variant, say)
        folders[variant.name] = folder
    return folders


def _simulate_and_replay(
    session: Session, simulation: ScenarioRun, folder: str, variant: Variant, say: ReportPhase
) -> None:
    known = run_records.load(session, Layout(folder).table("runs"), "simulate")
    if known is None or known.run_id != simulation.run_id or known.status != run_records.FINISHED:
        say(f"variant {variant.name}: simulating")
        simulate_and_write(session, simulation, Output(folder, simulation.run_id, overwrite=True), say)
    say(f"variant {variant.name}: replaying")
    replay_once(session, Layout(folder).table("events"), folder, variant.config)


def clients_table(runs: Mapping[str, RunTables]) -> Table:
    """Return the requests of simulated clients under each variant, and the waits for responses."""
    sent = []
    for name, tables in runs.items():
        tables.add_table("truth_requests", tables.layout.table("truth_requests"), TRUTH_REQUESTS)
        sent += [(row, name) for row in tables.rows("what_if/clients")]
    figures = ("requests", "unanswered", "p50_ms", "p99_ms", "throttled_ms")
    rows = [
        (row["type"], name, *(row[figure] for figure in figures))
        for row, name in sorted(sent, key=lambda pair: str(pair[0]["type"]))
    ]
    columns = ("request", "variant", "sent", "unanswered", "p50 ms", "p99 ms", "throttled, ms in all")
    return Table("Clients", columns, rows)

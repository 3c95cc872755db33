"""What-if runs: replay or simulate the variants, compare them with the baseline, and report the differences.

Equivalent settings are replayed once, and the folder of an earlier replay is reused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers import page_template
from purgatory_udf.answers.page_template import Section
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.answers.variants import (
    BASELINE,
    Variant,
    VariantChanges,
    certainty_table,
    deliveries_table,
    headline,
    outcomes_table,
    purgatories_table,
    what_if_charts,
)
from purgatory_udf.backend.backend import backend_of
from purgatory_udf.backend.file_system import replace_file
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import Table
from purgatory_udf.contract.tables import TRUTH_REQUESTS
from purgatory_udf.simulation.output import Output
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.simulation_run import ReportPhase, ScenarioRun, simulate_and_write
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout, same_place
from purgatory_udf.streaming.replay_run import require_backend, run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions, semantic_settings

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session
    from purgatory_udf.simulation.simulation_run import ReportPhase
    from purgatory_udf.storage.run_records import Run

log = logging.getLogger(__name__)

HELD_FIXED = (
    "Fixed: every arrival, append and replication, as recorded. Clients and followers do not react to changed "
    "responses. So an outcome is certain only if neither its client nor a follower of its broker was answered at "
    "another time before; the other outcomes assume arrivals that would have changed. Use --closed-loop SCENARIO "
    "for simulated clients, which react."
)
UNENDED_READS = (
    " Reads of remote storage that have no end in the trace, such as most reads of expired fetches in a request log, "
    "never end, so a longer remote_fetch.max_wait_ms may complete more fetches than shown."
)
REACTING = (
    "Fixed: the scenario and its seed. Clients react to each response, so requests and their times differ between "
    "variants; the n-th request of a client is compared with its n-th request in the baseline."
)


def replay_variants(session: Session, events: str, out: str, variants: list[Variant]) -> dict[str, str]:
    """Replay the events under each variant; return the folder of each variant, which may be `out` for the baseline."""
    layout = Layout(out)
    known = run_records.load(session, layout.table("runs"), "replay")
    identity = _identity(session, events)
    folders: dict[str, str] = {}
    pending: list[tuple[str, ReplayOptions]] = []
    done: list[tuple[dict[str, Any], str]] = []
    if known and known.status == run_records.FINISHED and _is_replay_of(known, events, identity):
        done.append((_settings_of(known), out))
    for variant in variants:
        settings = semantic_settings(variant.config)
        folder = next((folder for known_settings, folder in done if known_settings == settings), None)
        if folder is None:
            folder = layout.table(f"_what_if/{variant.name}")
            pending.append((variant.name, _replay_options(session, events, folder, variant.config)))
            done.append((settings, folder))
        folders[variant.name] = folder
    # Checked for all variants first: a comparison runs in one process as a whole, or in Spark.
    for _, options in pending:
        require_backend(session, options)
    for name, options in pending:
        log.info("replaying the events under variant %s", name)
        run_replay(session, options)
    return folders


def _replay_options(session: Session, events: str, out: str, config: Config) -> ReplayOptions:
    """Return the options of a replay that overwrites an earlier one of other events or settings."""
    identity = _identity(session, events)
    known = run_records.load(session, Layout(out).table("runs"), "replay")
    stale = known is not None and (
        not _is_replay_of(known, events, identity) or _settings_of(known) != semantic_settings(config)
    )
    return ReplayOptions(events, out, config, overwrite=stale)


def _identity(session: Session, events: str) -> dict[str, Any]:
    store = backend_of(session).delta(events)
    return store.identity(events)._asdict() if store.is_table(events) else {}


def _settings_of(run: Run) -> dict[str, Any]:
    return {key: run.configuration.get(key) for key in semantic_settings(Config())}


def _is_replay_of(run: Run, events: str, identity: dict[str, Any]) -> bool:
    """Return whether the run replayed this version of the events, given the table's id and version in `identity`.

    A run that also imported the events records only their path, so for it the path decides.
    """
    trace = run.trace
    return same_place(str(trace.get("events")), events) and (
        "ingest" in trace or all(trace.get(key) == identity.get(key) for key in ("table", "version"))
    )


@dataclass(frozen=True)
class ScenarioOptions:
    """The options that all simulations of a comparison share."""

    scenario: Scenario
    seed: int | None = None
    duration_s: float | None = None
    scale: float = 1.0

    def run_of(self, variant: Variant) -> ScenarioRun:
        """Return the scenario with the overrides and the variant's settings applied, ready to be simulated."""
        scenario = self.scenario.with_brokers(variant.brokers, f"--variant {variant.name}")
        return ScenarioRun(scenario, self.seed, self.duration_s, self.scale, variant.config)


def simulate_variants(
    session: Session, options: ScenarioOptions, out: str, variants: list[Variant], report_phase: ReportPhase
) -> dict[str, str]:
    """Simulate and replay each variant; return the folder of each, which variants with equal settings share.

    Args:
        session: Spark session or backend that executes the replays.
        options: The scenario and its overrides.
        out: Folder of the comparison, below which the folders are created.
        variants: The baseline and the variants.
        report_phase: Called with a line of text at the start of each phase.
    """
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    for variant in variants:
        settings = {**semantic_settings(variant.config), "brokers": dict(variant.brokers)}
        folder = next((folder for known_settings, folder in done if known_settings == settings), None)
        if folder is None:
            folder = Layout(out).table(f"_what_if/{variant.name}")
            done.append((settings, folder))
            _simulate_and_replay(session, options.run_of(variant), folder, variant, report_phase)
        folders[variant.name] = folder
    return folders


def _simulate_and_replay(
    session: Session, simulation: ScenarioRun, folder: str, variant: Variant, report_phase: ReportPhase
) -> None:
    known = run_records.load(session, Layout(folder).table("runs"), "simulate")
    if known is None or known.run_id != simulation.run_id or known.status != run_records.FINISHED:
        report_phase(f"variant {variant.name}: simulating")
        simulate_and_write(session, simulation, Output(folder, simulation.run_id, overwrite=True), report_phase)
    report_phase(f"variant {variant.name}: replaying")
    options = _replay_options(session, Layout(folder).table("events"), folder, variant.config)
    # A simulation takes more memory than the replay of its trace.
    run_replay(session, replace(options, any_size=True))


def clients_table(runs: Mapping[str, RunTables]) -> Table:
    """Return a table of the simulated clients' requests and response times, by variant."""
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


# Title and caption of each chart.
_FIGURES = {
    "expired": ("Expirations over time", "Number of operations that expired in each time bin."),
    "waits": ("Waits", "Number of operations by wait, without operations that did not wait."),
    "sizes": ("PurgatorySize", "Maximum of the gauge in each time bin."),
}


@dataclass(frozen=True)
class WhatIf:
    """The result of a what-if run.

    Attributes:
        headlines: A sentence about each variant.
        assumptions: The assumptions of the comparison, as text.
        folders: The folder of each variant's replay.
        ends: The outcomes of each variant.
        together: Tables that compare all variants.
    """

    headlines: list[str]
    assumptions: str
    folders: dict[str, str]
    ends: list[Table]
    together: list[Table]

    def lines(self) -> Iterator[str]:
        yield from self.headlines
        yield ""
        yield self.assumptions
        for table in (*self.ends, *self.together):
            yield ""
            yield from table.lines() if table.rows else [table.title]
        yield ""
        yield from (f"Tables of {name}: {folder}" for name, folder in self.folders.items())


def what_if(session: Session, events: str, out: str, variants: list[Variant], html: Path | None) -> WhatIf:
    """Replay the variants (the first is the baseline), write the table `what_if`, and draw the page."""
    return _compare(session, out, replay_variants(session, events, out, variants), html, variants, reacting=False)


def what_if_simulated(
    session: Session,
    options: ScenarioOptions,
    out: str,
    variants: list[Variant],
    html: Path | None,
    report_phase: ReportPhase,
) -> WhatIf:
    """Simulate the variants with reacting clients, write the table `what_if`, and draw the page."""
    folders = simulate_variants(session, options, out, variants, report_phase)
    return _compare(session, out, folders, html, variants, reacting=True)


# The kinds of operations on which the settings of a section have an effect.
_KINDS_OF_SECTIONS = {
    "produce": ("produce",),
    "fetch": ("fetch", "remote_fetch", "share_fetch"),
    "remote_fetch": ("remote_fetch",),
    "list_offsets": ("list_offsets",),
    "delete_records": ("delete_records",),
    "create_topics": ("create_topics",),
    "share": ("share_fetch",),
}


def _ineffective_settings(variant: Variant, baseline: Variant, kinds: set[str]) -> Iterator[str]:
    """Yield a sentence for each section that the variant changes in vain, as no operation has one of its kinds."""
    before, after = (variant.config.model_dump(mode="json") for variant in (baseline, variant))
    rules = {key.partition(".")[0] for rule in variant.config.what_if for key in rule.settings}
    for section, affected in _KINDS_OF_SECTIONS.items():
        if (before[section] != after[section] or section in rules) and not kinds.intersection(affected):
            yield f"{variant.name}: {section}.* has no effect, because the trace has no {affected[0]} operations."


def _compare(
    session: Session, out: str, folders: dict[str, str], html: Path | None, variants: list[Variant], reacting: bool
) -> WhatIf:
    """Compare the replays of the variants with that of the baseline, and write table and page.

    Args:
        session: Spark session or backend.
        out: Folder of the table `what_if`.
        folders: The folder of each replay by variant; the first is the baseline.
        html: File of the page, or None.
        variants: The baseline and the variants.
        reacting: Whether the replays are of separate traces (`VariantChanges`).
    """
    opened = {folder: RunTables(session, folder) for folder in dict.fromkeys(folders.values())}
    runs = {name: opened[folder] for name, folder in folders.items()}
    path = Layout(out).table("what_if")
    ends, headlines = [], []
    for number, variant in enumerate(variants[1:]):
        name = variant.name
        changes = VariantChanges(session, folders[BASELINE], folders[name], reacting=reacting)
        counts = changes.rows("counts")
        headlines.append(headline(name, counts))
        headlines += _ineffective_settings(variant, variants[0], {row["kind"] for row in counts})
        ends.append(outcomes_table(name, counts))
        if not reacting and ends[-1].rows:
            ends.append(certainty_table(name, changes.certainty()))
        changes.save(path, name, append=number > 0)
    delivered = deliveries_table(runs)
    of_all = [*([clients_table(runs)] if reacting else []), *([delivered] if delivered.rows else [])]
    of_all.append(purgatories_table(runs))
    waits = {variant.config.remote_fetch.broker_wait_ms for variant in variants}
    fixed = HELD_FIXED + (UNENDED_READS if len(waits) > 1 else "")
    comparison = WhatIf(headlines, REACTING if reacting else fixed, folders, ends, of_all)
    if html is not None:
        _write_page(comparison, runs, html)
    return comparison


def _write_page(comparison: WhatIf, runs: dict[str, RunTables], html: Path) -> None:
    specs = what_if_charts(runs)
    top = page_template.sentences(comparison.headlines, comparison.assumptions)
    tables = [Section(table.title, "", page_template.table(table) if table.rows else "") for table in comparison.ends]
    drawn = [Section(*_FIGURES[name], page_template.figure(name)) for name in specs]
    of_all = [Section(table.title, "", page_template.table(table)) for table in comparison.together]
    replace_file(html, page_template.page("What if", "", top, [*tables, *drawn, *of_all], specs))

"""What-if runs: replay or simulate the variants, compare them with the baseline, and report the differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.answers.report import html_page
from purgatory_udf.answers.report.html_page import Section
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.answers.what_if import BASELINE, HELD_FIXED, REACTING
from purgatory_udf.answers.what_if.variant_comparison import (
    VariantChanges,
    ends_table,
    purgatories_table,
    trust_table,
    what_if_charts,
)
from purgatory_udf.answers.what_if.variant_replays import clients_table, replay_variants, simulate_variants
from purgatory_udf.answers.what_if.variants import Variant
from purgatory_udf.backend.file_system import write_whole
from purgatory_udf.common.console import Table
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from purgatory_udf.answers.what_if.variant_replays import ScenarioOptions
    from purgatory_udf.backend.backend import Session
    from purgatory_udf.simulation.simulation_run import ReportPhase

# Title and caption of each chart.
_FIGURES = {
    "expired": ("Expirations over time", "Number of operations that expired in each time bin."),
    "waits": ("Waits", "Number of operations by wait, without operations that did not wait."),
    "sizes": ("PurgatorySize", "Maximum of the gauge in each time bin."),
}


@dataclass(frozen=True)
class WhatIf:
    """The result: the assumptions, the folder of each replay, tables of each variant, and tables across variants."""

    held_fixed: str
    folders: dict[str, str]
    ends: list[Table]
    together: list[Table]

    def lines(self) -> Iterator[str]:
        yield self.held_fixed
        for table in (*self.ends, *self.together):
            yield ""
            yield from table.lines() if table.rows else [table.title]
        yield ""
        yield from (f"Tables of {name}: {folder}" for name, folder in self.folders.items())


def what_if(session: Session, events: str, out: str, variants: list[Variant], html: Path | None) -> WhatIf:
    """Replay the variants (the first is the baseline), write the table `what_if`, and draw the page."""
    return _compare(session, out, replay_variants(session, events, out, variants), html, reacting=False)


def what_if_simulated(
    session: Session, stage: ScenarioOptions, out: str, variants: list[Variant], html: Path | None, say: ReportPhase
) -> WhatIf:
    """Simulate the variants with reacting clients, write the table `what_if`, and draw the page."""
    return _compare(session, out, simulate_variants(session, stage, out, variants, say), html, reacting=True)


def _compare(session: Session, out: str, folders: dict[str, str], html: Path | None, reacting: bool) -> WhatIf:
    """Compare the replays of the variants with that of the baseline; `folders` has the folder of each replay."""
    opened = {folder: RunTables(session, folder) for folder in dict.fromkeys(folders.values())}
    runs = {name: opened[folder] for name, folder in folders.items()}
    path = Layout(out).table("what_if")
    ends = []
    for number, name in enumerate(name for name in folders if name != BASELINE):
        changes = VariantChanges(session, folders[BASELINE], folders[name], reacting=reacting)
        ends.append(ends_table(name, changes.rows("counts")))
        if not reacting and ends[-1].rows:
            ends.append(trust_table(name, changes.trust()))
        changes.save(path, name, append=number > 0)
    of_all = [*([clients_table(runs)] if reacting else []), purgatories_table(runs)]
    comparison = WhatIf(REACTING if reacting else HELD_FIXED, folders, ends, of_all)
    if html is not None:
        _write_page(comparison, runs, html)
    return comparison


def _write_page(comparison: WhatIf, runs: dict[str, RunTables], html: Path) -> None:
    specs = what_if_charts(runs)
    tables = [Section(table.title, "", html_page.table(table) if table.rows else "") for table in comparison.ends]
    drawn = [Section(*_FIGURES[name], html_page.figure(name)) for name in specs]
    of_all = [Section(table.title, "", html_page.table(table)) for table in comparison.together]
    write_whole(html, html_page.page("What if", comparison.held_fixed, "", [*tables, *drawn, *of_all], specs))

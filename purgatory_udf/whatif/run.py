"""From a table of events and some variants to what they change: a table, lines to read, a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.printing import Table
from purgatory_udf.report import page
from purgatory_udf.report.page import Section
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.run_tables import RunTables, as_table
from purgatory_udf.tables import WHAT_IF
from purgatory_udf.whatif import BASELINE, HELD_FIXED, REACTING
from purgatory_udf.whatif.clients import clients_table
from purgatory_udf.whatif.closed_loop import play
from purgatory_udf.whatif.comparison import counted, ends_table, purgatories_table
from purgatory_udf.whatif.pairs import differing, pairs
from purgatory_udf.whatif.pictures import what_if_charts
from purgatory_udf.whatif.replays import replays
from purgatory_udf.whatif.trust import trust_table, trusted
from purgatory_udf.whatif.variants import Variant
from purgatory_udf.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.simulate.run import Say
    from purgatory_udf.whatif.closed_loop import Stage

_FIGURES = {
    "expired": ("Expirations over time", "How many operations expired in a column's time."),
    "waits": ("Waits", "How many operations waited that long, of those that had to wait."),
    "sizes": ("PurgatorySize", "The most that the gauge read in a column's time."),
}


@dataclass(frozen=True)
class WhatIf:
    """What came of it: what is held fixed, a table for each variant, those of all, and the folder of each replay."""

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


def what_if(spark: SparkSession, events: str, out: str, variants: list[Variant], html: Path | None) -> WhatIf:
    """Replay the variants (the first is the baseline), write `what_if`, and draw the page."""
    return _compare(spark, out, replays(spark, events, out, variants), html, reacting=False)


def what_if_simulated(
    spark: SparkSession, stage: Stage, out: str, variants: list[Variant], html: Path | None, say: Say
) -> WhatIf:
    """The same, with each variant simulated: the clients react."""
    return _compare(spark, out, play(spark, stage, out, variants, say), html, reacting=True)


def _compare(spark: SparkSession, out: str, folders: dict[str, str], html: Path | None, reacting: bool) -> WhatIf:
    """Hold replayed variants, by their folders, against the baseline's."""
    read = {folder: RunTables(spark, folder) for folder in dict.fromkeys(folders.values())}
    runs = {name: read[folder] for name, folder in folders.items()}
    baseline = runs[BASELINE]
    path = Layout(out).table("what_if")
    ends = []
    for place, (name, tables) in enumerate(each for each in runs.items() if each[0] != BASELINE):
        paired = pairs(baseline, tables, reacting)
        ends.append(ends_table(name, counted(paired)))
        if not reacting and ends[-1].rows:
            ends.append(trust_table(name, trusted(paired, baseline)))
        rows = as_table(differing(paired), WHAT_IF, baseline.run.run_id, variant=name)
        writer = rows.write.format("delta").mode("append" if place else "overwrite")
        writer.option("overwriteSchema", "false" if place else "true").save(path)
    together = [*([clients_table(spark, folders)] if reacting else []), purgatories_table(runs)]
    comparison = WhatIf(REACTING if reacting else HELD_FIXED, folders, ends, together)
    if html is not None:
        _write_page(comparison, runs, html)
    return comparison


def _write_page(comparison: WhatIf, runs: dict[str, RunTables], html: Path) -> None:
    specs = what_if_charts(runs)
    tables = [Section(table.title, "", page.table(table) if table.rows else "") for table in comparison.ends]
    drawn = [Section(*_FIGURES[name], page.figure(name)) for name in specs]
    together = [Section(table.title, "", page.table(table)) for table in comparison.together]
    write_whole(html, page.page("What if", comparison.held_fixed, "", [*tables, *drawn, *together], specs))

"""From a table of events and some variants to what they change: a table, lines to read, a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.answers.report import html_page
from purgatory_udf.answers.report.html_page import Section
from purgatory_udf.answers.what_if import BASELINE, HELD_FIXED, REACTING
from purgatory_udf.answers.what_if.variant_comparison import (
    SAME,
    counted,
    differing,
    ends_table,
    pairs,
    purgatories_table,
    what_if_charts,
)
from purgatory_udf.answers.what_if.variant_replays import clients_table, play_variants, replays
from purgatory_udf.answers.what_if.variants import Variant
from purgatory_udf.backend.file_system import write_whole
from purgatory_udf.common.console import Table
from purgatory_udf.contract.tables import COMMENTED_WHAT_IF, WHAT_IF
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_tables import RunFrames, as_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from purgatory_udf.answers.what_if.variant_replays import Stage
    from purgatory_udf.simulation.simulation_run import ReportPhase
    from purgatory_udf.storage.run_tables import RunFrames


# How far a what-if on recorded arrivals can be trusted: arrivals are held fixed, and some would have been others.
#
# An operation's end is as sure as the replay is while nobody whom it depends on had been answered at another time than
# in the baseline: its own client, whose next request is sent after an answer, and the followers of its broker, whose
# next fetch moves high watermarks. From then on it supposes arrivals that would have been others.


# Why an operation's end is no surer.
SURE, CLIENT, FOLLOWER = "sure", "after its client was answered otherwise", "after a follower was answered otherwise"
_REASONS = (SURE, CLIENT, FOLLOWER)
TITLE = "{}: how far its ends can be trusted, arrivals being as recorded"


def trusted(paired: DataFrame, baseline: RunFrames) -> list[Row]:
    """Of one variant, a row for each kind: how many operations are sure, and how many of those that differ."""
    ends = _ends(paired, baseline)
    clients = ends.groupBy("broker", "client").agg(sf.min("shifted_ms").alias("client_ms"))
    followers = ends.where("follows").groupBy("broker").agg(sf.min("shifted_ms").alias("follower_ms"))
    held = ends.join(clients, ["broker", "client"], "left").join(followers, "broker", "left")
    counts = [
        sf.count_if((sf.col("reason") == reason) & which).alias(f"{of}_{place}")
        for of, which in (("all", sf.lit(True)), ("differ", sf.col("differs")))
        for place, reason in enumerate(_REASONS)
    ]
    return held.withColumn("reason", _reason()).groupBy("kind").agg(*counts).orderBy("kind").collect()


def trust_table(variant: str, rows: list[Row]) -> Table:
    """Of each kind, all operations and those that end otherwise, by how sure that is."""
    columns = ("kind", "ends", *_REASONS)
    cells = [
        (row.kind, what, *(row[f"{of}_{place}"] for place in range(len(_REASONS))))
        for row in rows
        for of, what in (("all", "all"), ("differ", "otherwise"))
    ]
    return Table(TITLE.format(variant), columns, cells)


def _ends(paired: DataFrame, baseline: RunFrames) -> DataFrame:
    """Each operation with its start, its earlier end of both, and that again where the two differ."""
    fetches = baseline.table("events").where((sf.col("type") == "fetch") & (sf.col("replica_id") >= 0))
    followers = fetches.select(sf.col("seq").alias("operation_id"), sf.lit(True).alias("by_follower"))
    started_ms = sf.unix_millis("started_at")
    earlier = sf.least("baseline_wait_ms", "variant_wait_ms")  # Of the one that is there, where there is only one.
    # One that only one side has ended at another time, too.
    shifted = sf.coalesce(sf.col("shift_ms") != 0, sf.lit(True))
    return paired.join(followers, "operation_id", "left").select(
        "kind",
        "broker",
        sf.coalesce("client_id", sf.lit("")).alias("client"),
        sf.coalesce("by_follower", sf.lit(False)).alias("follows"),
        (sf.col("change") != SAME).alias("differs"),
        started_ms.alias("started_ms"),
        (started_ms + earlier).alias("ended_ms"),
        sf.when(shifted, started_ms + earlier).alias("shifted_ms"),
    )


def _reason() -> Column:
    """A client's first other answer is sure itself: what it was asked by had arrived as recorded."""
    client = sf.col("started_ms") >= sf.col("client_ms")
    follower = ~sf.col("follows") & (sf.col("ended_ms") > sf.col("follower_ms"))
    return sf.when(client, CLIENT).when(follower, FOLLOWER).otherwise(SURE)


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
    spark: SparkSession, stage: Stage, out: str, variants: list[Variant], html: Path | None, say: ReportPhase
) -> WhatIf:
    """The same, with each variant simulated: the clients react."""
    return _compare(spark, out, play_variants(spark, stage, out, variants, say), html, reacting=True)


def _compare(spark: SparkSession, out: str, folders: dict[str, str], html: Path | None, reacting: bool) -> WhatIf:
    """Hold replayed variants, by their folders, against the baseline's."""
    read = {folder: RunFrames(spark, folder) for folder in dict.fromkeys(folders.values())}
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
        writer = delta_tables.commented_writer(rows, COMMENTED_WHAT_IF).format("delta")
        writer = writer.mode("append" if place else "overwrite")
        writer.option("overwriteSchema", "false" if place else "true").save(path)
    together = [*([clients_table(spark, folders)] if reacting else []), purgatories_table(runs)]
    comparison = WhatIf(REACTING if reacting else HELD_FIXED, folders, ends, together)
    if html is not None:
        _write_page(comparison, runs, html)
    return comparison


def _write_page(comparison: WhatIf, runs: dict[str, RunFrames], html: Path) -> None:
    specs = what_if_charts(runs)
    tables = [Section(table.title, "", html_page.table(table) if table.rows else "") for table in comparison.ends]
    drawn = [Section(*_FIGURES[name], html_page.figure(name)) for name in specs]
    together = [Section(table.title, "", html_page.table(table)) for table in comparison.together]
    write_whole(html, html_page.page("What if", comparison.held_fixed, "", [*tables, *drawn, *together], specs))

"""A fidelity run: compare, keep the comparison as a table, and say it in text, as a page and in a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError
from purgatory_udf.fidelity import figures
from purgatory_udf.fidelity.comparison import compared
from purgatory_udf.fidelity.coordinator_tables import logged_groups
from purgatory_udf.fidelity.counters import COUNTERS, Counted, counted
from purgatory_udf.fidelity.group_answers import compared_groups
from purgatory_udf.fidelity.page import page
from purgatory_udf.fidelity.picture import as_svg, points, recorded_against_replayed
from purgatory_udf.fidelity.server_log import Fact, facts_in_logs
from purgatory_udf.local.paths import path_here
from purgatory_udf.printing import Table
from purgatory_udf.query import functions as sf
from purgatory_udf.storage import delta, runs
from purgatory_udf.storage.files import files_of
from purgatory_udf.storage.layout import Layout
from purgatory_udf.tables import FIDELITY
from purgatory_udf.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEEDED = {"recorded": "ingest --from request-log", "completions": "replay", "expirations": "replay"}
PAGE = "fidelity.html"


@dataclass(frozen=True)
class FidelityOptions:
    """`out` holds the tables of an import and of its replay; the JMX files are readings of the brokers' counters, the
    server logs what their coordinators wrote, `zone` that of its times without one."""

    out: str
    jmx_before: str | None = None
    jmx_after: str | None = None
    html: Path | None = None
    server_logs: Sequence[str] = ()
    zone: tzinfo = UTC

    def logged(self) -> list[Fact]:
        return facts_in_logs(self.server_logs, self.zone) if self.server_logs else []

    def counted(self) -> list[Counted]:
        if self.jmx_before and not self.jmx_after:
            raise UserError("--jmx-before needs --jmx-after: what counts is the increase")
        return counted(self.jmx_before, self.jmx_after) if self.jmx_after else []


@dataclass(frozen=True)
class Fidelity:
    """The report's tables; `page` is where the HTML is, if there is a local folder for it."""

    tables: list[Table]
    page: Path | None

    def summary(self) -> list[str]:
        lines = [line for table in self.tables if table.rows for line in ["", *table.lines()]][1:]
        return [*lines, *(["", f"Page: {self.page}"] if self.page else [])]


def run_fidelity(spark: SparkSession, options: FidelityOptions) -> Fidelity:
    layout = Layout(options.out)
    beans, logged = options.counted(), options.logged()
    for name, maker in NEEDED.items():
        if not delta.is_table(spark, layout.table(name)):
            raise UserError(f"{layout.table(name)}: no such table ({maker} makes it)")
    replay = runs.load(spark, layout.table("runs"), "replay")
    run_id = replay.run_id if replay else "unknown"
    rows, phases = compared(spark, options.out, run_id)
    has_groups = delta.is_table(spark, layout.table("group_transitions"))
    if has_groups:
        rows = rows.unionByName(compared_groups(spark, options.out, run_id, _classic(spark, layout)))
    files_of(spark).remove(layout.table("fidelity"))
    rows.select(*FIDELITY.names).write.format("delta").save(layout.table("fidelity"))
    pairs = spark.read.format("delta").load(layout.table("fidelity")).cache()
    tables = [
        figures.agreement(pairs),
        figures.two_way(pairs),
        figures.waits(pairs),
        figures.lateness(pairs, phases),
        figures.worst(pairs),
        figures.causes(pairs),
        figures.expirations(_expiring(spark, layout), beans),
        figures.group_answers(pairs),
    ]
    if logged and has_groups:
        tables.append(logged_groups(spark, layout, logged))
    written = _write_page(options, run_id, tables, pairs)
    pairs.unpersist()
    return Fidelity(tables, written)


def _classic(spark: SparkSession, layout: Layout) -> bool:
    """Whether the recorded coordinator is the one that the replay has: it answers heartbeats in the handling thread."""
    recorded = spark.read.format("delta").load(layout.table("recorded")).where("kind = 'heartbeat'")
    share = recorded.agg(sf.avg(sf.when(sf.col("recorded_outcome") == "at_once", 1.0).otherwise(0.0))).first()
    return share is None or share[0] is None or share[0] > 0.5


def _expiring(spark: SparkSession, layout: Layout) -> DataFrame:
    """What `figures.expirations` counts: a row an operation."""
    recorded = spark.read.format("delta").load(layout.table("recorded")).where(sf.col("kind").isin(*COUNTERS))
    timed_out = sf.size(sf.filter("partitions", lambda partition: partition["error"] == "REQUEST_TIMED_OUT"))
    expired = (
        spark.read.format("delta")
        .load(layout.table("expirations"))
        .where("NOT after_end AND NOT (kind = 'fetch' AND wait_ms = 0)")
    )
    replayed = expired.select(
        "operation_id",
        sf.when(sf.col("kind") == "produce", timed_out).otherwise(1).alias("replayed_expired"),
        sf.unix_micros("expired_at").alias("replayed_end_us"),
    )
    is_expired = sf.when(sf.col("recorded_outcome") == "expired", 1).otherwise(0)
    return recorded.join(replayed, "operation_id", "left").select(
        "kind",
        "broker",
        sf.when(sf.col("kind").startswith("produce"), sf.col("recorded_timed_out"))
        .otherwise(is_expired)
        .alias("recorded_expired"),
        (sf.unix_micros("started_at") + sf.col("recorded_remote_ms") * 1000).alias("recorded_end_us"),
        sf.coalesce("replayed_expired", sf.lit(0)).alias("replayed_expired"),
        "replayed_end_us",
    )


def _write_page(options: FidelityOptions, run_id: str, tables: list[Table], pairs: DataFrame) -> Path | None:
    folder = path_here(options.out)
    path = options.html or (folder / PAGE if folder is not None else None)
    if path is None:
        return None
    drawn = as_svg(recorded_against_replayed(points(pairs)))
    write_whole(path, page(f"Fidelity of {run_id}", tables, drawn))
    return path

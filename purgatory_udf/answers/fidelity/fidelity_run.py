"""A fidelity run: compare, keep the comparison as a table, and say it in text, as a page and in a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt

from purgatory_udf.answers.fidelity import fidelity_figures
from purgatory_udf.answers.fidelity.broker_readings import COUNTERS, Counted, Fact, counted, facts_in_logs
from purgatory_udf.answers.fidelity.coordinator_comparison import logged_groups
from purgatory_udf.answers.fidelity.group_answers import compared_groups
from purgatory_udf.answers.fidelity.outcome_comparison import BY_ID, compared
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.file_system import files_of, write_whole
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_paths import local_path
from purgatory_udf.contract.tables import COMMENTED_TABLES, FIDELITY
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


# The report as one HTML file that needs nothing beside it.


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
"""


def page(title: str, tables: Iterable[Table], picture: str) -> str:
    """`picture` is SVG, put after the tables."""
    parts = [_table(table) for table in tables if table.rows]
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{''.join(parts)}"
        f"<h2>Recorded against replayed waits</h2>\n{picture}\n</html>\n"
    )


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    return f"<table><caption>{escape(table.title)}</caption>\n<tr>{heads}</tr>\n{rows}</table>\n"


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{value:,}</td>'


# Recorded against replayed waits: a point an operation; what the replay got right lies on the diagonal.


# More points than this neither fit on a screen nor into a handy file.
MOST_POINTS = 4_000
ALIKE, OTHERWISE = "ended alike", "ended otherwise"
# Told apart by colour-blind eyes too.
COLOURS = {ALIKE: "#0072b2", OTHERWISE: "#d55e00"}


def points(pairs: DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """All that disagree, and of the others as many as fit, chosen by their ids alone."""
    known = pairs.where(sf.col("kind").isin(*BY_ID) & sf.col("replayed_ms").isNotNull())
    waited = known.where("recorded_ms > 0 OR replayed_ms > 0")
    chosen = waited.orderBy("agrees", sf.xxhash64("operation_id"), "operation_id").limit(most)
    end = sf.when(sf.col("agrees"), ALIKE).otherwise(OTHERWISE).alias("end")
    return chosen.select("kind", "recorded_ms", "replayed_ms", end, "request_id").toPandas()


def recorded_against_replayed(frame: pd.DataFrame) -> alt.Chart:
    """One square a kind; the root scale shows short waits beside long ones."""
    scale = alt.Scale(type="sqrt", zero=True)
    return (
        alt.Chart(frame, width=260, height=260)
        .mark_circle(size=16, opacity=0.5)
        .encode(
            x=alt.X("recorded_ms:Q", title="recorded wait, ms", scale=scale),
            y=alt.Y("replayed_ms:Q", title="replayed wait, ms", scale=scale),
            color=alt.Color(
                "end:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ).legend(orient="top"),
            tooltip=["request_id:N", "recorded_ms:Q", "replayed_ms:Q"],
            facet=alt.Facet("kind:N", title=None, columns=3, sort=list(BY_ID)),
        )
        .resolve_scale(x="independent", y="independent")
    )


def as_svg(chart: alt.Chart) -> str:
    """Drawn here: neither making nor seeing it needs a network."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_json()))


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
        if not delta_tables.is_table(spark, layout.table(name)):
            raise UserError(f"{layout.table(name)}: no such table ({maker} makes it)")
    replay = run_records.load(spark, layout.table("runs"), "replay")
    run_id = replay.run_id if replay else "unknown"
    rows, phases = compared(spark, options.out, run_id)
    has_groups = delta_tables.is_table(spark, layout.table("group_transitions"))
    if has_groups:
        rows = rows.unionByName(compared_groups(spark, options.out, run_id, _classic(spark, layout)))
    files_of(spark).remove(layout.table("fidelity"))
    rows = rows.select(*FIDELITY.names)
    delta_tables.commented_writer(rows, COMMENTED_TABLES["fidelity"]).format("delta").save(layout.table("fidelity"))
    pairs = spark.read.format("delta").load(layout.table("fidelity")).cache()
    tables = [
        fidelity_figures.agreement(pairs),
        fidelity_figures.two_way(pairs),
        fidelity_figures.waits(pairs),
        fidelity_figures.lateness(pairs, phases),
        fidelity_figures.worst(pairs),
        fidelity_figures.causes(pairs),
        fidelity_figures.expirations(_expiring(spark, layout), beans),
        fidelity_figures.group_answers(pairs),
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
    folder = local_path(options.out)
    path = options.html or (folder / PAGE if folder is not None else None)
    if path is None:
        return None
    drawn = as_svg(recorded_against_replayed(points(pairs)))
    write_whole(path, page(f"Fidelity of {run_id}", tables, drawn))
    return path

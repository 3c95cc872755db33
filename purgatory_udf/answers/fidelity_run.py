"""A fidelity run: writes the comparison as a table, and reports it as text, as a page and as a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from purgatory_udf.answers.broker_readings import (
    ExpirationCount,
    LoggedGroupEvent,
    count_expirations,
    group_events_in_logs,
    logged_groups,
)
from purgatory_udf.answers.outcome_comparison import BY_ID, WORST, figures, settings_table, write_comparison
from purgatory_udf.answers.page_template import POLICY_TAG
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import backend_of
from purgatory_udf.backend.file_system import replace_file
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import local_path
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Contradiction, contradictions, recorded_brokers
from purgatory_udf.streaming.run_resumption import with_current_defaults

if TYPE_CHECKING:
    import pandas as pd

    from purgatory_udf.backend.backend import Session


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
"""


def page(title: str, tables: Iterable[Table], picture: str) -> str:
    """Return the report as a self-contained HTML page; the SVG `picture` follows the tables."""
    parts = [_table(table) for table in tables if table.rows]
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"{POLICY_TAG}\n<title>{escape(title)}</title>\n"
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{''.join(parts)}"
        f"<h2>Recorded and replayed waits</h2>\n{picture}\n</html>\n"
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


# Maximum number of points of the chart, for readability and for the size of the page.
MOST_POINTS = 4_000
SAME, DIFFERENT = "same outcome", "different outcome"
# Distinguishable with colour blindness.
COLOURS = {SAME: "#0072b2", DIFFERENT: "#d55e00"}


def points(tables: RunTables, most: int = MOST_POINTS) -> pd.DataFrame:
    """Return at most `most` operations for the chart: disagreements first, then a sample of the others."""
    frame = tables.query("fidelity/points", most=most).to_pandas()
    frame["end"] = frame["agrees"].map({True: SAME, False: DIFFERENT})
    return frame[["kind", "recorded_ms", "replayed_ms", "end", "request_id"]]


def recorded_against_replayed(frame: pd.DataFrame) -> alt.Chart:
    """Return a chart of the waits of operations, a square for each kind. Equal waits are on the diagonal.

    The scale is a square root, which shows short waits next to long ones.
    """
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
    """Return the chart as SVG, drawn without a network."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_json()))


NEEDED = {"recorded": "ingest --from request-log", "completions": "replay", "expirations": "replay"}
PAGE = "fidelity.html"


@dataclass(frozen=True)
class FidelityOptions:
    """Inputs and outputs of a comparison.

    Attributes:
        out: Folder with the tables of an import and of its replay.
        jmx_before: File with a reading of the brokers' counters before the recording.
        jmx_after: File with a reading after it.
        html: File of the page; by default in `out`.
        server_logs: Server logs of the brokers.
        zone: Time zone of the server logs, for times without one.
    """

    out: str
    jmx_before: str | None = None
    jmx_after: str | None = None
    html: Path | None = None
    server_logs: Sequence[str] = ()
    zone: tzinfo = UTC

    def logged(self) -> list[LoggedGroupEvent]:
        return group_events_in_logs(self.server_logs, self.zone) if self.server_logs else []

    def counted(self) -> list[ExpirationCount]:
        if self.jmx_before and not self.jmx_after:
            raise UserError("--jmx-before requires --jmx-after, because increases are compared")
        return count_expirations(self.jmx_before, self.jmx_after) if self.jmx_after else []


@dataclass(frozen=True)
class Fidelity:
    """The tables of the report, and the path of its HTML page: None if `out` is remote and no path was given.

    `source` has the tables of the run, `others` the settings that contradict the recording, `notes` what could not be
    compared.
    """

    tables: list[Table]
    page: Path | None
    source: RunTables
    others: list[Contradiction]
    notes: list[str]

    def summary(self) -> list[str]:
        lines = [line for table in self.tables if table.rows for line in ["", *table.lines()]][1:]
        return [*lines, *(["", *self.notes] if self.notes else []), *(["", f"Page: {self.page}"] if self.page else [])]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON: totals by kind, and rows of the queries in `sql/fidelity`."""
        outcomes = self.source.rows("fidelity/counts")
        operations, same = Counter[str](), Counter[str]()
        for row in outcomes:
            operations[row["kind"]] += row["operations"]
            same[row["kind"]] += row["operations"] if row["agrees"] else 0
        return {
            "run_id": self.source.run.run_id,
            "page": None if self.page is None else str(self.page),
            "kinds": [{"kind": kind, "operations": operations[kind], "same": same[kind]} for kind in operations],
            "outcomes": outcomes,
            "waits": self.source.rows("fidelity/waits"),
            "lateness": self.source.rows("fidelity/lateness"),
            "worst": self.source.rows("fidelity/worst", of_each=WORST),
            "pauses": self.source.rows("fidelity/pauses"),
            "settings": [
                {"key": each.key, "replayed": each.value, "recorded": each.recorded.value} for each in self.others
            ],
        }


def run_fidelity(session: Session, options: FidelityOptions) -> Fidelity:
    """Compare the replay under `options.out` with the request log, write the table `fidelity`, and report it.

    Raises:
        UserError: A table is missing, or a file of the options cannot be used.
    """
    layout = Layout(options.out)
    beans, logged = options.counted(), options.logged()
    for name, maker in NEEDED.items():
        if not backend_of(session).delta(options.out).is_table(layout.table(name)):
            raise UserError(f"{layout.table(name)}: no such table; run `{maker}` first")
    tables = RunTables(session, options.out, require_all_rows=False)
    backend_of(session).files.remove(layout.table("fidelity"))
    recorded = recorded_brokers(session, layout.table("events")).settings
    others = contradictions(with_current_defaults(tables.run.configuration), recorded)
    report = [settings_table(others), *figures(tables, write_comparison(tables, others), beans)]
    notes = []
    if options.server_logs:
        groups = logged_groups(tables, logged) if tables.has("group_transitions") else None
        if groups is not None and groups.rows:
            report.append(groups)
        else:
            notes.append("No classic groups to compare: neither the server logs nor the replay show a change of one")
    return Fidelity(report, _write_page(options, tables, report), tables, others, notes)


def _write_page(options: FidelityOptions, tables: RunTables, report: list[Table]) -> Path | None:
    folder = local_path(options.out)
    path = options.html or (folder / PAGE if folder is not None else None)
    if path is None:
        return None
    drawn = as_svg(recorded_against_replayed(points(tables)))
    replace_file(path, page(f"Fidelity of {tables.run.run_id}", report, drawn))
    return path

"""The summary of a replay: outcomes of operations, their causes, the longest waits, and a chart of the waits."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import backend_of
from purgatory_udf.common.console import Table, request_label
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.storage.run_records import KEYS, RecordedBrokers, events_of, recorded_brokers

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from purgatory_udf.backend.backend import Session
    from purgatory_udf.storage.run_records import Run

Row = dict[str, Any]

SLOWEST = 5
# Maximum number of points of the chart, for readability and for the size of the file.
MAX_POINTS = 5_000
# Distinct for colour-blind readers.
COLOURS = {"completed on arrival": "#999999", "completed after a wait": "#0072b2", "expired": "#d55e00"}


def summary(session: Session, out: str, run: Run) -> list[str]:
    """Return the lines that a replay prints at its end.

    Args:
        session: Session of the tables.
        out: Folder of the tables.
        run: Record of the replay.
    """
    (causes, slowest), counts = _ended(session, out), run.counts
    time = f" in {run.wall_seconds:,.1f} s" if run.wall_seconds is not None else ""
    rejected = f" ({counts['rejected']:,} lines rejected)" if counts.get("rejected") else ""
    operations, events = counts.get("operations", 0), counts.get("events", 0)
    blocks = [
        [f"Run {run.run_id}: {operations:,} operations in {events:,} events{rejected}{time}"],
        _by_kind(causes, counts.get("open", 0), counts.get("cancellations", 0)).lines(),
        _by_cause(causes).lines(),
        _slowest(slowest).lines(),
        _settings(_recording(session, out, run)),
        [f"Tables: completions, expirations, cancellations, watches, runs in {out.removeprefix('file://')}"],
    ]
    return [line for block in blocks if block for line in ["", *block]][1:]


def as_json(session: Session, out: str, run: Run) -> dict[str, Any]:
    """Return the summary as JSON, with the rows of the queries in `sql/summary`; for the arguments see `summary`."""
    causes, slowest = _ended(session, out)
    settings = _recording(session, out, run).settings
    return {
        "run_id": run.run_id,
        "out": out.removeprefix("file://"),
        "seconds": run.wall_seconds,
        "counts": run.counts,
        "causes": causes,
        "slowest": slowest,
        "settings": [{"name": each.name, "value": each.value} for each in settings if each.name in KEYS],
    }


def _ended(session: Session, out: str) -> tuple[list[Row], list[Row]]:
    """Return the operations by cause, and those with the longest waits."""
    backend = backend_of(session)
    with suppress(NeedsSparkError):
        return _queried(RunTables(backend.for_totals(out), out))
    return _queried(RunTables(backend, out))


def _queried(tables: RunTables) -> tuple[list[Row], list[Row]]:
    return tables.rows("summary/causes"), tables.rows("summary/slowest", top=SLOWEST)


def _recording(session: Session, out: str, run: Run) -> RecordedBrokers:
    return recorded_brokers(session, events_of(session, out, run))


def _settings(recording: RecordedBrokers) -> list[str]:
    used = [f"  {setting}" for setting in recording.settings if setting.name in KEYS]
    shown = ["Settings that the recording shows, used unless others are given", *used] if used else []
    version = recording.kafka_version
    return [*([f"Rules of Kafka {version}, the version given to ingest"] if version else []), *shown]


def _by_kind(causes: list[Row], still_open: int, cancelled: int) -> Table:
    def total(rows: Sequence[Row]) -> int:
        return sum(row["operations"] for row in rows)

    cells = []
    for kind in dict.fromkeys(row["kind"] for row in causes):
        ended = [row for row in causes if row["kind"] == kind]
        completed = [row for row in ended if not row["expired"]]
        waited = [row for row in completed if row["watched"]]
        on_arrival = total(completed) - total(waited)
        cells.append((kind, total(ended), on_arrival, total(waited), total(ended) - total(completed)))
    more = [f"{still_open:,} more were still open at the end"] if still_open else []
    more += [f"{cancelled:,} more waited at a broker that stopped"] if cancelled else []
    title = "Operations" + (f" ({'; '.join(more)})" if more else "")
    return Table(title, ("kind", "ended", "completed on arrival", "completed after a wait", "expired"), cells)


def _by_cause(causes: list[Row]) -> Table:
    cells = [
        (
            row["kind"],
            "expired" if row["expired"] else "completed" if row["watched"] else "completed on arrival",
            row["completed_by"],
            row["operations"],
            row["median_ms"],
            row["longest_ms"],
        )
        for row in causes
    ]
    return Table("What ended them", ("kind", "end", "by", "operations", "median wait ms", "longest wait ms"), cells)


def _slowest(operations: list[Row]) -> Table:
    cells = [
        (
            _request(row),
            row["kind"],
            row["key"],
            row["wait_ms"],
            "expired"
            if row["expired"]
            else f"{row['completed_by']} at {row['trigger']}"
            if row["trigger"]
            else row["completed_by"],
        )
        for row in operations
    ]
    return Table("Slowest waits", ("request", "kind", "key", "wait ms", "ended by"), cells)


def _request(row: Row) -> str:
    """Return the name of a request. If it is a line of a request log, the name includes broker and client."""
    request_id = row["request_id"] or f"operation {row['operation_id']}"
    label = request_label(request_id)
    if label == request_id:
        return request_id
    return ", ".join(filter(None, [f"broker {row['broker']}", label, row["client_id"]]))


def load_renderer() -> None:
    """Load the renderer of charts, which takes most of the time of the first chart."""
    import pandas as pd

    frame = pd.DataFrame({"began": [], "wait_ms": [], "end": [], "kind": []})
    waits(frame, 0).save(io.StringIO(), "svg")


def save_waits(session: Session, out: str, file: Path) -> Path:
    """Draw the waits of the replay under `out` to an SVG or PNG file. Needs no network."""
    tables = RunTables(session, out)
    total = sum(row["operations"] for row in tables.rows("summary/causes"))
    chart = waits(tables.query("summary/waits", most=MAX_POINTS).to_pandas(), total)
    file.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(file))
    return file


def waits(frame: pd.DataFrame, total: int) -> alt.Chart:
    """Return a chart with one point per operation: its start, its wait, and how it ended.

    There is a row for each kind, the most frequent first. The square-root scale shows short waits next to long ones.
    The title names the `total` of operations if the frame is a sample.
    """
    # Loading it takes longer than the rest of a summary, which every replay prints.
    import altair as alt

    shown = f"{len(frame):,} of {total:,}" if len(frame) < total else f"{total:,}"
    return (
        alt.Chart(frame, title=f"How long {shown} operations waited, and how they ended", width=900, height=150)
        .mark_circle(size=14, opacity=0.6)
        .encode(
            x=alt.X("began:T", title="began (UTC)", scale=alt.Scale(type="utc")).axis(format="%H:%M:%S", tickCount=8),
            y=alt.Y("wait_ms:Q", title="waited, ms", scale=alt.Scale(type="sqrt")),
            color=alt.Color(
                "end:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ).legend(orient="top"),
            row=alt.Row("kind:N", title=None, sort=list(frame["kind"].value_counts().index)),
        )
        .resolve_scale(y="independent")
    )

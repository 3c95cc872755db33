"""The table `group_disagreements`: replayed responses to group members next to the recorded responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.backend.backend import Backend, backend_of
from purgatory_udf.backend.delta_store import Condition
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, GROUP_DISAGREEMENTS
from purgatory_udf.rules.groups.group_disagreements import COMPARED, disagreements
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# `runs` lists the groups that disagree most; the table has them all.
_GROUPS_IN_RUNS = 50

_UNRECORDED = """
SELECT *, CAST(NULL AS STRING) AS recorded_error, CAST(NULL AS INT) AS recorded_generation FROM {answers}
"""
# Recorded answers of joins, syncs and heartbeats only: others may have an error per partition or member. The replay
# keeps no answer of a heartbeat without error; a join or sync without one was never answered.
_RECORDED = """
SELECT answers.*, recorded.recorded_error, recorded.recorded_generation
FROM {answers} AS answers
LEFT JOIN {recorded} AS recorded
    ON recorded.operation_id = answers.seq AND lower(recorded.api) IN ('join_group', 'sync_group', 'heartbeat')
UNION ALL
SELECT coalesce(events.broker, 0), events.group, events.seq, events.event_time,
    CASE WHEN events.type = 'heartbeat' THEN events.event_time END, events.type, events.request_id, events.member_id,
    events.generation, CASE WHEN events.type = 'heartbeat' THEN 'NONE' END, CAST(NULL AS BIGINT), CAST(NULL AS STRING),
    CAST(NULL AS STRING), CAST(NULL AS STRING), CAST(NULL AS STRING),
    recorded.recorded_error, recorded.recorded_generation
FROM {events} AS events
JOIN {recorded} AS recorded
    ON recorded.operation_id = events.seq AND lower(recorded.api) IN ('join_group', 'sync_group', 'heartbeat')
ANTI JOIN {answers} AS answers ON answers.seq = events.seq
WHERE events.type IN ('join_group', 'sync_group', 'heartbeat')
"""


def write_disagreements(backend: Backend, layout: Layout, run: Run) -> None:
    """Write `group_disagreements` from the replay's answers and, where an import has recorded any, the broker's."""
    events = str(run.trace.get("events") or "")
    recorded = f"{events.rstrip('/').rpartition('/')[0]}/recorded"
    tables = {"answers": layout.answers}
    sql = _UNRECORDED
    if events and backend.delta(recorded).is_table(recorded):
        tables |= {"events": events, "recorded": recorded}
        sql = _RECORDED

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            compared = pa.Table.from_batches([batch]).select(COMPARED.names).cast(COMPARED)
            yield from disagreements(compared, run.run_id).to_batches()

    path = layout.table("group_disagreements")
    rows = backend.select(sql, tables).map(step, GROUP_DISAGREEMENTS).collect()
    backend.delta(path).overwrite(path, rows.cast(COMMENTED_TABLES["group_disagreements"]))


def disagreement_counts(backend: Backend, layout: Layout) -> dict[str, Any]:
    """Count disagreements by kind, and by group for the groups that disagree most."""
    totals: Counter[str] = Counter()
    by_group: dict[str, dict[str, int]] = {}
    counted = backend.query(
        "SELECT d.broker, d.group, d.disagreement, count(*) AS n FROM {disagreements} AS d "
        "GROUP BY d.broker, d.group, d.disagreement",
        {"disagreements": layout.table("group_disagreements")},
    )
    for row in counted.to_pylist():
        totals[row["disagreement"]] += row["n"]
        by_group.setdefault(f"{row['broker']}/{row['group']}", {})[row["disagreement"]] = row["n"]
    worst = sorted(by_group, key=lambda key: (-sum(by_group[key].values()), key))[:_GROUPS_IN_RUNS]
    return {"groups": len(by_group), **totals, "by_group": {key: by_group[key] for key in worst}}


def explained(session: SparkSession | Backend, out: str, group: str) -> list[str]:
    """Return the disagreements of one group as lines of text."""
    backend, layout = backend_of(session), Layout(out)
    run = run_records.load(backend, layout.table("runs"), "replay")
    if run is None or run.status != run_records.FINISHED:
        raise UserError(f"{out}: no finished replay to explain; replay without --explain first")
    of_group = [Condition("group", "=", group)]

    def has(name: str) -> bool:
        return backend.delta(layout.table(name)).is_table(layout.table(name))

    rows: list[dict[str, Any]] = []
    if has("group_disagreements"):
        path = layout.table("group_disagreements")
        found = backend.delta(path).read(path, where=of_group)
        rows = found.sort_by([(name, "ascending") for name in ("asked_at", "seq", "disagreement")]).to_pylist()
    if not rows:
        path = layout.table("group_transitions")
        if not (has("group_transitions") and backend.delta(path).count(path, of_group)):
            raise UserError(f"{out}: the replay has no group {group}")
        return [f"Group {group}: the replay disagrees with nothing that the trace records"]
    columns = ("asked", "broker", "request", "api", "member", "disagreement", "recorded", "replayed")
    lines = [
        (
            row["asked_at"].strftime("%Y-%m-%d %H:%M:%S.%f"),
            row["broker"],
            row["request_id"] or str(row["seq"]),
            row["api"],
            row["member_id"] or "-",
            row["disagreement"],
            row["recorded"],
            row["replayed"],
        )
        for row in rows
    ]
    return Table(f"Group {group}: recorded against replayed", columns, lines).lines()

"""The table `group_disagreements`: replayed responses to group members next to the recorded responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, backend_of
from purgatory_udf.backend.delta_store import Condition
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, GROUP_DISAGREEMENTS
from purgatory_udf.rules.groups.group_outcome_tables import GROUP_ANSWERS
from purgatory_udf.rules.groups.group_rows import ERRORS, NONE
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

REFUSALS = {
    "UNKNOWN_MEMBER_ID": "unknown_member",
    "FENCED_INSTANCE_ID": "fenced_instance",
    "ILLEGAL_GENERATION": "illegal_generation",
}
NO_ANSWER = "no answer"

# The replay's answers, with what an import recorded of the same answers (null if nothing).
COMPARED = pa.schema([*GROUP_ANSWERS, ("recorded_error", pa.string()), ("recorded_generation", pa.int32())])

Disagreement = tuple[str, str | None, str | None]


def disagreements(compared: pa.Table, run_id: str) -> pa.Table:
    """Return the rows of `GROUP_DISAGREEMENTS` for rows of `COMPARED`: replayed responses and, if known, recorded ones.

    A columnar filter first drops most of the rows that agree.
    """
    rows = []
    for row in compared.filter(_may_disagree(compared)).to_pylist():
        for what, recorded, replayed in _row_disagreements(row):
            rows.append(row | {"run_id": run_id, "disagreement": what, "recorded": recorded, "replayed": replayed})
    return pa.Table.from_pylist(rows, schema=GROUP_DISAGREEMENTS)


def _may_disagree(compared: pa.Table) -> pa.Array:
    conditions = [
        pc.is_in(compared["error"], pa.array(list(REFUSALS))),
        pc.is_null(compared["error"]),
        _differs(compared["recorded_error"], compared["error"]),
        _differs(compared["recorded_generation"].cast(pa.int64()), compared["generation"]),
        _differs(compared["leader_member_id"], compared["leader"]),
        _differs(compared["assigned_member_id"], compared["given_member_id"]),
        _differs(compared["assigned_epoch"], compared["generation"]),
        _differs(compared["recorded_assignment"], compared["assignment"]),
    ]
    any_of = conditions[0]
    for condition in conditions[1:]:
        any_of = pc.or_(any_of, condition)
    return any_of


def _differs(recorded: pa.ChunkedArray, replayed: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each row whether the values differ. A null in `recorded` agrees with any value."""
    return pc.and_(pc.is_valid(recorded), pc.fill_null(pc.not_equal(recorded, replayed), True))


def _row_disagreements(row: dict[str, Any]) -> Iterator[Disagreement]:
    if row["recorded_error"] is None and row["assigned_epoch"] is not None and row["error"] != NONE:
        yield "error", NONE, row["error"]
    elif row["recorded_error"] is None:
        yield from _unrecorded_disagreements(row)
    elif row["recorded_error"] != row["error"]:
        yield "error", row["recorded_error"], row["error"] or NO_ANSWER
    elif row["recorded_generation"] not in (None, row["generation"]):
        yield "generation", str(row["recorded_generation"]), str(row["generation"])
    named, assigned = row["leader_member_id"], row["assigned_member_id"]
    if row["error"] == NONE and named not in (None, row["leader"]):
        yield "leader", named, row["leader"]
    if row["error"] in (NONE, "MEMBER_ID_REQUIRED") and assigned not in (None, row["given_member_id"]):
        yield "member_id", assigned, row["given_member_id"]
    epoch, assignment = row["assigned_epoch"], row["recorded_assignment"]
    if row["error"] == NONE and epoch not in (None, row["generation"]):
        yield "member_epoch", str(epoch), str(row["generation"])
    if row["error"] == NONE and assignment not in (None, row["assignment"]):
        yield "assignment", assignment, row["assignment"]


def _unrecorded_disagreements(row: dict[str, Any]) -> Iterator[Disagreement]:
    """Yield (kind, recorded value, replayed value) for the disagreements of a request without a recorded response.

    The replay disagrees if it refuses the request, or a join of which later requests show that it was accepted.
    """
    error = row["error"]
    if error in REFUSALS:
        named = f"generation {row['request_generation']}" if error == "ILLEGAL_GENERATION" else None
        yield REFUSALS[error], named, error
    if row["leader_member_id"] is not None and error != NONE:
        yield "join_refused", NONE, error


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# `runs` lists the groups that disagree most; the table has them all.
_GROUPS_IN_RUNS = 50

_UNRECORDED = """
SELECT *, CAST(NULL AS STRING) AS recorded_error, CAST(NULL AS INT) AS recorded_generation FROM answers
"""
# The replay keeps no answer of a successful heartbeat or commit without disagreement; a request of another API without
# one was never answered. Errors of a commit that concern single partitions are not compared: the group is not their
# cause.
_LIVENESS_APIS = "('heartbeat', 'consumer_group_heartbeat', 'offset_commit')"
_APIS = "('join_group', 'sync_group', 'heartbeat', 'consumer_group_heartbeat', 'offset_commit', 'leave_group')"
_COMPARABLE = f"""lower(recorded.api) IN {_APIS}
        AND (recorded.api <> 'OFFSET_COMMIT' OR recorded.recorded_error IN {ERRORS})"""
_RECORDED = f"""
SELECT answers.*, recorded.recorded_error, recorded.recorded_generation
FROM answers
LEFT JOIN recorded
    ON recorded.operation_id = answers.seq AND {_COMPARABLE}
UNION ALL
SELECT coalesce(events.broker, 0), events.group, events.seq, events.event_time,
    CASE WHEN events.type IN {_LIVENESS_APIS} THEN events.event_time END, events.type, events.request_id,
    events.member_id, events.generation, CASE WHEN events.type IN {_LIVENESS_APIS} THEN 'NONE' END,
    CAST(NULL AS BIGINT), CAST(NULL AS STRING), CAST(NULL AS STRING), CAST(NULL AS STRING), CAST(NULL AS STRING),
    CAST(NULL AS BIGINT), CAST(NULL AS STRING), CAST(NULL AS STRING), recorded.recorded_error,
    recorded.recorded_generation
FROM events
JOIN recorded
    ON recorded.operation_id = events.seq AND {_COMPARABLE}
ANTI JOIN answers ON answers.seq = events.seq
WHERE events.type IN {_APIS}
"""


def write_disagreements(backend: Backend, layout: Layout, run: Run) -> None:
    """Write `group_disagreements`: the replay's responses compared with the brokers', if the import recorded any."""
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
        "SELECT d.broker, d.group, d.disagreement, count(*) AS n FROM disagreements AS d "
        "GROUP BY d.broker, d.group, d.disagreement",
        {"disagreements": layout.table("group_disagreements")},
    )
    for row in counted.to_pylist():
        totals[row["disagreement"]] += row["n"]
        by_group.setdefault(f"{row['broker']}/{row['group']}", {})[row["disagreement"]] = row["n"]
    worst = sorted(by_group, key=lambda key: (-sum(by_group[key].values()), key))[:_GROUPS_IN_RUNS]
    return {"groups": len(by_group), **totals, "by_group": {key: by_group[key] for key in worst}}


def explained(session: SparkSession | Backend, out: str, group: str) -> list[str]:
    """Return the disagreements of one group as lines of text.

    Raises:
        UserError: There is no finished replay under `out`, or it has no such group.
    """
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
        return [f"Group {group}: the replayed responses agree with all recorded ones"]
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
    return Table(f"Group {group}: responses that differ, as recorded and as replayed", columns, lines).lines()

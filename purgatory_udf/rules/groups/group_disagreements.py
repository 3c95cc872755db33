"""Requests that the replay answers otherwise than the trace records. They do not change the replay.

Most traces record few of the coordinator's answers: the id assigned to a join without one, and the leader in the answer
to a join. In addition, a request may name a member or a generation that the replay does not know, because the recorded
coordinator did not know it either, or because it had other timeouts. A request log records more: the errors of joins,
syncs and heartbeats, and the generation in the answer to a join.

| disagreement | meaning |
|---|---|
| `leader` | the join succeeds, with another leader |
| `member_id` | the join is assigned another id |
| `join_refused` | the join succeeded when it was recorded, and fails in the replay |
| `unknown_member`, `fenced_instance`, `illegal_generation` | the replay rejects the request, with that error |
| `error` | the answer is recorded, and the replay's has another error or is missing |
| `generation` | the join succeeds, in another generation |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import GROUP_DISAGREEMENTS
from purgatory_udf.rules.groups.group_codes import NONE
from purgatory_udf.rules.groups.group_outcome_tables import GROUP_ANSWERS

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
    """Return rows of `GROUP_DISAGREEMENTS` for rows of `COMPARED`. A columnar filter first drops most that agree."""
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
    ]
    any_of = conditions[0]
    for condition in conditions[1:]:
        any_of = pc.or_(any_of, condition)
    return any_of


def _differs(recorded: pa.ChunkedArray, replayed: pa.ChunkedArray) -> pa.ChunkedArray:
    """Compare two columns. An unrecorded value agrees with any other."""
    return pc.and_(pc.is_valid(recorded), pc.fill_null(pc.not_equal(recorded, replayed), True))


def _row_disagreements(row: dict[str, Any]) -> Iterator[Disagreement]:
    if row["recorded_error"] is None:
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


def _unrecorded_disagreements(row: dict[str, Any]) -> Iterator[Disagreement]:
    """Yield the disagreements of a request with an unrecorded answer: a recorded client usually knows its own id."""
    error = row["error"]
    if error in REFUSALS:
        named = f"generation {row['request_generation']}" if error == "ILLEGAL_GENERATION" else None
        yield REFUSALS[error], named, error
    if row["leader_member_id"] is not None and error != NONE:
        yield "join_refused", NONE, error

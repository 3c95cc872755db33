"""Where a recorded trace and its replay disagree. The replay's state decides; this only says so.

Most traces record few of the answers that their coordinator gave: the id given to a join without one, and the leader
that a granted join was told. Beside those, a request may name a member or a generation that the replay does not know:
perhaps the recorded coordinator did not know it either, perhaps it had other timeouts. An import of a request log
records more: of joins, syncs and heartbeats the error, and the generation that a join was granted.

| disagreement | |
|---|---|
| `leader` | a join was granted, but is told another leader |
| `member_id` | a join is given another id |
| `join_refused` | a join was granted, and gets an error instead |
| `unknown_member`, `fenced_instance`, `illegal_generation` | the replay refuses the request, by that error |
| `error` | the answer is recorded, and the replay's is another one, or none at all |
| `generation` | a join is granted another generation |
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

# What was told, beside what an import has recorded of it (null if nothing).
COMPARED = pa.schema([*GROUP_ANSWERS, ("recorded_error", pa.string()), ("recorded_generation", pa.int32())])

Disagreement = tuple[str, str | None, str | None]


def disagreements(compared: pa.Table, run_id: str) -> pa.Table:
    """Rows of `GROUP_DISAGREEMENTS`, from rows of `COMPARED`: most agree, and are never looked at one by one."""
    rows = []
    for row in compared.filter(_may_disagree(compared)).to_pylist():
        for what, recorded, replayed in _row_disagreements(row):
            rows.append(row | {"run_id": run_id, "disagreement": what, "recorded": recorded, "replayed": replayed})
    return pa.Table.from_pylist(rows, schema=GROUP_DISAGREEMENTS)


def _may_disagree(compared: pa.Table) -> pa.Array:
    suspicions = [
        pc.is_in(compared["error"], pa.array(list(REFUSALS))),
        pc.is_null(compared["error"]),
        _differs(compared["recorded_error"], compared["error"]),
        _differs(compared["recorded_generation"].cast(pa.int64()), compared["generation"]),
        _differs(compared["leader_member_id"], compared["leader"]),
        _differs(compared["assigned_member_id"], compared["given_member_id"]),
    ]
    suspicious = suspicions[0]
    for suspicion in suspicions[1:]:
        suspicious = pc.or_(suspicious, suspicion)
    return suspicious


def _differs(recorded: pa.ChunkedArray, replayed: pa.ChunkedArray) -> pa.ChunkedArray:
    """What is not recorded agrees with anything."""
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
    """Of requests whose answer is not recorded: recorded clients mostly know who they are."""
    error = row["error"]
    if error in REFUSALS:
        named = f"generation {row['asked_generation']}" if error == "ILLEGAL_GENERATION" else None
        yield REFUSALS[error], named, error
    if row["leader_member_id"] is not None and error != NONE:
        yield "join_refused", NONE, error

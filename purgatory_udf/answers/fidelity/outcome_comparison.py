"""The comparison of each recorded operation with its replay: the rows of the table `fidelity`.

The queries of `sql/fidelity` compute the rows in these steps:

| query | rows |
|---|---|
| views/operation_pairs | an operation as the log and as the replay have it |
| fidelity/timer_parts | the lateness of what expired, from which `timer_delays` estimates each timer's phase |
| views/timed_pairs | the pairs, with their lateness corrected by that phase |
| views/disagreements | pairs that ended differently, with what is known about the reasons |
| views/disagreement_causes | the cause of each disagreement, one of `CAUSES` |
| fidelity/operations | rows of `fidelity` with the operations that have the id of their event |
| fidelity/groups | rows of `fidelity` with joins, syncs and heartbeats |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from purgatory_udf.answers.fidelity import timer_delays
from purgatory_udf.contract.tables import COMMENTED_TABLES, FIDELITY, TABLES

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"
# The replay has no end of the operation.
NONE = "none"

# A request log has the time of whole requests. It does not record when a broker, while it handled a request, appended
# the records, took a follower's offset or tried a waiting fetch. So most disagreements are between `at_once` and
# `completed`.
CAUSES = {
    "not_replayed": "the replay has no outcome of it: it ran without draining, or over other events",
    "session_before_the_log": "a fetch of a session that began before the log: some of its partitions are unknown",
    "partition_error": "answered with an error: leadership and metadata as that broker saw them are not in the log",
    "coordinator_append": "decided by an append that no PRODUCE line shows, dated by its batch or its request",
    "stamped_late": "answered by another thread before its own handling was stamped as done: it did wait",
    "inside_handling": "the deciding request was being handled when this one was first tried: which came first is "
    "inside that handling",
    "near_the_deadline": "the deciding change came within a few milliseconds of the deadline",
    "dated_apart": "the deciding change and the first try lie within a few milliseconds, as near as lines are dated",
    "change_unseen": "the log shows no such change, or shows it at another time",
    "other_coordinator": "answered by another coordinator than the classic one, which has timers of its own",
    "group_state": "the group was in another state when it was asked",
}

# Kinds of operations with the id of their event, in the order of the report. Groups are compared by their responses.
BY_ID = (
    "consumer fetch",
    "follower fetch",
    "produce acks=-1",
    "produce acks=1",
    "produce acks=0",
    "transaction markers",
    "delete_records",
    "create_topics",
)


def write_comparison(tables: RunTables) -> dict[int, float]:
    """Write the table `fidelity` and make it available to queries.

    Returns the phase of each broker's timer in milliseconds, where it could be estimated.
    """
    # Those of the import, to which `recorded` belongs.
    tables.add_table("events", tables.layout.table("events"), TABLES["events"])
    phases = timer_delays.phases(tables.rows("fidelity/timer_parts", parts=timer_delays.PARTS))
    add_phases(tables, phases)
    queries = ["fidelity/operations", *(["fidelity/groups"] if tables.has("group_transitions") else [])]
    rows = " UNION ALL ".join(f"(SELECT {', '.join(_COLUMNS)} FROM ({tables.text(name)}) rows)" for name in queries)
    path = tables.layout.table("fidelity")
    run_id = {"run_id": tables.run.run_id}
    tables.database.save(rows, path, COMMENTED_TABLES["fidelity"], constants=run_id)
    tables.add_table("fidelity", path, FIDELITY)
    return phases


_COLUMNS = [name for name in FIDELITY.names if name != "run_id"]


def add_phases(tables: RunTables, phases: dict[int, float]) -> None:
    """Make the phases available to queries as `timer_phases`."""
    schema = pa.schema([("broker", pa.int32()), ("phase_ms", pa.float64())])
    tables.add_rows("timer_phases", pa.table([list(phases), list(phases.values())], schema=schema))

"""Causes of operations that ended differently in the replay."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from purgatory_udf.answers.outcome_comparison import AT_ONCE, CAUSES, COMPLETED, EXPIRED, NONE
from tests.answers.fidelity.conftest import RunQuery

DISAGREEMENT: dict[str, Any] = {
    "kind": "consumer fetch",
    "recorded_outcome": AT_ONCE,
    "replayed_outcome": COMPLETED,
    "recorded_ms": 0.0,
    "replayed_ms": 2.0,
    "delay_ms": 500.0,
    "error": "NONE",
    "complete": True,
    "decided_by": "t-0",
    "in_handling": False,
}
WAITED = {"recorded_outcome": COMPLETED, "recorded_ms": 97.0}
TIMED_OUT = {"recorded_outcome": EXPIRED, "recorded_ms": 500.4}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"replayed_outcome": NONE, "replayed_ms": None, "delay_ms": None}, "not_replayed"),
    ({"complete": False}, "session_before_the_log"),
    ({"error": "NOT_LEADER_OR_FOLLOWER"}, "partition_error"),
    ({"decided_by": "__consumer_offsets-3"}, "coordinator_append"),
    ({"decided_by": "a_-0"}, "dated_apart"),
    ({"decided_by": None}, "dated_apart"),
    ({"in_handling": True}, "inside_handling"),
    ({"kind": "produce acks=-1"}, "stamped_late"),
    ({}, "dated_apart"),
    ({"replayed_ms": 40.0}, "change_unseen"),
    ({**WAITED, "recorded_ms": 3.0, "replayed_outcome": AT_ONCE, "replayed_ms": 0.0}, "dated_apart"),
    ({**WAITED, "recorded_ms": 497.0, "replayed_outcome": EXPIRED}, "near_the_deadline"),
    ({**WAITED, "replayed_outcome": EXPIRED}, "change_unseen"),
    ({**TIMED_OUT, "replayed_ms": 499.0}, "near_the_deadline"),
    ({**TIMED_OUT, "replayed_ms": 8.0}, "change_unseen"),
    ({"replayed_outcome": EXPIRED, "replayed_ms": 500.0}, "change_unseen"),
]


def test_first_matching_cause_is_assigned(run_query: RunQuery) -> None:
    rows = [{**DISAGREEMENT, **changes, "operation_id": at} for at, (changes, _) in enumerate(CASES)]
    causes = run_query("views/disagreement_causes", {"disagreements": pa.Table.from_pylist(rows)})
    by_operation = {row["operation_id"]: row["cause"] for row in causes}
    assert [(CASES[at][0], cause) for at, cause in sorted(by_operation.items())] == CASES
    assert {*by_operation.values()} <= CAUSES.keys()

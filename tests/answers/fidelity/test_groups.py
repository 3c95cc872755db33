"""Responses of a replayed group at each time of a rebalance.

0 ── m joins ─── 3000 generation 1 ── leader's sync ── 3100 Stable ───── 5000 n joins ── 5200 generation 2 …
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from purgatory_udf.contract.tables import EVENTS, GROUP_TRANSITIONS, RECORDED
from tests.answers.fidelity.conftest import RunQuery

STABLE, COMPLETING, PREPARING, EMPTY = "Stable", "CompletingRebalance", "PreparingRebalance", "Empty"
# Time in microseconds, state, generation, members.
CHANGES: list[tuple[int, str, int, list[str]]] = [
    (1, PREPARING, 0, []),
    (3_000_000, COMPLETING, 1, ["m"]),
    (3_100_000, STABLE, 1, ["m"]),
    (5_000_000, PREPARING, 1, ["m"]),
    (5_200_000, COMPLETING, 2, ["m", "n"]),
    (9_000_000, EMPTY, 2, []),
]
# Time in milliseconds, fields of the event and of the recorded response, the replayed response and its wait in ms.
Case = tuple[float, dict[str, Any], str, float | None]


def heartbeat(ms: float, answer: str, wait: float | None = 0, member: str = "m", **fields: Any) -> Case:
    return ms, {"type": "heartbeat", "member_id": member, **fields}, answer, wait


def join(ms: float, answer: str, wait: float | None = 0, member: str = "m", **fields: Any) -> Case:
    return ms, {"type": "join_group", "member_id": member, **fields}, answer, wait


def sync(ms: float, answer: str, wait: float | None = 0, member: str = "m", **fields: Any) -> Case:
    return ms, {"type": "sync_group", "member_id": member, **fields}, answer, wait


def _compare(run_query: RunQuery, *groups: list[Case], **recorded: Any) -> list[dict[str, Any]]:
    """Compare requests of groups with the same state changes; each recorded response is the expected one."""
    events: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    transitions: list[dict[str, Any]] = []
    for number, cases in enumerate(groups):
        group = {"group": f"g{number}", "broker": 1}
        for at_us, state, generation, members in CHANGES:
            change = {"at": _time(at_us), "to_state": state, "generation": generation, "members": members}
            transitions.append({**group, **change})
        for ms, fields, answer, _ in cases:
            seq, at_us = len(events), round(ms * 1000)
            events.append({**group, "seq": seq, "time_us": at_us, "api_version": 5, "leader": False, **fields})
            granted = {"recorded_generation": int(answer.split()[1])} if answer.startswith("generation") else {}
            response = {"operation_id": seq, "broker": 1, "kind": fields["type"], "started_at": _time(at_us)}
            error = {"recorded_error": "NONE" if granted else answer, "recorded_outcome": "at_once"}
            responses.append({**response, **error, **granted, "recorded_remote_ms": 0.0, **recorded})
    given = {
        "events": pa.Table.from_pylist(events, schema=EVENTS),
        "recorded": pa.Table.from_pylist(responses, schema=RECORDED),
        "group_transitions": pa.Table.from_pylist(transitions, schema=GROUP_TRANSITIONS),
    }
    return sorted(run_query("fidelity/groups", given), key=lambda row: row["operation_id"])


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at_us)


def _assert_answers(run_query: RunQuery, *cases: Case) -> None:
    """Check each request in a separate group."""
    rows = _compare(run_query, *([case] for case in cases))
    answers = [(row["replayed_outcome"], row["replayed_ms"]) for row in rows]
    assert answers == [(answer, wait) for *_, answer, wait in cases]
    assert all(row["agrees"] and row["cause"] is None for row in rows)


def test_heartbeat_is_answered_by_state(run_query: RunQuery) -> None:
    _assert_answers(
        run_query,
        heartbeat(0, "UNKNOWN_MEMBER_ID", generation=0),
        heartbeat(3_050, "NONE", generation=1),
        heartbeat(4_000, "NONE", generation=1),
        heartbeat(4_000, "ILLEGAL_GENERATION", generation=2),
        heartbeat(4_000, "UNKNOWN_MEMBER_ID", member="n", generation=1),
        heartbeat(5_000, "NONE", generation=1),
        heartbeat(5_100, "REBALANCE_IN_PROGRESS", generation=1),
        heartbeat(9_500, "UNKNOWN_MEMBER_ID", generation=2),
    )


def test_join_waits_for_next_generation(run_query: RunQuery) -> None:
    _assert_answers(
        run_query,
        join(500, "MEMBER_ID_REQUIRED", member=""),
        join(500, "generation 1", 2_500, "", api_version=3, assigned_member_id="m"),
        join(500, "generation 1", 2_500, "", group_instance_id="i", assigned_member_id="m"),
        join(5_000, "generation 2", 200),
        join(5_200, "generation 2", 0),
    )


def test_join_in_empty_group_gets_its_generation(run_query: RunQuery) -> None:
    """A change at the time of the join is its effect."""
    _assert_answers(run_query, join(9_000, "generation 2"), join(0, "generation 0"))


def test_sync_waits_for_leader(run_query: RunQuery) -> None:
    _assert_answers(
        run_query,
        sync(3_040, "NONE", 60, generation=1),
        sync(3_040, "NONE", None, generation=1, leader=True),
        sync(4_000, "NONE", generation=1),
        sync(5_100, "REBALANCE_IN_PROGRESS", generation=1),
        sync(5_300, "REBALANCE_IN_PROGRESS", 3_700, generation=2),
        sync(5_300, "ILLEGAL_GENERATION", generation=1),
        sync(5_300, "UNKNOWN_MEMBER_ID", member="o", generation=2),
    )


def test_member_is_known_from_its_join(run_query: RunQuery) -> None:
    """The members are those of the last state change, and any that joined since."""
    joins = [
        join(5_050, "generation 2", 150, "", group_instance_id="i", assigned_member_id="n"),
        heartbeat(5_100, "REBALANCE_IN_PROGRESS", member="n", generation=1),
        heartbeat(5_100, "UNKNOWN_MEMBER_ID", member="o", generation=1),
        heartbeat(5_250, "NONE", member="n", generation=2),
    ]
    before_the_change = [
        join(4_000, "generation 1", 0, "o"),
        heartbeat(4_100, "NONE", member="o", generation=1),
        heartbeat(5_100, "UNKNOWN_MEMBER_ID", member="o", generation=1),
    ]
    rows = _compare(run_query, joins, before_the_change)
    assert [(row["replayed_outcome"], row["replayed_ms"]) for row in rows] == [
        (answer, wait) for *_, answer, wait in (*joins, *before_the_change)
    ]


def test_wrong_answer_has_a_cause_and_no_wait(run_query: RunQuery) -> None:
    (row,) = _compare(run_query, [heartbeat(4_000, "NONE", generation=1)], recorded_error="UNKNOWN_MEMBER_ID")
    assert (row["recorded_outcome"], row["replayed_outcome"]) == ("UNKNOWN_MEMBER_ID", "NONE")
    assert (row["agrees"], row["cause"], row["replayed_ms"]) == (False, "group_state", None)


def test_other_coordinator_has_no_comparable_waits(run_query: RunQuery) -> None:
    """The classic coordinator answers heartbeats at once."""
    cases = [heartbeat(4_000, "NONE", generation=1), heartbeat(4_000, "ILLEGAL_GENERATION", generation=2)]
    rows = _compare(run_query, cases, recorded_outcome="completed", recorded_error="NONE")
    assert [(row["agrees"], row["cause"], row["replayed_ms"], row["difference_ms"]) for row in rows] == [
        (True, None, None, None),
        (False, "other_coordinator", None, None),
    ]


def test_leaves_and_commits_are_not_compared(run_query: RunQuery) -> None:
    leave = (500.0, {"type": "leave_group", "member_id": "m"}, "NONE", None)
    assert _compare(run_query, [leave]) == []

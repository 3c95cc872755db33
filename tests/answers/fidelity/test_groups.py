"""What a replayed group would have answered, at each moment of a round.

0 ── m joins ─── 3000 generation 1 ── leader's sync ── 3100 Stable ───── 5000 n joins ── 5200 generation 2 …
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.answers.fidelity.group_answers import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ComparedRequest,
    GroupChange,
    answers,
)

M, N = frozenset({"m"}), frozenset({"m", "n"})
CHANGES = [
    GroupChange(1, PREPARING, 0),
    GroupChange(3_000_000, COMPLETING, 1, M),
    GroupChange(3_100_000, STABLE, 1, M),
    GroupChange(5_000_000, PREPARING, 1, M),
    GroupChange(5_200_000, COMPLETING, 2, N),
    GroupChange(9_000_000, EMPTY, 2),
]


def _answer(ms: float, type_: str, member: str = "m", generation: int = -1, **more: Any) -> tuple[str, float | None]:
    """What the replay answers, and after how many milliseconds."""
    values: dict[str, Any] = {"leader": False, "recorded": "NONE", "recorded_ms": 0.0, **more}
    request = ComparedRequest(1, round(ms * 1000), type_, member, generation, **values)
    (answer,) = answers(CHANGES, [request])
    return answer.replayed, answer.replayed_ms


def test_a_heartbeat_is_answered_by_the_group_s_state() -> None:
    assert _answer(0, "heartbeat", generation=0) == ("UNKNOWN_MEMBER_ID", 0)
    assert _answer(3_050, "heartbeat", generation=1) == ("NONE", 0)
    assert _answer(4_000, "heartbeat", generation=1) == ("NONE", 0)
    assert _answer(4_000, "heartbeat", generation=2) == ("ILLEGAL_GENERATION", 0)
    assert _answer(4_000, "heartbeat", "n", generation=1) == ("UNKNOWN_MEMBER_ID", 0)
    assert _answer(5_100, "heartbeat", generation=1) == ("REBALANCE_IN_PROGRESS", 0)
    assert _answer(9_500, "heartbeat", generation=2) == ("UNKNOWN_MEMBER_ID", 0)


def test_a_join_waits_for_the_generation_that_begins_when_the_round_is_over() -> None:
    assert _answer(500, "join_group", "") == ("MEMBER_ID_REQUIRED", 0)
    assert _answer(500, "join_group", "", api_version=3, assigned="m") == ("generation 1", 2_500)
    assert _answer(500, "join_group", "", instance="i", assigned="m") == ("generation 1", 2_500)
    assert _answer(5_000, "join_group") == ("generation 2", 200)
    assert _answer(5_200, "join_group") == ("generation 2", 0)


def test_a_recorded_join_is_held_by_the_generation_it_was_given() -> None:
    request = ComparedRequest(1, 500_000, "join_group", "m", -1, False, "NONE", 2_500.0, granted=1)
    (answer,) = answers(CHANGES, [request])
    assert answer.recorded == answer.replayed == "generation 1"


def test_a_sync_waits_for_the_leader_s() -> None:
    assert _answer(3_040, "sync_group", generation=1) == ("NONE", 60)
    assert _answer(3_040, "sync_group", generation=1, leader=True) == ("NONE", None)
    assert _answer(4_000, "sync_group", generation=1) == ("NONE", 0)
    assert _answer(5_100, "sync_group", generation=1) == ("REBALANCE_IN_PROGRESS", 0)
    assert _answer(5_300, "sync_group", generation=2) == ("REBALANCE_IN_PROGRESS", 3_700)


def test_leaves_and_commits_are_not_compared() -> None:
    request = ComparedRequest(1, 500_000, "leave_group", "m", -1, False, "NONE", 0.0)
    assert list(answers(CHANGES, [request])) == []

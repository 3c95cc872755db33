"""Every operation that ended otherwise falls under a cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from purgatory_udf.answers.fidelity.outcome_comparison import AT_ONCE, CAUSES, COMPLETED, EXPIRED, NONE, Pair, cause_of

PAIR = Pair(
    kind="consumer fetch",
    recorded=AT_ONCE,
    replayed=COMPLETED,
    recorded_ms=0.0,
    replayed_ms=2.0,
    delay_ms=500.0,
    error="NONE",
    complete=True,
    decided_by="t-0",
    in_handling=False,
)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"replayed": AT_ONCE}, None),
        ({"replayed": NONE, "replayed_ms": None}, "not_replayed"),
        ({"complete": False}, "session_before_the_log"),
        ({"error": "NOT_LEADER_OR_FOLLOWER"}, "partition_error"),
        ({"decided_by": "__consumer_offsets-3"}, "coordinator_append"),
        ({"in_handling": True}, "inside_handling"),
        ({"kind": "produce acks=-1"}, "stamped_late"),
        ({}, "dated_apart"),
        ({"replayed_ms": 40.0}, "change_unseen"),
        ({"recorded": COMPLETED, "recorded_ms": 3.0, "replayed": AT_ONCE, "replayed_ms": 0.0}, "dated_apart"),
        ({"recorded": COMPLETED, "recorded_ms": 497.0, "replayed": EXPIRED}, "near_the_deadline"),
        ({"recorded": COMPLETED, "recorded_ms": 97.0, "replayed": EXPIRED}, "change_unseen"),
        ({"recorded": EXPIRED, "recorded_ms": 500.4, "replayed_ms": 499.0}, "near_the_deadline"),
        ({"recorded": EXPIRED, "recorded_ms": 500.4, "replayed_ms": 8.0}, "change_unseen"),
        ({"replayed": EXPIRED, "replayed_ms": 500.0}, "change_unseen"),
    ],
)
def test_a_disagreement_has_the_cause_that_lies_nearest(changes: dict[str, object], cause: str | None) -> None:
    nearest = cause_of(replace(PAIR, **changes))  # type: ignore[arg-type]
    assert nearest == cause
    assert nearest is None or nearest in CAUSES

"""Why a replay ended an operation otherwise than the recorded broker did: every disagreement falls under one of these.

A request log dates whole requests. When inside the handling of a request its records were appended, a follower's offset
taken or a waiting fetch looked at, it does not say; so most disagreements are between *at once* and *completed*.
"""

from __future__ import annotations

from dataclasses import dataclass

AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"
# No outcome was found: the operation was still open, or the replay ran without it.
NONE = "none"

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

# Lines are written some 0.1 ms after the answer, some milliseconds under load.
NEAR_MS = 5.0


@dataclass(frozen=True, slots=True)
class Pair:
    """An operation as recorded and as replayed, and what is known around it.

    `decided_by` is the topic-partition whose change ended the replayed one or held its bytes; `in_handling` says if
    a produce or a follower's fetch was being handled at that broker when this operation was first tried.
    """

    kind: str
    recorded: str
    replayed: str
    recorded_ms: float
    replayed_ms: float | None
    delay_ms: float | None
    error: str
    complete: bool
    decided_by: str | None
    in_handling: bool


def cause_of(pair: Pair) -> str | None:
    """None where both ended alike."""
    if pair.recorded == pair.replayed:
        return None
    if pair.replayed == NONE:
        return "not_replayed"
    if not pair.complete:
        return "session_before_the_log"
    if pair.error != "NONE":
        return "partition_error"
    if (pair.decided_by or "").startswith("__"):
        return "coordinator_append"
    if COMPLETED in (pair.recorded, pair.replayed) and EXPIRED in (pair.recorded, pair.replayed):
        return "near_the_deadline" if _near_the_deadline(pair) else "change_unseen"
    if EXPIRED in (pair.recorded, pair.replayed):
        return "change_unseen"
    if pair.kind == "produce acks=-1" and pair.recorded == AT_ONCE:
        return "stamped_late"
    if pair.in_handling:
        return "inside_handling"
    waited = pair.recorded_ms if pair.recorded == COMPLETED else (pair.replayed_ms or 0.0)
    return "dated_apart" if waited <= NEAR_MS else "change_unseen"


def _near_the_deadline(pair: Pair) -> bool:
    """Whichever side saw the change saw it close to the end of the wait."""
    seen = pair.recorded_ms if pair.recorded == COMPLETED else pair.replayed_ms
    return pair.delay_ms is not None and seen is not None and abs(pair.delay_ms - seen) <= NEAR_MS

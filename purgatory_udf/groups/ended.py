"""Operations that have ended, in columns: what `completions` and `expirations` say of a group."""

from __future__ import annotations

import numpy as np

from purgatory_udf.coordinator.heartbeat import DelayedHeartbeat
from purgatory_udf.coordinator.operation import GroupOperation
from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.groups.chronicle import Chronicle
from purgatory_udf.groups.clock import Moment
from purgatory_udf.groups.words import KIND_OF, RULE_OF
from purgatory_udf.purgatory.request import BROKER_STOPPED

# `t` and `end_t` are microseconds, `deadline` is milliseconds. `triggered`: a check of its own key completed it.
# `seq` and `sub`, `end_seq` and `end_sub` place beginning and end among what happened at the same time (`Moment`).
# `member_id` is a session's; a round's key is the group alone.
ENDED = FrameLayout(
    numbers=(
        *("op", "kind", "t", "seq", "sub", "end_t", "end_seq", "end_sub"),
        *("deadline", "expired", "watched", "rule", "triggered"),
    ),
    texts=("member_id", "request_id", "client_id"),
)

# How an operation may have ended.
COMPLETED, EXPIRED, CANCELLED = 0, 1, 2
_BY_STOP = RULE_OF[BROKER_STOPPED]


def ends_of(ended: Frame) -> Array:
    """Which of the three, row by row."""
    return np.where(ended.expired > 0, EXPIRED, np.where(ended.rule == _BY_STOP, CANCELLED, COMPLETED))


def ended_frame(chronicle: Chronicle) -> Frame:
    """Of the state machine's operations."""
    return ENDED.of([_row(operation, chronicle.began[operation], end) for operation, end in chronicle.ended.items()])


def _row(operation: GroupOperation, begin: Moment, end: Moment) -> tuple[int | str, ...]:
    outcome = operation.outcome()
    return (
        outcome.operation_id,
        KIND_OF[outcome.kind],
        outcome.started_us,
        begin.seq,
        begin.sub,
        outcome.ended_us,
        end.seq,
        end.sub,
        outcome.deadline_us // 1000,
        outcome.expired,
        outcome.watched,
        RULE_OF[outcome.completed_by],
        outcome.trigger is not None,
        operation.member_id if isinstance(operation, DelayedHeartbeat) else "",
        outcome.request_id or "",
        outcome.client_id or "",
    )

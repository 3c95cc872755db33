"""Requests whose parts are settled one by one: produce and delete-records by partition, create-topics by topic.

A pending part is settled, once and for good, by the first of

A) its broker does not lead the partition (any more), does not know it, or its log directory is offline: that error
B) a watermark has reached what it wants: for a produce the high watermark (no error, or, if meanwhile the in-sync set
   is smaller than min.insync.replicas, NOT_ENOUGH_REPLICAS_AFTER_APPEND); for delete-records the low one; for
   create-topics the number of the first of the topic's partitions that nobody leads

The operation completes when no part is pending: one part's error does not release the others. What can settle a part
also checks its key, so no other key's check has to look at it.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    NOTHING_YET,
    SETTLED,
    SETTLING_OTHERS,
    SETTLING_PRODUCES,
    World,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code, Error, Rule
from purgatory_udf.rules.engine.loop.replica_state import under_min_isr

_ANY = number(2**63 - 1)


@inlined
def rule_of_standing(standing: int) -> int:
    if standing == Error.NOT_LEADER_OR_FOLLOWER:
        return Rule.NOT_LEADER
    return Rule.OFFLINE if standing == Error.KAFKA_STORAGE_ERROR else Rule.UNKNOWN_PARTITION


@inlined
def watermark(key: Any, code: int) -> int:
    if code == Code.PRODUCE:
        return key.hw
    return key.log_start


@inlined
def settle(key: Any, part: Any, code: int, t: int) -> int:
    """Settle the part if anything does now: the rule, or `PENDING`."""
    reached = watermark(key, code)
    if key.standing == Error.NONE and (reached == UNKNOWN or reached < part.offset):
        return Rule.PENDING
    return _settled(key, part, code, t)


@inlined
def _settled(key: Any, part: Any, code: int, t: int) -> int:
    """The rule that settles the part now; one does."""
    if key.standing != Error.NONE:  # Case A
        part.error, part.heap, part.end_t = key.standing, SETTLED, t
        return rule_of_standing(key.standing)
    part.error, part.heap, part.end_t = Error.NONE, SETTLED, t  # Case B
    if code == Code.PRODUCE:
        if under_min_isr(key):
            part.error = Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return Rule.NOT_ENOUGH_REPLICAS
        return Rule.HIGH_WATERMARK
    return Rule.LOW_WATERMARK if code == Code.DELETE_RECORDS else Rule.LEADERS


@inlined
def first_try(w: World, o: int) -> int:
    """On arrival: each part is settled, or pending and hung up. How many lists the operation is on if it waits. (A
    produce's parts are tried while others are still to be appended: see `requests`.)"""
    operation = operation_at(w, o)
    pending, entries = 0, NOTHING_YET
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        entries += 1 - part.again
        rule_ = settle(key_at(w, part.key), part, operation.code, operation.t)
        if rule_ == Rule.PENDING:
            pending += 1
            waiter_queues.push_to_heap(w, at, SETTLING_OTHERS, part.offset)
        else:
            operation.rule = rule_
    operation.pending = pending
    return entries


@inlined
def _give_up(w: World, k: int, kind: int, code: int, t: int) -> None:
    """The key's part that wants least is settled now. Its operation's rule is that of the part settled last, in the
    order of the request."""
    at = waiter_queues.take_first_in_heap(w, k, kind)
    part = part_at(w, at)
    o = part.operation
    operation = operation_at(w, o)
    rule_ = _settled(key_at(w, k), part, code, t)
    if w.checking < 0:
        operation.rule = rule_
    elif operation.settled_by != w.produced or operation.settled_last < at:
        operation.rule = rule_
        operation.settled_by, operation.settled_last = w.produced, at
    operation.pending -= 1
    if operation.pending == 0:
        lists.end(w, o, operation.rule, t, lists.trigger_of(w, o, at))


@inlined
def check(w: World, k: int, code: int, t: int) -> None:
    """Something happened to the key: settle what it settles."""
    key = key_at(w, k)
    kind = SETTLING_PRODUCES if code == Code.PRODUCE else SETTLING_OTHERS
    # An error settles all of them.
    reached = watermark(key, code) if key.standing == Error.NONE else _ANY
    if reached != UNKNOWN:
        while (
            waiter_queues.first_in_heap(w, k, kind) != NONE
            and part_at(w, waiter_queues.first_in_heap(w, k, kind)).wants <= reached
        ):
            _give_up(w, k, kind, code, t)

"""Requests with parts that are settled one by one: produce and delete-records by partition, create-topics by topic.

These are the rules of `rules.reference.delayed_produce`, compiled.

A pending part is settled, once and for good, by the first of

A) the broker does not lead the partition (any more), does not know it, or its log directory is offline: that error
B) a watermark has reached the part's offset: the high watermark for a produce (without error, or with
   NOT_ENOUGH_REPLICAS_AFTER_APPEND if the in-sync set is smaller than min.insync.replicas now), the low watermark for
   delete-records, and for create-topics the number of the topic's first partition without a leader

The operation completes when no part is pending; an error of one part does not settle the others. Every event that can
settle a part checks the part's own key, so checks of other keys need not evaluate it.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, int64
from purgatory_udf.rules.engine.loop import engine_purgatory, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    OTHER_HEAP,
    PRODUCE_HEAP,
    SETTLED,
    ZERO,
    Arena,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code, Error, Rule
from purgatory_udf.rules.engine.loop.replica_state import under_min_isr

_MAX_OFFSET = int64(2**63 - 1)


@inlined
def rule_for_partition_error(error: int) -> int:
    """Return the rule of operations that end because of this error of a partition (case A)."""
    if error == Error.NOT_LEADER_OR_FOLLOWER:
        return Rule.NOT_LEADER
    return Rule.OFFLINE if error == Error.KAFKA_STORAGE_ERROR else Rule.UNKNOWN_PARTITION


@inlined
def watermark(key: Any, code: int) -> int:
    """Return the watermark that requests of this kind wait for: the high watermark, or `log_start` (case B)."""
    if code == Code.PRODUCE:
        return key.hw
    return key.log_start


@inlined
def settle(key: Any, part: Any, code: int, t: int) -> int:
    """Settle the part if case A or B holds; return the rule, or `PENDING`."""
    reached = watermark(key, code)
    if key.partition_error == Error.NONE and (reached == UNKNOWN or reached < part.offset):
        return Rule.PENDING
    return _settle_now(key, part, code, t)


@inlined
def _settle_now(key: Any, part: Any, code: int, t: int) -> int:
    """Settle a part for which case A or B holds, and return the rule."""
    if key.partition_error != Error.NONE:  # Case A
        part.error, part.queue, part.end_t = key.partition_error, SETTLED, t
        return rule_for_partition_error(key.partition_error)
    part.error, part.queue, part.end_t = Error.NONE, SETTLED, t  # Case B
    if code == Code.PRODUCE:
        if under_min_isr(key):
            part.error = Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return Rule.NOT_ENOUGH_REPLICAS
        return Rule.HIGH_WATERMARK
    return Rule.LOW_WATERMARK if code == Code.DELETE_RECORDS else Rule.LEADERS


@inlined
def settle_or_enqueue(arena: Arena, o: int) -> int:
    """Settle or queue each part of an arriving request, other than a produce. Produces: `event_loop.handle_produce`.

    Return the number of watcher lists on which the operation would be.
    """
    operation = operation_at(arena, o)
    pending, entries = 0, ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        entries += 1 - part.duplicate
        rule = settle(key_at(arena, part.key), part, operation.code, operation.t)
        if rule == Rule.PENDING:
            pending += 1
            waiter_queues.push_to_heap(arena, at, OTHER_HEAP, part.offset)
        else:
            operation.rule = rule
    operation.pending = pending
    return entries


@inlined
def _settle_first(arena: Arena, k: int, kind: int, code: int, t: int) -> None:
    """Settle the part with the lowest threshold in the heap, and complete its operation if no other part is pending.

    The operation gets the rule of the part that was settled last. If one event settled several, it is the one with the
    highest position in the request.
    """
    at = waiter_queues.pop_heap(arena, k, kind)
    part = part_at(arena, at)
    o = part.operation
    operation = operation_at(arena, o)
    rule = _settle_now(key_at(arena, k), part, code, t)
    if arena.check_order < 0:
        operation.rule = rule
    elif operation.settling_produce != arena.produce_count or operation.last_settled_part < at:
        operation.rule = rule
        operation.settling_produce, operation.last_settled_part = arena.produce_count, at
    operation.pending -= 1
    if operation.pending == 0:
        engine_purgatory.finish(arena, o, operation.rule, t, engine_purgatory.trigger_of(arena, o, at))


@inlined
def check(arena: Arena, k: int, code: int, t: int) -> None:
    """Settle all waiting parts on the key for which case A or B holds now. `code` is the kind of request."""
    key = key_at(arena, k)
    kind = PRODUCE_HEAP if code == Code.PRODUCE else OTHER_HEAP
    # An error settles all parts.
    reached = watermark(key, code) if key.partition_error == Error.NONE else _MAX_OFFSET
    if reached != UNKNOWN:
        while (
            waiter_queues.first_in_heap(arena, k, kind) != NONE
            and part_at(arena, waiter_queues.first_in_heap(arena, k, kind)).threshold <= reached
        ):
            _settle_first(arena, k, kind, code, t)

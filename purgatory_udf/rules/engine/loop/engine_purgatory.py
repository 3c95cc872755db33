"""Operations in a purgatory: their creation from requests, watcher lists as the gauges count them, and their end.

An operation is a copy of the request's event, with one part for each key that it names.

`watched` (Kafka's PurgatorySize) counts entries of watcher lists. An operation has one entry per key. After its end, an
entry stays until a check walks the list, or until a purge. Such dead entries are not stored, only counted: by key in
`dead_...`, and in total by purgatory. A purge removes them by raising the purgatory's `stamp`, which invalidates the
keys' counts.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, inlined, int64
from purgatory_udf.rules.engine.loop import compiled_timing_wheel, fetch_reads, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    COMPLETED,
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    ENDED,
    EXPIRED,
    FULL_CHECK_LIST,
    LINGERING,
    NONE,
    OPEN,
    SETTLED,
    AnswerSource,
    Arena,
    copy_event,
    copy_request_part,
    event_at,
    key_at,
    key_number_at,
    node_at,
    operation_at,
    outcome_at,
    part_at,
    prefetch_operation,
    prefetch_part,
    prefetch_request_part,
    purgatory_at,
    request_part_at,
    timer_link_at,
)
from purgatory_udf.rules.engine.loop.codes import Code, Error, Rule
from purgatory_udf.rules.engine.loop.replica_state import add_node, find_node

# Of a topic, a node's value holds the purge stamp times this, plus the number of dead entries.
_STAMP_UNIT = int64(2**32)


@inlined
def find_purgatory(arena: Arena, broker: int, code: int) -> int:
    """Return the row of the broker's purgatory for this kind of request; `NONE` before the first such request."""
    for p in range(arena.purgatories):
        if purgatory_at(arena, p).broker == broker and purgatory_at(arena, p).code == code:
            return p
    return NONE


@inlined
def _count_dead(arena: Arena, p: int, key: Any, code: int) -> None:
    """Count the entry of an ended operation on the key's watcher list as dead, in the key's and purgatory's counts.

    `p` and `code` are the operation's purgatory and kind. Fetches have `_count_dead_fetch` instead.
    """
    purgatory = purgatory_at(arena, p)
    purgatory.dead += 1
    if code == Code.PRODUCE:
        key.dead_produce = key.dead_produce * (key.stamp_produce == purgatory.stamp) + 1
        key.stamp_produce = purgatory.stamp
        key.waiter_mask |= DEAD_PRODUCES
    elif code == Code.DELETE_RECORDS:
        if key.stamp_delete != purgatory.stamp:
            key.stamp_delete, key.dead_delete = purgatory.stamp, 0
        key.dead_delete += 1
        key.waiter_mask |= DEAD_DELETIONS
    else:
        # A topic has a list at every broker; a partition has lists of remote fetches and of list-offsets.
        node = find_node(arena, key.dead_nodes, p)
        if node == NONE:
            node = key.dead_nodes = add_node(arena, key.dead_nodes, p, 0)
        value = node_at(arena, node).value
        if value // _STAMP_UNIT != purgatory.stamp:
            value = purgatory.stamp * _STAMP_UNIT
        node_at(arena, node).value = value + 1


@inlined
def _remove_dead(arena: Arena, p: int, dead: int) -> None:
    purgatory = purgatory_at(arena, p)
    purgatory.watched -= dead
    purgatory.dead -= dead


# The key's list has been walked. Subtracting a count of zero is cheaper than testing for it.


@inlined
def remove_dead_fetches(arena: Arena, key: Any) -> None:
    """Remove the dead entries of the key's list of fetches."""
    p, dead = key.fetch_purgatory, key.dead_fetch
    _remove_dead(arena, p, dead * (key.stamp_fetch == purgatory_at(arena, p).stamp))
    key.dead_fetch = 0
    key.waiter_mask &= ~DEAD_FETCHES


@inlined
def remove_dead_produces(arena: Arena, key: Any) -> None:
    """Remove the dead entries of the key's list of produces."""
    p, dead = key.produce_purgatory, key.dead_produce
    _remove_dead(arena, p, dead * (key.stamp_produce == purgatory_at(arena, p).stamp))
    key.dead_produce = 0
    key.waiter_mask &= ~DEAD_PRODUCES


@inlined
def remove_dead_deletions(arena: Arena, key: Any) -> None:
    """Remove the dead entries of the key's list of delete-records."""
    p, dead = find_purgatory(arena, key.broker, Code.DELETE_RECORDS), key.dead_delete
    _remove_dead(arena, p, dead * (key.stamp_delete == purgatory_at(arena, p).stamp))
    key.dead_delete = 0
    key.waiter_mask &= ~DEAD_DELETIONS


@helper
def remove_all_dead(arena: Arena, key: Any) -> None:
    """Remove the dead entries of the key's lists."""
    if key.waiter_mask & DEAD_PRODUCES != 0:
        remove_dead_produces(arena, key)
    if key.waiter_mask & DEAD_FETCHES != 0:
        remove_dead_fetches(arena, key)
    if key.waiter_mask & DEAD_DELETIONS != 0:
        remove_dead_deletions(arena, key)
    remove_dead_of_topic(arena, key, NONE)


@inlined
def remove_dead_of(arena: Arena, key: Any, p: int) -> None:
    """Remove the dead entries of the key's list in this purgatory: of remote fetches, or of list-offsets."""
    node = find_node(arena, key.dead_nodes, p)
    if node != NONE:
        entry = node_at(arena, node)
        if entry.value // _STAMP_UNIT == purgatory_at(arena, p).stamp:
            _remove_dead(arena, p, entry.value % _STAMP_UNIT)
        entry.value = entry.value // _STAMP_UNIT * _STAMP_UNIT


@helper
def remove_dead_of_topic(arena: Arena, key: Any, broker: int) -> None:
    """Remove the dead entries of the topic's lists: at every broker, or at one if `broker` is not `NONE`."""
    node = key.dead_nodes
    while node != NONE:
        entry = node_at(arena, node)
        purgatory = purgatory_at(arena, entry.id)
        if broker == NONE or purgatory.broker == broker:
            if entry.value // _STAMP_UNIT == purgatory.stamp:
                _remove_dead(arena, entry.id, entry.value % _STAMP_UNIT)
            entry.value = entry.value // _STAMP_UNIT * _STAMP_UNIT
        node = entry.next


@helper
def purge(arena: Arena, p: int) -> None:
    """Remove all dead entries of the purgatory (Kafka's `purgeCompleted`)."""
    purgatory = purgatory_at(arena, p)
    purgatory.watched -= purgatory.dead
    purgatory.purged += purgatory.dead
    purgatory.dead = 0
    purgatory.stamp += 1


@inlined
def watch(arena: Arena, o: int, entries: int) -> None:
    """Put the operation on the watcher lists of its keys, as `entries` entries, and start its timer."""
    operation = operation_at(arena, o)
    p = operation.purgatory
    purgatory = purgatory_at(arena, p)
    operation.watched = 1
    purgatory.watched += entries
    purgatory.estimated += 1
    if compiled_timing_wheel.add(arena, p, o):
        arena.next_due = min(arena.next_due, purgatory.next_bucket_ms * 1000)
    else:
        # Kafka submits a task that is already due to another thread, so the present event is handled first.
        timer_link_at(arena, o).next, arena.overdue, arena.next_due = arena.overdue, o, arena.now


@inlined
def walked_earlier(arena: Arena, key: Any, code: int) -> bool:
    """Return whether the current produce has already walked this key's list for `code`.

    A produce that has appended to several keys walks their lists one after the other.
    """
    return (
        arena.check_order > 0
        and key.last_append == arena.produce_count
        and key.last_append_order < arena.check_order
        and (code == Code.FETCH or key.last_append_raised_hw != 0)
    )


@inlined
def trigger_of(arena: Arena, o: int, at: int) -> int:
    """Return the part whose key triggers the completion of operation `o`, which part `at` has just completed.

    It is `at`, unless a produce that checks several keys has walked a list of the operation earlier: then it is the
    part on the first of these keys.
    """
    if arena.check_order <= 0:
        return at
    operation, trigger, first = operation_at(arena, o), at, arena.check_order
    for other in range(operation.first, operation.first + operation.count):
        key = key_at(arena, part_at(arena, other).key)
        if walked_earlier(arena, key, operation.code) and key.last_append_order < first:
            trigger, first = other, key.last_append_order
    return trigger


@inlined
def close_operation(arena: Arena, o: int, outcome: int, rule: int, t: int, trigger: int) -> None:
    """Mark the operation as ended, and cancel its timer.

    Args:
        arena: The call's tables.
        o: The operation.
        outcome: `COMPLETED`, `EXPIRED` or `CANCELLED`.
        rule: The `Rule` that ended it.
        t: The time of the end, in microseconds.
        trigger: The part on the key of the event that ended it, or `NONE`.
    """
    operation = operation_at(arena, o)
    operation.state, operation.rule, operation.end_t = ENDED, rule, t
    operation.trigger = trigger - operation.first if trigger != NONE else NONE
    outcome_at(arena, o).outcome = outcome
    arena.ended_parts += operation.count
    compiled_timing_wheel.cancel(arena, o)


@inlined
def finish(arena: Arena, o: int, rule: int, t: int, trigger: int) -> None:
    """End an open operation: remove it from the timer and from the queues of its keys.

    It has expired if `rule` is `Rule.TIMEOUT`, otherwise completed. `trigger` is the part on the key of the event that
    ended it, or `NONE`.
    """
    # With narrower argument types, numba would compile the helper again.
    _finish(arena, int64(o), int64(rule), t, int64(trigger))


@helper
def _finish(arena: Arena, o: int, rule: int, t: int, trigger: int) -> None:
    operation = operation_at(arena, o)
    if rule == Rule.TIMEOUT:
        close_operation(arena, o, EXPIRED, rule, t, trigger)
        arena.expired += 1
    else:
        close_operation(arena, o, COMPLETED, rule, t, trigger)
        arena.completed += 1
    several = arena.check_order > 0 and trigger != NONE
    if operation.code == Code.FETCH:
        _finish_fetch_parts(arena, operation, several)
    elif operation.code == Code.REMOTE_FETCH or operation.code == Code.LIST_OFFSETS:
        _finish_remote_parts(arena, operation, t)
    else:
        _finish_parts(arena, operation, t, several)


# The walk that completes an operation also removes its entry, which is counted as dead until then. If an event checks
# `several` keys, the lists that it walked earlier do not hold the entry any more.


@inlined
def _finish_parts(arena: Arena, operation: Any, t: int, several: bool) -> None:
    p, code, watched = operation.purgatory, operation.code, operation.watched != 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        waiter_queues.dequeue(arena, at, key)
        if part.queue != SETTLED:
            part.end_t, part.error = t, Error.REQUEST_TIMED_OUT
        if watched and part.duplicate == 0:
            if several and walked_earlier(arena, key, code):
                purgatory_at(arena, p).watched -= 1
            else:
                _count_dead(arena, p, key, code)


@inlined
def _count_dead_fetch(key: Any, stamp: int) -> None:
    key.dead_fetch = key.dead_fetch * (key.stamp_fetch == stamp) + 1
    key.stamp_fetch = stamp
    key.waiter_mask |= DEAD_FETCHES


@inlined
def _finish_fetch_parts(arena: Arena, operation: Any, several: bool) -> None:
    """End the parts of a fetch as `_finish_parts` does, and read every partition again for the response."""
    purgatory = purgatory_at(arena, operation.purgatory)
    stamp, watched = purgatory.stamp, operation.watched != 0
    undisturbed = operation.disruptions == arena.disruptions
    max_bytes, hard_max, carried = operation.max_bytes, operation.hard_max != 0, 0
    # Usually every key's list has the operation once, and none has been walked earlier.
    on_every_list = watched and not several and operation.irregular == 0
    arena.charged = 0
    walked, dead = 0, operation.count if on_every_list else 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        waiter_queues.dequeue(arena, at, key)
        carried += fetch_reads.read_answer(
            arena, key, at, operation, undisturbed, max_bytes - carried, not hard_max and carried == 0
        )
        part.updates = key.updates - part.updates
        if on_every_list:
            _count_dead_fetch(key, stamp)
        elif watched and part.duplicate == 0:
            if several and walked_earlier(arena, key, Code.FETCH):
                walked += 1
            else:
                _count_dead_fetch(key, stamp)
                dead += 1
    operation.answered_bytes = carried
    purgatory.watched -= walked
    purgatory.dead += dead


@helper
def _finish_remote_parts(arena: Arena, operation: Any, t: int) -> None:
    """End the parts of a remote fetch or list-offsets request, with the results of the reads that have finished.

    Parts with running reads stay in their queues.
    """
    fetch, carried, unended = operation.code == Code.REMOTE_FETCH, 0, 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        state = part.read_state
        if state == AnswerSource.PENDING or state == AnswerSource.ABANDONED:
            unended += 1
            if state == AnswerSource.PENDING:
                part.size, part.end_t = 0, t
                if not fetch:
                    part.error = Error.REQUEST_TIMED_OUT
        else:
            waiter_queues.dequeue(arena, at, key)
            part.queue = SETTLED
        if operation.watched != 0 and part.duplicate == 0 and (not fetch or state >= AnswerSource.PENDING):
            _count_dead(arena, operation.purgatory, key, operation.code)
        carried += part.size
    operation.answered_bytes = carried
    keep_lingering(arena, operation, unended)


@inlined
def keep_lingering(arena: Arena, operation: Any, unended: int) -> None:
    """Let an ended operation linger until its `unended` running reads have returned."""
    if unended > 0:
        operation.state = LINGERING
        arena.lingering_parts += operation.count
        arena.lingering += 1


@inlined
def require_full_check(arena: Arena, o: int) -> None:
    """Index the fetch for full checks: from now on every check of any of its keys evaluates it, as in Kafka."""
    _require_full_check(arena, int64(o))


@helper
def _require_full_check(arena: Arena, o: int) -> None:
    operation = operation_at(arena, o)
    operation.needs_full_check = 1
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        waiter_queues.dequeue(arena, at, key)
        if part.duplicate == 0:
            waiter_queues.push_to_list(arena, part.key, key, at, FULL_CHECK_LIST)


# Prefetch distances of the tables that requests append to or are copied from, in rows.
_OPERATIONS_AHEAD, _PARTS_AHEAD, _REQUEST_PARTS_AHEAD = 4, 20, 32


@inlined
def add_operation(arena: Arena, e: int) -> int:
    """Add an operation for the event and reserve its parts; return its row."""
    event = event_at(arena, e)
    o, first = arena.operations, arena.parts
    arena.operations += 1
    arena.parts += event.count
    operation = operation_at(arena, o)
    prefetch_operation(arena, o + _OPERATIONS_AHEAD)
    copy_event(operation, event)
    operation.deadline = floor_div(event.t, 1000) + max(0, event.delay)
    operation.first, operation.text = first, arena.text_base + event.text
    operation.answered_bytes, operation.pending, operation.state, operation.rule = 0, 0, OPEN, 0
    operation.bucket, operation.trigger, operation.watched, operation.needs_full_check = NONE, NONE, 0, 0
    operation.end_t, operation.settling_produce, operation.last_settled_part = 0, NONE, NONE
    operation.disruptions = NONE
    operation.purgatory = find_purgatory(arena, event.broker, event.code)
    return o


@inlined
def add_part(arena: Arena, o: int, at: int, a: int) -> int:
    """Fill the operation's part `at` from request part `a`; return its key."""
    part, requested = part_at(arena, at), request_part_at(arena, a)
    prefetch_part(arena, at + _PARTS_AHEAD)
    prefetch_request_part(arena, a + _REQUEST_PARTS_AHEAD)
    k = key_number_at(arena, requested.key).key
    copy_request_part(part, requested)
    part.key, part.operation = k, o
    return k


@helper
def add_with_parts(arena: Arena, e: int) -> int:
    """Add an operation for the event, with all of its parts; return its row."""
    event, o = event_at(arena, e), add_operation(arena, e)
    first, t = operation_at(arena, o).first, event.t
    shift = event.first - first
    for at in range(first, first + event.count):
        add_part(arena, o, at, at + shift)
        part_at(arena, at).updates, part_at(arena, at).end_t = 0, t
    return o

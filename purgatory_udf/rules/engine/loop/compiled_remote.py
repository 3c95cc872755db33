"""Remote fetches and list-offsets: requests that wait for reads or lookups in remote storage.

See `rules.reference.delayed_remote` for the rules. A fetch becomes a remote fetch when it arrives. All parts of an open
operation are in a list of their key if it watches the key: `READ_LIST` or `LOOKUP_LIST`. Each check of the key tries
them one after the other, as Kafka does: there are few, and most checks are results of their reads.

An operation may complete before its reads. It then *lingers* with the parts that wait for them, because the result of
these reads still checks their keys, while a result without a read is ignored.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, inlined
from purgatory_udf.rules.engine.loop import engine_purgatory, fetch_reads, replica_state, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    BROKER_DECIDES,
    CANCELLED,
    ENDED,
    FORGET_READ_US,
    LINGERING,
    LOOKUP_LIST,
    NONE,
    OPEN,
    READ_LIST,
    UNPLACED,
    UNREAD,
    ZERO,
    AnswerSource,
    Arena,
    event_at,
    key_at,
    key_number_at,
    label_at,
    operation_at,
    part_at,
    purgatory_at,
    request_part_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code, Error, Rule
from purgatory_udf.rules.engine.loop.compiled_produce import rule_for_partition_error
from purgatory_udf.rules.engine.loop.engine_purgatory import add_with_parts


@inlined
def _is_gone(key: Any) -> bool:
    """Return whether the broker has no replica of the partition, or cannot read it."""
    return key.partition_error != Error.NONE and key.is_follower == 0


@inlined
def _is_unended(part: Any) -> bool:
    """Return whether the part's read or lookup was started and is still running."""
    return part.read_state == AnswerSource.PENDING or part.read_state == AnswerSource.ABANDONED


@helper
def start_reads(arena: Arena, o: int) -> int:
    """Do the first read of an arriving fetch that has at least one remote partition.

    Returns:
        `NONE` if at least one read of remote storage was started, which makes it a remote fetch. Otherwise the number
        of bytes that it finds locally; its remote parts are marked as `UNREAD` or `UNPLACED`.
    """
    operation = operation_at(arena, o)
    purgatory = purgatory_at(arena, engine_purgatory.find_purgatory(arena, operation.broker, Code.REMOTE_FETCH))
    left, at_least_one, total, started = operation.max_bytes, operation.hard_max == 0, ZERO, ZERO
    if operation.split == 0:
        operation.split = BROKER_DECIDES
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key, found = key_at(arena, part.key), ZERO
        waiter_queues.dequeue(arena, at, key)
        part.error = fetch_reads.read_error(key, part)
        if part.error == Error.NONE and part.throttled == 0:
            if fetch_reads.is_remote(key, part):
                requested = min(part.size, left)
                if requested > 0 and purgatory.quota_exhausted == 0 and (arena.reads_all != 0 or started == 0):
                    part.read_state = AnswerSource.PENDING
                    started += 1
                    if arena.reads_all != 0:
                        left, at_least_one = left - requested, False
            elif fetch_reads.has_data(key, part, operation.mode):
                batch = replica_state.batch_of(arena, key, part.offset)
                found = fetch_reads.read_bytes(arena, key, part, operation, batch, left, at_least_one)
                left, at_least_one = max(ZERO, left - found), at_least_one and found == 0
        part.counted_bytes = found
        total += found
    if started > 0:
        _become_remote_fetch(arena, o, purgatory)
        return NONE
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        if part.error == Error.NONE and part.throttled == 0 and fetch_reads.is_remote(key_at(arena, part.key), part):
            part.throttled = UNREAD if purgatory.quota_exhausted != 0 else UNPLACED
    return total


@inlined
def _become_remote_fetch(arena: Arena, o: int, purgatory: Any) -> None:
    """Put the fetch into the RemoteFetch purgatory. Its reads fail at once if the queue of remote readers is full."""
    operation = operation_at(arena, o)
    operation.code = Code.REMOTE_FETCH
    operation.purgatory = engine_purgatory.find_purgatory(arena, operation.broker, Code.REMOTE_FETCH)
    started = ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        part.size, part.end_t, part.updates = part.counted_bytes, operation.t, 0
        if part.read_state != AnswerSource.PENDING:
            if part.error != Error.NONE:
                part.read_state = AnswerSource.FAILED
        elif purgatory.queue_full != 0:
            part.read_state, part.error = AnswerSource.ENDED, Error.UNKNOWN_SERVER_ERROR
        else:
            started += 1
            waiter_queues.push_to_list(arena, part.key, key_at(arena, part.key), at, READ_LIST)
    if arena.remote_wait_ms != UNKNOWN:
        operation.deadline = floor_div(operation.t, 1000) + arena.remote_wait_ms
    if started == 0:
        engine_purgatory.finish(arena, o, Rule.REMOTE_READS, operation.t, NONE)
    else:
        engine_purgatory.watch(arena, o, started)


@helper
def handle_list_offsets(arena: Arena, e: int) -> None:
    """Handle event `e`, a list-offsets request: start its lookups and watch it, or answer it if it has none."""
    o = add_with_parts(arena, e)
    operation = operation_at(arena, o)
    p = engine_purgatory.find_purgatory(arena, operation.broker, Code.REMOTE_FETCH)
    queue_full = p != NONE and purgatory_at(arena, p).queue_full != 0
    if operation.split == 0:
        operation.split = BROKER_DECIDES
    entries = ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        entries += 1 - part.duplicate
        if key.partition_error != Error.NONE:
            part.error = key.partition_error
        elif part.offset >= 0 and key.local_start != UNKNOWN and key.end != max(ZERO, key.log_start):
            if queue_full:
                part.error = Error.UNKNOWN_SERVER_ERROR
            else:
                part.read_state = AnswerSource.PENDING
                operation.pending += 1
    if operation.pending == 0:
        engine_purgatory.finish(arena, o, Rule.NO_LOOKUP, operation.t, NONE)
        return
    for at in range(operation.first, operation.first + operation.count):
        waiter_queues.push_to_list(
            arena, part_at(arena, at).key, key_at(arena, part_at(arena, at).key), at, LOOKUP_LIST
        )
    engine_purgatory.watch(arena, o, entries)


@helper
def _try_remote_fetch(arena: Arena, o: int, t: int, trigger: int) -> None:
    operation, pending = operation_at(arena, o), False
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        if part.read_state != AnswerSource.FAILED and _is_gone(key):  # Case A
            engine_purgatory.finish(arena, o, rule_for_partition_error(key.partition_error), t, trigger)
            return
        pending |= part.read_state == AnswerSource.PENDING
    if not pending:  # Case B
        engine_purgatory.finish(arena, o, Rule.REMOTE_READS, t, trigger)


@helper
def _try_list_offsets(arena: Arena, o: int, t: int, trigger: int) -> None:
    operation = operation_at(arena, o)
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        if part.read_state == AnswerSource.RETURNED:  # Case B
            part.read_state, operation.rule = AnswerSource.ENDED, Rule.REMOTE_LOOKUP
        elif part.read_state == AnswerSource.PENDING and _is_gone(key):  # Case A
            part.read_state, part.error = AnswerSource.ABANDONED, key.partition_error
            operation.rule = rule_for_partition_error(key.partition_error)
        else:
            continue
        part.end_t = t
        operation.pending -= 1
    if operation.pending == 0:
        engine_purgatory.finish(arena, o, operation.rule, t, trigger)


@helper
def check(arena: Arena, k: int, kind: int, t: int) -> None:
    """Check the requests in one of the key's lists; `kind` is `READ_LIST` or `LOOKUP_LIST`."""
    at = waiter_queues.first_in_list(arena, k, kind)
    while at != NONE:
        # The check can remove only this part from the list.
        following = waiter_queues.next_in_list(arena, at)
        o = part_at(arena, at).operation
        if operation_at(arena, o).state == OPEN:
            if kind == READ_LIST:
                _try_remote_fetch(arena, o, t, at)
            else:
                _try_list_offsets(arena, o, t, at)
        at = following
    key = key_at(arena, k)
    code = Code.REMOTE_FETCH if kind == READ_LIST else Code.LIST_OFFSETS
    p = engine_purgatory.find_purgatory(arena, key.broker, code)
    if p != NONE:
        engine_purgatory.remove_dead_of(arena, key, p)


@helper
def check_both(arena: Arena, k: int, t: int) -> None:
    """Check the key's remote fetches and list-offsets, after the broker has lost the leadership or the replica."""
    check(arena, k, READ_LIST, t)
    check(arena, k, LOOKUP_LIST, t)


@helper
def end_read(arena: Arena, e: int) -> None:
    """Handle event `e`, the result of a read or lookup: pass it to its request, and check the key.

    A result is ignored if the request has started no such read.
    """
    event = event_at(arena, e)
    requested, t = request_part_at(arena, event.first), event.t
    k, kind = key_number_at(arena, requested.key).key, READ_LIST if event.code == Code.REMOTE_READ else LOOKUP_LIST
    at = _find_read(arena, k, kind, label_at(arena, arena.text_base + event.text).number, t)
    if at == NONE:
        return
    part = part_at(arena, at)
    operation = operation_at(arena, part.operation)
    pending = part.read_state == AnswerSource.PENDING
    part.read_state = AnswerSource.ENDED
    if operation.state == LINGERING:
        waiter_queues.dequeue(arena, at, key_at(arena, k))
        _release(arena, operation)
    elif pending:
        part.error, part.end_t = requested.error, t
        if requested.error == Error.RECORDED:
            part.text = requested.text + arena.error_base
        if kind == LOOKUP_LIST:
            part.read_state = AnswerSource.RETURNED
        elif requested.error == Error.NONE:
            part.size = requested.size
    check(arena, k, kind, t)


@inlined
def _find_read(arena: Arena, k: int, kind: int, label: int, t: int) -> int:
    """Return the part that waits for the result of a read, or `NONE`.

    If several do, it belongs to the oldest open operation; if none is open, to the oldest lingering one. `label` is the
    number of the request id.
    """
    found, found_state = NONE, LINGERING
    at = waiter_queues.first_in_list(arena, k, kind)
    while at != NONE:
        part = part_at(arena, at)
        operation = operation_at(arena, part.operation)
        state = operation.state
        if (
            _is_unended(part)
            and label_at(arena, operation.text).number == label
            and (state == OPEN or operation.end_t >= t - FORGET_READ_US)
            and (found == NONE or state < found_state or (state == found_state and at < found))
        ):
            found, found_state = at, state
        at = waiter_queues.next_in_list(arena, at)
    return found


@helper
def _release(arena: Arena, operation: Any) -> None:
    """Stop keeping a lingering operation, if all of its reads have ended."""
    for at in range(operation.first, operation.first + operation.count):
        if _is_unended(part_at(arena, at)):
            return
    operation.state = ENDED
    arena.lingering_parts -= operation.count
    arena.lingering -= 1


@helper
def stop(arena: Arena, k: int, kind: int, t: int) -> None:
    """Cancel the operations that wait for reads or lookups of the partition, because their broker has stopped."""
    at = waiter_queues.first_in_list(arena, k, kind)
    while at != NONE:
        following = waiter_queues.next_in_list(arena, at)
        part = part_at(arena, at)
        operation = operation_at(arena, part.operation)
        if _is_unended(part):
            if operation.state == LINGERING:
                part.read_state = AnswerSource.ENDED
                waiter_queues.dequeue(arena, at, key_at(arena, k))
                _release(arena, operation)
            elif part.read_state == AnswerSource.PENDING:
                _cancel(arena, at, t)
            else:
                part.read_state = AnswerSource.ENDED
        at = following


@inlined
def _cancel(arena: Arena, by: int, t: int) -> None:
    """Cancel the operation that part `by` belongs to. Its other parts stay until their reads have ended."""
    o = part_at(arena, by).operation
    operation = operation_at(arena, o)
    engine_purgatory.close_operation(arena, o, CANCELLED, Rule.BROKER_STOPPED, t, by)
    arena.cancelled += 1
    fetch, entries, unended = operation.code == Code.REMOTE_FETCH, ZERO, ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        if not fetch or part.read_state >= AnswerSource.PENDING:
            entries += 1 - part.duplicate
        if fetch or part.read_state == AnswerSource.PENDING:
            part.error, part.size, part.end_t = Error.UNANSWERED, 0, t
        if _is_unended(part) and at != by:
            unended += 1
        else:
            part.read_state = max(part.read_state, AnswerSource.ENDED) if part.read_state >= AnswerSource.PENDING else 0
            waiter_queues.dequeue(arena, at, key_at(arena, part.key))
    purgatory_at(arena, operation.purgatory).watched -= entries
    engine_purgatory.keep_lingering(arena, operation, unended)

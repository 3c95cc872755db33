"""DelayedFetch: a fetch waits until enough bytes are available, or a partition cannot be waited for any longer.

These are the rules of `rules.reference.delayed_fetch`, compiled.

The partitions are evaluated in order; the first case that holds completes the fetch (letters as in Kafka 2.3's
`DelayedFetch`):

A) the broker does not lead the partition (any more)
B) the broker does not know the partition
E) the log directory of the partition is offline
F) the request was sent to an older leader epoch
C) the fetch offset is beyond the end (the leader was truncated) or on an older segment than the end, unless the replica
   is throttled; an offset equal to the end adds no bytes, so that a segment roll alone does not look like C
D) after all partitions: the bytes between fetch offsets and ends, at most the partition's maximum each, reach min_bytes

Kafka evaluates every fetch on a watcher list at every check; `fetch_index` selects the fetches to evaluate here.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, inlined, int64
from purgatory_udf.rules.engine.loop import (
    compiled_remote,
    engine_purgatory,
    fetch_index,
    fetch_reads,
    replica_state,
    waiter_queues,
)
from purgatory_udf.rules.engine.loop.arena import (
    BROKER_DECIDES,
    COUNTED_LISTS,
    FETCH_HEAPS,
    FORCING,
    FULL_CHECK_LIST,
    HAS_THROTTLES,
    NONE,
    PARTIAL,
    TIERED,
    UNREAD,
    ZERO,
    Arena,
    batch_at,
    end_at,
    event_at,
    key_at,
    node_at,
    operation_at,
    part_at,
    purgatory_at,
    request_part_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Code, Error, Reader, Rule
from purgatory_udf.rules.engine.loop.compiled_produce import rule_for_partition_error
from purgatory_udf.rules.engine.loop.engine_purgatory import add_operation, add_part
from purgatory_udf.rules.engine.loop.replica_state import add_node, find_node

_UNREACHABLE = int64(FOREVER)
_ON_OLDER_SEGMENT = int64(-1)

# Bits of a key's `waiter_mask`: indexed fetches of each kind of reader, and fetches that need full checks.
_FOLLOWERS, _CONSUMERS, _COMMITTED_READERS = (
    int64((1 << FETCH_HEAPS | 1 << COUNTED_LISTS) << reader) for reader in Reader
)
_FULL_CHECKS = int64(1 << int(FULL_CHECK_LIST))

# Bits of keys for which the arrival of a fetch is not ordinary.
_EXCEPTIONAL = HAS_THROTTLES | TIERED

# The fetches that a check concerns, by the end that has moved: those of other readers are as complete as before.
LOG_END_MOVED, WATERMARK_MOVED = _FOLLOWERS | _FULL_CHECKS, _CONSUMERS | _COMMITTED_READERS | _FULL_CHECKS
ANY_END_MOVED = LOG_END_MOVED | WATERMARK_MOVED


@inlined
def try_complete_else_watch(arena: Arena, e: int) -> None:
    """Handle event `e`, an arriving fetch: answer it after the first read, or index it and start its timer.

    Errors of offset and epoch answer a fetch only in this first read. A consumer may be redirected to a preferred
    replica at once.
    """
    event, o = event_at(arena, e), add_operation(arena, e)
    t, mode, replica_id, min_bytes, count = event.t, event.mode, event.replica_id, _min_bytes(event), event.count
    counted = fetch_index.should_count(arena, count, min_bytes, count)
    first = operation_at(arena, o).first
    shift = event.first - first
    accumulated = ZERO
    full_check = large = remote = False
    irregular = event.irregular != 0
    for at in range(first, first + count):
        k = add_part(arena, o, at, at + shift)
        part, requested, key = part_at(arena, at), request_part_at(arena, at + shift), key_at(arena, k)
        # Earlier updates of the key do not count.
        part.updates = key.updates
        if key.waiter_mask & _EXCEPTIONAL != 0:
            if key.waiter_mask & HAS_THROTTLES != 0:
                _apply_throttle(arena, key, part, replica_id)
                irregular = True
            if key.waiter_mask & TIERED != 0 and fetch_reads.is_remote(key, part):
                if mode != Reader.FOLLOWER:
                    remote = True
                    continue
                if fetch_reads.read_error(key, requested) == Error.NONE:
                    _complete_at_part(arena, o, at, shift, Rule.TIERED_OFFSET)
                    return
        error = fetch_reads.read_error(key, requested)
        if error != Error.NONE:
            _complete_at_part(arena, o, at, shift, _rule_for_error(error))
            return
        end = end_at(key, mode).offset
        if requested.offset == end and end != UNKNOWN:
            full_check |= not _start_at_end(arena, key, at, requested.offset, mode)
        elif requested.offset > end and end != UNKNOWN:  # Case C
            _complete_at_part(arena, o, at, shift, Rule.TRUNCATED)
            return
        else:
            found, part_needs_full_check, part_is_large = _start_before_end(arena, key, at, mode)
            if found == _ON_OLDER_SEGMENT:  # Case C
                _complete_at_part(arena, o, at, shift, Rule.OLDER_SEGMENT)
                return
            accumulated += found
            full_check |= part_needs_full_check
            large |= part_is_large
        if counted:
            waiter_queues.push_to_list(arena, k, key, at, COUNTED_LISTS + mode)
    if remote:
        _handle_remote(arena, o)
        return
    if not full_check and not irregular:
        operation_at(arena, o).disruptions = arena.disruptions
    # A response can only carry more bytes than case D counts if a first batch exceeds its partition's maximum.
    if accumulated >= min_bytes or (
        large and not event.redirected and fetch_reads.first_read_bytes(arena, o) >= min_bytes
    ):  # Case D
        _complete(arena, o, Rule.MIN_BYTES, t, NONE, NONE)
    elif event.redirected:
        _complete(arena, o, Rule.PREFERRED_REPLICA, t, NONE, NONE)
    elif event.delay <= 0 and _is_never_watched(arena, o):
        _complete(arena, o, Rule.NO_WAIT, t, NONE, NONE)
    else:
        duplicates = throttled = ZERO
        if irregular:
            duplicates, throttled = _count_exceptions(arena, o)
        engine_purgatory.watch(arena, o, count - duplicates)
        fetch_index.enqueue(arena, o, min_bytes - accumulated, full_check or duplicates > 0, counted, count - throttled)


@helper
def _complete_at_part(arena: Arena, o: int, at: int, shift: int, rule: int) -> None:
    """Complete an arriving fetch by `rule` because of its part `at`, and create the parts after it.

    `shift` is the distance from the operation's parts to the event's request parts, in rows.
    """
    operation = operation_at(arena, o)
    for other in range(at + 1, operation.first + operation.count):
        key = key_at(arena, add_part(arena, o, other, other + shift))
        if key.waiter_mask & HAS_THROTTLES != 0:
            _apply_throttle(arena, key, part_at(arena, other), operation.replica_id)
    if operation.mode != Reader.FOLLOWER and _has_remote_part(arena, o):
        _handle_remote(arena, o)
    else:
        _complete(arena, o, rule, operation.t, NONE, at)


@helper
def _has_remote_part(arena: Arena, o: int) -> bool:
    operation = operation_at(arena, o)
    for at in range(operation.first, operation.first + operation.count):
        key = key_at(arena, part_at(arena, at).key)
        if key.waiter_mask & TIERED != 0 and fetch_reads.is_remote(key, part_at(arena, at)):
            return True
    return False


@helper
def _handle_remote(arena: Arena, o: int) -> None:
    """Handle an arriving fetch with a remote partition: start its reads of remote storage.

    If no read can start, the fetch is answered or watched like any other. Such fetches are rare, so all of their checks
    are full.
    """
    found = compiled_remote.start_reads(arena, o)
    if found == NONE:
        return
    operation = operation_at(arena, o)
    accumulated, duplicates = ZERO, ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        part.updates = key.updates
        duplicates += part.duplicate
        if part.throttled == UNREAD:
            continue
        end = end_at(key, operation.mode).offset
        if part.error != Error.NONE:
            _complete(arena, o, _rule_for_error(part.error), operation.t, NONE, at)
            return
        if part.offset == end and end != UNKNOWN:
            _start_at_end(arena, key, at, part.offset, operation.mode)
        elif part.offset > end and end != UNKNOWN:  # Case C
            _complete(arena, o, Rule.TRUNCATED, operation.t, NONE, at)
            return
        else:
            available, _, _ = _start_before_end(arena, key, at, operation.mode)
            if available == _ON_OLDER_SEGMENT:  # Case C
                _complete(arena, o, Rule.OLDER_SEGMENT, operation.t, NONE, at)
                return
            accumulated += available
    min_bytes = _min_bytes(operation)
    if accumulated >= min_bytes or (found >= min_bytes and operation.redirected == 0):  # Case D
        _complete(arena, o, Rule.MIN_BYTES, operation.t, NONE, NONE)
    elif operation.redirected != 0:
        _complete(arena, o, Rule.PREFERRED_REPLICA, operation.t, NONE, NONE)
    elif operation.deadline <= floor_div(operation.t, 1000) and _is_never_watched(arena, o):
        _complete(arena, o, Rule.NO_WAIT, operation.t, NONE, NONE)
    else:
        engine_purgatory.watch(arena, o, operation.count - duplicates)
        engine_purgatory.require_full_check(arena, o)


@helper
def _is_never_watched(arena: Arena, o: int) -> bool:
    """Return whether a fetch without a maximum wait is answered at once: its broker has had tiered partitions."""
    operation = operation_at(arena, o)
    if operation.split == 0:
        operation.split = BROKER_DECIDES
    p = engine_purgatory.find_purgatory(arena, operation.broker, Code.REMOTE_FETCH)
    return p != NONE and purgatory_at(arena, p).is_tiered != 0


@helper
def _apply_throttle(arena: Arena, key: Any, part: Any, replica_id: int) -> None:
    """Set the part's `throttled` to the follower's last reported throttle on the key."""
    node = find_node(arena, key.throttle_nodes, replica_id)
    if node != NONE:
        part.throttled = node_at(arena, node).value


@helper
def _count_exceptions(arena: Arena, o: int) -> tuple[int, int]:
    """Return the number of the fetch's parts that repeat a key, and the number of throttled parts."""
    operation = operation_at(arena, o)
    duplicates = throttled = ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        duplicates += part.duplicate
        throttled += part.throttled
    return duplicates, throttled


@inlined
def _start_at_end(arena: Arena, key: Any, at: int, offset: int, mode: int) -> bool:
    """Start part `at` at the reader's end, with the segment and position that the end was last given.

    As in Kafka, these may be stale. Return whether they match the log. `mode` is the fetch's `Reader`.
    """
    end, part = end_at(key, mode), part_at(arena, at)
    part.start_seg, part.start_pos, part.counted_bytes = end.seg, end.pos, 0
    if end.batch != NONE:
        return True
    return replica_state.position_of(arena, key, offset) == end.pos


@helper
def _start_before_end(arena: Arena, key: Any, at: int, reader: int) -> tuple[int, bool, bool]:
    """Start part `at` before the reader's end: look its fetch offset up in the log.

    Returns:
        The available bytes, or `_ON_OLDER_SEGMENT`; whether the fetch needs full checks; whether the first batch
        exceeds the partition's maximum.
    """
    part = part_at(arena, at)
    end, end_seg, end_pos = fetch_reads.reader_end(key, reader)
    batch = replica_state.batch_of(arena, key, part.offset)
    part.start_seg = replica_state.segment_of(arena, key, part.offset)
    part.start_pos = replica_state.start_of(batch_at(arena, batch))
    part.counted_bytes = fetch_index.available_bytes(part, end_pos)
    full_check = fetch_index.needs_full_check(part, end, end_seg, end_pos)
    if end == UNKNOWN or part.throttled != 0:
        return 0, full_check, False
    if part.start_seg < end_seg:
        return _ON_OLDER_SEGMENT, full_check, False
    found = max(0, part.counted_bytes) if part.start_seg == end_seg else 0
    return found, full_check, fetch_reads.first_batch_exceeds(arena, key, batch, part.size)


@inlined
def _min_bytes(fetch: Any) -> int:
    """Return the number of bytes that the fetch waits for.

    If this call has only some of the fetch's keys, the number is unreachable, so that the fetch does not complete here.
    """
    return _UNREACHABLE if fetch.split == PARTIAL else fetch.min_bytes


@helper
def _rule_for_error(error: int) -> int:
    if error == Error.FENCED_LEADER_EPOCH:
        return Rule.FENCED_EPOCH
    if error == Error.UNKNOWN_LEADER_EPOCH:
        return Rule.UNKNOWN_EPOCH
    return Rule.OFFSET_OUT_OF_RANGE if error == Error.OFFSET_OUT_OF_RANGE else rule_for_partition_error(error)


@inlined
def _evaluate(arena: Arena, o: int) -> tuple[int, int, int]:
    """Evaluate a waiting fetch.

    Returns:
        The rule that completes the fetch, or `PENDING`; the number of bytes that it misses; the part that forces its
        completion, or `NONE`.
    """
    operation = operation_at(arena, o)
    accumulated = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        if part.throttled == UNREAD:
            continue
        key = key_at(arena, part.key)
        if key.partition_error != Error.NONE:  # Cases A, B, E
            return rule_for_partition_error(key.partition_error), 0, at
        if part.epoch >= 0 and key.epoch != UNKNOWN and part.epoch < key.epoch:  # Case F
            return Rule.FENCED_EPOCH, 0, at
        end, end_seg, end_pos = fetch_reads.reader_end(key, operation.mode)
        if end == UNKNOWN:
            continue
        if part.offset > end:  # Case C
            return Rule.TRUNCATED, 0, at
        if part.throttled:
            continue
        if part.start_seg != end_seg:
            if part.start_seg < end_seg and part.offset != end:  # Case C
                return Rule.OLDER_SEGMENT, 0, at
            continue
        # Without a branch: whether a part has data is unpredictable.
        accumulated += min((end_pos - part.start_pos) * (part.offset != end), part.size)
    if accumulated >= _min_bytes(operation):  # Case D
        return Rule.MIN_BYTES, 0, NONE
    return Rule.PENDING, _min_bytes(operation) - accumulated, NONE


@inlined
def _complete(arena: Arena, o: int, rule: int, t: int, trigger: int, forced_by: int) -> None:
    engine_purgatory.finish(arena, o, rule, t, trigger)
    if forced_by != NONE:
        part_at(arena, forced_by).queue = FORCING


@inlined
def _update_counted(arena: Arena, k: int, reader: int, is_check: bool, t: int) -> None:
    """Subtract the growth of the reader's end from the missing bytes of the key's counted fetches.

    A fetch that misses no more bytes is completed if `is_check`. Otherwise the end has moved without a check; then the
    fetch gets full checks, so that the next check of any of its keys completes it.
    """
    _, _, end_pos = fetch_reads.reader_end(key_at(arena, k), reader)
    at = waiter_queues.first_in_list(arena, k, COUNTED_LISTS + reader)
    while at != NONE:
        part = part_at(arena, at)
        # The check can remove only this part from the list.
        following = waiter_queues.next_in_list(arena, at)
        available = fetch_index.available_bytes(part, end_pos)
        if available != part.counted_bytes and part.throttled == 0:
            operation = operation_at(arena, part.operation)
            operation.missing_bytes = max(0, operation.missing_bytes - (available - part.counted_bytes))
            part.counted_bytes = available
            if operation.missing_bytes == 0:
                if not is_check:
                    engine_purgatory.require_full_check(arena, part.operation)
                elif arena.check_order != NONE:
                    # Another key of the same event may force completion, and precede this one in the request.
                    _check_fetch(arena, at, t)
                else:
                    _complete(arena, part.operation, Rule.MIN_BYTES, t, at, NONE)
        at = following


@helper
def _check_fetch(arena: Arena, at: int, t: int) -> bool:
    """Evaluate the fetch of part `at`, and complete it or index it again. Return whether it is complete."""
    o = part_at(arena, at).operation
    rule, missing_bytes, forced_by = _evaluate(arena, o)
    if rule != Rule.PENDING:
        _complete(arena, o, rule, t, engine_purgatory.trigger_of(arena, o, at), forced_by)
        return True
    if not operation_at(arena, o).needs_full_check:
        fetch_index.requeue(arena, o, missing_bytes)
    return False


@helper
def set_throttle(arena: Arena, k: int, replica_id: int, throttled: int) -> None:
    """Set or clear a follower's replication throttle on the key. Waiting fetches see the change when next checked."""
    key = key_at(arena, k)
    node = find_node(arena, key.throttle_nodes, replica_id)
    if node == NONE:
        key.throttle_nodes = add_node(arena, key.throttle_nodes, replica_id, throttled)
        key.waiter_mask |= HAS_THROTTLES
    else:
        node_at(arena, node).value = throttled
    fetch_index.invalidate_waiters(arena, k, Reader.FOLLOWER)
    at = waiter_queues.first_in_list(arena, k, FULL_CHECK_LIST)
    while at != NONE:
        part = part_at(arena, at)
        operation = operation_at(arena, part.operation)
        if operation.mode == Reader.FOLLOWER and operation.replica_id == replica_id:
            part.throttled = throttled
        at = waiter_queues.next_in_list(arena, at)


@inlined
def on_lso_advance(arena: Arena, k: int) -> None:
    """Require full checks of the fetches that a higher last stable offset may complete.

    Kafka does not check any fetch when the last stable offset advances, so they complete at the next check of a key.
    """
    if key_at(arena, k).waiter_mask & _COMMITTED_READERS == 0:
        return
    _, _, end_pos = fetch_reads.reader_end(key_at(arena, k), Reader.COMMITTED)
    while _reaches_first(arena, k, Reader.COMMITTED, end_pos):
        engine_purgatory.require_full_check(
            arena, part_at(arena, waiter_queues.first_in_heap(arena, k, FETCH_HEAPS + Reader.COMMITTED)).operation
        )
    _update_counted(arena, k, Reader.COMMITTED, False, 0)


@inlined
def _reaches_first(arena: Arena, k: int, reader: int, end_pos: int) -> bool:
    """Return whether the end has reached the lowest threshold in the heap of this kind of reader."""
    first = waiter_queues.first_in_heap(arena, k, FETCH_HEAPS + reader)
    return first != NONE and part_at(arena, first).threshold <= end_pos


@inlined
def _check_readers(arena: Arena, k: int, reader: int, t: int) -> None:
    """Check the key's indexed fetches of one kind of reader. At least one of them must exist."""
    _, end_seg, end_pos = fetch_reads.reader_end(key_at(arena, k), reader)
    heap = FETCH_HEAPS + reader
    any_part = waiter_queues.first_in_heap(arena, k, heap)
    if any_part == NONE:
        any_part = waiter_queues.first_in_list(arena, k, COUNTED_LISTS + reader)
    if key_at(arena, k).roll_count > 0 and end_seg != part_at(arena, any_part).start_seg:
        fetch_index.invalidate_waiters(arena, k, reader)
    while _reaches_first(arena, k, reader, end_pos):
        _check_fetch(arena, waiter_queues.first_in_heap(arena, k, heap), t)
    _update_counted(arena, k, reader, True, t)


@inlined
def check(arena: Arena, k: int, t: int, moved: int) -> None:
    """Evaluate the fetches on the key that wait for the ends in the bit mask `moved`."""
    key = key_at(arena, k)
    if key.partition_error != Error.NONE:
        fetch_index.invalidate_all_waiters(arena, k)
    if key.waiter_mask & moved & _FOLLOWERS != 0:
        _check_readers(arena, k, Reader.FOLLOWER, t)
    if key.waiter_mask & moved & _CONSUMERS != 0:
        _check_readers(arena, k, Reader.CONSUMER, t)
    if key.waiter_mask & moved & _COMMITTED_READERS != 0:
        _check_readers(arena, k, Reader.COMMITTED, t)
    at = waiter_queues.first_in_list(arena, k, FULL_CHECK_LIST)
    while at != NONE:
        # The check can remove only this part from the list.
        following = waiter_queues.next_in_list(arena, at)
        _check_fetch(arena, at, t)
        at = following

"""Index of waiting fetches: an event checks only the fetches that it may complete.

Kafka evaluates every fetch on a key's watcher list at every check (`compiled_fetch`). Here a waiting fetch is indexed
in one of three ways:

- *By share.* The partitions of a fetch together miss some bytes. Before these are available, at least one partition
  must grow by its equal share. So each part is queued in its key's heap at the position that the end would then have.
  When an end reaches that position, the fetch is evaluated, and queued again with the bytes that it still misses. A
  fetch of one partition is evaluated exactly when it is complete.
- *Counted.* If the share of a fetch over several partitions is only a few batches, its parts are in plain lists, and
  each growth of a partition is subtracted from the fetch's `missing_bytes`.
- *Full check.* The other two assume that ends only grow, within one segment. Events that violate this, or make cases A,
  B, C, E or F of `compiled_fetch` possible, invalidate them: truncations, segment rolls, a new leader epoch, a high
  watermark that moves to the next segment, a last stable offset that rises without a check, an unknown end. From then
  on every check of any of its keys evaluates the whole fetch.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64
from purgatory_udf.rules.engine.loop import engine_purgatory, fetch_reads, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    COUNTED_LISTS,
    FETCH_HEAPS,
    NONE,
    ZERO,
    Arena,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Reader

_READERS = int64(len(Reader))
# Shares of fewer batches than this are counted: requeueing a fetch costs as much as counting that many batches.
_MIN_SHARED_BATCHES = 16


@inlined
def needs_full_check(part: Any, end: int, end_seg: int, end_pos: int) -> bool:
    """Return whether the growth of the reader's end is not enough to tell when the part has its bytes.

    That is so if the end is unknown or before the fetch offset, if it is on another segment than the fetch offset, if
    the two are equal but at different positions, and if the fetch names the key twice.

    Args:
        part: The fetch's part, with the segment and position of its offset.
        end: Offset of the reader's end.
        end_seg: Base offset of the segment that holds the end.
        end_pos: Position of the end in bytes.
    """
    moved = part.start_seg != end_seg or part.start_pos > end_pos
    stale_position = part.offset == end and part.start_pos != end_pos
    return end == UNKNOWN or part.offset > end or part.duplicate > 0 or moved or stale_position


@inlined
def available_bytes(part: Any, end_pos: int) -> int:
    """Return the bytes between the fetch offset and the reader's end, at most the partition's maximum."""
    return min(end_pos - part.start_pos, part.size)


@inlined
def _share(missing_bytes: int, sharing: int) -> int:
    """Divide the missing bytes evenly over the keys that can provide them, rounded up."""
    return -(-missing_bytes // max(1, sharing))


@inlined
def should_count(arena: Arena, count: int, missing_bytes: int, sharing: int) -> bool:
    """Return whether the fetch should be counted, given the average size of the batches appended in this call.

    A fetch of which this call has only some keys misses an unreachable number of bytes, and is never counted.

    Args:
        arena: The call's tables.
        count: Number of the fetch's parts.
        missing_bytes: Bytes that the fetch still misses.
        sharing: Number of keys that can provide them.
    """
    if count <= 1 or missing_bytes >= FOREVER // 2:
        return False
    return _share(missing_bytes, sharing) * arena.append_count < _MIN_SHARED_BATCHES * arena.append_bytes


@inlined
def enqueue(arena: Arena, o: int, missing_bytes: int, full_check: bool, counted: bool, sharing: int) -> None:
    """Index a waiting fetch.

    Args:
        arena: The call's tables.
        o: The fetch.
        missing_bytes: Bytes that it still misses.
        full_check: Whether every check must evaluate it.
        counted: Whether it is counted; then its parts are in their lists already.
        sharing: Number of keys that can provide the missing bytes.
    """
    if full_check:
        engine_purgatory.require_full_check(arena, o)
    elif counted:
        operation_at(arena, o).missing_bytes = missing_bytes
    else:
        _enqueue_by_share(arena, o, missing_bytes, _share(missing_bytes, sharing))


@inlined
def requeue(arena: Arena, o: int, missing_bytes: int) -> None:
    """Index a waiting fetch again after an evaluation that did not complete it, from the current ends of its keys."""
    operation = operation_at(arena, o)
    sharing = ZERO
    full_check = False
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        waiter_queues.dequeue(arena, at, key)
        end, end_seg, end_pos = fetch_reads.reader_end(key, operation.mode)
        part.counted_bytes = available_bytes(part, end_pos)
        full_check |= needs_full_check(part, end, end_seg, end_pos)
        sharing += 1 - part.throttled
    counted = not full_check and should_count(arena, operation.count, missing_bytes, sharing)
    if counted:
        # Parts that have their maximum or are throttled gain nothing, but must be found by `invalidate_waiters`.
        for at in range(operation.first, operation.first + operation.count):
            k = part_at(arena, at).key
            waiter_queues.push_to_list(arena, k, key_at(arena, k), at, COUNTED_LISTS + operation.mode)
    enqueue(arena, o, missing_bytes, full_check, counted, sharing)


@inlined
def _enqueue_by_share(arena: Arena, o: int, missing_bytes: int, share: int) -> None:
    """Queue every part at the position up to which its key may grow before the fetch is evaluated again."""
    operation = operation_at(arena, o)
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        _, _, end_pos = fetch_reads.reader_end(key_at(arena, part.key), operation.mode)
        threshold = end_pos + share
        if (
            part.throttled
            or missing_bytes >= FOREVER // 2
            or (operation.total == 1 and part.size < operation.min_bytes)
        ):
            threshold = FOREVER
        waiter_queues.push_to_heap(arena, at, FETCH_HEAPS + operation.mode, threshold)


@helper
def invalidate_waiters(arena: Arena, k: int, reader: int) -> None:
    """Require full checks of all fetches that wait on the key and have this kind of reader."""
    while waiter_queues.first_in_heap(arena, k, FETCH_HEAPS + reader) != NONE:
        engine_purgatory.require_full_check(
            arena, part_at(arena, waiter_queues.first_in_heap(arena, k, FETCH_HEAPS + reader)).operation
        )
    while waiter_queues.first_in_list(arena, k, COUNTED_LISTS + reader) != NONE:
        engine_purgatory.require_full_check(
            arena, part_at(arena, waiter_queues.first_in_list(arena, k, COUNTED_LISTS + reader)).operation
        )


@helper
def invalidate_all_waiters(arena: Arena, k: int) -> None:
    """Require full checks of every fetch that waits on the key."""
    for reader in range(_READERS):
        invalidate_waiters(arena, k, reader)

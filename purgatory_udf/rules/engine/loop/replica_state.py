"""A replica as its broker sees it: log, watermarks, leader, in-sync set and followers.

The log is represented by the end offsets and positions of its batches, and the base offsets of its segments. A record
of `batches` may stand for several adjacent batches that have been merged (`state_layout`); then all bits of its start
position are inverted. The last batch of a log is followed by a sentinel that starts at the log end and never ends, so a
search need not test for the end of the log. `rules.reference.partition` is the readable version.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64
from purgatory_udf.rules.engine.loop.arena import (
    ISR_KNOWN,
    NONE,
    Arena,
    batch_at,
    member_at,
    node_at,
    prefetch_batch,
    roll_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN

# The sentinel's end offset.
SENTINEL_END = int64(2**63 - 1)

# Prefetch distance of appends, in batches.
_BATCHES_AHEAD = 3


@inlined
def start_of(batch: Any) -> int:
    """Return the position of the batch's first byte."""
    return batch.encoded_start ^ (batch.encoded_start >> 63)


@inlined
def encode_start(pos: int, single_batch: int) -> int:
    """Encode the start position of a batch. It is inverted if the record may stand for several batches."""
    return pos ^ (single_batch - 1)


@inlined
def size_of(arena: Arena, at: int) -> int:
    """Return the size in bytes of the batch in row `at`; 0 if the row may stand for several batches."""
    batch = batch_at(arena, at)
    if batch.encoded_start < 0:
        return 0
    return start_of(batch_at(arena, at + 1)) - batch.encoded_start


@helper
def batch_of(arena: Arena, key: Any, offset: int) -> int:
    """Return the row of the first batch that ends beyond the offset. From the log end on, it is the sentinel."""
    first = low = key.batch_begin
    high = first + key.end_batch
    # Most reads are near the log end: search backwards from there in steps that double.
    back = 1
    while high - first >= back:
        if batch_at(arena, high - back).end <= offset:
            low = high - back + 1
            break
        high -= back
        back *= 2
    while low < high:
        middle = (low + high) // 2
        if batch_at(arena, middle).end <= offset:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def position_of(arena: Arena, key: Any, offset: int) -> int:
    """Return the start position of the batch that holds the offset. From the log end on, it is the end's position."""
    return start_of(batch_at(arena, batch_of(arena, key, offset)))


@inlined
def count_batches_until(arena: Arena, key: Any, below: int, offset: int) -> int:
    """Return the number of the log's batches that end at or before the offset.

    `below` is a lower bound of that number, from which the search starts, or `NONE`.
    """
    if below == NONE:
        return batch_of(arena, key, offset) - key.batch_begin
    while batch_at(arena, key.batch_begin + below).end <= offset and below < key.end_batch:
        below += 1
    return below


@inlined
def last_roll(arena: Arena, key: Any, offset: int) -> int:
    """Return the row of the last segment roll at or before the offset, or the row before the log's first."""
    at = key.roll_begin + key.roll_count - 1
    while at >= key.roll_begin and roll_at(arena, at).base > offset:
        at -= 1
    return at


@inlined
def segment_of(arena: Arena, key: Any, offset: int) -> int:
    """Return the base offset of the segment that holds the offset, 0 before the first known roll."""
    if key.roll_count == 0:
        return 0
    at = last_roll(arena, key, offset)
    return roll_at(arena, at).base if at >= key.roll_begin else 0


@inlined
def append(arena: Arena, key: Any, end: int, size: int, single_batch: int) -> bool:
    """Append `size` bytes up to the offset `end`. They are one batch if `single_batch`, otherwise possibly several.

    Return False if the log already reaches the offset.
    """
    if key.end == UNKNOWN:
        arena.disruptions += 1
    elif end <= key.end:
        return False
    at = key.batch_begin + key.end_batch
    batch = batch_at(arena, at)
    batch.end, batch.encoded_start = end, encode_start(key.end_pos, single_batch)
    prefetch_batch(arena, at + _BATCHES_AHEAD)
    arena.append_count += 1
    arena.append_bytes += size
    key.end_batch += 1
    key.end_pos += size
    sentinel = batch_at(arena, at + 1)
    sentinel.end, sentinel.encoded_start = SENTINEL_END, encode_start(key.end_pos, 0)
    key.end = end
    key.end_seg = segment_of(arena, key, end)
    return True


@helper
def roll(arena: Arena, key: Any, base: int) -> bool:
    """Roll a new segment at offset `base`. A log end at that offset moves to it. Return False if it is not new."""
    last = roll_at(arena, key.roll_begin + key.roll_count - 1).base if key.roll_count > 0 else 0
    if base <= last:
        return False
    roll_at(arena, key.roll_begin + key.roll_count).base = base
    key.roll_count += 1
    if key.end != UNKNOWN:
        key.end_seg = segment_of(arena, key, key.end)
    return True


@helper
def truncate(arena: Arena, key: Any, offset: int) -> bool:
    """Truncate the log to the offset, and remove the batch that holds it.

    Return False if that removes nothing.
    """
    if key.end == UNKNOWN or offset >= key.end:
        return False
    at = batch_of(arena, key, offset)
    sentinel = batch_at(arena, at)
    key.end_pos = start_of(sentinel)
    sentinel.end, sentinel.encoded_start = SENTINEL_END, encode_start(key.end_pos, 0)
    key.end_batch = at - key.batch_begin
    while key.roll_count > 0 and roll_at(arena, key.roll_begin + key.roll_count - 1).base > offset:
        key.roll_count -= 1
    key.end = offset
    key.end_seg = segment_of(arena, key, offset)
    return True


@inlined
def under_min_isr(key: Any) -> bool:
    """Return whether the in-sync set is known to be smaller than min.insync.replicas."""
    return key.isr_count >= 0 and key.min_isr != UNKNOWN and key.isr_count < key.min_isr


@inlined
def find_node(arena: Arena, first: int, node_id: int) -> int:
    """Return the node with this id in the list that starts at `first`, or `NONE`."""
    node = first
    while node != NONE and node_at(arena, node).id != node_id:
        node = node_at(arena, node).next
    return node


@inlined
def add_node(arena: Arena, first: int, node_id: int, value: int) -> int:
    """Prepend a node to the list that starts at `first`, and return its row: the new head of the list."""
    at = arena.nodes
    arena.nodes += 1
    node = node_at(arena, at)
    node.id, node.value, node.next = node_id, value, first
    return at


@inlined
def set_high_watermark(arena: Arena, key: Any, offset: int) -> None:
    """Move the high watermark to the offset, with the segment and position that the log has for it now."""
    key.hw_batch = count_batches_until(arena, key, key.hw_batch if offset >= key.hw else NONE, offset)
    key.hw = offset
    key.hw_seg = segment_of(arena, key, offset)
    key.hw_pos = start_of(batch_at(arena, key.batch_begin + key.hw_batch))
    if key.lso_known == 0:
        key.lso, key.lso_seg, key.lso_pos, key.lso_batch = key.hw, key.hw_seg, key.hw_pos, key.hw_batch


@inlined
def set_last_stable(arena: Arena, key: Any, offset: int) -> None:
    """Move the last stable offset, with the segment and position that the log has for it now."""
    key.lso_batch = count_batches_until(arena, key, key.lso_batch if offset >= key.lso else NONE, offset)
    key.lso = offset
    key.lso_seg = segment_of(arena, key, offset)
    key.lso_pos = start_of(batch_at(arena, key.batch_begin + key.lso_batch))


@inlined
def advance_high_watermark(arena: Arena, key: Any) -> bool:
    """Raise the high watermark to the lowest log end of the in-sync replicas, if every one is known."""
    return key.waiter_mask & ISR_KNOWN != 0 and _advance_high_watermark(arena, key)


@helper
def _advance_high_watermark(arena: Arena, key: Any) -> bool:
    """Do the same as `advance_high_watermark`, for a key with a known in-sync set.

    From Kafka 3.7 on the high watermark does not advance while the in-sync set is smaller than min.insync.replicas.
    """
    if key.end == UNKNOWN or under_min_isr(key):
        return False
    lowest_end = key.end
    for at in range(key.isr_begin, key.isr_begin + key.isr_count):
        member = member_at(arena, at).replica
        if member != key.broker:
            node = find_node(arena, key.nodes, member)
            if node == NONE:
                return False
            lowest_end = min(lowest_end, node_at(arena, node).value)
    if key.hw != UNKNOWN and lowest_end <= key.hw:
        return False
    set_high_watermark(arena, key, lowest_end)
    return True


@inlined
def update_follower(arena: Arena, key: Any, node_id: int, offset: int) -> bool:
    """Record that a follower's log reaches the offset; return whether that raised the high watermark."""
    if key.partition_error != 0:
        return False
    node = find_node(arena, key.nodes, node_id)
    if node == NONE:
        key.nodes = add_node(arena, key.nodes, node_id, offset)
        return advance_high_watermark(arena, key)
    follower = node_at(arena, node)
    moved = follower.value < offset
    follower.value = max(follower.value, offset)
    # `moved` is unpredictable, so it is tested last. Without it, the high watermark has been advanced as far as
    # possible.
    return key.waiter_mask & ISR_KNOWN != 0 and moved and _advance_high_watermark(arena, key)

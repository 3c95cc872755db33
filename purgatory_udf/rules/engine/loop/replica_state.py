"""A replica as its broker sees it: watermarks, leader, in-sync set, followers (see `rules.reference.partition`)."""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined
from purgatory_udf.rules.engine.loop import replica_log
from purgatory_udf.rules.engine.loop.arena import ISR_KNOWN, NONE, Arena, batch_at, member_at, node_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN


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
    key.hw_batch = replica_log.count_batches_until(arena, key, key.hw_batch if offset >= key.hw else NONE, offset)
    key.hw = offset
    key.hw_seg = replica_log.segment_of(arena, key, offset)
    key.hw_pos = replica_log.start_of(batch_at(arena, key.batch_begin + key.hw_batch))
    if key.lso_known == 0:
        key.lso, key.lso_seg, key.lso_pos, key.lso_batch = key.hw, key.hw_seg, key.hw_pos, key.hw_batch


@inlined
def set_last_stable(arena: Arena, key: Any, offset: int) -> None:
    """Move the last stable offset, with the segment and position that the log has for it now."""
    key.lso_batch = replica_log.count_batches_until(arena, key, key.lso_batch if offset >= key.lso else NONE, offset)
    key.lso = offset
    key.lso_seg = replica_log.segment_of(arena, key, offset)
    key.lso_pos = replica_log.start_of(batch_at(arena, key.batch_begin + key.lso_batch))


@inlined
def advance_high_watermark(arena: Arena, key: Any) -> bool:
    """Raise the high watermark to the lowest log end of the in-sync replicas, if every one is known."""
    return key.waiter_mask & ISR_KNOWN != 0 and _advance_high_watermark(arena, key)


@helper
def _advance_high_watermark(arena: Arena, key: Any) -> bool:
    """As `advance_high_watermark`, if the in-sync set is known.

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
    """Note that a follower's log reaches the offset; return whether that raised the high watermark."""
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

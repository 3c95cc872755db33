"""A replica as its broker sees it: watermarks, leader, in-sync set, followers (see `reference.partition`)."""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, rule
from purgatory_udf.rules.engine.loop import replica_log
from purgatory_udf.rules.engine.loop.arena import IN_SYNC, NONE, World, batch_at, member_at, node_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN


@inlined
def under_min_isr(key: Any) -> bool:
    return key.isr_count >= 0 and key.min_isr != UNKNOWN and key.isr_count < key.min_isr


@inlined
def node_of(w: World, first: int, who: int) -> int:
    """The node of a short list that stands for `who`."""
    node = first
    while node != NONE and node_at(w, node).who != who:
        node = node_at(w, node).next
    return node


@inlined
def new_node(w: World, first: int, who: int, value: int) -> int:
    at = w.nodes
    w.nodes += 1
    node = node_at(w, at)
    node.who, node.value, node.next = who, value, first
    return at


@inlined
def take_watermark(w: World, key: Any, offset: int) -> None:
    """The high watermark, with the segment and position that it has now."""
    key.hw_batch = replica_log.further(w, key, key.hw_batch if offset >= key.hw else NONE, offset)
    key.hw = offset
    key.hw_seg = replica_log.segment(w, key, offset)
    key.hw_pos = replica_log.begins(batch_at(w, key.batch_begin + key.hw_batch))
    if key.lso_own == 0:
        key.lso, key.lso_seg, key.lso_pos, key.lso_batch = key.hw, key.hw_seg, key.hw_pos, key.hw_batch


@inlined
def take_last_stable(w: World, key: Any, offset: int) -> None:
    key.lso_batch = replica_log.further(w, key, key.lso_batch if offset >= key.lso else NONE, offset)
    key.lso = offset
    key.lso_seg = replica_log.segment(w, key, offset)
    key.lso_pos = replica_log.begins(batch_at(w, key.batch_begin + key.lso_batch))


@inlined
def advance_watermark(w: World, key: Any) -> bool:
    """Up to the least log end over the in-sync replicas, where all of these are known."""
    return key.hung & IN_SYNC != 0 and _advance_watermark(w, key)


@rule
def _advance_watermark(w: World, key: Any) -> bool:
    """From Kafka 3.7 on it stands still while the in-sync set is smaller than `min.insync.replicas`."""
    if key.end == UNKNOWN or under_min_isr(key):
        return False
    least = key.end
    for at in range(key.isr_begin, key.isr_begin + key.isr_count):
        member = member_at(w, at).replica
        if member != key.broker:
            node = node_of(w, key.nodes, member)
            if node == NONE:
                return False
            least = min(least, node_at(w, node).value)
    if key.hw != UNKNOWN and least <= key.hw:
        return False
    take_watermark(w, key, least)
    return True


@inlined
def follower_reached(w: World, key: Any, who: int, offset: int) -> bool:
    """A follower's log ends at the offset at least; whether that raised the high watermark."""
    if key.standing != 0:
        return False
    node = node_of(w, key.nodes, who)
    if node == NONE:
        key.nodes = new_node(w, key.nodes, who, offset)
        return advance_watermark(w, key)
    follower = node_at(w, node)
    moved = follower.value < offset
    follower.value = max(follower.value, offset)
    # Whether this has moved cannot be foreseen, so it is asked last. If not: the watermark has been looked at since the
    # last time that anything was moved.
    return key.hung & IN_SYNC != 0 and moved and _advance_watermark(w, key)

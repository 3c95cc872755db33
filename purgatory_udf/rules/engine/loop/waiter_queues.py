"""The queues of a key: waiting parts, indexed by the event that can complete their operation.

Most parts wait for an offset or position, their `threshold`. A key has a pairing heap for each kind of end that parts
may wait for (see `arena`). When an end moves, only parts with a threshold up to its new value are released; no other
part is touched.

    heap_roots[key, kind] ──► part ──child──► part ──next──► part        prev: the previous sibling, or the parent

Parts that every check of their key must visit (counted fetches, and fetches that need full checks) are in doubly linked
rings instead. The root of a ring is a row of `queue_links` behind those of the parts:

    root ⇄ part ⇄ part ⇄ root

An ended operation's parts are unlinked at once. Unlinking them lazily, as Kafka does, was slower: fewer instructions,
but a chain of dependent loads.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64
from purgatory_udf.rules.engine.loop.arena import (
    BIT,
    COUNTED_LISTS,
    HEAP_STRIDE,
    LIST_COUNT,
    NONE,
    Arena,
    key_at,
    link_at,
    part_at,
    root_at,
)


@inlined
def _list_root(arena: Arena, k: int, kind: int) -> int:
    """Return the row of the list's root in `queue_links`."""
    return arena.parts_capacity + k * LIST_COUNT + kind - COUNTED_LISTS


@inlined
def push_to_list(arena: Arena, k: int, key: Any, at: int, kind: int) -> None:
    """Insert the part at the front of the key's list of this kind."""
    part_at(arena, at).queue = kind
    root_row = _list_root(arena, k, kind)
    root = link_at(arena, root_row)
    link, following = link_at(arena, at), root.next
    link.prev, link.next = root_row, following
    link_at(arena, following).prev = at
    root.next = at
    key.waiter_mask |= BIT << kind


@inlined
def _unlink(arena: Arena, at: int, key: Any, kind: int) -> None:
    link = link_at(arena, at)
    before, following = link.prev, link.next
    link_at(arena, before).next = following
    link_at(arena, following).prev = before
    # The last part of a list has the root on both sides.
    key.waiter_mask &= ~(BIT * (before == following) << kind)


@inlined
def first_in_list(arena: Arena, k: int, kind: int) -> int:
    """Return the first part of the list, or `NONE`."""
    return next_in_list(arena, _list_root(arena, k, kind))


@inlined
def next_in_list(arena: Arena, at: int) -> int:
    """Return the part after part `at` in its list, or `NONE`."""
    following = link_at(arena, at).next
    return following if following < arena.parts_capacity else NONE


@inlined
def _meld(arena: Arena, left: int, right: int) -> int:
    """Merge two heaps, given by their roots: the one with the greater threshold becomes the other's first child."""
    if left == NONE:
        return right
    if right == NONE:
        return left
    if part_at(arena, right).threshold < part_at(arena, left).threshold:
        left, right = right, left
    below = link_at(arena, right)
    child = part_at(arena, left).child
    below.prev, below.next = left, child
    if child != NONE:
        link_at(arena, child).prev = right
    part_at(arena, left).child = right
    return left


@helper
def _merge_siblings(arena: Arena, first: int) -> int:
    """Merge a list of siblings into one heap: first neighbouring pairs from the left, then these from the right."""
    pairs = NONE
    while first != NONE:
        second = link_at(arena, first).next
        rest = NONE
        link_at(arena, first).next = NONE
        if second != NONE:
            rest = link_at(arena, second).next
            link_at(arena, second).next = NONE
        pair = _meld(arena, first, second)
        link_at(arena, pair).next = pairs
        pairs = pair
        first = rest
    root = NONE
    while pairs != NONE:
        rest = link_at(arena, pairs).next
        link_at(arena, pairs).next = NONE
        root = _meld(arena, root, pairs)
        pairs = rest
    if root != NONE:
        link_at(arena, root).prev = NONE
        link_at(arena, root).next = NONE
    return root


@inlined
def first_in_heap(arena: Arena, k: int, kind: int) -> int:
    """Return the part with the lowest threshold, or `NONE`."""
    return int64(root_at(arena, k * HEAP_STRIDE + kind).part)


@inlined
def push_to_heap(arena: Arena, at: int, kind: int, threshold: int) -> None:
    """Insert the part into its key's heap of this kind."""
    part, link = part_at(arena, at), link_at(arena, at)
    part.threshold, part.queue = threshold, kind
    part.child = link.next = link.prev = NONE
    root = root_at(arena, part.key * HEAP_STRIDE + kind)
    root.part = _meld(arena, root.part, at)
    key_at(arena, part.key).waiter_mask |= BIT << kind


@inlined
def pop_heap(arena: Arena, k: int, kind: int) -> int:
    """Remove the part with the lowest threshold from a heap that is not empty, and return it."""
    root, key = root_at(arena, k * HEAP_STRIDE + kind), key_at(arena, k)
    first = root.part
    part = part_at(arena, first)
    part.queue = NONE
    below = part.child
    if below != NONE:
        below = _merge_siblings(arena, below)
        part.child = NONE
    root.part = below
    key.waiter_mask &= ~(BIT * (below == NONE) << kind)
    return first


@inlined
def dequeue(arena: Arena, at: int, key: Any) -> None:
    """Remove the part from its queue, if it is in one."""
    part = part_at(arena, at)
    kind = part.queue
    if kind >= COUNTED_LISTS:
        part.queue = NONE
        _unlink(arena, at, key, kind)
    elif kind > NONE:
        _remove_from_heap(arena, int64(at), int64(kind))


@helper
def _remove_from_heap(arena: Arena, at: int, kind: int) -> None:
    part, link = part_at(arena, at), link_at(arena, at)
    part.queue = NONE
    root = root_at(arena, part.key * HEAP_STRIDE + kind)
    below = _merge_siblings(arena, part.child)
    part.child = NONE
    if root.part == at:
        root.part = below
    else:
        before = part_at(arena, link.prev)
        if before.child == at:
            before.child = link.next
        else:
            link_at(arena, link.prev).next = link.next
        if link.next != NONE:
            link_at(arena, link.next).prev = link.prev
        root.part = _meld(arena, root.part, below)
    if root.part == NONE:
        key_at(arena, part.key).waiter_mask &= ~(BIT << kind)

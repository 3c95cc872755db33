"""The parts that wait on a key, by what they wait for: a pairing heap for each kind of watermark (see `world.HEAPS`).

An event moves a watermark, and gives up the parts with `wants` at or below it; nobody else is touched. A part that
ends otherwise is taken out from wherever it is. Parts that every event must look at are in plain lists (`listed`).

    roots[key, kind] ──► part ──child──► part ──next──► part        prev: the sibling before, or the parent
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop.arena import (
    BIT,
    COUNTED,
    HEAPS,
    LISTS,
    NONE,
    World,
    key_at,
    link_at,
    part_at,
    root_at,
)

# The parts that every event of their key must look at, in plain lists: those that are counted, and the odd ones.
#
#     root ⇄ part ⇄ part ⇄ root        a ring, its root one of the links: so nobody has to ask whether it is at an end
#
# Who ends is taken out at once. To leave it for whoever comes by next, as Kafka does, was tried: fewer instructions,
# but each waits for the one before, where an operation's parts are taken out of many lists side by side.


@inlined
def _root(w: World, k: int, kind: int) -> int:
    """Roots lie behind the links of parts."""
    return w.parts_room + k * LISTS + kind - COUNTED


@inlined
def append_to_list(w: World, k: int, key: Any, p: int, kind: int) -> None:
    """To the front of its key's list of this kind."""
    part_at(w, p).heap = kind
    at = _root(w, k, kind)
    root = link_at(w, at)
    link, following = link_at(w, p), root.next
    link.prev, link.next = at, following
    link_at(w, following).prev = p
    root.next = p
    key.hung |= BIT << kind


@inlined
def remove_from_list(w: World, p: int, key: Any, kind: int) -> None:
    link = link_at(w, p)
    before, following = link.prev, link.next
    link_at(w, before).next = following
    link_at(w, following).prev = before
    # Nobody but the root lies on both sides of the last one.
    key.hung &= ~(BIT * (before == following) << kind)


@inlined
def first_in_list(w: World, k: int, kind: int) -> int:
    return next_in_list(w, _root(w, k, kind))


@inlined
def next_in_list(w: World, p: int) -> int:
    """Who follows in the list, if anybody does."""
    following = link_at(w, p).next
    return following if following < w.parts_room else NONE


@inlined
def _meld(w: World, left: int, right: int) -> int:
    """Two heaps as one: the greater root becomes the first child of the smaller."""
    if left == NONE:
        return right
    if right == NONE:
        return left
    if part_at(w, right).wants < part_at(w, left).wants:
        left, right = right, left
    below = link_at(w, right)
    child = part_at(w, left).child
    below.prev, below.next = left, child
    if child != NONE:
        link_at(w, child).prev = right
    part_at(w, left).child = right
    return left


@rule
def _merged(w: World, first: int) -> int:
    """Siblings as one heap: in pairs from the left, then all pairs from the right."""
    pairs = NONE
    while first != NONE:
        second = link_at(w, first).next
        rest = NONE
        link_at(w, first).next = NONE
        if second != NONE:
            rest = link_at(w, second).next
            link_at(w, second).next = NONE
        pair = _meld(w, first, second)
        link_at(w, pair).next = pairs
        pairs = pair
        first = rest
    root = NONE
    while pairs != NONE:
        rest = link_at(w, pairs).next
        link_at(w, pairs).next = NONE
        root = _meld(w, root, pairs)
        pairs = rest
    if root != NONE:
        link_at(w, root).prev = NONE
        link_at(w, root).next = NONE
    return root


@inlined
def first_in_heap(w: World, k: int, kind: int) -> int:
    """Of a heap the part that wants least."""
    return number(root_at(w, k * HEAPS + kind).part)


@inlined
def push_to_heap(w: World, p: int, kind: int, wants: int) -> None:
    part, link = part_at(w, p), link_at(w, p)
    part.wants, part.heap = wants, kind
    part.child = link.next = link.prev = NONE
    root = root_at(w, part.key * HEAPS + kind)
    root.part = _meld(w, root.part, p)
    key_at(w, part.key).hung |= BIT << kind


@inlined
def take_first_in_heap(w: World, k: int, kind: int) -> int:
    """Out of a heap that has somebody: the part that wants least."""
    root, key = root_at(w, k * HEAPS + kind), key_at(w, k)
    first = root.part
    part = part_at(w, first)
    part.heap = NONE
    below = part.child
    if below != NONE:
        below = _merged(w, below)
        part.child = NONE
    root.part = below
    key.hung &= ~(BIT * (below == NONE) << kind)
    return first


@inlined
def remove_from_heap(w: World, p: int, key: Any) -> None:
    """Out of whichever of its key's heaps and lists it is in; nothing if it is in none."""
    part = part_at(w, p)
    kind = part.heap
    if kind >= COUNTED:
        part.heap = NONE
        remove_from_list(w, p, key, kind)
    elif kind > NONE:
        _remove(w, number(p), number(kind))


@rule
def _remove(w: World, p: int, kind: int) -> None:
    part, link = part_at(w, p), link_at(w, p)
    part.heap = NONE
    root = root_at(w, part.key * HEAPS + kind)
    below = _merged(w, part.child)
    part.child = NONE
    if root.part == p:
        root.part = below
    else:
        before = part_at(w, link.prev)
        if before.child == p:
            before.child = link.next
        else:
            link_at(w, link.prev).next = link.next
        if link.next != NONE:
            link_at(w, link.next).prev = link.prev
        root.part = _meld(w, root.part, below)
    if root.part == NONE:
        key_at(w, part.key).hung &= ~(BIT << kind)

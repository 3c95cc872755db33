"""The parts that wait on a key, by what they wait for: a pairing heap for each kind of watermark (see `world.HEAPS`).

An event moves a watermark, and gives up the parts with `wants` at or below it; nobody else is touched. A part that
ends otherwise is taken out from wherever it is. Parts that every event must look at are in plain lists (`listed`).

    roots[key, kind] ──► part ──child──► part ──next──► part        prev: the sibling before, or the parent
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.compiling.compiled import inlined, number, rule
from purgatory_udf.loop import listed
from purgatory_udf.loop.tables import World, key_at, link_at, part_at, root_at
from purgatory_udf.loop.world import BIT, COUNTED, HEAPS, NONE


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
def first_of(w: World, k: int, kind: int) -> int:
    """Of a heap the part that wants least."""
    return number(root_at(w, k * HEAPS + kind).part)


@inlined
def push(w: World, p: int, kind: int, wants: int) -> None:
    part, link = part_at(w, p), link_at(w, p)
    part.wants, part.heap = wants, kind
    part.child = link.next = link.prev = NONE
    root = root_at(w, part.key * HEAPS + kind)
    root.part = _meld(w, root.part, p)
    key_at(w, part.key).hung |= BIT << kind


@inlined
def take_first(w: World, k: int, kind: int) -> int:
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
def remove(w: World, p: int, key: Any) -> None:
    """Out of whichever of its key's heaps and lists it is in; nothing if it is in none."""
    part = part_at(w, p)
    kind = part.heap
    if kind >= COUNTED:
        part.heap = NONE
        listed.remove(w, p, key, kind)
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

"""The parts that every event of their key must look at, in plain lists: those that are counted, and the odd ones.

    root ⇄ part ⇄ part ⇄ root        a ring, its root one of the links: so nobody has to ask whether it is at an end

Who ends is taken out at once. To leave it for whoever comes by next, as Kafka does, was tried: fewer instructions, but
each waits for the one before, where an operation's parts are taken out of many lists side by side.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.compiling.compiled import inlined
from purgatory_udf.loop.tables import World, link_at, part_at
from purgatory_udf.loop.world import BIT, COUNTED, LISTS, NONE


@inlined
def _root(w: World, k: int, kind: int) -> int:
    """Roots lie behind the links of parts."""
    return w.parts_room + k * LISTS + kind - COUNTED


@inlined
def push(w: World, k: int, key: Any, p: int, kind: int) -> None:
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
def remove(w: World, p: int, key: Any, kind: int) -> None:
    link = link_at(w, p)
    before, following = link.prev, link.next
    link_at(w, before).next = following
    link_at(w, following).prev = before
    # Nobody but the root lies on both sides of the last one.
    key.hung &= ~(BIT * (before == following) << kind)


@inlined
def first_of(w: World, k: int, kind: int) -> int:
    return after(w, _root(w, k, kind))


@inlined
def after(w: World, p: int) -> int:
    """Who follows in the list, if anybody does."""
    following = link_at(w, p).next
    return following if following < w.parts_room else NONE

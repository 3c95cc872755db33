"""The parts that every event of their key must look at, in plain lists: those that are counted, and the odd ones.

Who ends is taken out at once. To leave it for whoever comes by next, as Kafka does, was tried: fewer instructions, but
each waits for the one before, where an operation's parts are taken out of many lists side by side.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import inlined
from purgatory_udf.loop.tables import World, key_at, part_at, root_at
from purgatory_udf.loop.world import HEAPS, NONE


@inlined
def push(w: World, p: int, kind: int) -> None:
    """To the front of its key's list of this kind."""
    part = part_at(w, p)
    root = root_at(w, part.key * HEAPS + kind)
    part.heap, part.prev, part.next = kind, NONE, root.part
    if root.part != NONE:
        part_at(w, root.part).prev = p
    root.part = p
    key_at(w, part.key).hung |= 1 << kind


@inlined
def remove(w: World, part: Any, kind: int) -> None:
    if part.prev == NONE:
        root_at(w, part.key * HEAPS + kind).part = part.next
        if part.next == NONE:
            key_at(w, part.key).hung &= ~(1 << kind)
    else:
        part_at(w, part.prev).next = part.next
    if part.next != NONE:
        part_at(w, part.next).prev = part.prev

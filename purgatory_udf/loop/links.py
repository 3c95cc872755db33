"""Heaps, lists and wheels are links between records. What waits between calls keeps its place, but not its links."""

from __future__ import annotations

import numpy as np

from purgatory_udf.compiling.compiled import entry
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop import heap, listed, timer
from purgatory_udf.loop import purgatory as lists
from purgatory_udf.loop.tables import key_at, operation_at, part_at
from purgatory_udf.loop.words import Code
from purgatory_udf.loop.world import COUNTED, NONE


def no_neighbours(rows: Records, begin: int) -> None:
    """From there on they are the roots of rings, and nobody is in these."""
    roots = rows[begin:]
    roots["prev"] = roots["next"] = np.arange(begin, len(rows))


@entry
def link(world: Records) -> None:
    """Hang every part and every operation where its record says that it was; keys know their broker's purgatories."""
    w = world[0]
    for k in range(w.keys_room):
        key = key_at(w, k)
        key.produces = lists.purgatory_of(w, key.broker, Code.PRODUCE)
        key.fetches = lists.purgatory_of(w, key.broker, Code.FETCH)
    for p in range(w.parts):
        part = part_at(w, p)
        if part.heap > NONE:
            if part.heap >= COUNTED:
                listed.push(w, part.key, key_at(w, part.key), p, part.heap)
            else:
                heap.push(w, p, part.heap, part.wants)
    for o in range(w.operations):
        operation = operation_at(w, o)
        operation.upheavals = operation.settled_by = NONE
        # Between calls of the loop nothing is due: every open operation is in its timer. Not so in a group's world.
        if operation.bucket != NONE:  # pragma: no branch
            timer.enter(w, timer.root_of(w, operation.purgatory, operation.bucket), o)

"""Heaps, lists and wheels are links between records. What waits between calls keeps its place, but not its links."""

from __future__ import annotations

from purgatory_udf.loop import heap, listed
from purgatory_udf.loop.compiled import entry
from purgatory_udf.loop.tables import operation_at, part_at, wheel_at
from purgatory_udf.loop.world import COUNTED, NONE, TIMER, Records


@entry
def link(world: Records) -> None:
    """Hang every part and every operation where its record says that it was."""
    w = world[0]
    for p in range(w.parts):
        part = part_at(w, p)
        if part.heap != NONE:
            if part.heap >= COUNTED:
                listed.push(w, p, part.heap)
            else:
                heap.push(w, p, part.heap, part.wants)
    for o in range(w.operations):
        operation = operation_at(w, o)
        operation.upheavals = NONE
        # Between calls of the loop nothing is due: every open operation is in its timer. Not so in a group's world.
        if operation.bucket != NONE:  # pragma: no branch
            bucket = operation.purgatory * TIMER + operation.bucket
            first = wheel_at(w, bucket).first
            operation.prev, operation.next = NONE, first
            if first != NONE:
                operation_at(w, first).prev = o
            wheel_at(w, bucket).first = o

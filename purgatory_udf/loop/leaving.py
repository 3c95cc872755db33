"""After a call: what has ended, by arrival; what is open stays, as it came, and its parts lie together again."""

from __future__ import annotations

from purgatory_udf.loop.compiled import entry
from purgatory_udf.loop.tables import copy_rows
from purgatory_udf.loop.world import ENDED, NONE, Records


@entry
def by_arrival(ended: Records, there: Records, places: Records) -> None:
    """`places` (out): of operations that ended, as they came, for so they lie; and one more. `there`: nothing yet."""
    for nth in range(len(ended)):
        there[ended[nth].operation] = 1
    at = 0
    for o in range(len(there)):
        places[at] = o
        if there[o] != 0:
            at += 1


@entry
def keep(operations: Records, parts: Records, kept: Records, kept_parts: Records) -> None:
    """`kept`, `kept_parts` (out): the operations that have not ended, and their parts."""
    place = first = 0
    for o in range(len(operations)):
        operation = operations[o]
        if operation.state == ENDED:
            continue
        copy_rows(kept, place, operations, o, 1)
        kept[place].first = first
        copy_rows(kept_parts, first, parts, operation.first, operation.count)
        for _ in range(operation.count):
            part = kept_parts[first]
            part.operation, part.child = place, NONE
            first += 1
        place += 1

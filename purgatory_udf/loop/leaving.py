"""After a call: what has ended, by arrival; what is open stays, as it came, and its parts lie together again."""

from __future__ import annotations

from purgatory_udf.loop.compiled import entry
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
        kept[place] = operation
        kept[place].first = first
        for at in range(operation.first, operation.first + operation.count):
            kept_parts[first] = parts[at]
            kept_parts[first].operation, kept_parts[first].child = place, NONE
            first += 1
        place += 1

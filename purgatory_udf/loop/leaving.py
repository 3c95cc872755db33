"""After a call: what has ended, by arrival; what is open stays, as it came, and its parts lie together again."""

from __future__ import annotations

from purgatory_udf.compiling.access import copy_rows
from purgatory_udf.compiling.compiled import entry
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop.world import CANCELLED, COMPLETED, ENDED, EXPIRED, NONE


@entry
def by_arrival(endings: Records, completed: int, expired: int, places: Records) -> None:
    """`places` (out): of operations that completed, so many, then of those that expired, and of those that were
    cancelled; each as they came, for so they lie."""
    complete, expire, cancel = 0, completed, completed + expired
    for o in range(len(endings)):
        how = endings[o].how
        if how == COMPLETED:
            places[complete] = o
            complete += 1
        elif how == EXPIRED:
            places[expire] = o
            expire += 1
        elif how == CANCELLED:
            places[cancel] = o
            cancel += 1


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

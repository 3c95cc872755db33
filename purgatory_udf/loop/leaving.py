"""After a call: who has ended, those that completed before those that expired; what is open stays, as it came."""

from __future__ import annotations

from purgatory_udf.loop.compiled import entry, number
from purgatory_udf.loop.world import ENDED, Records, record

# How many operations, and parts of these, there are of a kind; counted down to nothing while they are moved.
SHARE = record("operations parts")
COMPLETED, EXPIRED, OPEN = map(number, (0, 1, 2))


@entry
def count(operations: Records, shares: Records) -> None:
    """`shares` (out): by `COMPLETED`, `EXPIRED`, `OPEN`."""
    for operation in operations:
        kind = OPEN
        if operation.state == ENDED:
            kind = EXPIRED if operation.expired > 0 else COMPLETED
        shares[kind].operations += 1
        shares[kind].parts += operation.count


@entry
def leave(
    operations: Records,
    parts: Records,
    begins: Records,
    ended: Records,
    kept: Records,
    kept_parts: Records,
) -> None:
    """`ended` (out): places of operations; `begins`: where in it, and among those that are kept, each kind begins."""
    for o in range(len(operations)):
        operation = operations[o]
        kind = OPEN
        if operation.state == ENDED:
            kind = EXPIRED if operation.expired > 0 else COMPLETED
        place, first = begins[kind].operations, begins[kind].parts
        begins[kind].operations += 1
        if kind != OPEN:
            ended[place] = o
            continue
        begins[kind].parts += operation.count
        kept[place] = operation
        kept[place].first = first
        for nth in range(operation.count):
            kept_parts[first + nth] = parts[operation.first + nth]
            kept_parts[first + nth].operation = place

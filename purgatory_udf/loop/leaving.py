"""After a call: what has ended leaves, what completed before what expired; what is open stays, in the order it came."""

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
    ended_parts: Records,
    kept: Records,
    kept_parts: Records,
) -> None:
    """`begins`: where in its table each kind begins."""
    for operation in operations:
        kind = OPEN
        if operation.state == ENDED:
            kind = EXPIRED if operation.expired > 0 else COMPLETED
        place, first = begins[kind].operations, begins[kind].parts
        begins[kind].operations += 1
        begins[kind].parts += operation.count
        into, into_parts = (kept, kept_parts) if kind == OPEN else (ended, ended_parts)
        into[place] = operation
        into[place].first = first
        for nth in range(operation.count):
            into_parts[first + nth] = parts[operation.first + nth]
            into_parts[first + nth].operation = place

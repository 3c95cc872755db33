"""After a call: who has ended, those that completed before those that expired, and these before those whose broker
stopped; what is open stays, as it came."""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import entry, number, rule
from purgatory_udf.loop.words import Rule
from purgatory_udf.loop.world import ENDED, Records, record

# How many operations, and parts of these, there are of a kind; counted down to nothing while they are moved.
SHARE = record("operations parts")
COMPLETED, EXPIRED, CANCELLED, OPEN = map(number, (0, 1, 2, 3))
_BY_STOP = number(Rule.BROKER_STOPPED)


@rule
def _kind(operation: Any) -> int:
    if operation.state != ENDED:
        return OPEN
    if operation.expired > 0:
        return EXPIRED
    return CANCELLED if operation.rule == _BY_STOP else COMPLETED


@entry
def count(operations: Records, shares: Records) -> None:
    """`shares` (out): by `COMPLETED`, `EXPIRED`, `CANCELLED`, `OPEN`."""
    for operation in operations:
        kind = _kind(operation)
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
        kind = _kind(operation)
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

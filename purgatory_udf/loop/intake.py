"""Requests become operations: a copy of the event, and for each key that it asks a part, a copy of what is asked."""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop import purgatory as lists
from purgatory_udf.loop.compiled import inlined, rule
from purgatory_udf.loop.tables import (
    World,
    asked_at,
    event_at,
    key_at,
    operation_at,
    part_at,
    place_at,
    take_asked,
    take_event,
)
from purgatory_udf.loop.world import NONE, OPEN


@inlined
def operation_of(w: World, e: int) -> int:
    """The event's operation, with room for its parts."""
    event = event_at(w, e)
    o, first = w.operations, w.parts
    w.operations += 1
    w.parts += event.count
    operation = operation_at(w, o)
    take_event(operation, event)
    operation.deadline = event.t // 1000 + max(0, event.delay)
    operation.first, operation.text = first, w.texts + event.text
    operation.answered, operation.pending, operation.state, operation.rule = 0, 0, OPEN, 0
    operation.bucket, operation.trigger, operation.watched, operation.odd = NONE, NONE, 0, 0
    operation.end_t, operation.settled_by, operation.last_place = 0, NONE, NONE
    operation.upheavals = NONE
    operation.purgatory = lists.purgatory_of(w, event.broker, event.code)
    return o


@inlined
def part_of(w: World, o: int, event: Any, nth: int) -> Any:
    """The operation's part for the event's nth key."""
    asked = asked_at(w, event.first + nth)
    part = part_at(w, operation_at(w, o).first + nth)
    take_asked(part, asked)
    k = place_at(w, asked.key).key
    key = key_at(w, k)
    part.key, part.operation, part.settled, part.end_t, part.bytes = k, o, 0, event.t, 0
    part.heap, part.told = NONE, 0
    # A key that a request names twice has it on its list once.
    part.again = key.asked == w.event
    key.asked = w.event
    return part


@rule
def arrived(w: World, e: int) -> int:
    """The event's operation, with a part for each key that it asks."""
    event, o = event_at(w, e), operation_of(w, e)
    for nth in range(event.count):
        part = part_of(w, o, event, nth)
        if part.text >= 0:
            part.text += w.errors
    return o

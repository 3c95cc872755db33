"""Requests become operations: a copy of the event, and for each key that it asks a part."""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, rule
from purgatory_udf.rules.engine.jit.intrinsics import units
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    OPEN,
    World,
    asked_at,
    event_at,
    operation_at,
    operation_soon,
    part_at,
    part_soon,
    place_at,
    take_asked,
    take_event,
)

# So far ahead lies what is brought near for requests to come.
_OPERATIONS_AHEAD, _PARTS_AHEAD = 4, 20


@inlined
def operation_of(w: World, e: int) -> int:
    """The event's operation, with room for its parts."""
    event = event_at(w, e)
    o, first = w.operations, w.parts
    w.operations += 1
    w.parts += event.count
    operation = operation_at(w, o)
    operation_soon(w, o + _OPERATIONS_AHEAD)
    take_event(operation, event)
    operation.deadline = units(event.t, 1000) + max(0, event.delay)
    operation.first, operation.text = first, w.texts + event.text
    operation.answered, operation.pending, operation.state, operation.rule = 0, 0, OPEN, 0
    operation.bucket, operation.trigger, operation.watched, operation.odd = NONE, NONE, 0, 0
    operation.end_t, operation.settled_by, operation.settled_last = 0, NONE, NONE
    operation.upheavals = NONE
    operation.purgatory = lists.purgatory_of(w, event.broker, event.code)
    return o


@inlined
def part_of(w: World, o: int, at: int, a: int) -> int:
    """The operation's part `at`, of what the event asks at `a`; its key."""
    part, asked = part_at(w, at), asked_at(w, a)
    part_soon(w, at + _PARTS_AHEAD)
    k = place_at(w, asked.key).key
    take_asked(part, asked)
    part.key, part.operation = k, o
    return k


@rule
def arrived(w: World, e: int) -> int:
    """The event's operation, with a part for each key that it asks."""
    event, o = event_at(w, e), operation_of(w, e)
    first, t = operation_at(w, o).first, event.t
    asks = event.first - first
    for at in range(first, first + event.count):
        part_of(w, o, at, at + asks)
        part_at(w, at).news, part_at(w, at).end_t = 0, t
    return o

"""Requests become operations: a copy of the event, with one part for each key that it names."""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined
from purgatory_udf.rules.engine.jit.intrinsics import floor_div
from purgatory_udf.rules.engine.loop import engine_purgatory
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    OPEN,
    Arena,
    copy_event,
    copy_request_part,
    event_at,
    key_number_at,
    operation_at,
    part_at,
    prefetch_operation,
    prefetch_part,
    request_part_at,
)

# Prefetch distances of the tables that requests append to, in rows.
_OPERATIONS_AHEAD, _PARTS_AHEAD = 4, 20


@inlined
def add_operation(arena: Arena, e: int) -> int:
    """Add an operation for the event and reserve its parts; return its row."""
    event = event_at(arena, e)
    o, first = arena.operations, arena.parts
    arena.operations += 1
    arena.parts += event.count
    operation = operation_at(arena, o)
    prefetch_operation(arena, o + _OPERATIONS_AHEAD)
    copy_event(operation, event)
    operation.deadline = floor_div(event.t, 1000) + max(0, event.delay)
    operation.first, operation.text = first, arena.text_base + event.text
    operation.answered_bytes, operation.pending, operation.state, operation.rule = 0, 0, OPEN, 0
    operation.bucket, operation.trigger, operation.watched, operation.needs_full_check = NONE, NONE, 0, 0
    operation.end_t, operation.settling_produce, operation.last_settled_part = 0, NONE, NONE
    operation.disruptions = NONE
    operation.purgatory = engine_purgatory.find_purgatory(arena, event.broker, event.code)
    return o


@inlined
def add_part(arena: Arena, o: int, at: int, a: int) -> int:
    """Fill the operation's part `at` from request part `a`; return its key."""
    part, requested = part_at(arena, at), request_part_at(arena, a)
    prefetch_part(arena, at + _PARTS_AHEAD)
    k = key_number_at(arena, requested.key).key
    copy_request_part(part, requested)
    part.key, part.operation = k, o
    return k


@helper
def add_with_parts(arena: Arena, e: int) -> int:
    """Add an operation for the event, with all of its parts; return its row."""
    event, o = event_at(arena, e), add_operation(arena, e)
    first, t = operation_at(arena, o).first, event.t
    shift = event.first - first
    for at in range(first, first + event.count):
        add_part(arena, o, at, at + shift)
        part_at(arena, at).updates, part_at(arena, at).end_t = 0, t
    return o

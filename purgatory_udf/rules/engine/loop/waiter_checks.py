"""Checks of a key's watcher lists, by kind of event (see `rules.reference.event_handlers`).

A check also removes the dead entries of the lists that it walks, as far as the gauges count them.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64
from purgatory_udf.rules.engine.loop import engine_purgatory, fetch_rules, produce_rules
from purgatory_udf.rules.engine.loop.arena import (
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    NONE,
    OTHER_HEAP,
    PRODUCE_HEAP,
    Arena,
    key_at,
)
from purgatory_udf.rules.engine.loop.codes import Code

# Bits of a key's `waiter_mask`: waiting parts and dead entries of produces and of delete-records.
_PRODUCES = int64(1 << int(PRODUCE_HEAP) | int(DEAD_PRODUCES))
_DELETIONS = int64(1 << int(OTHER_HEAP) | int(DEAD_DELETIONS))
_ALL_BUT_FETCHES = _PRODUCES | _DELETIONS | DEAD_FETCHES


@inlined
def check_fetches(arena: Arena, k: int, t: int, moved: int) -> None:
    """Check the key's fetches; `moved` is the mask of the fetches concerned (`fetch_rules`)."""
    key = key_at(arena, k)
    if key.waiter_mask & moved != 0:
        _check_fetches(arena, k, t, moved)
    elif key.waiter_mask & DEAD_FETCHES != 0:
        engine_purgatory.remove_dead_fetches(arena, key)


@helper
def _check_fetches(arena: Arena, k: int, t: int, moved: int) -> None:
    fetch_rules.check(arena, k, t, moved)
    engine_purgatory.remove_dead_fetches(arena, key_at(arena, k))


@inlined
def _check_produces(arena: Arena, k: int, t: int) -> None:
    if key_at(arena, k).waiter_mask & _PRODUCES != 0:
        produce_rules.check(arena, k, Code.PRODUCE, t)
        engine_purgatory.remove_dead_produces(arena, key_at(arena, k))


@inlined
def check_deletions(arena: Arena, k: int, t: int) -> None:
    """Check the key's delete-records."""
    if key_at(arena, k).waiter_mask & _DELETIONS != 0:
        produce_rules.check(arena, k, Code.DELETE_RECORDS, t)
        engine_purgatory.remove_dead_deletions(arena, key_at(arena, k))


@inlined
def check_all(arena: Arena, k: int, t: int, moved: int) -> None:
    """Check produces, fetches and delete-records: the high watermark advanced, or the leadership changed."""
    if key_at(arena, k).waiter_mask & (moved | _ALL_BUT_FETCHES) != 0:
        _check_all(arena, k, t, moved)


@inlined
def check_all_inline(arena: Arena, k: int, t: int, moved: int) -> None:
    """The same as `check_all`, inlined for the most frequent event."""
    if key_at(arena, k).waiter_mask & (moved | _ALL_BUT_FETCHES) != 0:
        _check_each(arena, k, t, moved)


@helper
def _check_all(arena: Arena, k: int, t: int, moved: int) -> None:
    _check_each(arena, k, t, moved)


@inlined
def _check_each(arena: Arena, k: int, t: int, moved: int) -> None:
    _check_produces(arena, k, t)
    check_fetches(arena, k, t, moved)
    check_deletions(arena, k, t)


@helper
def check_topic(arena: Arena, k: int, t: int) -> None:
    """Check the topic's create-topics: all brokers learn of a new leader, and each walks its own list of the topic."""
    produce_rules.check(arena, k, Code.CREATE_TOPICS, t)
    engine_purgatory.remove_dead_of_topic(arena, key_at(arena, k), NONE)

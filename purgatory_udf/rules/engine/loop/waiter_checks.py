"""Who is woken: the watcher lists of a key that something happened to (see `reference.triggers`)."""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import fetch_rules, produce_rules
from purgatory_udf.rules.engine.loop.arena import (
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    NONE,
    SETTLING_OTHERS,
    SETTLING_PRODUCES,
    World,
    key_at,
)
from purgatory_udf.rules.engine.loop.codes import Code

# As in a key's `hung`: of produces, or deletions, waiting ones and dead entries.
_PRODUCES = number(1 << int(SETTLING_PRODUCES) | int(DEAD_PRODUCES))
_DELETIONS = number(1 << int(SETTLING_OTHERS) | int(DEAD_DELETIONS))
_SETTLED_OR_DEAD = _PRODUCES | _DELETIONS | DEAD_FETCHES


@inlined
def check_fetches(w: World, k: int, t: int, moved: int) -> None:
    """`moved`: whose end has (see `fetch`)."""
    key = key_at(w, k)
    if key.hung & moved != 0:
        _check_fetches(w, k, t, moved)
    elif key.hung & DEAD_FETCHES != 0:
        lists.walk_fetches(w, key)


@rule
def _check_fetches(w: World, k: int, t: int, moved: int) -> None:
    fetch_rules.check(w, k, t, moved)
    lists.walk_fetches(w, key_at(w, k))


@inlined
def _check_produces(w: World, k: int, t: int) -> None:
    if key_at(w, k).hung & _PRODUCES != 0:
        produce_rules.check(w, k, Code.PRODUCE, t)
        lists.walk_produces(w, key_at(w, k))


@inlined
def check_deletions(w: World, k: int, t: int) -> None:
    if key_at(w, k).hung & _DELETIONS != 0:
        produce_rules.check(w, k, Code.DELETE_RECORDS, t)
        lists.walk_deletions(w, key_at(w, k))


@inlined
def check_all(w: World, k: int, t: int, moved: int) -> None:
    """The high watermark rose, or the leadership changed."""
    if key_at(w, k).hung & (moved | _SETTLED_OR_DEAD) != 0:
        _check_all(w, k, t, moved)


@inlined
def check_all_here(w: World, k: int, t: int, moved: int) -> None:
    """The same, for whom so many events call that it is put there."""
    if key_at(w, k).hung & (moved | _SETTLED_OR_DEAD) != 0:
        _check_each(w, k, t, moved)


@rule
def _check_all(w: World, k: int, t: int, moved: int) -> None:
    _check_each(w, k, t, moved)


@inlined
def _check_each(w: World, k: int, t: int, moved: int) -> None:
    _check_produces(w, k, t)
    check_fetches(w, k, t, moved)
    check_deletions(w, k, t)


@rule
def check_topic(w: World, k: int, t: int) -> None:
    """A leader is known to all brokers: each walks its own list of the topic."""
    produce_rules.check(w, k, Code.CREATE_TOPICS, t)
    lists.walk_topic(w, key_at(w, k), NONE)

"""Who is woken: the watcher lists of a key that something happened to (see `reference.triggers`)."""

from __future__ import annotations

from purgatory_udf.loop import fetch, settling
from purgatory_udf.loop import purgatory as lists
from purgatory_udf.loop.compiled import number, rule
from purgatory_udf.loop.tables import World, key_at
from purgatory_udf.loop.words import Code
from purgatory_udf.loop.world import NONE

_PRODUCE, _FETCH, _DELETE, _CREATE = (
    number(Code.PRODUCE),
    number(Code.FETCH),
    number(Code.DELETE_RECORDS),
    number(Code.CREATE_TOPICS),
)


@rule
def check_fetches(w: World, k: int, t: int) -> None:
    fetch.check(w, lists.purgatory_of(w, key_at(w, k).broker, _FETCH), k, t)


@rule
def check_deletions(w: World, k: int, t: int) -> None:
    settling.check(w, lists.purgatory_of(w, key_at(w, k).broker, _DELETE), k, _DELETE, t)


@rule
def check_all(w: World, k: int, t: int) -> None:
    """The high watermark rose, or the leadership changed."""
    settling.check(w, lists.purgatory_of(w, key_at(w, k).broker, _PRODUCE), k, _PRODUCE, t)
    check_fetches(w, k, t)
    check_deletions(w, k, t)


@rule
def check_topic(w: World, k: int, t: int) -> None:
    """A leader is known to all brokers: each walks its own list of the topic."""
    settling.check(w, NONE, k, _CREATE, t)
    lists.walk_topic(w, key_at(w, k))

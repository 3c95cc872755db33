"""Watcher lists, as far as gauges tell of them, and the ends of operations.

`watched` counts entries of lists: an operation counts once per key, and after its end goes on counting wherever nobody
has walked the list since, until a purge. Such dead entries are only counted, by list; a purge forgets all of them at
once, by taking a new `stamp`, which makes every list's own count void.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop import expiry_timer, fetch_answers, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    COMPLETED,
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    ENDED,
    EXPIRED,
    NONE,
    ODD,
    SETTLED,
    World,
    ended_at,
    key_at,
    node_at,
    operation_at,
    part_at,
    purgatory_at,
    turn_at,
)
from purgatory_udf.rules.engine.loop.codes import Code, Error, Rule
from purgatory_udf.rules.engine.loop.replica_state import new_node, node_of

# A count of dead entries, and the number of purges before it was begun, in one number: purges times this.
_PURGE = number(2**32)


@inlined
def purgatory_of(w: World, broker: int, code: int) -> int:
    """The broker's purgatory for this kind of request, if there have been any: `state` has made one for each."""
    for p in range(w.purgatories):
        if purgatory_at(w, p).broker == broker and purgatory_at(w, p).code == code:
            return p
    return NONE


# Entries of lists.


@inlined
def _bury(w: World, p: int, key: Any, code: int) -> None:
    """An entry of the key's list is dead, and stays until the list is walked or purged. (Fetches': see their end.)"""
    purgatory = purgatory_at(w, p)
    purgatory.dead += 1
    if code == Code.PRODUCE:
        key.dead_produce = key.dead_produce * (key.stamp_produce == purgatory.stamp) + 1
        key.stamp_produce = purgatory.stamp
        key.hung |= DEAD_PRODUCES
    elif code == Code.DELETE_RECORDS:
        if key.stamp_delete != purgatory.stamp:
            key.stamp_delete, key.dead_delete = purgatory.stamp, 0
        key.dead_delete += 1
        key.hung |= DEAD_DELETIONS
    else:
        # A topic has a list at every broker.
        node = node_of(w, key.lists, p)
        if node == NONE:
            node = key.lists = new_node(w, key.lists, p, 0)
        # The count and the purge that it was begun after, in one number.
        value = node_at(w, node).value
        if value // _PURGE != purgatory.stamp:
            value = purgatory.stamp * _PURGE
        node_at(w, node).value = value + 1


@inlined
def _unwatch(w: World, p: int, dead: int) -> None:
    purgatory = purgatory_at(w, p)
    purgatory.watched -= dead
    purgatory.dead -= dead


# A key's list has been walked: what had ended before is gone from it, unless a purge has taken it before. There is
# somebody on it, or has been. To take away nothing costs less than to ask whether there is anything.


@inlined
def walk_fetches(w: World, key: Any) -> None:
    p, dead = key.fetches, key.dead_fetch
    _unwatch(w, p, dead * (key.stamp_fetch == purgatory_at(w, p).stamp))
    key.dead_fetch = 0
    key.hung &= ~DEAD_FETCHES


@inlined
def walk_produces(w: World, key: Any) -> None:
    p, dead = key.produces, key.dead_produce
    _unwatch(w, p, dead * (key.stamp_produce == purgatory_at(w, p).stamp))
    key.dead_produce = 0
    key.hung &= ~DEAD_PRODUCES


@inlined
def walk_deletions(w: World, key: Any) -> None:
    p, dead = purgatory_of(w, key.broker, Code.DELETE_RECORDS), key.dead_delete
    _unwatch(w, p, dead * (key.stamp_delete == purgatory_at(w, p).stamp))
    key.dead_delete = 0
    key.hung &= ~DEAD_DELETIONS


@rule
def walk_all(w: World, key: Any) -> None:
    if key.hung & DEAD_PRODUCES != 0:
        walk_produces(w, key)
    if key.hung & DEAD_FETCHES != 0:
        walk_fetches(w, key)
    if key.hung & DEAD_DELETIONS != 0:
        walk_deletions(w, key)


@rule
def walk_topic(w: World, key: Any, broker: int) -> None:
    """A new leader is known to every broker: each walks its list of the topic. `broker`: the one alone that does, if it
    is any."""
    node = key.lists
    while node != NONE:
        entry = node_at(w, node)
        purgatory = purgatory_at(w, entry.who)
        if broker == NONE or purgatory.broker == broker:
            if entry.value // _PURGE == purgatory.stamp:
                _unwatch(w, entry.who, entry.value % _PURGE)
            entry.value = entry.value // _PURGE * _PURGE
        node = entry.next


@rule
def purge(w: World, p: int) -> None:
    """Every dead entry of every list is removed."""
    purgatory = purgatory_at(w, p)
    purgatory.watched -= purgatory.dead
    purgatory.purged += purgatory.dead
    purgatory.dead = 0
    purgatory.stamp += 1


# Operations.


@inlined
def watch(w: World, o: int, entries: int) -> None:
    """The operation is on the lists of its keys, `entries` of them: start its timer."""
    operation = operation_at(w, o)
    p = operation.purgatory
    purgatory = purgatory_at(w, p)
    operation.watched = 1
    purgatory.watched += entries
    purgatory.estimated += 1
    if expiry_timer.add(w, p, o):
        w.next_due = min(w.next_due, purgatory.next_bucket_ms * 1000)
    else:
        # Kafka hands a task that is due already to another thread, so whoever adds it finishes first.
        turn_at(w, o).next, w.due, w.next_due = w.due, o, w.now


@inlined
def walked_before(w: World, key: Any, code: int) -> bool:
    """Whether the event at hand, one that checks several keys, has come by this key's list before."""
    return (
        w.checking > 0
        and key.stamped == w.produced
        and key.stamp_order < w.checking
        and (code == Code.FETCH or key.stamp_all != 0)
    )


@inlined
def trigger_of(w: World, o: int, at: int) -> int:
    """The part whose key's check ends the operation: of an event that checks several keys, the first one's."""
    if w.checking <= 0:
        return at
    operation, trigger, first = operation_at(w, o), at, w.checking
    for other in range(operation.first, operation.first + operation.count):
        key = key_at(w, part_at(w, other).key)
        if walked_before(w, key, operation.code) and key.stamp_order < first:
            trigger, first = other, key.stamp_order
    return trigger


@inlined
def close(w: World, o: int, how: int, rule_: int, t: int, trigger: int) -> None:
    """It has ended, as far as it alone is concerned, and its timer."""
    operation = operation_at(w, o)
    operation.state, operation.rule, operation.end_t = ENDED, rule_, t
    operation.trigger = trigger - operation.first if trigger != NONE else NONE
    ended_at(w, o).how = how
    w.ended_parts += operation.count
    expiry_timer.cancel(w, o)


@inlined
def end(w: World, o: int, rule_: int, t: int, trigger: int) -> None:
    """End the operation, once: out of the timer, the heaps and lists; `trigger`: the part whose key's event did it."""
    # Whoever has these in fewer bits would have it compiled once more.
    _end(w, number(o), number(rule_), t, number(trigger))


@rule
def _end(w: World, o: int, rule_: int, t: int, trigger: int) -> None:
    operation = operation_at(w, o)
    if rule_ == Rule.TIMEOUT:
        close(w, o, EXPIRED, rule_, t, trigger)
        w.expired += 1
    else:
        close(w, o, COMPLETED, rule_, t, trigger)
        w.completed += 1
    several = w.checking > 0 and trigger != NONE
    if operation.code == Code.FETCH:
        _end_parts_of_fetch(w, operation, several)
    else:
        _end_parts(w, operation, t, several)


# The walk that ends an operation takes its entry off: a dead one like others, for it is walked to the end. Of an event
# that checks `several` keys, walks before that one have taken theirs off as well.


@inlined
def _end_parts(w: World, operation: Any, t: int, several: bool) -> None:
    p, code, watched = operation.purgatory, operation.code, operation.watched != 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        waiter_queues.remove_from_heap(w, at, key)
        if part.heap != SETTLED:
            part.end_t, part.error = t, Error.REQUEST_TIMED_OUT
        if watched and part.again == 0:
            if several and walked_before(w, key, code):
                purgatory_at(w, p).watched -= 1
            else:
                _bury(w, p, key, code)


@inlined
def _bury_fetch(key: Any, stamp: int) -> None:
    key.dead_fetch = key.dead_fetch * (key.stamp_fetch == stamp) + 1
    key.stamp_fetch = stamp
    key.hung |= DEAD_FETCHES


@inlined
def _end_parts_of_fetch(w: World, operation: Any, several: bool) -> None:
    """As the others', and each is read once more: what one carries, those behind it cannot."""
    purgatory = purgatory_at(w, operation.purgatory)
    stamp, watched = purgatory.stamp, operation.watched != 0
    calm = operation.upheavals == w.upheavals
    most, hard, carried = operation.most, operation.hard != 0, 0
    # Most often every key's list has it once, and none has been walked before.
    everywhere = watched and not several and operation.marked == 0
    walked, dead = 0, operation.count if everywhere else 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        waiter_queues.remove_from_heap(w, at, key)
        carried += fetch_answers.answer(w, key, at, operation, calm, most - carried, not hard and carried == 0)
        part.news = key.news - part.news
        if everywhere:
            _bury_fetch(key, stamp)
        elif watched and part.again == 0:
            if several and walked_before(w, key, Code.FETCH):
                walked += 1
            else:
                _bury_fetch(key, stamp)
                dead += 1
    operation.answered = carried
    purgatory.watched -= walked
    purgatory.dead += dead


@inlined
def make_odd(w: World, o: int) -> None:
    """From now on the fetch is tried in full at every check of any of its keys, as Kafka does it."""
    _make_odd(w, number(o))


@rule
def _make_odd(w: World, o: int) -> None:
    operation = operation_at(w, o)
    operation.odd = 1
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        waiter_queues.remove_from_heap(w, at, key)
        if part.again == 0:
            waiter_queues.append_to_list(w, part.key, key, at, ODD)

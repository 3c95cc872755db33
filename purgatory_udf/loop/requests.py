"""Requests as they arrive: tried, and put on their keys' lists where they have to wait (see `reference.broker`)."""

from __future__ import annotations

from purgatory_udf.loop import fetch, logs, replica, settling
from purgatory_udf.loop import purgatory as lists
from purgatory_udf.loop.checks import check_all, check_fetches
from purgatory_udf.loop.compiled import number, rule
from purgatory_udf.loop.tables import (
    World,
    asked_at,
    event_at,
    key_at,
    node_at,
    operation_at,
    part_at,
    place_at,
    take_asked,
    take_event,
)
from purgatory_udf.loop.words import UNKNOWN, Acks, Code, Error, Rule
from purgatory_udf.loop.world import NONE, OPEN

_FETCH, _CREATE = number(Code.FETCH), number(Code.CREATE_TOPICS)
_AT_ONCE, _INVALID, _DELAYED = number(Acks.AT_ONCE), number(Acks.INVALID), number(Acks.DELAYED)
_SOUND = number(Error.NONE)
_BY_ACKS, _BY_INVALID_ACKS, _BY_APPEND_ERROR = number(Rule.ACKS), number(Rule.INVALID_ACKS), number(Rule.APPEND_ERROR)
_BY_EMPTY, _BY_NO_PARTITIONS, _BY_NO_WAIT = number(Rule.EMPTY), number(Rule.NO_PARTITIONS), number(Rule.NO_WAIT)

# What an append did: nothing, it moved the log end only, or the high watermark with it. While a produce is handled its
# parts have that in `told`.
_NOTHING, _SAME, _INCREASED = 0, 1, 2


@rule
def _arrived(w: World, e: int) -> int:
    """The event's operation, with a part for each key that it asks."""
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
    operation.purgatory = lists.purgatory_of(w, event.broker, event.code)
    for nth in range(event.count):
        asked = asked_at(w, event.first + nth)
        part = part_at(w, first + nth)
        take_asked(part, asked)
        k = place_at(w, asked.key).key
        key = key_at(w, k)
        part.key, part.operation, part.settled, part.end_t, part.bytes = k, o, 0, event.t, 0
        if asked.text >= 0:
            part.text += w.errors
        part.heap, part.told = NONE, 0
        if key.throttles != NONE and event.code == _FETCH:
            told = replica.node_of(w, key.throttles, event.who)
            if told != NONE:
                part.throttled = node_at(w, told).value
        # A key that a request names twice has it on its list once.
        part.again = key.asked == w.event
        key.asked = w.event
    return o


@rule
def _answer_at_once(w: World, o: int, rule_: int) -> None:
    lists.end(w, o, rule_, operation_at(w, o).t, NONE)


@rule
def _settled(w: World, o: int) -> None:
    """Every part has its answer already."""
    operation = operation_at(w, o)
    for at in range(operation.first, operation.first + operation.count):
        part_at(w, at).settled = 1


@rule
def produce(w: World, e: int) -> None:
    """Append, answer or wait, and only then check what the appends completed (from Kafka 2.7 on): the produce's own
    first try already sees its own appends."""
    o = _arrived(w, e)
    event, operation = event_at(w, e), operation_at(w, o)
    changed = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        part.bytes = part.size
        part.settled = part.error != _SOUND
        if part.error == _SOUND and event.mode != _INVALID:
            key = key_at(w, part.key)
            if logs.append(w, key, part.offset, part.size, 1):
                part.told = _INCREASED if replica.advance_watermark(w, key) else _SAME
                key.told += 1
                key.stamped, key.stamp_order, key.stamp_all = w.event, changed, part.told == _INCREASED
                changed += 1
    if event.mode == _INVALID:
        _settled(w, o)
        _answer_at_once(w, o, _BY_INVALID_ACKS)
    elif event.mode == _AT_ONCE:
        _settled(w, o)
        _answer_at_once(w, o, _BY_ACKS)
    elif event.mode != _DELAYED:
        _answer_at_once(w, o, _BY_APPEND_ERROR if event.total > 0 else _BY_EMPTY)
    elif settling.first_try(w, o):
        _answer_at_once(w, o, operation.rule)
    else:
        settling.wait(w, o)
    if changed == 0:
        return
    order = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        if part.told != _NOTHING:
            w.checking = order if changed > 1 else NONE
            order += 1
            if part.told == _INCREASED:
                check_all(w, part.key, event.t)
            else:
                check_fetches(w, part.key, event.t)
    w.checking = NONE


@rule
def fetch_messages(w: World, e: int) -> None:
    """A follower's fetch says how far that follower is, before it is served."""
    event = event_at(w, e)
    if event.who >= 0:
        for at in range(event.first, event.first + event.count):
            asked = asked_at(w, at)
            k = place_at(w, asked.key).key
            key = key_at(w, k)
            if replica.follower_reached(w, key, event.who, asked.offset):
                key.told += 1
                check_all(w, k, event.t)
    o = _arrived(w, e)
    if event.total == 0:
        _answer_at_once(w, o, _BY_NO_PARTITIONS)
        return
    fetch.arrive(w, o, event.sent)


@rule
def delete_records(w: World, e: int) -> None:
    """An offset of -1 asks for everything below the high watermark."""
    o = _arrived(w, e)
    operation = operation_at(w, o)
    if operation.total == 0:
        _answer_at_once(w, o, _BY_EMPTY)
        return
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        if part.offset == UNKNOWN:
            part.offset = max(0, key_at(w, part.key).hw)
    if settling.first_try(w, o):
        _answer_at_once(w, o, operation.rule)
    else:
        settling.wait(w, o)


@rule
def create_topics(w: World, e: int) -> None:
    o = _arrived(w, e)
    operation = operation_at(w, o)
    if operation.total == 0:
        _answer_at_once(w, o, _BY_EMPTY)
        return
    done = settling.first_try(w, o)
    if event_at(w, e).delay <= 0:
        _answer_at_once(w, o, _BY_NO_WAIT)
    elif done:
        _answer_at_once(w, o, operation.rule)
    else:
        settling.wait(w, o)

"""The loop: events in order of time. Before each, everything expires whose deadline is its millisecond or earlier."""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import entry, inlined, rule
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop import (
    change_events,
    clock_advance,
    fetch_rules,
    produce_rules,
    replica_log,
    replica_state,
    waiter_queues,
)
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    NOTHING_YET,
    SETTLED,
    SETTLING_PRODUCES,
    World,
    asked_at,
    event_at,
    event_soon,
    key_at,
    key_soon,
    operation_at,
    part_at,
    place_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Acks, Code, Error, Rule
from purgatory_udf.rules.engine.loop.operation_builder import arrived, operation_of, part_of
from purgatory_udf.rules.engine.loop.waiter_checks import check_all, check_fetches

# Requests as they arrive: tried, and put on their keys' lists where they have to wait (see `reference.broker`).


# What an append did: nothing, it moved the log end only, or the high watermark with it. While a produce is handled its
# parts have that in `news`.
_NOTHING, _SAME, _INCREASED = 0, 1, 2


@rule
def _answer_at_once(w: World, o: int, rule_: int) -> None:
    lists.end(w, o, rule_, operation_at(w, o).t, NONE)


@rule
def produce(w: World, e: int) -> None:
    """Append, answer or wait, and only then check what the appends completed (from Kafka 2.7 on): the produce's own
    first try already sees its own appends."""
    event, o = event_at(w, e), operation_of(w, e)
    t, mode, operation = event.t, event.mode, operation_at(w, o)
    first, end = operation.first, operation.first + event.count
    asks, changed, pending, repeated = event.first - first, 0, 0, NOTHING_YET
    w.produced += 1
    for at in range(first, end):
        key = key_at(w, part_of(w, o, at, at + asks))
        part = part_at(w, at)
        part.news, part.end_t = 0, t
        repeated += part.again
        if part.error != Error.NONE:
            part.heap = SETTLED
            if part.error == Error.RECORDED:
                part.text += w.errors
        else:
            if replica_log.append(w, key, part.offset, part.size, 1):
                part.news = _INCREASED if replica_state.advance_watermark(w, key) else _SAME
                key.news += 1
                key.stamped, key.stamp_order, key.stamp_all = w.produced, changed, part.news == _INCREASED
                changed += 1
            if mode != Acks.DELAYED:
                part.heap = SETTLED
            else:
                # What is appended to the keys behind it moves no watermark of this one.
                rule_ = produce_rules.settle(key, part, Code.PRODUCE, t)
                if rule_ == Rule.PENDING:
                    pending += 1
                    waiter_queues.push_to_heap(w, at, SETTLING_PRODUCES, part.offset)
                else:
                    operation.rule = rule_
    if mode == Acks.INVALID:
        _answer_at_once(w, o, Rule.INVALID_ACKS)
    elif mode == Acks.AT_ONCE:
        _answer_at_once(w, o, Rule.ACKS)
    elif mode != Acks.DELAYED:
        _answer_at_once(w, o, Rule.APPEND_ERROR if event.total > 0 else Rule.EMPTY)
    elif pending == 0:
        _answer_at_once(w, o, operation.rule)
    else:
        operation.pending = pending
        lists.watch(w, o, event.count - repeated)
    if changed > 0:
        _check_appends(w, o, t, changed)


@inlined
def _check_appends(w: World, o: int, t: int, changed: int) -> None:
    operation = operation_at(w, o)
    order = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        if part.news != _NOTHING:
            w.checking = order if changed > 1 else NONE
            order += 1
            if part.news == _INCREASED:
                check_all(w, part.key, t, fetch_rules.OF_ANY)
            else:
                check_fetches(w, part.key, t, fetch_rules.OF_LOG_END)
    w.checking = NONE


@rule
def fetch_messages(w: World, e: int) -> None:
    """A follower's fetch says how far that follower is, before it is served."""
    event = event_at(w, e)
    t, who = event.t, event.who
    if who >= 0:
        for at in range(event.first, event.first + event.count):
            asked = asked_at(w, at)
            k = place_at(w, asked.key).key
            key = key_at(w, k)
            if replica_state.follower_reached(w, key, who, asked.offset):
                key.news += 1
                check_all(w, k, t, fetch_rules.OF_WATERMARK)
    if event.total == 0:
        _answer_at_once(w, arrived(w, e), Rule.NO_PARTITIONS)
    else:
        fetch_rules.arrive(w, e)


@rule
def delete_records(w: World, e: int) -> None:
    """An offset of -1 asks for everything below the high watermark."""
    o = arrived(w, e)
    operation = operation_at(w, o)
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        if part.offset == UNKNOWN:
            part.offset = max(0, key_at(w, part.key).hw)
    _settle(w, o, False)


@rule
def create_topics(w: World, e: int) -> None:
    _settle(w, arrived(w, e), event_at(w, e).delay <= 0)


@rule
def _settle(w: World, o: int, at_once: bool) -> None:
    operation = operation_at(w, o)
    entries = produce_rules.first_try(w, o)
    if operation.total == 0:
        _answer_at_once(w, o, Rule.EMPTY)
    elif at_once:
        _answer_at_once(w, o, Rule.NO_WAIT)
    elif operation.pending == 0:
        _answer_at_once(w, o, operation.rule)
    else:
        lists.watch(w, o, entries)


# How many events ahead of their turn keys are brought near, and how many the events themselves; and how many keys are
# near anyhow.
_AHEAD, _FURTHER_AHEAD, _FEW = 6, 24, 128


@inlined
def _bring_near(w: World, e: int, last_name: int) -> None:
    """A change's key. Of a request some key or other: to ask which it is costs more than to bring one near in vain."""
    event_soon(w, e + _FURTHER_AHEAD)
    key_soon(w, place_at(w, min(event_at(w, e).key, last_name)).key)


@entry
def run(world: Records, events: int, horizon_ms: int) -> None:
    """Apply the events, then expire what is due by the horizon; `FOREVER` lets the clock run out."""
    w = world[0]
    last_name = w.places_room - 1
    near_until = events - _AHEAD if w.keys_room > _FEW and last_name >= 0 else 0
    for e in range(events):
        if e < near_until:
            _bring_near(w, e + _AHEAD, last_name)
        event = event_at(w, e)
        code = event.code
        clock_advance.advance(w, event.t)
        # Where this leads to cannot be foreseen, so it is asked once.
        if code == Code.FETCH:
            fetch_messages(w, e)
        elif code == Code.PRODUCE:
            produce(w, e)
        elif code == Code.LOG_END:
            change_events.log_end(w, e)
        elif code == Code.HIGH_WATERMARK:
            change_events.high_watermark(w, e)
        elif code == Code.LAST_STABLE:
            change_events.last_stable(w, e)
        elif code == Code.REPLICA_END:
            change_events.replica_end(w, e)
        elif code == Code.DELETE_RECORDS:
            delete_records(w, e)
        elif code == Code.CREATE_TOPICS:
            create_topics(w, e)
        else:
            change_events.rarer(w, e)
    if horizon_ms >= FOREVER:
        clock_advance.run_out(w)
    else:
        clock_advance.advance(w, max(horizon_ms * 1000, w.now))

"""The event loop: events in time order, and before each event the expirations that are due.

An operation expires before an event in the millisecond of its deadline. Requests are tried when they arrive, and
otherwise wait (see `rules.reference.broker`); `change_events` has all other events.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop import (
    change_events,
    clock_advance,
    compiled_fetch,
    compiled_produce,
    compiled_remote,
    engine_purgatory,
    replica_state,
    waiter_queues,
)
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    PRODUCE_HEAP,
    SETTLED,
    ZERO,
    Arena,
    event_at,
    key_at,
    key_number_at,
    operation_at,
    part_at,
    prefetch_event,
    prefetch_key,
    request_part_at,
)
from purgatory_udf.rules.engine.loop.change_events import check_all, check_fetches
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Acks, Code, Error, Rule
from purgatory_udf.rules.engine.loop.engine_purgatory import add_operation, add_part, add_with_parts

# A part's `append_effect`, while its produce is being handled.
_UNCHANGED, _LOG_END_MOVED, _HW_ADVANCED = 0, 1, 2


@helper
def _complete_on_arrival(arena: Arena, o: int, rule: int) -> None:
    engine_purgatory.finish(arena, o, rule, operation_at(arena, o).t, NONE)


@helper
def handle_produce(arena: Arena, e: int) -> None:
    """Append the produce's records, complete the produce or let it wait, and check what the appends may complete.

    Kafka has this order since 2.7: the first check of the produce itself already sees its appends.
    """
    event, o = event_at(arena, e), add_operation(arena, e)
    t, mode, operation = event.t, event.mode, operation_at(arena, o)
    first, end = operation.first, operation.first + event.count
    shift, changed, pending, duplicates = event.first - first, 0, 0, ZERO
    arena.produce_count += 1
    for at in range(first, end):
        key = key_at(arena, add_part(arena, o, at, at + shift))
        part = part_at(arena, at)
        part.append_effect, part.end_t = _UNCHANGED, t
        duplicates += part.duplicate
        if part.error != Error.NONE:
            part.queue = SETTLED
            if part.error == Error.RECORDED:
                part.text += arena.error_base
        else:
            if replica_state.append(arena, key, part.offset, part.size, 1):
                hw_advanced = replica_state.advance_high_watermark(arena, key)
                part.append_effect = _HW_ADVANCED if hw_advanced else _LOG_END_MOVED
                key.updates += 1
                key.last_append, key.last_append_order = arena.produce_count, changed
                key.last_append_raised_hw = part.append_effect == _HW_ADVANCED
                changed += 1
            if mode != Acks.DELAYED:
                part.queue = SETTLED
            else:
                # Appends to the keys behind this one do not move its watermarks.
                rule = compiled_produce.settle(key, part, Code.PRODUCE, t)
                if rule == Rule.PENDING:
                    pending += 1
                    waiter_queues.push_to_heap(arena, at, PRODUCE_HEAP, part.offset)
                else:
                    operation.rule = rule
    if mode == Acks.INVALID:
        _complete_on_arrival(arena, o, Rule.INVALID_ACKS)
    elif mode == Acks.AT_ONCE:
        _complete_on_arrival(arena, o, Rule.ACKS)
    elif mode != Acks.DELAYED:
        _complete_on_arrival(arena, o, Rule.APPEND_ERROR if event.total > 0 else Rule.EMPTY)
    elif pending == 0:
        _complete_on_arrival(arena, o, operation.rule)
    else:
        operation.pending = pending
        engine_purgatory.watch(arena, o, event.count - duplicates)
    if changed > 0:
        _check_appends(arena, o, t, changed)


@inlined
def _check_appends(arena: Arena, o: int, t: int, changed: int) -> None:
    """Check the watcher lists of the `changed` keys (a number) to which the produce has appended."""
    operation = operation_at(arena, o)
    order = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        if part.append_effect != _UNCHANGED:
            arena.check_order = order if changed > 1 else NONE
            order += 1
            if part.append_effect == _HW_ADVANCED:
                check_all(arena, part.key, t, compiled_fetch.ANY_END_MOVED)
            else:
                check_fetches(arena, part.key, t, compiled_fetch.LOG_END_MOVED)
    arena.check_order = NONE


@helper
def handle_fetch(arena: Arena, e: int) -> None:
    """Advance a follower's log end offsets to its fetch offsets, then serve the fetch."""
    event = event_at(arena, e)
    t, replica_id = event.t, event.replica_id
    if replica_id >= 0:
        for at in range(event.first, event.first + event.count):
            requested = request_part_at(arena, at)
            k = key_number_at(arena, requested.key).key
            key = key_at(arena, k)
            if replica_state.update_follower(arena, key, replica_id, requested.offset):
                key.updates += 1
                check_all(arena, k, t, compiled_fetch.WATERMARK_MOVED)
    if event.total == 0:
        _complete_on_arrival(arena, add_with_parts(arena, e), Rule.NO_PARTITIONS)
    else:
        compiled_fetch.try_complete_else_watch(arena, e)


@helper
def handle_delete_records(arena: Arena, e: int) -> None:
    """Settle a delete-records request or let it wait. Offset -1 is replaced by the high watermark."""
    o = add_with_parts(arena, e)
    operation = operation_at(arena, o)
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        if part.offset == UNKNOWN:
            part.offset = max(0, key_at(arena, part.key).hw)
    _settle_or_watch(arena, o, False)


@helper
def handle_create_topics(arena: Arena, e: int) -> None:
    """Settle a create-topics request or let it wait. A request without a timeout does not wait."""
    _settle_or_watch(arena, add_with_parts(arena, e), event_at(arena, e).delay <= 0)


@helper
def _settle_or_watch(arena: Arena, o: int, at_once: bool) -> None:
    operation = operation_at(arena, o)
    entries = compiled_produce.settle_or_enqueue(arena, o)
    if operation.total == 0:
        _complete_on_arrival(arena, o, Rule.EMPTY)
    elif at_once:
        _complete_on_arrival(arena, o, Rule.NO_WAIT)
    elif operation.pending == 0:
        _complete_on_arrival(arena, o, operation.rule)
    else:
        engine_purgatory.watch(arena, o, entries)


# Prefetch distances in events, and the number of keys from which on they do not stay in the cache anyway.
_KEYS_AHEAD, _EVENTS_AHEAD, _MIN_PREFETCH_KEYS = 6, 24, 128


@inlined
def _prefetch(arena: Arena, e: int, last_key: int) -> None:
    """Prefetch the event `_EVENTS_AHEAD` rows after `e`, and the key of event `e`.

    A request has a row number in the key's field, so an arbitrary key is prefetched for it.
    That is harmless, and cheaper than a branch. `last_key` is the greatest key number, which bounds the access.
    """
    prefetch_event(arena, e + _EVENTS_AHEAD)
    prefetch_key(arena, key_number_at(arena, min(event_at(arena, e).key, last_key)).key)


@entry_point
def run(arenas: Records, events: int, horizon_ms: int) -> None:
    """Apply the first `events` events of the call in order, then expire operations up to the horizon.

    The horizon `FOREVER` drains the state: all open operations expire.
    """
    arena = arenas[0]
    last_key = arena.key_numbers_capacity - 1
    prefetch_until = events - _KEYS_AHEAD if arena.keys_capacity > _MIN_PREFETCH_KEYS and last_key >= 0 else 0
    for e in range(events):
        if e < prefetch_until:
            _prefetch(arena, e + _KEYS_AHEAD, last_key)
        event = event_at(arena, e)
        code = event.code
        clock_advance.advance(arena, event.t)
        # The branch is unpredictable, so the most frequent events come first and there is only one such chain.
        if code == Code.FETCH:
            handle_fetch(arena, e)
        elif code == Code.PRODUCE:
            handle_produce(arena, e)
        elif code == Code.LOG_END:
            change_events.log_end(arena, e)
        elif code == Code.HIGH_WATERMARK:
            change_events.high_watermark(arena, e)
        elif code == Code.LAST_STABLE:
            change_events.last_stable(arena, e)
        elif code == Code.REPLICA_END:
            change_events.replica_end(arena, e)
        elif code == Code.DELETE_RECORDS:
            handle_delete_records(arena, e)
        elif code == Code.CREATE_TOPICS:
            handle_create_topics(arena, e)
        elif code == Code.LIST_OFFSETS:
            compiled_remote.handle_list_offsets(arena, e)
        elif code == Code.REMOTE_READ or code == Code.REMOTE_LOOKUP:
            compiled_remote.end_read(arena, e)
        else:
            change_events.rare_change(arena, e)
    if horizon_ms >= FOREVER:
        clock_advance.drain(arena)
    else:
        clock_advance.advance(arena, max(horizon_ms * 1000, arena.now))

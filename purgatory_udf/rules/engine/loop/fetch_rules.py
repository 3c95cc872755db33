"""DelayedFetch: a consumer or follower waits until there are enough bytes to be worth an answer.

Over the partitions in order, the first that holds completes the fetch (the letters are Kafka 2.3's):

A) the broker does not lead the partition (any more)
B) the broker does not know it
E) its log directory is offline
F) the request was sent to an older leader epoch
C) the fetch offset lies beyond the end (the leader was truncated), or on an older segment than the end, unless the
   replica is throttled; an offset equal to the end adds nothing, so that a fresh roll does not look like C
D) after all: the bytes between start and end, at most the partition's maximum each, reach the minimum

Kafka tries every fetch of the list at every check. Which are tried here, `hanging` says.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import fetch_answers, fetch_index, replica_log, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    COUNTED,
    FETCHES,
    FORCING,
    NONE,
    NOTHING_YET,
    ODD,
    SOME_HERE,
    THROTTLES,
    World,
    asked_at,
    batch_at,
    end_of,
    event_at,
    key_at,
    node_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Error, Reader, Rule
from purgatory_udf.rules.engine.loop.operation_builder import operation_of, part_of
from purgatory_udf.rules.engine.loop.produce_rules import rule_of_standing
from purgatory_udf.rules.engine.loop.replica_state import new_node, node_of

_NEVER = number(FOREVER)
_ON_OLDER_SEGMENT = number(-1)


# As in a key's `hung`: fetches of each kind of reader that are not odd, and the odd ones.
_OF_FOLLOWERS, _OF_CONSUMERS, _OF_COMMITTED = (number((1 << FETCHES | 1 << COUNTED) << reader) for reader in Reader)
_ODD = number(1 << int(ODD))

# Whom a check may concern, by what has moved: other readers' fetches are as complete as they were.
OF_LOG_END, OF_WATERMARK = _OF_FOLLOWERS | _ODD, _OF_CONSUMERS | _OF_COMMITTED | _ODD
OF_ANY = OF_LOG_END | OF_WATERMARK


@inlined
def arrive(w: World, e: int) -> None:
    """The first read, which answers at once or begins the wait. It also meets the errors of offset and epoch, which a
    waiting fetch does not look for. A consumer may be told at once to read elsewhere."""
    event, o = event_at(w, e), operation_of(w, e)
    t, mode, who, least, count = event.t, event.mode, event.who, _least(event), event.count
    counted = fetch_index.is_counted(w, count, least, count)
    first = operation_at(w, o).first
    asks = event.first - first
    accumulated = NOTHING_YET
    odd = large = False
    marked = event.marked != 0
    for at in range(first, first + count):
        k = part_of(w, o, at, at + asks)
        part, asked, key = part_at(w, at), asked_at(w, at + asks), key_at(w, k)
        # What happened to the key before is none of its business.
        part.news = key.news
        if key.hung & THROTTLES != 0:
            _hold_back(w, key, part, who)
            marked = True
        error = fetch_answers.error_of(key, asked)
        if error != Error.NONE:
            _refuse(w, o, at, asks, _rule_of(error))
            return
        end = end_of(key, mode).offset
        if asked.offset == end and end != UNKNOWN:
            odd |= not _begin_at_end(w, key, at, asked.offset, mode)
        elif asked.offset > end and end != UNKNOWN:  # Case C
            _refuse(w, o, at, asks, Rule.TRUNCATED)
            return
        else:
            found, is_odd, is_large = _begin_before_end(w, key, at, mode)
            if found == _ON_OLDER_SEGMENT:  # Case C
                _refuse(w, o, at, asks, Rule.OLDER_SEGMENT)
                return
            accumulated += found
            odd |= is_odd
            large |= is_large
        if counted:
            waiter_queues.append_to_list(w, k, key, at, COUNTED + mode)
    if not odd and not marked:
        operation_at(w, o).upheavals = w.upheavals
    # What the first read carries may be more than D) counts only by a first batch beyond its partition's maximum.
    if accumulated >= least or (large and not event.sent and fetch_answers.first_read(w, o) >= least):  # Case D
        _complete(w, o, Rule.MIN_BYTES, t, NONE, NONE)
    elif event.sent:
        _complete(w, o, Rule.PREFERRED_REPLICA, t, NONE, NONE)
    else:
        repeated = throttled = NOTHING_YET
        if marked:
            repeated, throttled = _marked(w, o)
        lists.watch(w, o, count - repeated)
        fetch_index.hang(w, o, least - accumulated, odd or repeated > 0, counted, count - throttled)


@rule
def _refuse(w: World, o: int, at: int, asks: int, rule_: int) -> None:
    """The part completes the fetch; those behind it come all the same. The operation's part `at` is of what the event
    asks at `at + asks`."""
    operation = operation_at(w, o)
    for other in range(at + 1, operation.first + operation.count):
        key = key_at(w, part_of(w, o, other, other + asks))
        if key.hung & THROTTLES != 0:
            _hold_back(w, key, part_at(w, other), operation.who)
    _complete(w, o, rule_, operation.t, NONE, at)


@rule
def _hold_back(w: World, key: Any, part: Any, who: int) -> None:
    """As was said of this follower on the key last, if anything was."""
    node = node_of(w, key.throttles, who)
    if node != NONE:
        part.throttled = node_at(w, node).value


@rule
def _marked(w: World, o: int) -> tuple[int, int]:
    """How many of its parts name a key again, and how many are throttled."""
    operation = operation_at(w, o)
    repeated = throttled = NOTHING_YET
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        repeated += part.again
        throttled += part.throttled
    return repeated, throttled


@inlined
def _begin_at_end(w: World, key: Any, at: int, offset: int, mode: int) -> bool:
    """It takes over that end's metadata, be they old. Whether that is where it will be read from."""
    end, part = end_of(key, mode), part_at(w, at)
    part.start_seg, part.start_pos, part.wants = end.seg, end.pos, 0
    if end.batch != NONE:
        return True
    return replica_log.position(w, key, offset) == end.pos


@rule
def _begin_before_end(w: World, key: Any, at: int, reader: int) -> tuple[int, bool, bool]:
    """Bytes that it finds, or that these lie on an older segment; whether it is odd; whether it may be given more than
    its maximum."""
    part = part_at(w, at)
    end, end_seg, end_pos = fetch_answers.reader_end(key, reader)
    batch = replica_log.batch_of(w, key, part.offset)
    part.start_seg, part.start_pos = replica_log.segment(w, key, part.offset), replica_log.begins(batch_at(w, batch))
    part.wants = fetch_index.gained(part, end_pos)
    odd = fetch_index.is_odd(part, end, end_seg, end_pos)
    if end == UNKNOWN or part.throttled != 0:
        return 0, odd, False
    if part.start_seg < end_seg:
        return _ON_OLDER_SEGMENT, odd, False
    found = max(0, part.wants) if part.start_seg == end_seg else 0
    return found, odd, fetch_answers.is_large(w, key, batch, part.size)


@inlined
def _least(asking: Any) -> int:
    """How many bytes a fetch wants. Where some of its keys are, nobody can tell when it has them."""
    return _NEVER if asking.apart == SOME_HERE else asking.least


@rule
def _rule_of(error: int) -> int:
    if error == Error.FENCED_LEADER_EPOCH:
        return Rule.FENCED_EPOCH
    if error == Error.UNKNOWN_LEADER_EPOCH:
        return Rule.UNKNOWN_EPOCH
    return Rule.OFFSET_OUT_OF_RANGE if error == Error.OFFSET_OUT_OF_RANGE else rule_of_standing(error)


@inlined
def _tried(w: World, o: int) -> tuple[int, int, int]:
    """The rule that completes the waiting fetch now, or `PENDING`; how many bytes it lacks; the part that forces it."""
    operation = operation_at(w, o)
    accumulated = 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        if key.standing != Error.NONE:  # Cases A, B, E
            return rule_of_standing(key.standing), 0, at
        if part.epoch >= 0 and key.epoch != UNKNOWN and part.epoch < key.epoch:  # Case F
            return Rule.FENCED_EPOCH, 0, at
        end, end_seg, end_pos = fetch_answers.reader_end(key, operation.mode)
        if end == UNKNOWN:
            continue
        if part.offset > end:  # Case C
            return Rule.TRUNCATED, 0, at
        if part.throttled:
            continue
        if part.start_seg != end_seg:
            if part.start_seg < end_seg and part.offset != end:  # Case C
                return Rule.OLDER_SEGMENT, 0, at
            continue
        # Whether it has data cannot be foreseen, so it is counted, not asked.
        accumulated += min((end_pos - part.start_pos) * (part.offset != end), part.size)
    if accumulated >= _least(operation):  # Case D
        return Rule.MIN_BYTES, 0, NONE
    return Rule.PENDING, _least(operation) - accumulated, NONE


@inlined
def _complete(w: World, o: int, rule_: int, t: int, trigger: int, forced_by: int) -> None:
    lists.end(w, o, rule_, t, trigger)
    if forced_by != NONE:
        part_at(w, forced_by).heap = FORCING


@inlined
def _take_count(w: World, k: int, reader: int, heard: bool, t: int) -> None:
    """The reader's end on the key may have moved: what it moved by is lacking no longer. A fetch that lacks nothing is
    complete; where nobody has heard of it, it is odd, for any check of any of its keys completes it."""
    _, _, end_pos = fetch_answers.reader_end(key_at(w, k), reader)
    at = waiter_queues.first_in_list(w, k, COUNTED + reader)
    while at != NONE:
        part = part_at(w, at)
        # One that is complete leaves the list; nobody else does.
        following = waiter_queues.next_in_list(w, at)
        gained = fetch_index.gained(part, end_pos)
        if gained != part.wants and part.throttled == 0:
            operation = operation_at(w, part.operation)
            operation.lacking = max(0, operation.lacking - (gained - part.wants))
            part.wants = gained
            if operation.lacking == 0:
                if not heard:
                    lists.make_odd(w, part.operation)
                elif w.checking != NONE:
                    # Another of the event's keys may have moved otherwise, and comes first in the request.
                    _try(w, at, t)
                else:
                    _complete(w, part.operation, Rule.MIN_BYTES, t, at, NONE)
        at = following


@rule
def _try(w: World, at: int, t: int) -> bool:
    """A check tries the part's fetch. One that is not complete hangs on: further up, or among the odd ones."""
    o = part_at(w, at).operation
    rule_, lacking, forced_by = _tried(w, o)
    if rule_ != Rule.PENDING:
        _complete(w, o, rule_, t, lists.trigger_of(w, o, at), forced_by)
        return True
    if not operation_at(w, o).odd:
        fetch_index.hang_anew(w, o, lacking)
    return False


@rule
def throttle(w: World, k: int, who: int, throttled: int) -> None:
    """A replication quota holds that follower back, or no longer does: seen at the next check of its fetches."""
    key = key_at(w, k)
    node = node_of(w, key.throttles, who)
    if node == NONE:
        key.throttles = new_node(w, key.throttles, who, throttled)
        key.hung |= THROTTLES
    else:
        node_at(w, node).value = throttled
    fetch_index.shake(w, k, Reader.FOLLOWER)
    at = waiter_queues.first_in_list(w, k, ODD)
    while at != NONE:
        part = part_at(w, at)
        operation = operation_at(w, part.operation)
        if operation.mode == Reader.FOLLOWER and operation.who == who:
            part.throttled = throttled
        at = waiter_queues.next_in_list(w, at)


@inlined
def ripen(w: World, k: int) -> None:
    """The last stable offset rose, and nobody is told: whom it may complete is odd from now on."""
    if key_at(w, k).hung & _OF_COMMITTED == 0:
        return
    _, _, end_pos = fetch_answers.reader_end(key_at(w, k), Reader.COMMITTED)
    while _is_ripe(w, k, Reader.COMMITTED, end_pos):
        lists.make_odd(w, part_at(w, waiter_queues.first_in_heap(w, k, FETCHES + Reader.COMMITTED)).operation)
    _take_count(w, k, Reader.COMMITTED, False, 0)


@inlined
def _is_ripe(w: World, k: int, reader: int, end_pos: int) -> bool:
    """Whether the end is where a fetch of this kind of reader wants it, if any hangs on the key."""
    first = waiter_queues.first_in_heap(w, k, FETCHES + reader)
    return first != NONE and part_at(w, first).wants <= end_pos


@inlined
def _check_readers(w: World, k: int, reader: int, t: int) -> None:
    """Some fetch of this kind of reader waits on the key, and is not odd."""
    _, end_seg, end_pos = fetch_answers.reader_end(key_at(w, k), reader)
    by_slack, counted = FETCHES + reader, COUNTED + reader
    some = waiter_queues.first_in_heap(w, k, by_slack)
    if some == NONE:
        some = waiter_queues.first_in_list(w, k, counted)
    if key_at(w, k).roll_count > 0 and end_seg != part_at(w, some).start_seg:
        fetch_index.shake(w, k, reader)
    while _is_ripe(w, k, reader, end_pos):
        _try(w, waiter_queues.first_in_heap(w, k, by_slack), t)
    _take_count(w, k, reader, True, t)


@inlined
def check(w: World, k: int, t: int, moved: int) -> None:
    """Something happened to the key: try the fetches that it may complete."""
    key = key_at(w, k)
    if key.standing != Error.NONE:
        fetch_index.shake_all(w, k)
    if key.hung & moved & _OF_FOLLOWERS != 0:
        _check_readers(w, k, Reader.FOLLOWER, t)
    if key.hung & moved & _OF_CONSUMERS != 0:
        _check_readers(w, k, Reader.CONSUMER, t)
    if key.hung & moved & _OF_COMMITTED != 0:
        _check_readers(w, k, Reader.COMMITTED, t)
    odd = waiter_queues.first_in_list(w, k, ODD)
    while odd != NONE:
        # What is tried may end, and leave the list; nobody else does.
        following = waiter_queues.next_in_list(w, odd)
        _try(w, odd, t)
        odd = following

"""What a recorded change does to a replica, and whom it wakes (see `reference.triggers`).

| change | checks |
|---|---|
| `log_end`, an append | Fetch; if it raised the high watermark: Produce, Fetch, DeleteRecords |
| `high_watermark` | Produce, Fetch, DeleteRecords, unless it is lower than it was |
| `replica_end`, `isr` | the same three, if it raised the high watermark |
| `leader`, `online`, `not_leader`, `offline`, `deleted` | the same three; a leader's topic after them |
| `log_start` | DeleteRecords |
| `last_stable`, `segment_roll`, `truncate` | nobody: seen at the next check of any partition of an operation |
| `throttled`, `unthrottled` | nobody either |
| `stopped` | nobody: who waits for the partition ends without an answer |
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, rule
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import fetch_index, fetch_rules, replica_log, replica_state, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    CANCELLED,
    COUNTED,
    IN_SYNC,
    KINDS,
    NONE,
    NOTHING_YET,
    SETTLED,
    SETTLING_OTHERS,
    World,
    event_at,
    key_at,
    link_at,
    node_at,
    operation_at,
    part_at,
    place_at,
    purgatory_at,
    told_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code, Error, Reader, Rule
from purgatory_udf.rules.engine.loop.waiter_checks import (
    check_all,
    check_all_here,
    check_deletions,
    check_fetches,
    check_topic,
)

# A broker's process stops: whoever waits there for the partition, or its topic, ends without an answer (see
# `reference.broker`).
#
# Connections are gone, and what was parked in memory; the log stays. The new process knows nothing of followers, leads
# nothing until it is told so, and estimates its purgatories by what they hold.


@rule
def stop_partition(w: World, k: int, t: int) -> None:
    key = key_at(w, k)
    key.news += 1
    for kind in range(COUNTED):
        while waiter_queues.first_in_heap(w, k, kind) != NONE:
            _abandon(w, waiter_queues.first_in_heap(w, k, kind), t)
    for kind in range(COUNTED, KINDS):
        while waiter_queues.first_in_list(w, k, kind) != NONE:
            _abandon(w, waiter_queues.first_in_list(w, k, kind), t)
    lists.walk_all(w, key)
    _estimate_anew(w, key.broker, False)
    key.standing, key.nodes = Error.NOT_LEADER_OR_FOLLOWER, NONE


@rule
def stop_topic(w: World, k: int, broker: int, t: int) -> None:
    """The topic's heap has who waits at any broker: others are put back."""
    kept = NONE
    while waiter_queues.first_in_heap(w, k, SETTLING_OTHERS) != NONE:
        at = waiter_queues.first_in_heap(w, k, SETTLING_OTHERS)
        if operation_at(w, part_at(w, at).operation).broker == broker:
            _abandon(w, at, t)
        else:
            waiter_queues.remove_from_heap(w, at, key_at(w, k))
            link_at(w, at).next, kept = kept, at
    while kept != NONE:
        at, kept = kept, link_at(w, kept).next
        waiter_queues.push_to_heap(w, at, SETTLING_OTHERS, part_at(w, at).wants)
    lists.walk_topic(w, key_at(w, k), broker)
    _estimate_anew(w, broker, True)


@rule
def _estimate_anew(w: World, broker: int, of_topics: bool) -> None:
    for p in range(w.purgatories):
        purgatory = purgatory_at(w, p)
        if purgatory.broker == broker and (purgatory.code == Code.CREATE_TOPICS) == of_topics:
            purgatory.estimated = purgatory.delayed


@rule
def _abandon(w: World, by: int, t: int) -> None:
    """The part's operation ends, and is on no list any more."""
    o = part_at(w, by).operation
    operation = operation_at(w, o)
    lists.close(w, o, CANCELLED, Rule.BROKER_STOPPED, t, by)
    w.cancelled += 1
    entries = NOTHING_YET
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        waiter_queues.remove_from_heap(w, at, key)
        entries += 1 - part.again
        if operation.code == Code.FETCH:
            part.news = key.news - part.news
            part.error, part.size = Error.UNANSWERED, 0
        elif part.heap != SETTLED:
            part.error, part.end_t = Error.UNANSWERED, t
    purgatory_at(w, operation.purgatory).watched -= entries


@inlined
def high_watermark(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    # Every offset is more than one that is unknown.
    if event.offset >= key.hw:
        replica_state.take_watermark(w, key, event.offset)
        key.news += 1
        check_all_here(w, k, event.t, fetch_rules.OF_WATERMARK)


@inlined
def log_end(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    if replica_log.append(w, key, event.offset, event.size, event.whole):
        key.news += 1
        if replica_state.advance_watermark(w, key):
            check_all(w, k, event.t, fetch_rules.OF_ANY)
        else:
            check_fetches(w, k, event.t, fetch_rules.OF_LOG_END)


@inlined
def replica_end(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    if replica_state.follower_reached(w, key, event.who, event.offset):
        key.news += 1
        check_all(w, k, event.t, fetch_rules.OF_WATERMARK)


@rule
def rarer(w: World, e: int) -> None:
    """Any of these may make an error of what a waiting fetch asks."""
    w.upheavals += 1
    event = event_at(w, e)
    code, t, offset = event.code, event.t, event.offset
    k = place_at(w, event.key).key
    key = key_at(w, k)
    if code == Code.LOG_START:
        key.log_start = max(key.log_start, offset)
        key.news += 1
        check_deletions(w, k, t)
    elif code == Code.SEGMENT_ROLL:
        if replica_log.roll(w, key, offset):
            key.news += 1
            fetch_index.shake(w, k, Reader.FOLLOWER)
    elif code == Code.TRUNCATE:
        _truncate(w, k, offset)
    elif code == Code.ISR:
        _in_sync(w, key, told_at(w, event.told))
        if replica_state.advance_watermark(w, key):
            key.news += 1
            check_all(w, k, t, fetch_rules.OF_WATERMARK)
    elif code == Code.LED:
        _led(w, k, offset)
        check_topic(w, k, t)
    elif code == Code.UNLED:
        _unled(w, k, offset)
    elif code in (Code.THROTTLED, Code.UNTHROTTLED):
        key.news += 1
        fetch_rules.throttle(w, k, event.who, code == Code.THROTTLED)
    elif code == Code.STOPPED:
        stop_partition(w, k, t)
    elif code == Code.TOPIC_STOPPED:
        stop_topic(w, k, event.broker, t)
    else:
        if code == Code.LEADER:
            key.standing = Error.NONE
            _lead(w, k, event.who, told_at(w, event.told))
        elif code == Code.ONLINE:
            key.standing = Error.NONE
        elif code == Code.NOT_LEADER:
            key.standing = Error.NOT_LEADER_OR_FOLLOWER
        elif code == Code.OFFLINE:
            key.standing = Error.KAFKA_STORAGE_ERROR
        else:
            key.standing = Error.UNKNOWN_TOPIC_OR_PARTITION
        key.news += 1
        check_all(w, k, t, fetch_rules.OF_ANY)


@inlined
def last_stable(w: World, e: int) -> None:
    """The first one may lie below the high watermark, which was what counted before."""
    event = event_at(w, e)
    offset, k = event.offset, place_at(w, event.key).key
    key = key_at(w, k)
    first, seg = key.lso_own == 0, key.lso_seg
    if not first and offset < key.lso:
        return
    key.lso_own = 1
    replica_state.take_last_stable(w, key, offset)
    key.news += 1
    if first or key.lso_seg != seg:
        fetch_index.shake(w, k, Reader.COMMITTED)
    else:
        fetch_rules.ripen(w, k)


@rule
def _truncate(w: World, k: int, offset: int) -> None:
    """The watermarks above the new end come down to it, and are taken anew."""
    key = key_at(w, k)
    if not replica_log.truncate(w, key, offset):
        return
    key.news += 1
    if key.hw > offset:
        replica_state.take_watermark(w, key, offset)
    if key.lso_own and key.lso > offset:
        replica_state.take_last_stable(w, key, offset)
    fetch_index.shake_all(w, k)


@rule
def _in_sync(w: World, key: Any, told: Any) -> None:
    key.isr_begin, key.isr_count = w.members + told.first, told.members
    key.hung |= IN_SYNC


@rule
def _lead(w: World, k: int, min_isr: int, told: Any) -> None:
    """This broker leads the partition (again); what is not said stays as it was."""
    key = key_at(w, k)
    if told.epoch != UNKNOWN:
        if told.epoch != key.epoch:
            fetch_index.shake_all(w, k)
        key.epoch = told.epoch
    if min_isr != UNKNOWN:
        key.min_isr = min_isr
    if told.members >= 0:
        _in_sync(w, key, told)
    replica_state.advance_watermark(w, key)


@rule
def _led(w: World, k: int, partition: int) -> None:
    """`log_start` of a topic is the number of its first partition that nobody leads."""
    key = key_at(w, k)
    if replica_state.node_of(w, key.nodes, partition) == NONE:
        key.nodes = replica_state.new_node(w, key.nodes, partition, 1)
    else:
        node_at(w, replica_state.node_of(w, key.nodes, partition)).value = 1
    while True:
        node = replica_state.node_of(w, key.nodes, key.log_start)
        if node == NONE or node_at(w, node).value == 0:
            return
        key.log_start += 1


@rule
def _unled(w: World, k: int, partition: int) -> None:
    key = key_at(w, k)
    node = replica_state.node_of(w, key.nodes, partition)
    if node != NONE:
        node_at(w, node).value = 0
        key.log_start = min(key.log_start, partition)

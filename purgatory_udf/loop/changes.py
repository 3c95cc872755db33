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

from purgatory_udf.compiling.compiled import inlined, rule
from purgatory_udf.loop import fetch, hanging, logs, replica, stopping
from purgatory_udf.loop.checks import check_all, check_all_here, check_deletions, check_fetches, check_topic
from purgatory_udf.loop.tables import World, event_at, key_at, node_at, place_at, told_at
from purgatory_udf.loop.words import UNKNOWN, Code, Error, Reader
from purgatory_udf.loop.world import IN_SYNC, NONE


@inlined
def high_watermark(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    # Every offset is more than one that is unknown.
    if event.offset >= key.hw:
        replica.take_watermark(w, key, event.offset)
        key.news += 1
        check_all_here(w, k, event.t, fetch.OF_WATERMARK)


@inlined
def log_end(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    if logs.append(w, key, event.offset, event.size, event.whole):
        key.news += 1
        if replica.advance_watermark(w, key):
            check_all(w, k, event.t, fetch.OF_ANY)
        else:
            check_fetches(w, k, event.t, fetch.OF_LOG_END)


@inlined
def replica_end(w: World, e: int) -> None:
    event = event_at(w, e)
    k = place_at(w, event.key).key
    key = key_at(w, k)
    if replica.follower_reached(w, key, event.who, event.offset):
        key.news += 1
        check_all(w, k, event.t, fetch.OF_WATERMARK)


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
        if logs.roll(w, key, offset):
            key.news += 1
            hanging.shake(w, k, Reader.FOLLOWER)
    elif code == Code.TRUNCATE:
        _truncate(w, k, offset)
    elif code == Code.ISR:
        _in_sync(w, key, told_at(w, event.told))
        if replica.advance_watermark(w, key):
            key.news += 1
            check_all(w, k, t, fetch.OF_WATERMARK)
    elif code == Code.LED:
        _led(w, k, offset)
        check_topic(w, k, t)
    elif code == Code.UNLED:
        _unled(w, k, offset)
    elif code in (Code.THROTTLED, Code.UNTHROTTLED):
        key.news += 1
        fetch.throttle(w, k, event.who, code == Code.THROTTLED)
    elif code == Code.STOPPED:
        stopping.stop(w, k, t)
    elif code == Code.TOPIC_STOPPED:
        stopping.stop_topic(w, k, event.broker, t)
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
        check_all(w, k, t, fetch.OF_ANY)


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
    replica.take_last_stable(w, key, offset)
    key.news += 1
    if first or key.lso_seg != seg:
        hanging.shake(w, k, Reader.COMMITTED)
    else:
        fetch.ripen(w, k)


@rule
def _truncate(w: World, k: int, offset: int) -> None:
    """The watermarks above the new end come down to it, and are taken anew."""
    key = key_at(w, k)
    if not logs.truncate(w, key, offset):
        return
    key.news += 1
    if key.hw > offset:
        replica.take_watermark(w, key, offset)
    if key.lso_own and key.lso > offset:
        replica.take_last_stable(w, key, offset)
    hanging.shake_all(w, k)


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
            hanging.shake_all(w, k)
        key.epoch = told.epoch
    if min_isr != UNKNOWN:
        key.min_isr = min_isr
    if told.members >= 0:
        _in_sync(w, key, told)
    replica.advance_watermark(w, key)


@rule
def _led(w: World, k: int, partition: int) -> None:
    """`log_start` of a topic is the number of its first partition that nobody leads."""
    key = key_at(w, k)
    if replica.node_of(w, key.nodes, partition) == NONE:
        key.nodes = replica.new_node(w, key.nodes, partition, 1)
    else:
        node_at(w, replica.node_of(w, key.nodes, partition)).value = 1
    while True:
        node = replica.node_of(w, key.nodes, key.log_start)
        if node == NONE or node_at(w, node).value == 0:
            return
        key.log_start += 1


@rule
def _unled(w: World, k: int, partition: int) -> None:
    key = key_at(w, k)
    node = replica.node_of(w, key.nodes, partition)
    if node != NONE:
        node_at(w, node).value = 0
        key.log_start = min(key.log_start, partition)

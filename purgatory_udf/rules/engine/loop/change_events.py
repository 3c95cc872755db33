"""Handlers of changes: how a change affects a replica, and which watcher lists it checks.

They follow `rules.reference.event_handlers`.

| change | checks |
|---|---|
| `log_end`, an append | Fetch; if it raised the high watermark: Produce, Fetch, DeleteRecords |
| `high_watermark` | Produce, Fetch, DeleteRecords, unless it is lower than before |
| `replica_end`, `isr` | the same three, if it raised the high watermark |
| `leader`, `online`, `not_leader`, `offline`, `deleted` | the same three; after a new leader also its topic |
| `follower`, `none` | the same three |
| `follower`, `not_leader`, `offline`, `deleted`, `none` | RemoteFetch and RemoteListOffsets as well |
| these and `online`, with `wake` false | Produce, DeleteRecords |
| `log_start` | DeleteRecords |
| `last_stable`, `segment_roll`, `truncate` | none: seen at the next check of any partition of an operation |
| `throttled`, `unthrottled`, `local_log_start` | none either |
| `stopped` | none: operations that wait for the partition are cancelled |

A check also removes the dead entries of the lists that it walks, as far as the gauges count them.

When a broker stops, its connections and purgatories are lost, but the log stays. The new process knows the log end of
no follower, leads no partition until it is elected, and its purge estimates start at what its purgatories hold.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64
from purgatory_udf.rules.engine.loop import (
    compiled_fetch,
    compiled_produce,
    compiled_remote,
    engine_purgatory,
    fetch_index,
    replica_state,
    waiter_queues,
)
from purgatory_udf.rules.engine.loop.arena import (
    CANCELLED,
    COUNTED_LISTS,
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    ISR_KNOWN,
    LOOKUP_LIST,
    NONE,
    OTHER_HEAP,
    PRODUCE_HEAP,
    READ_LIST,
    SETTLED,
    SILENT,
    TIERED,
    ZERO,
    Arena,
    event_at,
    key_at,
    key_number_at,
    leader_and_isr_at,
    link_at,
    node_at,
    operation_at,
    part_at,
    purgatory_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code, Error, Reader, Rule

# Bits of a key's `waiter_mask`: waiting parts and dead entries of produces and of delete-records.
_PRODUCES = int64(1 << int(PRODUCE_HEAP) | int(DEAD_PRODUCES))
_DELETIONS = int64(1 << int(OTHER_HEAP) | int(DEAD_DELETIONS))
_ALL_BUT_FETCHES = _PRODUCES | _DELETIONS | DEAD_FETCHES


@inlined
def check_fetches(arena: Arena, k: int, t: int, moved: int) -> None:
    """Check the key's fetches that wait for the ends in the bit mask `moved` (`compiled_fetch.LOG_END_MOVED`, …)."""
    key = key_at(arena, k)
    if key.waiter_mask & moved != 0:
        _check_fetches(arena, k, t, moved)
    elif key.waiter_mask & DEAD_FETCHES != 0:
        engine_purgatory.remove_dead_fetches(arena, key)


@helper
def _check_fetches(arena: Arena, k: int, t: int, moved: int) -> None:
    compiled_fetch.check(arena, k, t, moved)
    engine_purgatory.remove_dead_fetches(arena, key_at(arena, k))


@inlined
def _check_produces(arena: Arena, k: int, t: int) -> None:
    if key_at(arena, k).waiter_mask & _PRODUCES != 0:
        compiled_produce.check(arena, k, Code.PRODUCE, t)
        engine_purgatory.remove_dead_produces(arena, key_at(arena, k))


@inlined
def check_deletions(arena: Arena, k: int, t: int) -> None:
    """Check the delete-records requests that wait on the key."""
    if key_at(arena, k).waiter_mask & _DELETIONS != 0:
        compiled_produce.check(arena, k, Code.DELETE_RECORDS, t)
        engine_purgatory.remove_dead_deletions(arena, key_at(arena, k))


@helper
def check_per_partition(arena: Arena, k: int, t: int) -> None:
    """Check produces and delete-records, which settle their partitions one by one."""
    _check_produces(arena, k, t)
    check_deletions(arena, k, t)


@inlined
def check_all(arena: Arena, k: int, t: int, moved: int) -> None:
    """Check the key's produces, fetches and delete-records after a new high watermark or a change of leadership.

    `moved` is the bit mask of the ends that moved (`compiled_fetch.ANY_END_MOVED`, …).
    """
    if key_at(arena, k).waiter_mask & (moved | _ALL_BUT_FETCHES) != 0:
        _check_all(arena, k, t, moved)


@inlined
def check_all_inline(arena: Arena, k: int, t: int, moved: int) -> None:
    """Do the same as `check_all`, but inlined into the handler of the most frequent event."""
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
    """Check the create-topics requests that wait for the topic, at every broker.

    All brokers learn of a new leader, and each checks its own watcher list of the topic.
    """
    compiled_produce.check(arena, k, Code.CREATE_TOPICS, t)
    engine_purgatory.remove_dead_of_topic(arena, key_at(arena, k), NONE)


@helper
def stop_partition(arena: Arena, k: int, t: int) -> None:
    """Cancel the operations that wait for the partition at the broker that stopped."""
    key = key_at(arena, k)
    key.updates += 1
    for kind in range(COUNTED_LISTS):
        while waiter_queues.first_in_heap(arena, k, kind) != NONE:
            _cancel(arena, waiter_queues.first_in_heap(arena, k, kind), t)
    for kind in range(COUNTED_LISTS, READ_LIST):
        while waiter_queues.first_in_list(arena, k, kind) != NONE:
            _cancel(arena, waiter_queues.first_in_list(arena, k, kind), t)
    compiled_remote.stop(arena, k, READ_LIST, t)
    compiled_remote.stop(arena, k, LOOKUP_LIST, t)
    engine_purgatory.remove_all_dead(arena, key)
    _reset_estimates(arena, key.broker, False)
    key.partition_error, key.nodes, key.is_follower = Error.NOT_LEADER_OR_FOLLOWER, NONE, 0


@helper
def stop_topic(arena: Arena, k: int, broker: int, t: int) -> None:
    """Cancel the create-topics that wait for the topic at this broker, and requeue those of other brokers."""
    kept = NONE
    while waiter_queues.first_in_heap(arena, k, OTHER_HEAP) != NONE:
        at = waiter_queues.first_in_heap(arena, k, OTHER_HEAP)
        if operation_at(arena, part_at(arena, at).operation).broker == broker:
            _cancel(arena, at, t)
        else:
            waiter_queues.dequeue(arena, at, key_at(arena, k))
            link_at(arena, at).next, kept = kept, at
    while kept != NONE:
        at, kept = kept, link_at(arena, kept).next
        waiter_queues.push_to_heap(arena, at, OTHER_HEAP, part_at(arena, at).threshold)
    engine_purgatory.remove_dead_of_topic(arena, key_at(arena, k), broker)
    _reset_estimates(arena, broker, True)


@helper
def _reset_estimates(arena: Arena, broker: int, of_topics: bool) -> None:
    """Reset the purge estimates of the broker's purgatories: of topics if `of_topics`, otherwise of partitions."""
    for p in range(arena.purgatories):
        purgatory = purgatory_at(arena, p)
        if purgatory.broker == broker and (purgatory.code == Code.CREATE_TOPICS) == of_topics:
            purgatory.estimated = purgatory.delayed


@helper
def _cancel(arena: Arena, by: int, t: int) -> None:
    """Cancel the operation that part `by` belongs to, and remove it from all watcher lists."""
    o = part_at(arena, by).operation
    operation = operation_at(arena, o)
    engine_purgatory.close_operation(arena, o, CANCELLED, Rule.BROKER_STOPPED, t, by)
    arena.cancelled += 1
    entries = ZERO
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        waiter_queues.dequeue(arena, at, key)
        entries += 1 - part.duplicate
        if operation.code == Code.FETCH:
            part.updates = key.updates - part.updates
            part.error, part.size = Error.UNANSWERED, 0
        elif part.queue != SETTLED:
            part.error, part.end_t = Error.UNANSWERED, t
    purgatory_at(arena, operation.purgatory).watched -= entries


@inlined
def high_watermark(arena: Arena, e: int) -> None:
    """Handle event `e`, a high watermark that the trace reports."""
    event = event_at(arena, e)
    k = key_number_at(arena, event.key).key
    key = key_at(arena, k)
    # An unknown high watermark is lower than any offset.
    if event.offset >= key.hw:
        replica_state.set_high_watermark(arena, key, event.offset)
        key.updates += 1
        check_all_inline(arena, k, event.t, compiled_fetch.WATERMARK_MOVED)


@inlined
def log_end(arena: Arena, e: int) -> None:
    """Handle event `e`, a log end offset that the trace reports."""
    event = event_at(arena, e)
    k = key_number_at(arena, event.key).key
    key = key_at(arena, k)
    if replica_state.append(arena, key, event.offset, event.size, event.single_batch):
        key.updates += 1
        if replica_state.advance_high_watermark(arena, key):
            check_all(arena, k, event.t, compiled_fetch.ANY_END_MOVED)
        else:
            check_fetches(arena, k, event.t, compiled_fetch.LOG_END_MOVED)


@inlined
def replica_end(arena: Arena, e: int) -> None:
    """Handle event `e`, a follower's log end offset that the trace reports."""
    event = event_at(arena, e)
    k = key_number_at(arena, event.key).key
    key = key_at(arena, k)
    if replica_state.update_follower(arena, key, event.replica_id, event.offset):
        key.updates += 1
        check_all(arena, k, event.t, compiled_fetch.WATERMARK_MOVED)


@helper
def rare_change(arena: Arena, e: int) -> None:
    """Handle event `e`, a change without a handler of its own. After it, the read of a waiting fetch may fail."""
    arena.disruptions += 1
    event = event_at(arena, e)
    code, t, offset = event.code, event.t, event.offset
    k = key_number_at(arena, event.key).key
    key = key_at(arena, k)
    if code == Code.LOG_START:
        key.log_start = max(key.log_start, offset)
        key.updates += 1
        check_deletions(arena, k, t)
    elif code == Code.SEGMENT_ROLL:
        if replica_state.roll(arena, key, offset):
            key.updates += 1
            fetch_index.invalidate_waiters(arena, k, Reader.FOLLOWER)
    elif code == Code.TRUNCATE:
        _truncate(arena, k, offset)
    elif code == Code.ISR:
        _set_in_sync(arena, key, leader_and_isr_at(arena, event.leader_and_isr))
        if replica_state.advance_high_watermark(arena, key):
            key.updates += 1
            check_all(arena, k, t, compiled_fetch.WATERMARK_MOVED)
    elif code == Code.LED:
        _add_topic_leader(arena, k, offset)
        check_topic(arena, k, t)
    elif code == Code.UNLED:
        _remove_topic_leader(arena, k, offset)
    elif code in (Code.THROTTLED, Code.UNTHROTTLED):
        key.updates += 1
        compiled_fetch.set_throttle(arena, k, event.replica_id, code == Code.THROTTLED)
    elif code == Code.STOPPED:
        stop_partition(arena, k, t)
    elif code == Code.TOPIC_STOPPED:
        stop_topic(arena, k, event.broker, t)
    elif code == Code.LOCAL_LOG_START:
        _set_local_start(arena, key, offset)
    elif code == Code.REMOTE_QUOTA:
        _remote_fetch_purgatory(arena, key.broker).quota_exhausted = offset
    elif code == Code.READER_QUEUE:
        _remote_fetch_purgatory(arena, key.broker).queue_full = offset
    else:
        if code == Code.LEADER:
            key.partition_error = Error.NONE
            _become_leader(arena, k, event.replica_id, leader_and_isr_at(arena, event.leader_and_isr))
        elif code == Code.ONLINE:
            key.partition_error = Error.NONE
        elif code == Code.NOT_LEADER or code == Code.FOLLOWER:
            key.partition_error = Error.NOT_LEADER_OR_FOLLOWER
        elif code == Code.OFFLINE:
            key.partition_error = Error.KAFKA_STORAGE_ERROR
        elif code == Code.DELETED:
            key.partition_error = Error.UNKNOWN_TOPIC_OR_PARTITION
        if code != Code.NONE:
            key.is_follower = code == Code.FOLLOWER
        if event.mode == SILENT:
            # Checks of other partitions of waiting fetches notice the change.
            fetch_index.invalidate_all_waiters(arena, k)
            check_per_partition(arena, k, t)
            return
        key.updates += 1
        check_all(arena, k, t, compiled_fetch.ANY_END_MOVED)
        if code != Code.LEADER and code != Code.ONLINE:
            compiled_remote.check_both(arena, k, t)


@helper
def _set_local_start(arena: Arena, key: Any, offset: int) -> None:
    """Raise the local log start offset to `offset`, and mark the partition as tiered."""
    key.local_start = max(key.local_start, offset)
    key.waiter_mask |= TIERED
    p = engine_purgatory.find_purgatory(arena, key.broker, Code.REMOTE_FETCH)
    purgatory_at(arena, p).is_tiered = 1
    # Completions of remote fetches do not add it.
    if replica_state.find_node(arena, key.dead_nodes, p) == NONE:
        key.dead_nodes = replica_state.add_node(arena, key.dead_nodes, p, 0)


@inlined
def _remote_fetch_purgatory(arena: Arena, broker: int) -> Any:
    return purgatory_at(arena, engine_purgatory.find_purgatory(arena, broker, Code.REMOTE_FETCH))


@inlined
def last_stable(arena: Arena, e: int) -> None:
    """Handle event `e`, a last stable offset that the trace reports.

    Until the first one, the high watermark counts as last stable offset, so the first may be lower than that.
    """
    event = event_at(arena, e)
    offset, k = event.offset, key_number_at(arena, event.key).key
    key = key_at(arena, k)
    first, seg = key.lso_known == 0, key.lso_seg
    if not first and offset < key.lso:
        return
    key.lso_known = 1
    replica_state.set_last_stable(arena, key, offset)
    key.updates += 1
    if first or key.lso_seg != seg:
        fetch_index.invalidate_waiters(arena, k, Reader.COMMITTED)
    else:
        compiled_fetch.on_lso_advance(arena, k)


@helper
def _truncate(arena: Arena, k: int, offset: int) -> None:
    """Truncate the log to the offset, and lower watermarks beyond it to the new end."""
    key = key_at(arena, k)
    if not replica_state.truncate(arena, key, offset):
        return
    key.updates += 1
    if key.hw > offset:
        replica_state.set_high_watermark(arena, key, offset)
    if key.lso_known and key.lso > offset:
        replica_state.set_last_stable(arena, key, offset)
    fetch_index.invalidate_all_waiters(arena, k)


@helper
def _set_in_sync(arena: Arena, key: Any, leader_and_isr: Any) -> None:
    key.isr_begin, key.isr_count = arena.member_base + leader_and_isr.first, leader_and_isr.members
    key.waiter_mask |= ISR_KNOWN


@helper
def _become_leader(arena: Arena, k: int, min_isr: int, leader_and_isr: Any) -> None:
    """Apply a leader's epoch, min.insync.replicas and in-sync set. Values that the event lacks stay unchanged."""
    key = key_at(arena, k)
    if leader_and_isr.epoch != UNKNOWN:
        if leader_and_isr.epoch != key.epoch:
            fetch_index.invalidate_all_waiters(arena, k)
        key.epoch = leader_and_isr.epoch
    if min_isr != UNKNOWN:
        key.min_isr = min_isr
    if leader_and_isr.members >= 0:
        _set_in_sync(arena, key, leader_and_isr)
    replica_state.advance_high_watermark(arena, key)


@helper
def _add_topic_leader(arena: Arena, k: int, partition: int) -> None:
    """Record that the partition of topic `k` has a leader, and move `log_start` to the first partition without one."""
    key = key_at(arena, k)
    if replica_state.find_node(arena, key.nodes, partition) == NONE:
        key.nodes = replica_state.add_node(arena, key.nodes, partition, 1)
    else:
        node_at(arena, replica_state.find_node(arena, key.nodes, partition)).value = 1
    while True:
        node = replica_state.find_node(arena, key.nodes, key.log_start)
        if node == NONE or node_at(arena, node).value == 0:
            return
        key.log_start += 1


@helper
def _remove_topic_leader(arena: Arena, k: int, partition: int) -> None:
    """Record that the partition of topic `k` has no leader any more."""
    key = key_at(arena, k)
    node = replica_state.find_node(arena, key.nodes, partition)
    if node != NONE:
        node_at(arena, node).value = 0
        key.log_start = min(key.log_start, partition)

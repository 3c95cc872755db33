"""Lays a state out in the tables of a call, and compacts it afterwards.

Heaps, lists and timer buckets are links between rows, and are not stored between calls. Each operation stores its
bucket and each part its queue, from which `rebuild_links` restores the links.

Before a call, logs get room for the call's appends (`lay_out_logs`). After it, `trim_logs` merges batches if their
common boundary cannot affect any answer. A fetch reads at most `retain_bytes` of a partition, from one segment. So a
batch is merged with its predecessor if it is at least that far behind the high watermark, the last stable offset and
the end of its segment: a fetch that starts there still finds its maximum ahead. A batch larger than `smallest_limit`
may exceed the limit of a fetch (`fetch_reads`), so it is not merged, nor are its neighbours, which define its start and
end. The first batch of a segment is not merged either, because it defines where the segment before it ends. Below the
log start, segment ends do not matter, because all reads fail there. Batches without bytes are always merged.

Merging loses positions in two cases: if a log is truncated by more than `retain_bytes` below its watermarks, and if the
first reported last stable offset is that far below the high watermark.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import inlined
from purgatory_udf.rules.engine.jit.records import Records, copy_rows
from purgatory_udf.rules.engine.loop import compiled_timing_wheel, engine_purgatory, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    CANCELLED,
    COMPLETED,
    COUNTED_LISTS,
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    ENDED,
    EXPIRED,
    FORGET_READ_US,
    HAS_THROTTLES,
    ISR_KNOWN,
    LINGERING,
    NONE,
    TIERED,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Code
from purgatory_udf.rules.engine.loop.replica_state import SENTINEL_END, encode_start, start_of


@entry_point
def sort_by_outcome(outcomes: Records, completed: int, expired: int, rows: Records) -> None:
    """List the rows of completed, then expired, then cancelled operations, each in order of arrival.

    Args:
        outcomes: The outcome of each operation.
        completed: Number of completed operations.
        expired: Number of expired operations.
        rows: Filled with the row numbers.
    """
    complete, expire, cancel = 0, completed, completed + expired
    for o in range(len(outcomes)):
        outcome = outcomes[o].outcome
        if outcome == COMPLETED:
            rows[complete] = o
            complete += 1
        elif outcome == EXPIRED:
            rows[expire] = o
            expire += 1
        elif outcome == CANCELLED:
            rows[cancel] = o
            cancel += 1


@entry_point
def keep_open(operations: Records, parts: Records, kept: Records, kept_parts: Records, now: int) -> tuple[int, int]:
    """Copy open and lingering operations to `kept`, and their parts to `kept_parts`; return the numbers of both.

    Lingering operations with reads that are overdue at `now` (microseconds) are dropped.
    """
    row = first = 0
    for o in range(len(operations)):
        operation = operations[o]
        if operation.state == ENDED or (operation.state == LINGERING and operation.end_t < now - FORGET_READ_US):
            continue
        copy_rows(kept, row, operations, o, 1)
        kept[row].first = first
        if operation.state == LINGERING:
            kept[row].deadline = FOREVER
        copy_rows(kept_parts, first, parts, operation.first, operation.count)
        for _ in range(operation.count):
            part = kept_parts[first]
            part.operation, part.child = row, NONE
            first += 1
        row += 1
    return row, first


def init_rings(rows: Records, begin: int) -> None:
    """Turn each row from `begin` on into the root of an empty ring."""
    roots = rows[begin:]
    roots["prev"] = roots["next"] = np.arange(begin, len(rows))


@entry_point
def rebuild_links(arenas: Records) -> None:
    """Put waiting parts into their `queue` and open operations into their `bucket`, and set the keys' purgatories."""
    arena = arenas[0]
    for k in range(arena.keys_capacity):
        key = key_at(arena, k)
        key.produce_purgatory = engine_purgatory.find_purgatory(arena, key.broker, Code.PRODUCE)
        key.fetch_purgatory = engine_purgatory.find_purgatory(arena, key.broker, Code.FETCH)
    for at in range(arena.parts):
        part = part_at(arena, at)
        if part.queue > NONE:
            if part.queue >= COUNTED_LISTS:
                waiter_queues.push_to_list(arena, part.key, key_at(arena, part.key), at, part.queue)
            else:
                waiter_queues.push_to_heap(arena, at, part.queue, part.threshold)
    for o in range(arena.operations):
        operation = operation_at(arena, o)
        operation.disruptions = operation.settling_produce = NONE
        # In the engine's own arenas every open operation is in the timer here; group gauges also have operations to
        # come.
        if operation.bucket != NONE:  # pragma: no branch
            compiled_timing_wheel.push_to_bucket(
                arena, compiled_timing_wheel.bucket_root(arena, operation.purgatory, operation.bucket), o
            )


@entry_point
def lay_out_logs(
    keys: Records, growth: Records, state_batches: Records, state_rolls: Records, batches: Records, rolls: Records
) -> None:
    """Copy the state's logs to `batches` and `rolls`, with room for each key's `growth` and for the sentinel."""
    begin = roll_begin = 0
    for k in range(len(keys)):
        key = keys[k]
        copy_rows(batches, begin, state_batches, key.batch_begin, key.end_batch)
        key.batch_begin = begin
        sentinel = batches[begin + key.end_batch]
        sentinel["end"], sentinel["encoded_start"] = SENTINEL_END, encode_start(key.end_pos, 0)
        begin += key.end_batch + growth[k].batches + 1
        copy_rows(rolls, roll_begin, state_rolls, key.roll_begin, key.roll_count)
        key.roll_begin = roll_begin
        roll_begin += key.roll_count + growth[k].rolls


@entry_point
def trim_logs(
    keys: Records,
    batches: Records,
    rolls: Records,
    members: Records,
    kept: Records,
    kept_members: Records,
    retain_bytes: int,
    smallest_limit: int,
) -> tuple[int, int, int]:
    """Compact the logs and in-sync sets of the keys.

    Args:
        keys: The keys; their references are updated to the new rows.
        batches: The batches of the logs.
        rolls: The segment rolls of the logs; compacted in place.
        members: The members of the in-sync sets.
        kept: Filled with the remaining batches.
        kept_members: Filled with the members of the keys' current in-sync sets.
        retain_bytes: See `EngineSettings`.
        smallest_limit: See `EngineSettings`.

    Returns:
        The number of remaining batches, rolls, and members of in-sync sets.
    """
    in_use = in_use_rolls = in_use_members = 0
    for k in range(len(keys)):
        key = keys[k]
        begin, first, end, merged_end = in_use, key.batch_begin, key.batch_begin + key.end_batch, UNKNOWN
        bound = _retention_bound(key, retain_bytes)
        # A log's first reported end often has no bytes.
        while first + 1 < end and start_of(batches[first + 1]) == start_of(batches[first]):
            first += 1
        if _nothing_to_merge(batches, first, end, bound):
            in_use += end - first
            copy_rows(kept, begin, batches, first, end - first)
        else:
            protected_until = begin
            # The next roll above the log start, and the batch that its segment starts with.
            border, border_row, roll_end = key.roll_begin, first, key.roll_begin + key.roll_count
            while border < roll_end and rolls[border]["base"] <= key.log_start:
                border += 1
            starts_segment = False
            for at in range(first, end):
                while border < roll_end and border_row <= at:
                    while border_row < end and batches[border_row].end <= rolls[border]["base"]:
                        border_row += 1
                    if border_row <= at:
                        starts_segment = True
                        border += 1
                pos, following = start_of(batches[at]), start_of(batches[at + 1])
                if at + 1 < end and pos == following:
                    continue
                small = batches[at].encoded_start < 0 or following - pos <= smallest_limit
                far = pos <= bound
                if border < roll_end:
                    far = far and pos <= start_of(batches[border_row]) - retain_bytes
                if in_use > protected_until and far and small and not starts_segment:
                    in_use -= 1
                    merged_end = max(merged_end, kept[in_use].end)
                    if in_use > begin:
                        # It does not end where the next remaining batch starts.
                        before = kept[in_use - 1]
                        before["encoded_start"] = encode_start(start_of(before), 0)
                copy_rows(kept, in_use, batches, at, 1)
                in_use += 1
                if not small:
                    # Its successor stays as well.
                    protected_until = in_use + 1
                elif starts_segment:
                    protected_until = in_use
                starts_segment = False
        key.batch_begin, key.end_batch = begin, in_use - begin

        begin, end = in_use_rolls, key.roll_begin + key.roll_count
        for at in range(key.roll_begin, end):
            if at + 1 == end or rolls[at + 1]["base"] > min(merged_end, key.log_start):
                rolls[in_use_rolls] = rolls[at]
                in_use_rolls += 1
        key.roll_begin, key.roll_count = begin, in_use_rolls - begin

        begin = in_use_members
        for at in range(key.isr_begin, key.isr_begin + max(0, key.isr_count)):
            kept_members[in_use_members] = members[at]
            in_use_members += 1
        key.isr_begin = begin
        _reset_call_fields(key)
    return in_use, in_use_rolls, in_use_members


@inlined
def _reset_call_fields(key: Any) -> None:
    """Reset the fields that are only valid during a call; `rebuild_links` sets the bits of waiting parts again."""
    key.hw_batch = key.lso_batch = key.last_append = NONE
    key.waiter_mask = DEAD_PRODUCES * (key.dead_produce > 0)
    key.waiter_mask |= DEAD_FETCHES * (key.dead_fetch > 0)
    key.waiter_mask |= DEAD_DELETIONS * (key.dead_delete > 0)
    key.waiter_mask |= HAS_THROTTLES * (key.throttle_nodes != NONE)
    key.waiter_mask |= ISR_KNOWN * (key.isr_count >= 0)
    key.waiter_mask |= TIERED * (key.local_start != UNKNOWN)


@inlined
def _nothing_to_merge(batches: Records, first: int, end: int, bound: int) -> bool:
    """Return whether no batch can be merged: all start beyond the position `bound`, and no two at the same."""
    at = first + 1
    while at < end and start_of(batches[at]) != start_of(batches[at - 1]):
        at += 1
    return at >= end and (first == end or start_of(batches[first]) > bound)


@inlined
def _retention_bound(key: Any, retain_bytes: int) -> int:
    """Return the log position up to which batches of the key may be merged."""
    if key.hw == UNKNOWN:
        return UNKNOWN
    return min(key.hw_pos, key.lso_pos) - retain_bytes

"""Groups of keys that are processed together: splitting calls by group, and combining them again.

If groups are brokers, each has every key of its operations and decides them alone. If groups are partitions or shards,
an operation is *split* if its keys are in several of them, and none can decide it. Such a group decides its whole
operations. The group of the broker, which gets the same events, decides the split operations and reads the gauges.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.records import Records, concat_records, copy_records, sorted_unique, take_records
from purgatory_udf.rules.engine.loop.arena import PARTIAL
from purgatory_udf.rules.engine.loop.codes import ANY_BROKER, LAST_WITH_PARTS, NO_PARTITION, Code, Error, key_parts
from purgatory_udf.rules.engine.loop.engine_call import Call, KeyNames, change_rows, in_time_order, take_strings
from purgatory_udf.rules.engine.loop.engine_state import Decisions

Grouping = Callable[[str], str]

# Up to this many groups have numbers of 16 bits, which numpy sorts many times faster.
_MAX_INT16_GROUPS = 1 << 15
_UINT32 = (1 << 32) - 1


def by_partition(key: str) -> str:
    """Return the name of a key's group, for the grouping in which each key is a group."""
    return key


def by_broker(key: str) -> str:
    """Return the name of a key's group, for the grouping by broker. Topics, which all brokers know, are one group."""
    broker = key_parts(key)[0]
    return "topics" if broker == ANY_BROKER else f"broker-{broker}"


def by_shard(shards: int) -> Grouping:
    """Return the grouping that hashes keys to `shards` groups."""
    names = shard_names(shards)

    def group(key: str) -> str:
        return names[zlib.crc32(key.encode("utf-8")) % shards]

    return group


@cache
def shard_names(shards: int) -> tuple[str, ...]:
    """Return names that Spark hashes to different last bits, so that tasks get equally many shards.

    Spark chooses a group's task by the hash of its name modulo the number of tasks. With consecutive names, one of four
    tasks gets 6 of 16 shards and another one gets 1. These names are even for any power of two.
    """
    mask, number = (1 << (shards - 1).bit_length()) - 1, 0
    names: dict[int, str] = {}
    while len(names) < shards:
        name = f"shard-{number}"
        slot = spark_hash(name.encode()) & mask
        if slot < shards:
            names.setdefault(slot, name)
        number += 1
    return tuple(names[slot] for slot in range(shards))


def spark_hash(text: bytes) -> int:
    """Return the hash by which Spark distributes rows over tasks (MurmurHash3, with a tail byte by byte), unsigned."""
    value, whole = 42, len(text) // 4 * 4
    words = [int.from_bytes(text[at : at + 4], "little") for at in range(0, whole, 4)]
    for word in [*words, *(byte - (byte > 127) * 256 for byte in text[whole:])]:
        value ^= _rotate(word * 0xCC9E2D51, 15) * 0x1B873593 & _UINT32
        value = _rotate(value, 13) * 5 + 0xE6546B64 & _UINT32
    value ^= len(text)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ value >> shift) * factor & _UINT32
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits | value >> 32 - bits) & _UINT32


def grouping_function(grouping: str, shards: int) -> Grouping:
    """Return the grouping for a value of the configuration's `grouping`: partition, broker or shard."""
    return {"partition": by_partition, "broker": by_broker, "shard": by_shard(shards)}[grouping]


def split_call(call: Call, group: Grouping) -> Iterator[tuple[str, Call]]:
    """Yield each group's name and its part of the call: the events that touch a key of the group."""
    numbers: dict[str, int] = {}
    of_key = np.array([numbers.setdefault(group(name), len(numbers)) for name in call.names], dtype=np.int64)
    events, changes = call.events, change_rows(call.events)
    group_of_event = np.zeros(len(events), dtype=np.int64)
    group_of_event[changes] = of_key[events["key"][changes]]
    without_parts = events["count"] == 0
    for event in np.flatnonzero(without_parts & (events["code"] <= LAST_WITH_PARTS)):
        name = group(f"{events['broker'][event]}/{NO_PARTITION}/")
        group_of_event[event] = numbers.setdefault(name, len(numbers))
    if len(numbers) == 1:
        yield next(iter(numbers)), call
        return
    rows, parents = _part_rows(events)
    row_groups = of_key[call.request_parts["key"][rows]]
    # Pairs of group and event, in order, and the range of rows of each; rows are ordered by event already.
    sortable = row_groups.astype(np.int16) if len(numbers) <= _MAX_INT16_GROUPS else row_groups
    order = np.argsort(sortable, kind="stable")
    pair = row_groups[order] * len(events) + parents[order]
    starts = np.flatnonzero(np.append(True, pair[1:] != pair[:-1])) if len(pair) else np.zeros(0, np.int64)
    single = np.flatnonzero(without_parts)
    groups = np.append(pair[starts] // len(events), group_of_event[single]) if len(events) else group_of_event
    of_event = np.append(pair[starts] % len(events), single) if len(events) else single
    counts = np.append(np.diff(np.append(starts, len(pair))), np.zeros(len(single), np.int64))
    first = np.append(starts, np.zeros(len(single), np.int64))
    by_group = np.lexsort((of_event, groups))
    groups, of_event, counts, first = groups[by_group], of_event[by_group], counts[by_group], first[by_group]
    in_several = np.bincount(of_event, minlength=len(events)) > 1
    request_parts = take_records(call.request_parts, rows[order])
    names = list(numbers)
    bounds = np.searchsorted(groups, np.arange(len(names) + 1))
    row_bounds = np.searchsorted(row_groups[order], np.arange(len(names) + 1))
    for number, name in enumerate(names):
        low, high = bounds[number], bounds[number + 1]
        if low == high:
            continue
        own = take_records(events, of_event[low:high])
        own["split"] |= in_several[of_event[low:high]] & (own["total"] > 0)
        own["count"] = counts[low:high]
        with_parts = np.flatnonzero(own["count"] > 0)
        own["first"][with_parts] = first[low:high][with_parts] - row_bounds[number]
        yield name, _compact_call(call, own, request_parts[row_bounds[number] : row_bounds[number + 1]])


def _part_rows(events: Records) -> tuple[Records, Records]:
    """Return the row numbers of the request parts, in the order of their events, and the event of each part."""
    count = events["count"].astype(np.int64)
    parents = np.repeat(np.arange(len(events)), count)
    offset = np.arange(len(parents)) - np.repeat(np.cumsum(count) - count, count)
    return events["first"].astype(np.int64)[parents] + offset, parents


def _compact_call(call: Call, events: Records, request_parts: Records) -> Call:
    """Return a call with only the keys, strings and in-sync sets that these events refer to.

    The events are changed in place.
    """
    changes = change_rows(events)
    keys, changed_keys = request_parts["key"], events["key"][changes]
    used = sorted_unique(np.append(keys, changed_keys), len(call.names))
    new_number: Records = np.empty(len(call.names), np.int32)
    new_number[used] = np.arange(len(used))
    request_parts["key"] = new_number[keys]
    events["key"][changes] = new_number[changed_keys]
    requests = np.flatnonzero(events["code"] <= LAST_WITH_PARTS)
    id_rows = events["text"][requests]
    events["text"][requests] = np.arange(len(requests))
    with_error = np.flatnonzero(request_parts["error"] == Error.RECORDED)
    errors = call.errors.take(pa.array(request_parts["text"][with_error])) if len(with_error) else call.errors[:0]
    request_parts["text"][with_error] = np.arange(len(with_error))
    with_isr = changes[events["leader_and_isr"][changes] >= 0]
    leader_and_isr, in_sync = call.leader_and_isr[:0], call.in_sync[:0]
    if len(with_isr):
        leader_and_isr = take_records(call.leader_and_isr, events["leader_and_isr"][with_isr])
        events["leader_and_isr"][with_isr] = np.arange(len(with_isr))
        counts = np.maximum(leader_and_isr["members"], 0).astype(np.int64)
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        in_sync = take_records(call.in_sync, np.repeat(leader_and_isr["first"].astype(np.int64), counts) + offset)
        leader_and_isr["first"] = np.cumsum(counts) - counts
    return Call(
        call.names.take(used),
        events,
        request_parts,
        leader_and_isr,
        in_sync,
        take_strings(call.request_ids, id_rows),
        take_strings(call.client_ids, id_rows),
        errors,
    )


def mark_split(call: Call, group: Grouping) -> Call:
    """Mark the requests that have keys in several groups, as `split_call` does, without splitting the call."""
    numbers: dict[str, int] = {}
    of_key = np.array([numbers.setdefault(group(name), len(numbers)) for name in call.names], dtype=np.int64)
    with_parts = np.flatnonzero(call.events["count"])
    if len(numbers) < 2 or not len(with_parts):
        return call
    count = call.events["count"][with_parts].astype(np.int64)
    rows, _ = _part_rows(call.events)
    of_row = of_key[call.request_parts["key"][rows]]
    starts = np.cumsum(count) - count
    in_several = np.minimum.reduceat(of_row, starts) != np.maximum.reduceat(of_row, starts)
    events = copy_records(call.events)
    events["split"][with_parts] |= in_several & (events["total"][with_parts] > 0)
    return replace(call, events=events, capacity=None)


def concat_calls(calls: Sequence[Call]) -> Call:
    """Concatenate calls, and sort their events by time."""
    calls = [call for call in calls if len(call)]
    if not calls:
        return Call()
    if len(calls) == 1:
        return calls[0]
    numbers: dict[str, int] = {}
    events, request_parts, leader_and_isr = (
        [copy_records(getattr(call, name)) for call in calls] for name in ("events", "request_parts", "leader_and_isr")
    )
    rows = isr_rows = members = id_rows = errors = 0
    for call, own, own_parts, own_isr in zip(calls, events, request_parts, leader_and_isr, strict=True):
        key: Records = np.array([numbers.setdefault(name, len(numbers)) for name in call.names], dtype=np.int32)
        changes, requests = change_rows(own), np.flatnonzero(own["code"] <= LAST_WITH_PARTS)
        changed_keys, isr_row = own["key"][changes], own["leader_and_isr"]
        own["key"][changes] = key[changed_keys]
        with_isr = changes[isr_row[changes] >= 0]
        isr_row[with_isr] += isr_rows
        own["first"][requests] += rows
        own["text"][requests] += id_rows
        keys, texts, has_text = own_parts["key"], own_parts["text"], own_parts["error"] == Error.RECORDED
        own_parts["key"] = key[keys]
        texts[has_text] += errors
        own_isr["first"] += members
        rows, isr_rows, members = rows + len(own_parts), isr_rows + len(own_isr), members + len(call.in_sync)
        id_rows, errors = id_rows + len(call.request_ids), errors + len(call.errors)
    return Call(
        KeyNames([*numbers]),
        in_time_order(concat_records(events)),
        concat_records(request_parts),
        concat_records(leader_and_isr),
        concat_records([call.in_sync for call in calls]),
        pa.concat_arrays([call.request_ids for call in calls]),
        pa.concat_arrays([call.client_ids for call in calls]),
        pa.concat_arrays([call.errors for call in calls]),
    )


def defer_split_fetches(call: Call) -> Call:
    """Mark split fetches as partial, so that they do not complete in a group of partitions or a shard."""
    split = (call.events["split"] > 0) & (call.events["code"] == Code.FETCH)
    if not split.any():
        return call
    events = copy_records(call.events)
    events["split"][split] = PARTIAL
    return replace(call, events=events, capacity=None)


def keep_whole(decided: Decisions) -> Decisions:
    """Select what a group of partitions or a shard decides: operations that are not split, and no gauges.

    Operations that depend on their broker (`BROKER_DECIDES`) count as split.
    """
    return _select_outcomes(decided, decided.all_operations["split"] == 0, readings=False)


def keep_split(decided: Decisions) -> Decisions:
    """Select what a broker's group decides next to groups of partitions or shards: split operations, and all gauges."""
    return _select_outcomes(decided, decided.all_operations["split"] > 0, readings=True)


def _select_outcomes(decided: Decisions, which: np.ndarray, readings: bool) -> Decisions:
    return replace(
        decided,
        completed=decided.completed[which[decided.completed]],
        expired=decided.expired[which[decided.expired]],
        cancelled=decided.cancelled[which[decided.cancelled]],
        readings=decided.readings if readings else decided.readings[:0],
    )

"""Which group of keys a key belongs to; a call taken apart into those of its groups, and calls put together.

An operation whose keys lie in several groups is *apart*: none of these groups sees enough of it to decide it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.intrinsics import chosen, copied, distinct, joined
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop.arena import SOME_HERE
from purgatory_udf.rules.engine.loop.codes import ANY_BROKER, NO_PARTITION, Code, Error, key_parts
from purgatory_udf.rules.engine.loop.engine_call import Call, changes_of, in_order
from purgatory_udf.rules.engine.loop.engine_state import Decisions

GroupOf = Callable[[str], str]

# So many groups have numbers of 16 bits, which are sorted many times as fast.
_SHORT = 1 << 15


def by_partition(key: str) -> str:
    return key


def by_broker(key: str) -> str:
    """All keys of a broker; topics, of which all brokers know the same, are a group of their own."""
    broker = key_parts(key)[0]
    return "topics" if broker == ANY_BROKER else f"broker-{broker}"


def by_shard(shards: int) -> GroupOf:
    def group(key: str) -> str:
        return f"shard-{zlib.crc32(key.encode('utf-8')) % shards}"

    return group


def group_of(grouping: str, shards: int) -> GroupOf:
    return {"partition": by_partition, "broker": by_broker, "shard": by_shard(shards)}[grouping]


def apart(call: Call, group: GroupOf) -> Iterator[tuple[str, Call]]:
    """The call of each group, with the events that touch a key of it."""
    numbers: dict[str, int] = {}
    of_key = np.array([numbers.setdefault(group(name), len(numbers)) for name in call.names], dtype=np.int64)
    events, changes = call.events, changes_of(call.events)
    home = np.zeros(len(events), dtype=np.int64)
    home[changes] = of_key[events["key"][changes]]
    asks_nothing = events["count"] == 0
    for event in np.flatnonzero(asks_nothing & (events["code"] <= Code.CREATE_TOPICS)):
        name = group(f"{events['broker'][event]}/{NO_PARTITION}/")
        home[event] = numbers.setdefault(name, len(numbers))
    if len(numbers) == 1:
        yield next(iter(numbers)), call
        return
    rows, parents = _rows(events)
    belongs = of_key[call.asked["key"][rows]]
    # All pairs of a group and an event, in order, as the rows are by events already; and the rows of each.
    order = np.argsort(belongs.astype(np.int16) if len(numbers) <= _SHORT else belongs, kind="stable")
    pair = belongs[order] * len(events) + parents[order]
    begins = np.flatnonzero(np.append(True, pair[1:] != pair[:-1])) if len(pair) else np.zeros(0, np.int64)
    undivided = np.flatnonzero(asks_nothing)
    groups = np.append(pair[begins] // len(events), home[undivided]) if len(events) else home
    whose = np.append(pair[begins] % len(events), undivided) if len(events) else undivided
    counts = np.append(np.diff(np.append(begins, len(pair))), np.zeros(len(undivided), np.int64))
    first = np.append(begins, np.zeros(len(undivided), np.int64))
    by_group = np.lexsort((whose, groups))
    groups, whose, counts, first = groups[by_group], whose[by_group], counts[by_group], first[by_group]
    several = np.bincount(whose, minlength=len(events)) > 1
    asked = chosen(call.asked, rows[order])
    names = list(numbers)
    borders = np.searchsorted(groups, np.arange(len(names) + 1))
    rows_begin = np.searchsorted(belongs[order], np.arange(len(names) + 1))
    for number, name in enumerate(names):
        low, high = borders[number], borders[number + 1]
        if low == high:
            continue
        mine = chosen(events, whose[low:high])
        mine["apart"] |= several[whose[low:high]] & (mine["total"] > 0)
        mine["count"] = counts[low:high]
        asking = np.flatnonzero(mine["count"] > 0)
        mine["first"][asking] = first[low:high][asking] - rows_begin[number]
        yield name, _with_own_names(call, mine, asked[rows_begin[number] : rows_begin[number + 1]])


def _rows(events: Records) -> tuple[Records, Records]:
    """Places of what the events ask, event after event, and whose each is."""
    count = events["count"].astype(np.int64)
    parents = np.repeat(np.arange(len(events)), count)
    inside = np.arange(len(parents)) - np.repeat(np.cumsum(count) - count, count)
    return events["first"].astype(np.int64)[parents] + inside, parents


def _with_own_names(call: Call, events: Records, asked: Records) -> Call:
    """Only the keys and texts that these events, which are nobody else's, know of."""
    changes = changes_of(events)
    used = distinct(np.append(asked["key"], events["key"][changes]), len(call.names))
    places = np.empty(len(call.names), np.int32)
    places[used] = np.arange(len(used))
    asked["key"] = places[asked["key"]]
    events["key"][changes] = places[events["key"][changes]]
    requests = np.flatnonzero(events["code"] <= Code.CREATE_TOPICS)
    texts = events["text"][requests]
    events["text"][requests] = np.arange(len(requests))
    named = np.flatnonzero(asked["error"] == Error.RECORDED)
    errors = call.errors.take(pa.array(asked["text"][named])) if len(named) else call.errors[:0]
    asked["text"][named] = np.arange(len(named))
    tells = changes[events["told"][changes] >= 0]
    told, in_sync = call.told[:0], call.in_sync[:0]
    if len(tells):
        told = chosen(call.told, events["told"][tells])
        events["told"][tells] = np.arange(len(tells))
        counts = np.maximum(told["members"], 0).astype(np.int64)
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        in_sync = chosen(call.in_sync, np.repeat(told["first"].astype(np.int64), counts) + inside)
        told["first"] = np.cumsum(counts) - counts
    return Call(
        [call.names[key] for key in used],
        events,
        asked,
        told,
        in_sync,
        call.request_ids.take(pa.array(texts)),
        call.client_ids.take(pa.array(texts)),
        errors,
    )


def whole(call: Call) -> Call:
    """Requests that came in pieces, one for each group that had a share of their keys, are one again."""
    events = call.events
    pieces = (events["apart"] > 0) & (events["total"] > 0)
    if not pieces.any():
        return call
    same = np.zeros(len(events), dtype=bool)
    same[1:] = pieces[1:] & pieces[:-1]
    for name in ("t", "seq"):
        same[1:] &= events[name][1:] == events[name][:-1]
    rows, parents = _rows(events)
    number = np.cumsum(~same) - 1
    asked = chosen(call.asked, rows)
    order = np.lexsort((asked["place"], number[parents]))
    merged = chosen(events, ~same)
    merged["count"] = np.bincount(number[parents], minlength=len(merged))
    asking = np.flatnonzero(merged["count"] > 0)
    merged["first"][asking] = (np.cumsum(merged["count"]) - merged["count"])[asking]
    return replace(call, events=merged, asked=chosen(asked, order), room=None)


def together(parts: Sequence[Call]) -> Call:
    """Several calls as one, in the order of their events."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return Call()
    if len(parts) == 1:
        return parts[0]
    numbers: dict[str, int] = {}
    events, asked, told = ([copied(getattr(part, name)) for part in parts] for name in ("events", "asked", "told"))
    rows = tales = members = texts = errors = 0
    for part, mine, those, more in zip(parts, events, asked, told, strict=True):
        key = np.array([numbers.setdefault(name, len(numbers)) for name in part.names], dtype=np.int32)
        changes, requests = changes_of(mine), np.flatnonzero(mine["code"] <= Code.CREATE_TOPICS)
        mine["key"][changes] = key[mine["key"][changes]]
        mine["told"][changes[mine["told"][changes] >= 0]] += tales
        mine["first"][requests] += rows
        mine["text"][requests] += texts
        those["key"] = key[those["key"]]
        those["text"][those["error"] == Error.RECORDED] += errors
        more["first"] += members
        rows, tales, members = rows + len(those), tales + len(more), members + len(part.in_sync)
        texts, errors = texts + len(part.request_ids), errors + len(part.errors)
    return Call(
        list(numbers),
        in_order(joined(events)),
        joined(asked),
        joined(told),
        joined([part.in_sync for part in parts]),
        pa.concat_arrays([part.request_ids for part in parts]),
        pa.concat_arrays([part.client_ids for part in parts]),
        pa.concat_arrays([part.errors for part in parts]),
    )


# Groups of keys by whichever grouping, in one process: what the stream's queries do, batch by batch.
#
# By broker, one group sees all there is of an operation. By TopicPartition or shard, a group decides the operations
# whose keys are all its own; its events go on to the broker's group, which decides the others, and reads the gauges of
# all.


def undecidable(call: Call) -> Call:
    """For a group that sees only a share of some operations: such a fetch never has enough bytes there."""
    apart = (call.events["apart"] > 0) & (call.events["code"] == Code.FETCH)
    if not apart.any():
        return call
    events = copied(call.events)
    events["apart"][apart] = SOME_HERE
    return replace(call, events=events, room=None)


def decided_here(decided: Decisions) -> Decisions:
    """Of a group by TopicPartition or shard: the operations that it has seen whole."""
    return _some(decided, decided.all_operations["apart"] == 0, readings=False)


def decided_apart(decided: Decisions) -> Decisions:
    """Of the broker's group behind such groups: those that none of them has, and all gauges."""
    return _some(decided, decided.all_operations["apart"] > 0, readings=True)


def _some(decided: Decisions, which: np.ndarray, readings: bool) -> Decisions:
    return replace(
        decided,
        completed=decided.completed[which[decided.completed]],
        expired=decided.expired[which[decided.expired]],
        cancelled=decided.cancelled[which[decided.cancelled]],
        readings=decided.readings if readings else decided.readings[:0],
    )

"""Watches put together: when did each operation end, and what ended it?

A produce, delete-records or create-topics completes with its last partition, and expires if any is still pending.
A fetch over one key is its watch. A fetch over several completes at the first check of *any* of its keys that finds a
partition forcing it, or enough bytes over all of them. Orders of events across keys become *ranks* here, so that the
question "what did this key look like by then?" is one binary search for all watches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.columnar.crossing import first_met
from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.columnar.lookup import Index
from purgatory_udf.columnar.replicas import FETCH_CHECK
from purgatory_udf.columnar.tries import fetch_answer, fetch_try
from purgatory_udf.columnar.watches import ARRIVAL, CHECKED, CUT, DEADLINE, OPEN
from purgatory_udf.loop.words import FOREVER, UNKNOWN, Code, Rule

# One row per operation; `trigger` is the number of the watch (within the operation) whose key's event ended it, or -1.
OPERATIONS = Layout(
    numbers=(
        "op", "code", "broker", "mode", "n", "t", "deadline",
        "expired", "watched", "rule", "end_t", "end_seq", "end_sub", "trigger",
    ),
    texts=("request_id", "client_id"),
)  # fmt: skip


@dataclass
class Settled:
    """Operations in order of their ids; their watches in (operation, partition) order, with the final answers."""

    operations: Frame
    watches: Frame  # DONE columns, and `final_error`, `final_bytes`, `increments`


def complete(watches: Frame) -> Array:
    """Which watches belong to operations all of whose watches are here."""
    order = np.argsort(watches.op, kind="stable")
    op = watches.op[order]
    begin = np.flatnonzero(np.append(True, op[1:] != op[:-1])) if len(op) else order
    counts = np.empty(len(op), dtype=np.int64)
    lengths = np.diff(np.append(begin, len(op)))
    counts[order] = np.repeat(lengths, lengths)
    return counts == np.maximum(watches.n, 1)


def settle(watches: Frame, entries: Frame, fresh: Frame) -> Settled:
    """Decide operations whose watches are all given; `entries` are the keys' timelines, sorted by key and order."""
    watches = watches.take(np.lexsort((watches.idx, watches.op)))
    begin = np.flatnonzero(np.append(True, watches.op[1:] != watches.op[:-1])) if len(watches) else np.zeros(0, int)
    owner = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(watches))))
    head = watches.take(begin)
    ops = Frame(
        {name: head.columns[name] for name in OPERATIONS.names if name in head}
        | {name: np.zeros(len(begin), dtype=np.int64) for name in OPERATIONS.numbers if name not in OPEN.numbers}
        | {"trigger": np.full(len(begin), UNKNOWN, dtype=np.int64)}
    ).only(OPERATIONS.names)
    watches = watches.with_columns(
        final_error=watches.error.copy(), final_bytes=watches.answer.copy(), increments=np.zeros(len(watches), np.int64)
    )
    if len(begin):
        together = (ops.code == Code.FETCH) & (ops.n > 1)
        _settle_by_last(ops, watches, begin, owner, ~together)
        if together.any():
            _settle_fetches(ops, watches, owner, together, entries, fresh)
    return Settled(ops, watches)


def _settle_by_last(ops: Frame, watches: Frame, begin: Array, owner: Array, which: Array) -> None:
    """Completed by the partition that was settled last; on a tie within one try, by the last of the request."""
    late = watches.how == DEADLINE
    ops.expired[:] = np.logical_or.reduceat(late, begin)
    ops.watched[:] = np.logical_or.reduceat(watches.how != ARRIVAL, begin)
    # A partition whose append failed was settled before the first try.
    sub = np.where(watches.rule == Rule.APPEND_ERROR, UNKNOWN, watches.end_sub)
    order = np.lexsort((watches.idx, sub, watches.end_seq, watches.end_t, owner))
    last = order[np.append(begin[1:], len(watches)) - 1]
    tied = (watches.end_t == watches.end_t[last[owner]]) & (watches.end_seq == watches.end_seq[last[owner]])
    tied &= sub == sub[last[owner]]
    first = np.minimum.reduceat(np.where(tied, watches.idx, FOREVER), begin)
    expired = ops.expired > 0
    ops.rule[:] = np.where(expired, Rule.TIMEOUT, watches.rule[last])
    ops.end_t[:] = np.where(expired, ops.deadline * 1000, watches.end_t[last])
    ops.end_seq[:], ops.end_sub[:] = watches.end_seq[last], sub[last]
    ops.trigger[:] = np.where(expired | (ops.watched == 0), UNKNOWN, first)


@dataclass
class Windows:
    """Fetches over several keys: each watch's entries from its arrival up to the latest end its operation can have."""

    watches: Frame
    owner: Array  # the operation's number within these
    entries: Frame
    rank: Array  # of every entry
    index: Index  # of (key, rank)
    low: Array  # each watch's first entry after arrival
    limit: Array  # by operation: the last rank that it can still see
    least: Array

    def last_by(self, rank: Array) -> Array:
        """Each watch's last entry up to its operation's rank; below `low` when it has seen none."""
        return self.index.first_at_least(self.watches.key, rank[self.owner] + 1) - 1

    def tried(self, at: Array) -> tuple[Array, Array]:
        """Per watch: what forces it and what it counts at that entry (on arrival: nothing and what was readable)."""
        seen = at >= self.low
        rule, size = fetch_try(self.watches, self.entries.take(np.maximum(at, 0)))
        return np.where(seen, rule, 0), np.where(seen, size, self.watches.had)


def _settle_fetches(ops: Frame, watches: Frame, owner: Array, which: Array, entries: Frame, fresh: Frame) -> None:
    rows = np.flatnonzero(which[owner])
    number = np.cumsum(which) - 1
    mine, own = watches.take(rows), number[owner[rows]]
    count = int(which.sum())

    arrived = mine.how == ARRIVAL
    forced = arrived & (mine.rule != Rule.MIN_BYTES)
    begin = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    at_once = np.logical_or.reduceat(arrived, begin) | (np.add.reduceat(mine.had, begin) >= mine.least[begin])
    first_forced = np.minimum.reduceat(np.where(forced, np.arange(len(mine)), FOREVER), begin)
    rule = np.where(first_forced < FOREVER, mine.rule[np.minimum(first_forced, len(mine) - 1)], Rule.MIN_BYTES)
    error = np.where(arrived, mine.error, 0)
    size = mine.got.copy()
    end_t, end_seq, end_sub = mine.t[begin].copy(), mine.op[begin].copy(), np.full(count, FOREVER, dtype=np.int64)
    trigger = np.full(count, UNKNOWN, dtype=np.int64)
    expired = np.zeros(count, dtype=np.int64)
    increments = np.zeros(len(mine), dtype=np.int64)

    waits = np.flatnonzero(~at_once)
    if len(waits):
        later = np.flatnonzero(~at_once[own])
        ended = _ends_of_waiting(mine.take(later), (np.cumsum(~at_once) - 1)[own[later]], entries, fresh)
        rule[waits], end_t[waits], end_seq[waits], end_sub[waits], trigger[waits], expired[waits] = ended.operations
        error[later], size[later], increments[later] = ended.watches

    target = np.flatnonzero(which)
    ops.rule[target], ops.end_t[target], ops.trigger[target], ops.expired[target] = rule, end_t, trigger, expired
    ops.end_seq[target], ops.end_sub[target] = end_seq, end_sub
    ops.watched[target] = ~at_once
    watches.final_error[rows], watches.final_bytes[rows], watches.increments[rows] = error, size, increments


@dataclass
class _Ended:
    operations: tuple[Array, Array, Array, Array, Array, Array]  # rule; end t, seq, sub; trigger; expired
    watches: tuple[Array, Array, Array]  # error, bytes, increments


def _ranked(watches: Frame, entries: Frame) -> tuple[Array, Array, Array]:
    """One order for all keys: the rank of every entry, of each watch's start, and the last rank before its own end."""
    ends = watches.how == CHECKED
    t = np.concatenate([entries.t, watches.t, np.where(ends, watches.end_t, watches.deadline * 1000)])
    seq = np.concatenate([entries.seq, watches.op, np.where(ends, watches.end_seq, UNKNOWN)])
    sub = np.concatenate([entries.sub, np.full(len(watches), FOREVER), np.where(ends, watches.end_sub, UNKNOWN)])
    order = np.lexsort((sub, seq, t))
    changed = np.append(False, (np.diff(t[order]) != 0) | (np.diff(seq[order]) != 0) | (np.diff(sub[order]) != 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.cumsum(changed)
    entry, start, end = np.split(rank, [len(entries), len(entries) + len(watches)])
    return entry, start, np.where(ends, end, end - 1)


def _ends_of_waiting(watches: Frame, owner: Array, entries: Frame, fresh: Frame) -> _Ended:
    rank, start, last = _ranked(watches, entries)
    begin = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    limit = np.minimum.reduceat(last, begin)
    index = Index(entries.key, rank)
    low = index.first_at_least(watches.key, start + 1)
    windows = Windows(watches, owner, entries, rank, index, low, limit, watches.least[begin])
    met = first_met(windows)
    expired = met == UNKNOWN
    end = np.where(expired, limit, met)

    at = windows.last_by(end)
    seen = at >= low
    entry = np.maximum(at, 0)
    now = entries.take(entry) if len(entries) else entries
    if not len(entries):
        error, size, forced = np.zeros((3, len(watches)), dtype=np.int64)
        size = watches.got
    else:
        forced, _ = fetch_try(watches, now)
        error, size = fetch_answer(watches, now, _starts(watches, fresh, now))
        forced, error = np.where(seen, forced, 0), np.where(seen, error, 0)
        size = np.where(seen, size, watches.got)
    first = np.minimum.reduceat(np.where(forced > 0, np.arange(len(watches)), FOREVER), begin)
    rule = np.where(first < FOREVER, forced[np.minimum(first, len(watches) - 1)], Rule.MIN_BYTES)
    rule = np.where(expired, Rule.TIMEOUT, rule)

    end_t = watches.deadline[begin] * 1000
    end_seq, end_sub = np.full(len(begin), UNKNOWN, dtype=np.int64), np.zeros(len(begin), dtype=np.int64)
    trigger = np.full(len(begin), UNKNOWN, dtype=np.int64)
    if len(entries):
        here = seen & (rank[entry] == end[owner]) & (now.checks & FETCH_CHECK > 0) & ~expired[owner]
        # Checks of one event go in its own order of partitions: the first of them triggers.
        place = np.where(here, now.idx * len(watches) + np.arange(len(watches)), FOREVER)
        best = np.minimum.reduceat(place, begin)
        who = np.where(best < FOREVER, best % len(watches), 0)
        found = best < FOREVER
        trigger = np.where(found, watches.idx[who], UNKNOWN)
        end_t = np.where(found, now.t[who], end_t)
        end_seq, end_sub = np.where(found, now.seq[who], end_seq), np.where(found, now.sub[who], end_sub)
    increments = np.maximum(0, index.first_at_least(watches.key, last + 1) - low)
    ended = (rule, end_t, end_seq, end_sub, trigger, expired.astype(np.int64))
    return _Ended(ended, (error, size, increments))


def _starts(watches: Frame, fresh: Frame, now: Frame) -> Array:
    """Fetch offsets' positions by then: as on arrival, unless a truncation went below one before."""
    beyond = (now.end != UNKNOWN) & (watches.offset >= now.end)
    start = np.where(beyond, now.end_pos, watches.start)
    moved = np.flatnonzero(watches.moved & CUT)
    if not len(moved):
        return start
    anew: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for op, key, t, seq, pos in zip(fresh.op, fresh.key, fresh.t, fresh.seq, fresh.pos, strict=True):
        anew.setdefault((op, key), []).append((t, seq, pos))
    for row in moved:
        for t, seq, pos in sorted(anew.get((watches.op[row], watches.key[row]), [])):
            if (t, seq) <= (now.t[row], now.seq[row]):
                start[row] = now.end_pos[row] if pos == UNKNOWN else pos
    return start

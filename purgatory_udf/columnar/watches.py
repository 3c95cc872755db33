"""The watcher lists: watches open on arrival, end at the first check that finds their condition true, or expire.

A watch ends by itself. A produce or delete-records watch settles its partition. A fetch watch of one key is its whole
operation. A fetch watch of several keys ends when its own partition forces completion, or on arrival when its own
bytes suffice; else it stays until its deadline, because only all partitions together tell when the bytes suffice
(another partition may even count negatively after a truncation). `settle` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.columnar.lookup import Index, next_where
from purgatory_udf.columnar.replicas import DELETE_CHECK, FETCH_CHECK, PRODUCE_CHECK, Round
from purgatory_udf.columnar.tries import delete_try, fetch_answer, fetch_first_try, fetch_try, produce_try, reader_end
from purgatory_udf.loop.words import FOREVER, UNKNOWN, Acks, Code, Error, Rule

OPEN = Layout(
    numbers=(
        "key", "op", "t", "deadline", "code", "broker", "idx", "n",
        "offset", "seg", "pos", "start", "size", "least", "mode", "epoch", "had", "got", "moved",
    ),
    texts=("request_id", "client_id", "text"),
)  # fmt: skip

# How a finished watch ended, and where in the total order.
DONE = Layout(
    numbers=(*OPEN.numbers, "how", "rule", "error", "answer", "end_t", "end_seq", "end_sub", "end_idx"),
    texts=OPEN.texts,
)

# A fetch offset's position looked up anew after a truncation below it, at (t, seq); -1 while nothing covers it.
FRESH = Layout(("op", "key", "t", "seq", "pos"))

ARRIVAL, CHECKED, DEADLINE = 0, 1, 2

# Why a fetch's position must be looked up anew for its answer: a truncation, or a log of which nothing was known.
CUT, UNSEEN = 1, 2


@dataclass
class Watchers:
    """All open watches of the call's keys, and the fresh positions of those that a truncation moved."""

    open: Frame
    fresh: Frame


def requests(round_: Round) -> tuple[Frame, Array]:
    """The round's new watches, and the row on which each arrived."""
    rows = round_.rows
    at = np.flatnonzero(rows.code <= Code.DELETE_RECORDS)
    asked = rows.take(at)
    watch = asked.only(tuple(name for name in (*OPEN.names, "error") if name in asked)).with_columns(
        op=asked.seq,
        deadline=asked.t // 1000 + np.maximum(0, asked.delay),
        **{name: np.zeros(len(at), dtype=np.int64) for name in ("seg", "pos", "start", "had", "got", "moved")},
    )
    view = round_.view(watch.key, at)
    fetches = watch.code == Code.FETCH
    if fetches.any():
        _start(round_, watch, view, at, np.flatnonzero(fetches))
    deletes = (watch.code == Code.DELETE_RECORDS) & (watch.offset == UNKNOWN)
    watch.columns["offset"] = np.where(deletes, np.maximum(view.hw, 0), watch.offset)
    return watch, at


def _start(round_: Round, watch: Frame, view: Frame, at: Array, which: Array) -> None:
    """Fix where each fetch starts: at its end it takes over the end's metadata, else the log is looked up."""
    fetch, seen = watch.take(which), view.take(which)
    end, end_seg, end_pos = reader_end(fetch.mode, seen)
    same = (end != UNKNOWN) & (fetch.offset == end)
    seg = round_.segment(fetch.key, fetch.offset, round_.rolls_known(at[which]))
    pos = round_.position(fetch.key, fetch.offset, seen.end, seen.end_pos)
    watch.columns["seg"], watch.columns["pos"] = watch.seg.copy(), watch.pos.copy()
    watch.seg[which], watch.pos[which] = np.where(same, end_seg, seg), np.where(same, end_pos, pos)
    watch.columns["start"] = watch.pos
    watch.columns["moved"] = watch.moved.copy()
    watch.moved[which] = np.where(seen.end == UNKNOWN, UNSEEN, 0)


def first_tries(round_: Round, watch: Frame, at: Array) -> tuple[Frame, Frame, Array]:
    """Finished on arrival; still open; and the row of arrival of those."""
    view = round_.view(watch.key, at)
    rule, error = np.zeros((2, len(watch)), dtype=np.int64)
    got, had = np.zeros((2, len(watch)), dtype=np.int64)
    done = np.zeros(len(watch), dtype=bool)

    produce = np.flatnonzero(watch.code == Code.PRODUCE)
    if len(produce):
        mine, seen = watch.take(produce), view.take(produce)
        tried, answer = produce_try(mine, seen)
        plain = np.where((mine.mode == Acks.ALL_IN_ERROR) | (mine.error > 0), Rule.APPEND_ERROR, 0)
        plain = np.where(mine.mode == Acks.INVALID, Rule.INVALID_ACKS, plain)
        plain = np.where(mine.mode == Acks.AT_ONCE, Rule.ACKS, plain)
        rule[produce] = np.where(plain > 0, plain, tried)
        error[produce] = np.where(plain > 0, mine.error, answer)
        done[produce] = rule[produce] > 0
        got[produce] = mine.size

    fetch = np.flatnonzero(watch.code == Code.FETCH)
    if len(fetch):
        mine, seen = watch.take(fetch), view.take(fetch)
        forced, size = fetch_first_try(mine, seen)
        had[fetch] = np.maximum(size, 0)
        enough = had[fetch] >= mine.least
        rule[fetch] = np.where(forced > 0, forced, np.where(enough, Rule.MIN_BYTES, 0))
        error[fetch], got[fetch] = fetch_answer(mine, seen, _looked_up(round_, mine, seen))
        done[fetch] = rule[fetch] > 0

    delete = np.flatnonzero(watch.code == Code.DELETE_RECORDS)
    if len(delete):
        rule[delete], error[delete] = delete_try(watch.take(delete), view.take(delete))
        done[delete] = rule[delete] > 0

    watch = watch.with_columns(had=had, got=got, answer=got)
    finished = watch.take(done)
    rows = round_.rows
    ends = at[done]
    finished = finished.with_columns(
        how=np.full(len(ends), ARRIVAL), rule=rule[done], error=error[done],
        end_t=finished.t, end_seq=finished.op, end_sub=np.full(len(ends), FOREVER), end_idx=rows.idx[ends],
    )  # fmt: skip
    return finished.only(DONE.names), watch.take(~done).only(OPEN.names), at[~done]


def _looked_up(round_: Round, watch: Frame, view: Frame) -> Array:
    return round_.position(watch.key, watch.offset, view.end, view.end_pos)


class Ends:
    """When each open watch's condition is first found true by a check of its key, within one round."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        rows, after = round_.rows, round_.after
        self._rows = len(rows)
        self._produce = next_where(round_.checks & PRODUCE_CHECK > 0)
        self._fetch = next_where(round_.checks & FETCH_CHECK > 0)
        self._delete = next_where(round_.checks & DELETE_CHECK > 0)
        self._down = next_where(after.standing != Error.NONE)
        self._indexes: dict[str, Index] = {}
        self._ms = Index(rows.key, rows.t // 1000)

    def _reached(self, column: str, watch: Frame, target: Array) -> Array:
        """The first row of the watch's key at which the column is at least the target."""
        if column not in self._indexes:
            self._indexes[column] = Index(self._round.rows.key, self._round.after.columns[column])
        return self._indexes[column].first_at_least(watch.key, target)

    def window_end(self, watch: Frame, begin: Array) -> Array:
        """The first row at or after the deadline: it no longer sees the watch."""
        return np.maximum(begin, self._ms.first_at_least(watch.key, watch.deadline))

    def first(self, watch: Frame, begin: Array) -> Array:
        """The row whose check ends each watch; a row past all if none does."""
        found = np.full(len(watch), self._rows, dtype=np.int64)
        for code, answer in (
            (Code.PRODUCE, self._produces),
            (Code.FETCH, self._fetches),
            (Code.DELETE_RECORDS, self._deletes),
        ):
            mine = watch.code == code
            if mine.all() and len(mine):
                return answer(watch, begin)
            if mine.any():
                found[mine] = answer(watch.take(mine), begin[mine])
        return found

    def _produces(self, watch: Frame, begin: Array) -> Array:
        reached = self._produce[np.maximum(begin, self._reached("hw", watch, np.maximum(watch.offset, 0)))]
        return np.minimum(reached, self._produce[self._down[begin]])

    def _deletes(self, watch: Frame, begin: Array) -> Array:
        reached = self._delete[np.maximum(begin, self._reached("log_start", watch, np.maximum(watch.offset, 0)))]
        return np.minimum(reached, self._delete[self._down[begin]])

    def _fetches(self, watch: Frame, begin: Array) -> Array:
        """Least of: A, B, E) standing lost; F) a newer epoch; C) beyond the end, older segment; D) its own bytes."""
        found = self._fetch[self._down[begin]]
        fenced = np.flatnonzero(watch.epoch != UNKNOWN)
        if len(fenced):
            mine = watch.take(fenced)
            at = np.maximum(begin[fenced], self._reached("epoch", mine, mine.epoch + 1))
            found[fenced] = np.minimum(found[fenced], self._fetch[at])
        reader = watch.mode & 3
        for number, (end, seg, pos) in enumerate(
            (("end", "end_seg", "end_pos"), ("hw", "hw_seg", "hw_pos"), ("lso", "lso_seg", "lso_pos"))
        ):
            which = np.flatnonzero(reader == number)
            if len(which):
                mine, start = watch.take(which), begin[which]
                found[which] = np.minimum(found[which], self._by_end(mine, start, end, seg, pos))
        return found

    def _by_end(self, watch: Frame, begin: Array, end: str, seg: str, pos: str) -> Array:
        found = self._beyond(watch, begin, end)
        behind = np.maximum(begin, self._reached(end, watch, watch.offset + 1))
        free = watch.mode < 4
        older = self._fetch[np.maximum(behind, self._reached(seg, watch, watch.seg + 1))]
        found = np.where(free, np.minimum(found, older), found)
        alone = np.flatnonzero((watch.n == 1) & free & (watch.size >= watch.least))
        if len(alone):
            mine = watch.take(alone)
            at = np.maximum(behind[alone], self._reached(pos, mine, mine.pos + mine.least))
            at = np.maximum(at, self._reached(seg, mine, mine.seg))
            found[alone] = np.minimum(found[alone], self._fetch[at])
        return found

    def _beyond(self, watch: Frame, begin: Array, end: str) -> Array:
        """C) Only the round's first check with a known end can find the fetch beyond it, since the end only grows."""
        at = self._fetch[np.maximum(begin, self._reached(end, watch, np.zeros(len(watch), dtype=np.int64)))]
        if not self._rows:
            return at
        row = np.minimum(at, self._rows - 1)
        same = (at < self._rows) & (self._round.rows.key[row] == watch.key)
        return np.where(same & (self._round.after.columns[end][row] < watch.offset), at, self._rows)


def finish(round_: Round, fresh: Frame, watch: Frame, row: Array, expired: bool) -> Frame:
    """The watches that this row's check ended, or that expired just before it, with what they found."""
    return finish_with_view(round_, fresh, watch, round_.view(watch.key, row - expired), None if expired else row)


def finish_with_view(round_: Round, fresh: Frame, watch: Frame, view: Frame, row: Array | None) -> Frame:
    """As `finish`, for a view already at hand; without a row the watches expired."""
    rule, error = np.zeros((2, len(watch)), dtype=np.int64)
    answer, start = watch.got.copy(), watch.start.copy()
    for code, tried in ((Code.PRODUCE, produce_try), (Code.DELETE_RECORDS, delete_try)):
        mine = np.flatnonzero(watch.code == code)
        if len(mine) and row is not None:
            rule[mine], error[mine] = tried(watch.take(mine), view.take(mine))
        elif len(mine):
            error[mine] = Error.REQUEST_TIMED_OUT
    fetch = np.flatnonzero(watch.code == Code.FETCH)
    if len(fetch):
        asked, seen = watch.take(fetch), view.take(fetch)
        now = _start_now(round_, fresh, asked, seen)
        error[fetch], answer[fetch] = fetch_answer(asked, seen, now)
        # Truncations since are told apart by `fresh`; what was never seen before is seen now.
        start[fetch] = np.where(asked.moved == UNSEEN, now, asked.start)
        if row is not None:
            forced, _ = fetch_try(asked, seen)
            rule[fetch] = np.where(forced > 0, forced, Rule.MIN_BYTES)
    if row is None:
        zero = np.zeros(len(watch), dtype=np.int64)
        ends = {"end_t": watch.deadline * 1000, "end_seq": zero + UNKNOWN, "end_sub": zero, "end_idx": zero}
    else:
        rows = round_.rows
        ends = {"end_t": rows.t[row], "end_seq": rows.seq[row], "end_sub": rows.sub[row], "end_idx": rows.idx[row]}
    how = np.full(len(watch), DEADLINE if row is None else CHECKED, dtype=np.int64)
    return watch.with_columns(how=how, rule=rule, error=error, answer=answer, start=start, **ends).only(DONE.names)


def _start_now(round_: Round, fresh: Frame, watch: Frame, view: Frame) -> Array:
    """Where the fetch offset lies by now: as on arrival, unless a truncation went below it or nothing was known."""
    moved = np.flatnonzero(watch.moved)
    if not len(moved):
        return watch.start
    start = watch.start.copy()
    start[moved] = _looked_up(round_, watch.take(moved), view.take(moved))
    cut = moved[watch.moved[moved] & CUT > 0]
    if len(cut):
        pairs = zip(fresh.op, fresh.key, fresh.pos, strict=True)
        known = {(op, key): pos for op, key, pos in pairs}  # in order of time: the latest truncation wins
        for row in cut:
            pos = known.get((watch.op[row], watch.key[row]), UNKNOWN)
            start[row] = start[row] if pos == UNKNOWN else pos
    return start

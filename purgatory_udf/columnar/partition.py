"""`step`: the rows of one call in, the watches that ended out; what must be remembered stays in the state.

A watch ends at the least of: its condition's first check that finds it true, whatever forces it, its deadline. Each is
looked up for all watches of all keys together (`watches.Ends`), round by round (`replicas`): nearly always one round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from purgatory_udf.columnar import topics
from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.columnar.logs import VIEW, Logs, fresh_replicas, positions_now, trim
from purgatory_udf.columnar.lookup import bounds
from purgatory_udf.columnar.replicas import Round, advance, round_numbers
from purgatory_udf.columnar.watches import (
    ARRIVAL,
    CUT,
    DONE,
    FRESH,
    OPEN,
    UNSEEN,
    Ends,
    finish,
    finish_with_view,
    first_tries,
    requests,
)
from purgatory_udf.loop.words import FOREVER, UNKNOWN, Acks, Code, Rule, parts_of

# A key's timeline as a fetch over several keys needs it: the view after every row that such a fetch may notice.
ENTRIES = Layout(("key", "t", "seq", "sub", "idx", "checks", "turned", *VIEW.numbers))

WALKS = Layout(("key", "t", "seq", "sub", "checks"))

_NOTHING_PENDING = 2**62


@dataclass
class State:
    """What a group of keys remembers between calls."""

    keys: list[str] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs.nothing)
    open: Frame = field(default_factory=OPEN.empty)
    fresh: Frame = field(default_factory=FRESH.empty)
    entries: Frame = field(default_factory=ENTRIES.empty)
    topics: Frame = field(default_factory=topics.LED.empty)

    def number(self, names: list[str]) -> Array:
        """The keys' rows in this state; keys seen for the first time get theirs."""
        known = {name: row for row, name in enumerate(self.keys)}
        new = [name for name in names if name not in known]
        if new:
            brokers = [parts_of(name)[0] for name in new]
            added = fresh_replicas([int(broker) if broker.lstrip("-").isdigit() else UNKNOWN for broker in brokers])
            self.logs.replicas = Frame.concat([self.logs.replicas, added])
            known |= {name: row for row, name in enumerate(new, len(self.keys))}
            self.keys = [*self.keys, *new]
        return np.array([known[name] for name in names], dtype=np.int64)

    def next_deadline(self) -> int:
        """The earliest deadline in ms, or a time that never comes."""
        return int(self.open.deadline.min()) if len(self.open) else _NOTHING_PENDING

    def keep(self) -> None:
        """Let go of the call's rows."""
        for kept in (self, self.logs):
            for one in fields(kept):
                if isinstance(value := getattr(kept, one.name), Frame):
                    setattr(kept, one.name, value.whole())

    def to_bytes(self) -> bytes:
        names = Frame({"name": np.array(self.keys, dtype=object)})
        logs = self.logs
        return pack(
            {
                "keys": names,
                "replicas": logs.replicas,
                "batches": logs.batches,
                "rolls": logs.rolls,
                "followers": logs.followers,
                "open": self.open,
                "fresh": self.fresh,
                "entries": self.entries,
                "topics": self.topics,
            }
        )

    @staticmethod
    def from_bytes(value: bytes) -> State:
        frames = unpack(value)
        logs = Logs(frames["replicas"], frames["batches"], frames["rolls"], frames["followers"])
        names = list(frames["keys"].name)
        return State(names, logs, frames["open"], frames["fresh"], frames["entries"], frames["topics"])


@dataclass
class Step:
    """What one call found: ended watches, and for those over several keys the timeline while they waited."""

    done: Frame
    entries: Frame
    fresh: Frame
    walks: Frame


def step(state: State, names: list[str], rows: Frame, horizon_ms: int, retain_bytes: int) -> Step:
    """Decide everything that the rows decide.

    `rows.key` counts in `names`; rows are sorted by (key, t, seq, sub). The caller promises that these keys get no
    further row earlier than the horizon (rows of the horizon's own millisecond may follow): watches due by then expire.
    """
    mapping = state.number(names)
    key = mapping[rows.key] if len(rows) else rows.key
    rows = rows.with_columns(key=key)
    if len(names) > 1 and not (mapping[1:] > mapping[:-1]).all():
        rows = rows.take(np.argsort(key, kind="stable"))
    called, walks = topics.step(state, rows, horizon_ms), [topics.walks(rows)]
    if len(rows):
        rows = rows.take((rows.code < Code.LED) & (rows.code != Code.CREATE_TOPICS))
    alone = (rows.n == 0) & (rows.code <= Code.DELETE_RECORDS)
    done = [called, _without_partitions(rows.take(alone))]
    rows = rows.take(~alone) if alone.any() else rows

    ahead = state.open.take(state.open.code != Code.CREATE_TOPICS)
    entries = [state.entries]
    keys = len(state.keys)
    number = round_numbers(rows, state.logs.replicas, bounds(rows.key, keys))
    for turn in range(int(number.max(initial=0)) + 1):
        mine = rows.take(number == turn) if number.any() else rows
        # Watches of keys that have no row in a later round wait, untouched, for the end of the call.
        busy = np.zeros(keys, dtype=bool)
        busy[mine.key] = True
        here = busy[ahead.key] if turn else np.ones(len(ahead), dtype=bool)
        ended, still, round_ = _turn(state, mine, ahead.take(here))
        ahead = Frame.concat([still, ahead.take(~here)])
        done += ended
        entries.append(_entries(round_))
        walks.append(_walks(round_))
        last = round_
    due = ahead.deadline <= horizon_ms
    if due.any():
        overdue = ahead.take(due)
        view = state.logs.replicas.only(VIEW.names).take(overdue.key)
        done.append(finish_with_view(last, state.fresh, overdue, view, None))
        ahead = ahead.take(~due)
    finished = Frame.concat(done)
    created = state.open.take(state.open.code == Code.CREATE_TOPICS)
    state.open = Frame.concat([ahead, created])
    timeline = Frame.concat(entries)
    timeline = timeline.take(np.argsort(timeline.key, kind="stable"))
    _cover(state, finished)
    result = Step(
        finished,
        _needed(timeline, finished.take((finished.n > 1) & (finished.code == Code.FETCH) & (finished.how != ARRIVAL))),
        _of(state.fresh, finished),
        Frame.concat(walks),
    )
    state.entries = _needed(timeline, ahead.take((ahead.n > 1) & (ahead.code == Code.FETCH)))
    state.fresh = _of(state.fresh, ahead)
    trim(state.logs, retain_bytes)
    state.keep()
    return result


def _turn(state: State, rows: Frame, ahead: Frame) -> tuple[list[Frame], Frame, Round]:
    """One round: ended watches, those that wait on, and the round itself."""
    _cover(state, ahead)
    ahead = _seen(state, ahead)
    round_ = advance(state.logs, rows)
    asked, at = requests(round_)
    first, opened, arrived = first_tries(round_, asked, at)
    waiting = Frame.concat([ahead.only(OPEN.names), opened])
    begin = np.concatenate([round_.begins[ahead.key], arrived + 1]).astype(np.int64)
    if not len(waiting):
        return [first], waiting, round_
    ends = Ends(round_)
    stop = ends.window_end(waiting, begin)
    waiting = _moved(state, round_, waiting, stop, len(ahead))
    row = ends.first(waiting, begin)
    ended = row < stop
    expired = ~ended & (stop < round_.begins[waiting.key + 1])
    parts = [first]
    if ended.any():
        parts.append(finish(round_, state.fresh, waiting.take(ended), row[ended], expired=False))
    if expired.any():
        parts.append(finish(round_, state.fresh, waiting.take(expired), stop[expired], expired=True))
    return parts, waiting.take(~ended & ~expired), round_


def _moved(state: State, round_: Round, waiting: Frame, stop: Array, carried: int) -> Frame:
    """A truncation below the offset of a fetch that waited through it: its position must be looked up anew."""
    if not (round_.cut < FOREVER).any():
        return waiting
    through = (np.arange(len(waiting)) < carried) & (stop > round_.begins[waiting.key])
    hit = through & (waiting.code == Code.FETCH) & (round_.cut[waiting.key] < waiting.offset)
    if not hit.any():
        return waiting
    below = waiting.take(hit)
    first = round_.begins[below.key]
    rows = round_.rows
    fresh = {"op": below.op, "key": below.key, "t": rows.t[first], "seq": rows.seq[first]}
    state.fresh = Frame.concat([state.fresh, Frame(fresh | {"pos": np.full(len(below), UNKNOWN)})])
    return waiting.with_columns(moved=np.where(hit, waiting.moved | CUT, waiting.moved))


def _seen(state: State, ahead: Frame) -> Frame:
    """Fetches that came when nothing was known of their log: where they lie, once it has grown over them."""
    unseen = ahead.moved & UNSEEN > 0
    if not unseen.any():
        return ahead
    at = np.flatnonzero(unseen & (ahead.offset < state.logs.replicas.end[ahead.key]))
    start, moved = ahead.start.copy(), ahead.moved.copy()
    start[at] = positions_now(state.logs, ahead.key[at], ahead.offset[at])
    moved[at] &= ~UNSEEN
    return ahead.with_columns(start=start, moved=moved)


def _cover(state: State, ahead: Frame) -> None:
    """Before another round may cut the log again: where moved fetches stand, if the log has grown over them."""
    pending = np.flatnonzero(state.fresh.pos == UNKNOWN)
    if not len(pending):
        return
    logs, moved = state.logs, ahead.take(ahead.moved & CUT > 0)
    offset_of = dict(zip(zip(moved.op, moved.key, strict=True), moved.offset, strict=True))
    state.fresh.columns["pos"] = state.fresh.pos.copy()
    for row in pending:
        key = state.fresh.key[row]
        offset = offset_of.get((state.fresh.op[row], key), FOREVER)
        if offset < logs.replicas.end[key]:
            state.fresh.pos[row] = positions_now(logs, np.array([key]), np.array([offset]))[0]


def _without_partitions(rows: Frame) -> Frame:
    """Requests that name no partition: answered at once."""
    rule = np.where(rows.code == Code.FETCH, Rule.NO_PARTITIONS, Rule.EMPTY)
    produce = rows.code == Code.PRODUCE
    rule = np.where(produce & (rows.mode == Acks.AT_ONCE), Rule.ACKS, rule)
    rule = np.where(produce & (rows.mode == Acks.INVALID), Rule.INVALID_ACKS, rule)
    done = DONE.empty(len(rows))  # `answer`: nothing to read
    for name in ("key", "t", "code", "broker", "mode", "request_id", "client_id"):
        done.columns[name] = rows.columns[name]
    return done.with_columns(
        op=rows.seq, deadline=rows.t // 1000 + np.maximum(0, rows.delay), rule=rule, end_t=rows.t, end_seq=rows.seq,
        how=np.full(len(rows), ARRIVAL),
    )  # fmt: skip


def _of(fresh: Frame, watches: Frame) -> Frame:
    return fresh.take(np.isin(fresh.op, watches.op)) if len(fresh) else fresh


def _entries(round_: Round) -> Frame:
    at = np.flatnonzero(round_.told)
    rows = round_.rows.only(("key", "t", "seq", "sub", "idx")).take(at)
    turned = round_.turned[at].astype(np.int64)
    return rows.with_columns(checks=round_.checks[at], turned=turned).beside(round_.after.take(at))


def _walks(round_: Round) -> Frame:
    at = np.flatnonzero(round_.checks > 0)
    rows = round_.rows.only(("key", "t", "seq", "sub")).take(at)
    return rows.with_columns(checks=round_.checks[at])


def _needed(timeline: Frame, watches: Frame) -> Frame:
    """The part of the timeline during which these watches waited (all from the earliest start of their key on)."""
    if not len(watches) or not len(timeline):
        return timeline.take(slice(0, 0))
    since = np.full(int(max(timeline.key.max(), watches.key.max())) + 1, _NOTHING_PENDING, dtype=np.int64)
    np.minimum.at(since, watches.key, watches.t)
    until = np.full(len(since), UNKNOWN, dtype=np.int64)
    np.maximum.at(until, watches.key, watches.deadline * 1000)
    return timeline.take((timeline.t >= since[timeline.key]) & (timeline.t < until[timeline.key]))

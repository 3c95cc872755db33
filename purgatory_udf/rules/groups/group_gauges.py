"""The gauges of the coordinators' purgatories, batch by batch, from the watcher list changes of the groups' calls.

The changes of a batch are complete up to its horizon, because no group can add changes before it. The clock runs up to
the horizon (`run_script`). A group with events is decided up to its last event, so there may be later changes;
these are stored for the next batch, with the open operations, the dead entries of lists, and the timer's wheels.

One case is not exact. If an operation has a delay of 0 ms and the wheels lag, its timer runs when the reaper next
wakes, not with the event, so the effect on the other purgatory may come one purge late. Only a session timeout or an
initial delay of 0 ms, which no broker has by default, together with a small purge interval can show this.

A script
--------
A coordinator's operations are completed by its groups, not by the compiled loop. The wake-ups and purges of the reaper,
however, depend on all groups of a broker. The moments of the script are ordered by:

    t, seq, sub     a timer (`seq` is -1) precedes the events of its millisecond; `sub` is the turn of the reapers
    late            whether a moment in the reaper's own turn follows only after its buckets have expired

`turn` is the turn of this purgatory's reaper, 0 or 1, among those of its broker.

An operation has one entry, on one list. The check that completes it also removes it, as a walk at the same moment.
Otherwise the entry is dead until the next walk of its list, or a purge. Most operations end and are removed at one
moment, which is therefore one step (`END_WALK`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.contract.tables import PURGATORY_GAUGES, TIMESTAMP
from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import helper, int64
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop import clock_advance, compiled_timing_wheel
from purgatory_udf.rules.engine.loop.arena import (
    BUCKET_BITS,
    BUCKETS_PER_TIMER,
    NONE,
    OPEN,
    OPERATION,
    OUTCOME,
    PURGATORY,
    READING,
    TIMER_LINK,
    WHEELS,
    Arena,
    make_arena,
    operation_at,
    purgatory_at,
)
from purgatory_udf.rules.engine.loop.clock_advance import GAUGE_INTERVAL_MS
from purgatory_udf.rules.engine.loop.codes import FOREVER, PURGATORIES, UNKNOWN, Code
from purgatory_udf.rules.engine.loop.engine_state import pause_records
from purgatory_udf.rules.engine.loop.state_layout import init_rings, rebuild_links
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_waits import PurgatoryWaits, by_purgatory, positions
from purgatory_udf.rules.purgatory.clock import Pauses

# The version of the serialized form.
VERSION = 2

# The turn of each purgatory among the reapers of a coordinator.
REAPER_TURNS = {Code.HEARTBEAT: 0, Code.REBALANCE: 1}

# The steps at which a gauge differs from the previous step, or which follow a purge.
READINGS = FrameLayout(("at_ms", "watched", "delayed", "purged"))

# The moments of a script. `operation` is an index into the purgatory's operations; a walk has none.
_MOMENTS = FrameLayout(("t", "seq", "step", "list", "operation"))
# `started` is 0 for an operation whose start is after the horizon.
_OPERATIONS = FrameLayout(("op", "deadline", "bucket", "started"))

# The bits of the kind of a moment, the lowest ones of its step, and the bit of `late` above them.
_KIND_BITS = 3
_LATE = 1 << _KIND_BITS
# The bits of a positive int64.
_KEY_BITS = 63

# After this time without events every reaper has woken, and its purge has been read.
_SETTLED_MS = 5 * int(GAUGE_INTERVAL_MS)


@dataclass
class CoordinatorPurgatory:
    """One purgatory of a coordinator, between two batches.

    Attributes:
        code: The purgatory: Heartbeat or Rebalance.
        broker: Its broker.
        interval: The purge interval, in operations.
        start_ms: When the trace started. The reaper has been waking since then.
        names: The names of the watcher lists with dead entries or later moments, which other attributes refer to by
            index.
        dead: The number of dead entries of each list.
        operations: The open operations, and those of later moments.
        later: Moments after the last horizon, which the next batch applies.
        queued: The buckets that are in the timer's delay queue.
        now_ms: The time up to which the clock has run.
        record: The purgatory's record in the compiled loop.
    """

    code: Code
    interval: int
    start_ms: int
    broker: int
    names: Array = field(default_factory=lambda: np.zeros(0, object))
    dead: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    operations: Frame = field(default_factory=_OPERATIONS.empty)
    later: Frame = field(default_factory=_MOMENTS.empty)
    queued: Records = field(default_factory=lambda: np.zeros(WHEELS, BUCKET_BITS))
    now_ms: int = 0
    record: Records = field(default_factory=lambda: np.zeros(1, PURGATORY))

    def __post_init__(self) -> None:
        if self.record["next_step_ms"][0]:
            return
        start_ms = self.start_ms // GAUGE_INTERVAL_MS * GAUGE_INTERVAL_MS
        self.record["interval"], self.record["broker"], self.now_ms = self.interval, self.broker, start_ms
        self.record["wheel_ms"] = self.record["last_wake_ms"] = start_ms
        self.record["next_step_ms"], self.record["next_bucket_ms"] = start_ms + GAUGE_INTERVAL_MS, FOREVER

    @property
    def open(self) -> int:
        """The number of open operations."""
        return int(self.operations.started.sum())

    def advance(self, waits: PurgatoryWaits | None, horizon_ms: int, pauses: Records | None = None) -> Frame:
        """Add the changes of a batch and return the `READINGS` up to the horizon.

        Args:
            waits: The changes; None if the batch has none.
            horizon_ms: A time before which no later batch has changes, in epoch milliseconds. With `FOREVER`, readings
                extend until the gauges have settled.
            pauses: The times at which brokers stood still, as the engine's records.
        """
        moments = Frame.concat([self.later, *(self._new_moments(waits) if waits is not None else ())])
        known = moments.t < min(horizon_ms, FOREVER // 1000) * 1000
        self.later, now = moments.take(~known), moments.take(known)
        until_ms = horizon_ms - 1
        if horizon_ms >= FOREVER:
            until_ms = max(self.now_ms, int(now.t.max(initial=0)) // 1000) + _SETTLED_MS
        readings = self._run(now, until_ms, pause_records(Pauses()) if pauses is None else pauses)
        self._drop_unused_lists()
        return readings

    def _new_moments(self, waits: PurgatoryWaits) -> Iterator[Frame]:
        """Yield the moments of a batch's changes, and add its new operations and lists."""
        lists = self._add_lists(waits.names)
        started, ended = waits.started, waits.ended
        operation = positions(ended.op, self.operations.op)
        is_new = operation < 0
        new = [started, ended.take(is_new)]
        op, deadline, t, seq, sub, list_ = (
            np.concatenate([frame.columns[name] for frame in new])
            for name in ("op", "deadline", "t", "seq", "sub", "list")
        )
        numbers = len(self.operations) + np.arange(len(op))
        operation[is_new] = numbers[len(started) :]
        added = {"op": op, "deadline": deadline, "bucket": np.full(len(op), NONE), "started": np.zeros_like(op)}
        self.operations = Frame.concat([self.operations, Frame(added)])
        yield _moments(t, seq, self._steps(seq, sub, BEGIN), lists[list_], numbers)

        # A deadline in whole milliseconds may precede the start; no operation completes before its start.
        end_t = np.maximum(ended.t, ended.end_t)
        at_once = (end_t == ended.t) & (ended.end_seq == ended.seq) & (ended.end_sub == ended.sub)
        # Buckets expire after the completions that they do not cause, and before every start and walk of their turn.
        early = self._is_own_turn(ended.end_seq, ended.end_sub) & ~at_once
        walks_later, ends = (ended.triggered > 0) & early, lists[ended.list]
        kind = np.where((ended.triggered > 0) & ~early, END_WALK, END)
        step = self._steps(ended.end_seq, ended.end_sub, kind) - early * _LATE
        yield _moments(end_t, ended.end_seq, step, ends, operation)
        rest = Frame({"t": end_t, "seq": ended.end_seq, "sub": ended.end_sub, "list": ends}).take(walks_later)
        walks = [
            rest,
            waits.walked.with_columns(list=lists[waits.walked.list]),
            *self._stop_walks(waits.stopped, lists),
        ]
        for rows in walks:
            yield _moments(rows.t, rows.seq, self._steps(rows.seq, rows.sub, WALK), rows.list)
        stopped = waits.stopped
        yield _moments(
            stopped.t, stopped.seq, self._steps(stopped.seq, stopped.sub, RESET_ESTIMATE), lists[stopped.list]
        )

    def _add_lists(self, names: Array) -> Array:
        """Return the index of each list. Unknown ones are added."""
        numbers, known = positions(names, self.names), len(self.names)
        is_new = numbers < 0
        numbers[is_new] = known + np.arange(int(is_new.sum()))
        self.names = np.concatenate([self.names, names[is_new]])
        self.dead = np.concatenate([self.dead, np.zeros(len(self.names) - known, np.int64)])
        return numbers

    def _stop_walks(self, stopped: Frame, lists: Array) -> Iterator[Frame]:
        """Yield a check of each list of a stopped coordinator.

        `stopped` has the moments of the stops; `lists` maps its list indices to those of this purgatory.
        """
        for row, prefix in enumerate(lists[stopped.list].tolist()):
            of_group = [number for number, name in enumerate(self.names) if name.startswith(self.names[prefix])]
            rows = stopped.take(np.full(len(of_group), row))
            yield rows.with_columns(list=np.array(of_group, dtype=np.int64))

    def _is_own_turn(self, seq: Array, sub: Array) -> Array:
        """Return whether moments are in a turn of this purgatory's reaper."""
        return (seq == UNKNOWN) & (sub == REAPER_TURNS[self.code])

    def _steps(self, seq: Array, sub: Array, kind: Array | int) -> Array:
        """Return the order of moments within their event: `sub`, `late` and kind as one number."""
        return ((sub * 2 + self._is_own_turn(seq, sub)) << _KIND_BITS) + kind

    def _run(self, now: Frame, until_ms: int, pauses: Records) -> Frame:
        kind, started = now.step & (_LATE - 1), self.operations.started > 0
        started[now.operation[kind == BEGIN]] = True
        present = self.operations.take(started)
        count = len(present)
        operations = np.zeros(count, OPERATION)
        operations["seq"], operations["deadline"], operations["bucket"] = present.op, present.deadline, present.bucket
        moments = np.zeros(len(now), MOMENT)
        moments["t"], moments["seq"], moments["key"] = now.t, now.seq, now.list
        moments["sub"], moments["late"] = now.step >> (_KIND_BITS + 1), (now.step & _LATE) > 0
        moments["kind"], moments["operation"] = kind, _renumbered(now.operation, started)
        moments = moments.take(_order(now))
        lists = np.zeros(len(self.names), LIST).view(np.recarray)
        lists["dead"], lists["stamp"] = self.dead, self.record["stamp"][0]
        timer_links = np.zeros(count + int(BUCKETS_PER_TIMER), TIMER_LINK)
        init_rings(timer_links, count)
        tables = {
            "operations": operations,
            "purgatories": self.record,
            "bucket_bits": self.queued,
            "timer_links": timer_links,
            "outcomes": np.zeros(count, OUTCOME),
            "readings": np.zeros(2 * (len(moments) + count) + 16, READING),
            "pauses": pauses,
        }
        arenas = make_arena(
            tables, now=self.now_ms * 1000, operations=count, purgatories=1, overdue=NONE, check_order=NONE
        )
        rebuild_links(arenas)
        run_script(arenas, moments.view(np.recarray), lists, REAPER_TURNS[self.code], until_ms)
        self.now_ms = int(arenas["now"][0]) // 1000
        self.dead = np.where(lists["stamp"] == self.record["stamp"][0], lists["dead"], 0)
        bucket, left = self.operations.bucket.copy(), np.ones(len(started), bool)
        bucket[started] = operations["bucket"]
        left[now.operation[(kind == END) | (kind == END_WALK)]] = False
        self.operations = (
            self.operations.with_columns(bucket=bucket, started=started.astype(np.int64)).take(left).copy()
        )
        self.later = self.later.with_columns(operation=_renumbered(self.later.operation, left))
        read = tables["readings"][: int(arenas["readings"][0])]
        return Frame({name: read[name].astype(np.int64) for name in READINGS.names})

    def _drop_unused_lists(self) -> None:
        """Drop the watcher lists without dead entries and without later moments, and renumber the others."""
        used = self.dead > 0
        used[self.later.list] = True
        if used.all():
            return
        number = np.cumsum(used) - 1
        self.names, self.dead = self.names[used], self.dead[used]
        self.later = self.later.with_columns(list=number[self.later.list])

    def to_bytes(self) -> bytes:
        frames = {
            "of": Frame({name: np.array([value]) for name, value in self._scalars().items()}),
            "names": Frame({"dead": self.dead, "name": self.names}),
            "operations": self.operations,
            "later": self.later,
            "record": Frame({name: self.record[name].astype(np.int64) for name in _field_names(PURGATORY)}),
            "queued": Frame({"bits": self.queued["bits"].astype(np.int64)}),
        }
        return pack(frames)

    @classmethod
    def from_bytes(cls, value: bytes) -> CoordinatorPurgatory:
        frames = unpack(value)
        record, queued = np.zeros(1, PURGATORY), np.zeros(WHEELS, BUCKET_BITS)
        for name in _field_names(PURGATORY):
            record[name] = frames["record"].columns[name]
        queued["bits"] = frames["queued"].bits
        scalars = {name: int(values[0]) for name, values in frames["of"].columns.items()}
        return cls(
            Code(scalars["code"]),
            scalars["interval"],
            scalars["began_ms"],
            int(record["broker"][0]),
            frames["names"].name,
            frames["names"].dead,
            frames["operations"],
            frames["later"],
            queued,
            scalars["now_ms"],
            record,
        )

    def _scalars(self) -> dict[str, int]:
        return {"code": self.code, "interval": self.interval, "began_ms": self.start_ms, "now_ms": self.now_ms}


def _moments(t: Array, seq: Array, step: Array, lists: Array, operation: Array | None = None) -> Frame:
    operation = np.full(len(t), NONE) if operation is None else operation
    return Frame({"t": t, "seq": seq, "step": step, "list": lists, "operation": operation})


def _renumbered(numbers: Array, kept: Array) -> Array:
    """Return indices of operations as indices of the operations that are `kept`. `NONE`, the last index, stays."""
    renumbered: Array = np.append(np.cumsum(kept) - 1, NONE)[numbers]
    return renumbered


def _order(moments: Frame) -> Array:
    """Return the order of the moments by time, event and step, as indices."""
    if not len(moments):
        return np.zeros(0, np.int64)
    keys = [column - column.min() for column in (moments.t, moments.seq, moments.step)]
    bits = [int(key.max()).bit_length() for key in keys]
    if sum(bits) > _KEY_BITS:
        return np.lexsort(keys[::-1])
    # One number as a key takes a third of the time.
    return np.argsort((keys[0] << (bits[1] + bits[2])) | (keys[1] << bits[2]) | keys[2], kind="stable")


def _field_names(kind: np.dtype[np.void]) -> tuple[str, ...]:
    return tuple(name for name in kind.names or () if name != "padding")


_LENGTH = struct.Struct("<Q")


@dataclass
class GaugeState:
    """The coordinators' purgatories of a run between two batches.

    Attributes:
        interval: The purge interval, in operations.
        start_ms: When the trace started.
        end_ms: When the trace ended, or None if it has not. Operations that end later count as left open.
        pauses: The times at which brokers stood still.
        left_open: The number of operations that were open at `end_ms`.
        purgatories: The purgatories by broker and code.
    """

    interval: int
    start_ms: int
    end_ms: int | None = None
    pauses: Pauses = field(default_factory=Pauses)
    left_open: int = 0
    purgatories: dict[tuple[int, Code], CoordinatorPurgatory] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """The number of open operations."""
        return sum(purgatory.open for purgatory in self.purgatories.values())

    def advance(self, values: Iterable[bytes], watermark_ms: int, run_id: str) -> pa.Table:
        """Add the changes of a batch and return the rows of `purgatory_gauges` up to the watermark.

        Args:
            values: The serialized changes of the batch's calls.
            watermark_ms: The time up to which all groups have been called.
            run_id: The run that the rows belong to.
        """
        waits = by_purgatory(values)
        for broker, code in waits:
            if (broker, code) not in self.purgatories:
                self.purgatories[broker, code] = CoordinatorPurgatory(code, self.interval, self.start_ms, broker)
        finished = self.end_ms is not None and watermark_ms > self.end_ms
        self.left_open += sum(map(self._open_at_end, waits.values()))
        tables, pauses = [PURGATORY_GAUGES.empty_table()], pause_records(self.pauses)
        for (broker, code), purgatory in sorted(self.purgatories.items()):
            readings = purgatory.advance(waits.get((broker, code)), FOREVER if finished else watermark_ms, pauses)
            tables.append(_gauge_rows(run_id, broker, code, readings))
        # Spark loses rows of a table that has empty chunks.
        return pa.concat_tables(tables).combine_chunks()

    def _open_at_end(self, waits: PurgatoryWaits) -> int:
        if self.end_ms is None:
            return 0
        ended = waits.ended
        return int(((ended.t // 1000 <= self.end_ms) & (ended.end_t // 1000 > self.end_ms)).sum())

    def current_gauges(self) -> list[tuple[int, str, int, int]]:
        """Return broker, purgatory, PurgatorySize and NumDelayedOperations of each purgatory."""
        return [
            (broker, PURGATORIES[code], int(purgatory.record["watched"][0]), int(purgatory.record["delayed"][0]))
            for (broker, code), purgatory in sorted(self.purgatories.items())
        ]

    def to_bytes(self) -> bytes:
        head = json.dumps({"left_open": self.left_open, "of": list(self.purgatories)}).encode()
        parts = [head, *(purgatory.to_bytes() for purgatory in self.purgatories.values())]
        return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))

    def restore(self, value: bytes) -> None:
        """Replace the state by a serialized one."""
        parts = _length_prefixed_parts(value)
        head = json.loads(next(parts))
        self.left_open = head["left_open"]
        self.purgatories = {
            (broker, Code(code)): CoordinatorPurgatory.from_bytes(next(parts)) for broker, code in head["of"]
        }


def _length_prefixed_parts(value: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size
        yield value[at : at + length]
        at += length


def _gauge_rows(run_id: str, broker: int, code: Code, readings: Frame) -> pa.Table:
    count = len(readings)
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), count),
        "broker": pa.array(np.full(count, broker, dtype=np.int32)),
        "purgatory": pa.repeat(pa.scalar(PURGATORIES[code], pa.string()), count),
        "at": pa.array(readings.at_ms * 1000, pa.int64()).view(TIMESTAMP),
        **{name: pa.array(readings.columns[name], pa.int64()) for name in ("watched", "delayed", "purged")},
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)


# A script.

MOMENT = np.dtype(
    [(name, "i8") for name in ("t", "seq", "sub")] + [(name, "i4") for name in ("late", "kind", "operation", "key")]
)
# A list: the number of its dead entries, and the stamp of the last purge that this number takes into account.
LIST = np.dtype([("dead", "i8"), ("stamp", "i8")])

# The kinds of moments, in their order at one moment. `RESET_ESTIMATE`: a new process restarts the purge estimate.
BEGIN, END, END_WALK, WALK, RESET_ESTIMATE = map(int64, (0, 1, 2, 3, 4))

_BY_CLOCK = int64(UNKNOWN)
_PURGATORY = int64(0)  # the only purgatory of its arena


@entry_point
def run_script(arenas: Records, moments: Records, dead: Records, turn: int, until_ms: int) -> None:
    """Apply all moments, then advance the clock to `until_ms`.

    Args:
        arenas: One record: the arena of the purgatory, the only one in it.
        moments: The script (`MOMENT`), in the order of the module's table.
        dead: The lists (`LIST`), by the `key` of moments; updated.
        turn: The turn of this purgatory's reaper, 0 or 1.
        until_ms: The new time in epoch milliseconds. An earlier time than the clock's has no effect.
    """
    arena = arenas[0]
    count = len(moments)
    at = 0
    while at < count:
        first = moments[at]
        now_ms = first.t // 1000
        by_clock = first.seq == _BY_CLOCK
        if not by_clock:
            _advance(arena, now_ms)
        elif first.sub > turn:
            _advance_to_turn(arena, now_ms)
        else:
            _advance(arena, now_ms - 1)
        woken = by_clock and first.sub == turn and _next_wake_ms(arena) <= now_ms
        while at < count and _same_step(first, moments[at], by_clock) and (moments[at].late == 0 or not woken):
            _apply_step(arena, moments[at], dead)
            at += 1
        if woken:
            clock_advance.expire_due(arena, _PURGATORY, now_ms)
            while at < count and _same_step(first, moments[at], by_clock):
                _apply_step(arena, moments[at], dead)
                at += 1
            clock_advance.purge_if_needed(arena, _PURGATORY)
        # In a lagging wheel an operation may have been put into an expired bucket: the reaper wakes at once.
        is_overdue = purgatory_at(arena, _PURGATORY).next_bucket_ms <= now_ms
        is_running = clock_advance.fires_ms(arena, _PURGATORY, now_ms) == now_ms
        if (not by_clock or first.sub >= turn) and is_overdue and is_running:
            clock_advance.wake_reaper(arena, _PURGATORY, now_ms)
    _advance(arena, max(until_ms, arena.now // 1000))


@helper
def _same_step(left: Any, right: Any, by_clock: bool) -> bool:
    """Return whether two moments belong to one event or one turn of the reapers, so that no reaper wakes in between.

    `by_clock` is whether they are moments of timers.
    """
    return left.t == right.t and left.seq == right.seq and (not by_clock or left.sub == right.sub)


@helper
def _apply_step(arena: Arena, moment: Any, dead: Records) -> None:
    purgatory = purgatory_at(arena, _PURGATORY)
    if moment.kind == BEGIN:
        operation = operation_at(arena, moment.operation)
        operation.state = OPEN
        purgatory.watched += 1
        purgatory.estimated += 1
        compiled_timing_wheel.add(arena, _PURGATORY, moment.operation)
        return
    if moment.kind == RESET_ESTIMATE:
        purgatory.estimated = purgatory.delayed
        return
    entries = dead[moment.key]
    if entries.stamp != purgatory.stamp:
        entries.stamp, entries.dead = purgatory.stamp, 0
    if moment.kind == END or moment.kind == END_WALK:
        compiled_timing_wheel.cancel(arena, moment.operation)
        entries.dead += 1
        purgatory.dead += 1
    if moment.kind == WALK or moment.kind == END_WALK:
        purgatory.watched -= entries.dead
        purgatory.dead -= entries.dead
        entries.dead = 0


@helper
def _advance(arena: Arena, now_ms: int) -> None:
    clock_advance.advance_purgatory(arena, _PURGATORY, now_ms)
    arena.now = max(arena.now, now_ms * 1000)


@helper
def _next_wake_ms(arena: Arena) -> int:
    """Return when the reaper wakes next."""
    purgatory = purgatory_at(arena, _PURGATORY)
    return min(purgatory.last_wake_ms + clock_advance.REAPER_IDLE_MS, purgatory.next_bucket_ms)


@helper
def _advance_to_turn(arena: Arena, now_ms: int) -> None:
    """Advance to the reaper's turn in this millisecond, without reading the gauges."""
    _advance(arena, now_ms - 1)
    if _next_wake_ms(arena) <= now_ms:
        clock_advance.wake_reaper(arena, _PURGATORY, now_ms)

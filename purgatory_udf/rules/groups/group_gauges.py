"""The gauges of the coordinators' purgatories, batch by batch, from the watcher list changes of the groups' calls.

The changes of a batch are complete up to its horizon, because no group can add changes before it. The clock runs up to
the horizon (`scripted_purgatory`). A group with events is decided up to its last event, so there may be later changes;
these are stored for the next batch, with the open operations, the dead entries of lists, and the timer's wheels.

One case is not exact. If an operation has a delay of 0 ms and the wheels lag, its timer runs when the reaper next
wakes, not with the event, so the effect on the other purgatory may come one purge late. Only a session timeout or an
initial delay of 0 ms, which no broker has by default, together with a small purge interval can show this.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from purgatory_udf.contract.tables import PURGATORY_GAUGES, TIMESTAMP
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop.arena import (
    BUCKET_BITS,
    BUCKETS_PER_TIMER,
    NONE,
    OPERATION,
    OUTCOME,
    PURGATORY,
    READING,
    TIMER_LINK,
    WHEELS,
    make_arena,
)
from purgatory_udf.rules.engine.loop.clock_advance import GAUGE_INTERVAL_MS
from purgatory_udf.rules.engine.loop.codes import FOREVER, PURGATORIES, UNKNOWN, Code
from purgatory_udf.rules.engine.loop.engine_state import pause_records
from purgatory_udf.rules.engine.loop.state_layout import init_rings, rebuild_links
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_waits import PurgatoryWaits, by_purgatory, positions
from purgatory_udf.rules.groups.scripted_purgatory import BEGIN, END, LIST, MOMENT, RESET_ESTIMATE, WALK, run_script
from purgatory_udf.rules.purgatory.clock import Pauses

# The turn of each purgatory among the reapers of a coordinator.
REAPER_TURNS = {Code.HEARTBEAT: 0, Code.REBALANCE: 1}

# The steps at which a gauge differs from the previous step, or which follow a purge.
READINGS = FrameLayout(("at_ms", "watched", "delayed", "purged"))

# Moments after the horizon. `op` and `deadline` belong to the operation; a walk has none.
_PENDING_STEPS = FrameLayout(("t", "seq", "sub", "late", "kind", "list", "op", "deadline"))
_WAITING = FrameLayout(("op", "list", "deadline", "bucket"))
_NO_OPERATION = FrameLayout(("op", "deadline"))

# The number of kinds of moments.
_KINDS = 4

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
        names: The names of the watcher lists, which other attributes refer to by index.
        dead: The number of dead entries of each list.
        waiting: The open operations.
        later: Moments after the last horizon, which the next batch applies.
        queued: The buckets that are in the timer's delay queue.
        now_ms: The time up to which the clock has run.
        record: The purgatory's record in the compiled loop.
    """

    code: Code
    interval: int
    start_ms: int
    broker: int
    names: list[str] = field(default_factory=list)
    dead: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    waiting: Frame = field(default_factory=_WAITING.empty)
    later: Frame = field(default_factory=_PENDING_STEPS.empty)
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
        return len(self.waiting)

    def advance(self, waits: PurgatoryWaits | None, horizon_ms: int, pauses: Records | None = None) -> Frame:
        """Add the changes of a batch and return the `READINGS` up to the horizon.

        Args:
            waits: The changes; None if the batch has none.
            horizon_ms: A time before which no later batch has changes, in epoch milliseconds. With `FOREVER`, readings
                extend until the gauges have settled.
            pauses: The times at which brokers stood still, as the engine's records.
        """
        moments = self._moments(waits)
        known = moments.t // 1000 < horizon_ms
        self.later, now = moments.take(~known), moments.take(known)
        until_ms = horizon_ms - 1
        if horizon_ms >= FOREVER:
            until_ms = max(self.now_ms, int(now.t.max(initial=0)) // 1000) + _SETTLED_MS
        readings = self._run(now, until_ms, pause_records(Pauses()) if pauses is None else pauses)
        self._drop_unused_lists()
        return readings

    def _moments(self, waits: PurgatoryWaits | None) -> Frame:
        """Return the moments of the purgatory's script that have not been applied yet, in the order of the script.

        These are the ones left by earlier batches, and the changes of this batch.
        """
        if waits is None:
            return self.later
        known_lists = len(self.names)
        list_numbers = positions(waits.names, np.array(self.names, dtype=object))
        is_new = list_numbers < 0
        list_numbers[is_new] = known_lists + np.arange(int(is_new.sum()))
        self.names += waits.names[is_new].tolist()
        self.dead = np.concatenate([self.dead, np.zeros(len(self.names) - known_lists, np.int64)])
        known = np.concatenate([self.waiting.op, self.later.op[self.later.kind == BEGIN]])
        ended = waits.ended
        new = ended.take(positions(ended.op, known) < 0)
        # A deadline in whole milliseconds may precede the start; no operation completes before its start.
        ends = {"t": np.maximum(ended.t, ended.end_t), "seq": ended.end_seq, "sub": ended.end_sub}
        at_once = (ends["t"] == ended.t) & (ended.end_seq == ended.seq) & (ended.end_sub == ended.sub)
        ends_of = ended.with_columns(**ends)
        parts = [self.later, *(self._steps(started, BEGIN, list_numbers) for started in (waits.started, new))]
        # Buckets expire after the ends that they do not cause, and before every start of their turn.
        parts += [
            self._steps(ends_of.take(at_once), END, list_numbers),
            self._steps(ends_of.take(~at_once), END, list_numbers, early=True),
        ]
        walks = Frame({**_NO_OPERATION.empty(len(waits.walked)).columns, **waits.walked.columns})
        parts += [self._steps(rows, WALK, list_numbers) for rows in (walks, ends_of.take(ended.triggered > 0))]
        parts += [
            self._steps(rows, kind, np.arange(len(self.names)))
            for rows, kind in self._stop_steps(waits.stopped, list_numbers)
        ]
        moments = Frame.concat(parts)
        # One key for the three small numbers saves two sorts.
        step = (moments.sub * 2 + moments.late) * _KINDS + moments.kind
        return moments.take(np.lexsort((step, moments.seq, moments.t)))

    def _stop_steps(self, stopped: Frame, list_numbers: Array) -> Iterator[tuple[Frame, int]]:
        """Yield (rows, kind of moment) for stopped coordinators: reset the purge estimate, then check all their lists.

        `stopped` has the moments of the stops; `list_numbers` maps its list indices to those of this purgatory.
        """
        of_none = {name: np.zeros(len(stopped), np.int64) for name in _NO_OPERATION.names}
        stopped = stopped.with_columns(list=list_numbers[stopped.list], **of_none)
        yield stopped, RESET_ESTIMATE
        for row, prefix in enumerate(stopped.list.tolist()):
            lists = np.array([number for number, name in enumerate(self.names) if name.startswith(self.names[prefix])])
            yield stopped.take(np.full(len(lists), row)).with_columns(list=lists), WALK

    def _steps(self, rows: Frame, kind: int, list_numbers: Array, early: bool = False) -> Frame:
        if not len(rows):
            return _PENDING_STEPS.empty()
        late = (rows.seq == UNKNOWN) & (rows.sub == REAPER_TURNS[self.code]) & (not early)
        columns = {
            "kind": np.full(len(rows), int(kind)),
            "list": list_numbers[rows.list],
            "late": late.astype(np.int64),
        }
        return rows.with_columns(**columns).select(_PENDING_STEPS.names)

    def _run(self, now: Frame, until_ms: int, pauses: Records) -> Frame:
        waiting = self.waiting
        begins = now.kind == BEGIN
        ids = np.concatenate([waiting.op, now.op[begins]])
        operations = np.zeros(len(ids), OPERATION)
        operations["seq"] = ids
        operations["deadline"] = np.concatenate([waiting.deadline, now.deadline[begins]])
        operations["bucket"] = np.concatenate([waiting.bucket, np.full(int(begins.sum()), NONE)])
        moments = np.zeros(len(now), MOMENT).view(np.recarray)
        for name in ("t", "seq", "sub", "late", "kind"):
            moments[name] = now.columns[name]
        moments["key"] = now.list
        owned = (now.kind == BEGIN) | (now.kind == END)
        moments["operation"] = NONE
        moments["operation"][owned] = positions(now.op[owned], ids)
        lists = np.zeros(len(self.names), LIST).view(np.recarray)
        lists["dead"], lists["stamp"] = self.dead, self.record["stamp"][0]
        timer_links = np.zeros(len(operations) + int(BUCKETS_PER_TIMER), TIMER_LINK)
        init_rings(timer_links, len(operations))
        tables = {
            "operations": operations,
            "purgatories": self.record,
            "bucket_bits": self.queued,
            "timer_links": timer_links,
            "outcomes": np.zeros(len(operations), OUTCOME),
            "readings": np.zeros(2 * (len(moments) + len(operations)) + 16, READING),
            "pauses": pauses,
        }
        arenas = make_arena(
            tables, now=self.now_ms * 1000, operations=len(operations), purgatories=1, overdue=NONE, check_order=NONE
        )
        rebuild_links(arenas)
        run_script(arenas, moments, lists, REAPER_TURNS[self.code], until_ms)
        self.now_ms = int(arenas["now"][0]) // 1000
        self.dead = np.where(lists["stamp"] == self.record["stamp"][0], lists["dead"], 0)
        gone = np.zeros(len(ids), bool)
        gone[moments["operation"][moments["kind"] == END]] = True
        left = ~gone
        lists_of = np.concatenate([waiting.list, now.list[begins]])
        self.waiting = Frame(
            {
                "op": ids[left],
                "list": lists_of[left],
                "deadline": operations["deadline"][left],
                "bucket": operations["bucket"][left].astype(np.int64),
            }
        )
        read = tables["readings"][: int(arenas["readings"][0])]
        return Frame({name: read[name].astype(np.int64) for name in READINGS.names})

    def _drop_unused_lists(self) -> None:
        """Drop the watcher lists without entries and without later moments, and renumber the others."""
        used = self.dead > 0
        used[self.waiting.list] = True
        used[self.later.list] = True
        if used.all():
            return
        number = np.cumsum(used) - 1
        self.names = [name for name, keep in zip(self.names, used.tolist(), strict=True) if keep]
        self.dead = self.dead[used]
        self.waiting = self.waiting.with_columns(list=number[self.waiting.list])
        self.later = self.later.with_columns(list=number[self.later.list])

    def to_bytes(self) -> bytes:
        frames = {
            "of": Frame({name: np.array([value]) for name, value in self._scalars().items()}),
            "names": Frame({"dead": self.dead, "name": np.array(self.names, dtype=object)}),
            "waiting": self.waiting,
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
            frames["names"].name.tolist(),
            frames["names"].dead.copy(),
            frames["waiting"],
            frames["later"],
            queued,
            scalars["now_ms"],
            record,
        )

    def _scalars(self) -> dict[str, int]:
        return {"code": self.code, "interval": self.interval, "began_ms": self.start_ms, "now_ms": self.now_ms}


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

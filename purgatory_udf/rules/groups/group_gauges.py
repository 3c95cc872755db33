"""The gauges of a coordinator's two purgatories, batch by batch, from what its groups' calls say of their waits.

What a batch tells reaches to its horizon: no group has anything to add before it. Until then the clock runs, as
`dictated` has it; what came later already (a group with events is decided up to the last of them) is kept for the
next batch, with what waits, the dead entries of lists, and the timer's wheels.

One thing is not known here. Where an operation has no delay at all and its purgatory's wheels lag, its timer runs not
with the event but when the reaper wakes after it; and what that sets off in the other purgatory may be one purge later
there. Only a session or an initial delay of 0 ms, which no broker has by default, and an interval of few operations
can show it.
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
    ENDING,
    NONE,
    OPERATION,
    PURGATORY,
    QUEUED,
    READING,
    TIMER,
    TURN,
    WHEELS,
    world_of,
)
from purgatory_udf.rules.engine.loop.call_cleanup import link, no_neighbours
from purgatory_udf.rules.engine.loop.clock_advance import STEP_MS
from purgatory_udf.rules.engine.loop.codes import FOREVER, PURGATORIES, UNKNOWN, Code
from purgatory_udf.rules.groups.frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_waits import PurgatoryWaits, by_purgatory
from purgatory_udf.rules.groups.scripted_purgatory import BEGIN, END, LIST, MOMENT, RESET_ESTIMATE, WALK, run_script

# Among the reapers of a coordinator.
REAPER_TURNS = {Code.HEARTBEAT: 0, Code.REBALANCE: 1}

# The steps at which a purgatory reads otherwise than at the step before, or has purged since.
READINGS = FrameLayout(("at_ms", "watched", "delayed", "purged"))

# What is still to happen. `op` and `deadline` are of the operation; a walk has none.
_PENDING_STEPS = FrameLayout(("t", "seq", "sub", "late", "kind", "list", "op", "deadline"))
_WAITING = FrameLayout(("op", "list", "deadline", "bucket"))
_NO_OPERATION = FrameLayout(("op", "deadline"))

# After this long without events every reaper has woken, and what it purged was read.
_SETTLED_MS = 5 * int(STEP_MS)


@dataclass
class CoordinatorPurgatory:
    """One purgatory between two batches. `began_ms`: when the trace began; its reaper has been waking since."""

    code: Code
    interval: int
    began_ms: int
    names: list[str] = field(default_factory=list)
    dead: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    waiting: Frame = field(default_factory=_WAITING.empty)
    later: Frame = field(default_factory=_PENDING_STEPS.empty)
    queued: Records = field(default_factory=lambda: np.zeros(WHEELS, QUEUED))
    now_ms: int = 0
    record: Records = field(default_factory=lambda: np.zeros(1, PURGATORY))

    def __post_init__(self) -> None:
        if self.record["next_step_ms"][0]:
            return
        began_ms = self.began_ms // STEP_MS * STEP_MS
        self.record["interval"], self.now_ms = self.interval, began_ms
        self.record["wheel_ms"] = self.record["last_wake_ms"] = began_ms
        self.record["next_step_ms"], self.record["next_bucket_ms"] = began_ms + STEP_MS, FOREVER

    @property
    def open(self) -> int:
        return len(self.waiting)

    def tell(self, waits: PurgatoryWaits | None, horizon_ms: int) -> Frame:
        """Take in what a batch tells; `READINGS` up to the horizon, before which nothing more can come. `FOREVER`: up
        to where everything has come to rest."""
        moments = self._moments(waits)
        known = moments.t // 1000 < horizon_ms
        self.later, now = moments.take(~known), moments.take(known)
        until_ms = horizon_ms - 1
        if horizon_ms >= FOREVER:
            until_ms = max(self.now_ms, int(now.t.max(initial=0)) // 1000) + _SETTLED_MS
        readings = self._run(now, until_ms)
        self._forget()
        return readings

    def _moments(self, waits: PurgatoryWaits | None) -> Frame:
        """Everything that has not happened yet, in order."""
        if waits is None:
            return self.later
        numbers = {name: place for place, name in enumerate(self.names)}
        places = np.array([numbers.setdefault(name, len(numbers)) for name in waits.names], dtype=np.int64)
        self.dead = np.concatenate([self.dead, np.zeros(len(numbers) - len(self.names), np.int64)])
        self.names = list(numbers)
        known = np.concatenate([self.waiting.op, self.later.op[self.later.kind == BEGIN]])
        ended = waits.ended
        new = ended.take(~np.isin(ended.op, known))
        # A deadline in whole milliseconds may lie before the beginning; nothing ends before that.
        ends = {"t": np.maximum(ended.t, ended.end_t), "seq": ended.end_seq, "sub": ended.end_sub}
        at_once = (ends["t"] == ended.t) & (ended.end_seq == ended.seq) & (ended.end_sub == ended.sub)
        ends_of = ended.with_columns(**ends)
        parts = [self.later, *(self._at(begun, BEGIN, places) for begun in (waits.begun, new))]
        # Buckets begin after the ends that they do not bring about, and before everything that begins in their turn.
        parts += [
            self._at(ends_of.take(at_once), END, places),
            self._at(ends_of.take(~at_once), END, places, early=True),
        ]
        walks = Frame({**_NO_OPERATION.empty(len(waits.walked)).columns, **waits.walked.columns})
        parts += [self._at(rows, WALK, places) for rows in (walks, ends_of.take(ended.triggered > 0))]
        parts += [self._at(rows, kind, np.arange(len(numbers))) for rows, kind in self._emptied(waits.stopped, places)]
        moments = Frame.concat(parts)
        return moments.take(np.lexsort((moments.kind, moments.late, moments.sub, moments.seq, moments.t)))

    def _emptied(self, stopped: Frame, places: Array) -> Iterator[tuple[Frame, int]]:
        """The process has gone, and with it all lists of these groups, as walks of them; what a new one estimates
        begins with what it holds."""
        of_none = {name: np.zeros(len(stopped), np.int64) for name in _NO_OPERATION.names}
        stopped = stopped.with_columns(list=places[stopped.list], **of_none)
        yield stopped, RESET_ESTIMATE
        for place, row in enumerate(stopped.list.tolist()):
            mine = np.array([at for at, name in enumerate(self.names) if name.startswith(self.names[row])])
            yield stopped.take(np.full(len(mine), place)).with_columns(list=mine), WALK

    def _at(self, rows: Frame, kind: int, places: Array, early: bool = False) -> Frame:
        if not len(rows):
            return _PENDING_STEPS.empty()
        late = (rows.seq == UNKNOWN) & (rows.sub == REAPER_TURNS[self.code]) & (not early)
        columns = {"kind": np.full(len(rows), int(kind)), "list": places[rows.list], "late": late.astype(np.int64)}
        return rows.with_columns(**columns).only(_PENDING_STEPS.names)

    def _run(self, now: Frame, until_ms: int) -> Frame:
        waiting = self.waiting
        begins = now.kind == BEGIN
        ids = np.concatenate([waiting.op, now.op[begins]])
        operations = np.zeros(len(ids), OPERATION)
        operations["seq"] = ids
        operations["deadline"] = np.concatenate([waiting.deadline, now.deadline[begins]])
        operations["bucket"] = np.concatenate([waiting.bucket, np.full(int(begins.sum()), NONE)])
        order = np.argsort(ids)
        moments = np.zeros(len(now), MOMENT).view(np.recarray)
        for name in ("t", "seq", "sub", "late", "kind"):
            moments[name] = now.columns[name]
        moments["key"] = now.list
        owned = (now.kind == BEGIN) | (now.kind == END)
        moments["operation"] = NONE
        moments["operation"][owned] = order[np.searchsorted(ids, now.op[owned], sorter=order)]
        lists = np.zeros(len(self.names), LIST).view(np.recarray)
        lists["dead"], lists["stamp"] = self.dead, self.record["stamp"][0]
        turns = np.zeros(len(operations) + int(TIMER), TURN)
        no_neighbours(turns, len(operations))
        tables = {
            "operations": operations,
            "purgatories": self.record,
            "queued": self.queued,
            "turns": turns,
            "ended": np.zeros(len(operations), ENDING),
            "readings": np.zeros(2 * (len(moments) + len(operations)) + 16, READING),
        }
        world = world_of(
            tables, now=self.now_ms * 1000, operations=len(operations), purgatories=1, due=NONE, checking=NONE
        )
        link(world)
        run_script(world, moments, lists, REAPER_TURNS[self.code], until_ms)
        self.now_ms = int(world["now"][0]) // 1000
        self.dead = np.where(lists["stamp"] == self.record["stamp"][0], lists["dead"], 0)
        gone = np.zeros(len(ids), bool)
        gone[moments["operation"][moments["kind"] == END]] = True
        left = ~gone
        held = np.concatenate([waiting.list, now.list[begins]])
        self.waiting = Frame(
            {
                "op": ids[left],
                "list": held[left],
                "deadline": operations["deadline"][left],
                "bucket": operations["bucket"][left].astype(np.int64),
            }
        )
        read = tables["readings"][: int(world["readings"][0])]
        return Frame({name: read[name].astype(np.int64) for name in READINGS.names})

    def _forget(self) -> None:
        """Lists without entries, of which nothing is to come."""
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
        record, queued = np.zeros(1, PURGATORY), np.zeros(WHEELS, QUEUED)
        for name in _field_names(PURGATORY):
            record[name] = frames["record"].columns[name]
        queued["bits"] = frames["queued"].bits
        of = {name: int(values[0]) for name, values in frames["of"].columns.items()}
        return cls(
            Code(of["code"]),
            of["interval"],
            of["began_ms"],
            frames["names"].name.tolist(),
            frames["names"].dead.copy(),
            frames["waiting"],
            frames["later"],
            queued,
            of["now_ms"],
            record,
        )

    def _scalars(self) -> dict[str, int]:
        return {"code": self.code, "interval": self.interval, "began_ms": self.began_ms, "now_ms": self.now_ms}


def _field_names(kind: np.dtype[np.void]) -> tuple[str, ...]:
    return tuple(name for name in kind.names or () if name != "padding")


# All coordinators' purgatories of a run between two batches, as one value; and what a batch reads of them.


_LENGTH = struct.Struct("<Q")


@dataclass
class GaugeState:
    """`began_ms`: when the trace began. `end_ms`: when it ended, if it has; nothing comes after all groups are told
    that, and what would happen later is what is left open."""

    interval: int
    began_ms: int
    end_ms: int | None = None
    left_open: int = 0
    purgatories: dict[tuple[int, Code], CoordinatorPurgatory] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return sum(purgatory.open for purgatory in self.purgatories.values())

    def tell(self, values: Iterable[bytes], watermark_ms: int, run_id: str) -> pa.Table:
        """Rows of `purgatory_gauges`: all that is known for good once groups have been called up to the watermark."""
        waits = by_purgatory(values)
        for broker, code in waits:
            if (broker, code) not in self.purgatories:
                self.purgatories[broker, code] = CoordinatorPurgatory(code, self.interval, self.began_ms)
        over = self.end_ms is not None and watermark_ms > self.end_ms
        self.left_open += sum(map(self._left, waits.values()))
        tables = [PURGATORY_GAUGES.empty_table()]
        for (broker, code), purgatory in sorted(self.purgatories.items()):
            readings = purgatory.tell(waits.get((broker, code)), FOREVER if over else watermark_ms)
            tables.append(_gauge_rows(run_id, broker, code, readings))
        # Spark loses rows of a table that has empty chunks.
        return pa.concat_tables(tables).combine_chunks()

    def _left(self, waits: PurgatoryWaits) -> int:
        if self.end_ms is None:
            return 0
        ended = waits.ended
        return int(((ended.t // 1000 <= self.end_ms) & (ended.end_t // 1000 > self.end_ms)).sum())

    def standing(self) -> list[tuple[int, str, int, int]]:
        """Of each purgatory its broker, its name, and both gauges as they are."""
        return [
            (broker, PURGATORIES[code], int(purgatory.record["watched"][0]), int(purgatory.record["delayed"][0]))
            for (broker, code), purgatory in sorted(self.purgatories.items())
        ]

    def to_bytes(self) -> bytes:
        head = json.dumps({"left_open": self.left_open, "of": list(self.purgatories)}).encode()
        parts = [head, *(purgatory.to_bytes() for purgatory in self.purgatories.values())]
        return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))

    def take_up(self, value: bytes) -> None:
        """Go on from what was kept."""
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

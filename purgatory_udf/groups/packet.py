"""What one call found, as one value; and many such values as rows of the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.groups.step import Found
from purgatory_udf.groups.words import FOREVER, KIND_OF, KINDS, RULES
from purgatory_udf.tables import COMPLETIONS, EXPIRATIONS, GROUP_TRANSITIONS, TIMESTAMP

# How often something was counted of a group: disagreements, and operations that have no end by the end of the trace.
TALLIES = pa.schema([("broker", pa.int32()), ("group", pa.string()), ("what", pa.string()), ("n", pa.int64())])
OPEN = "open"

SCHEMAS = {
    "completions": COMPLETIONS,
    "expirations": EXPIRATIONS,
    "group_transitions": GROUP_TRANSITIONS,
    "tallies": TALLIES,
}

_KINDS, _RULES = pa.array(KINDS), pa.array(RULES)
_HEARTBEAT = KIND_OF["heartbeat"]
_CHANGE_TEXTS = ("from_state", "to_state", "reason")


def packet(key: str, found: Found) -> bytes:
    """Everything that the tables say of a call."""
    changes, tally = found.transitions, found.disagreements
    transitions: dict[str, Array] = {
        "t": _numbers(change.at_us for change in changes),
        "generation": _numbers(change.generation for change in changes),
        "members": _objects(json.dumps(change.members) for change in changes),
        **{name: _objects(getattr(change, name) for change in changes) for name in _CHANGE_TEXTS},
    }
    counted = Frame({"n": _numbers(tally.values()), "what": _objects(tally)})
    names = Frame({"key": _objects([key])})
    return pack({"names": names, "ended": found.operations, "transitions": Frame(transitions), "tally": counted})


@dataclass(frozen=True)
class Tables:
    """Rows of the tables as a run writes them. What happens after the trace's end does only if the run drains."""

    run_id: str
    trace_end_us: int | None
    drain: bool

    def rows(self, table: str, packets: Sequence[bytes]) -> pa.Table:
        """One of `SCHEMAS`, from packets in their order."""
        unpacked = list(map(unpack, packets))
        if table == "group_transitions":
            return self._transitions(_joined(unpacked, "transitions"))
        ended = _joined(unpacked, "ended")
        if table == "tallies":
            return pa.concat_tables([_counted(_joined(unpacked, "tally")), self._open(ended)])
        expired = table == "expirations"
        chosen = (ended.expired > 0) == expired
        if not self.drain:
            chosen &= ended.end_t // 1000 <= self._end_ms
        return self._outcomes(ended.take(chosen), EXPIRATIONS if expired else COMPLETIONS)

    @property
    def _end_ms(self) -> int:
        return FOREVER if self.trace_end_us is None else self.trace_end_us // 1000

    def _outcomes(self, ended: Frame, schema: pa.Schema) -> pa.Table:
        count, group = len(ended), _texts(ended.group)
        sessions = pc.binary_join_element_wise(group, _texts(ended.member_id), "-")
        keys = pc.if_else(pa.array(ended.kind == _HEARTBEAT), sessions, group)
        columns = {
            "run_id": pa.repeat(self.run_id, count),
            "operation_id": pa.array(ended.op),
            "kind": _KINDS.take(pa.array(ended.kind)),
            "broker": pa.array(ended.broker.astype(np.int32)),
            "request_id": _named(ended.request_id),
            "client_id": _named(ended.client_id),
            "key": keys,
            "started_at": _time(ended.t),
            "completed_at": _time(ended.end_t),
            "expired_at": _time(ended.end_t),
            "deadline": _time(ended.deadline * 1000),
            "wait_ms": pa.array(ended.end_t // 1000 - ended.t // 1000),
            "watched": pa.array(ended.watched > 0),
            "completed_by": _RULES.take(pa.array(ended.rule)),
            "trigger": pc.if_else(pa.array(ended.triggered > 0), keys, pa.scalar(None, pa.string())),
            "bytes": pa.nulls(count, pa.int64()),
            "partitions": pa.array([[]] * count, schema.field("partitions").type),
            "fetcher": pa.nulls(count, pa.string()),
            "after_end": pa.array(ended.deadline > self._end_ms),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _transitions(self, changes: Frame) -> pa.Table:
        if not self.drain:
            changes = changes.take(changes.t // 1000 <= self._end_ms)
        columns = {
            "run_id": pa.repeat(self.run_id, len(changes)),
            "broker": pa.array(changes.broker.astype(np.int32)),
            "group": _texts(changes.group),
            "at": _time(changes.t),
            **{name: _texts(changes.columns[name]) for name in _CHANGE_TEXTS},
            "generation": pa.array(changes.generation.astype(np.int32)),
            "members": pa.array([json.loads(text) for text in changes.members], pa.list_(pa.string())),
        }
        return pa.table([columns[name] for name in GROUP_TRANSITIONS.names], schema=GROUP_TRANSITIONS)

    def _open(self, ended: Frame) -> pa.Table:
        """Of a run that does not drain: what was begun in the trace and ends after it, one row each."""
        after = (ended.end_t // 1000 > self._end_ms) & (ended.t // 1000 <= self._end_ms) & (not self.drain)
        left = ended.take(after)
        one, what = np.ones(len(left), dtype=np.int64), np.full(len(left), OPEN, dtype=object)
        return _counted(left.only(("broker", "group")).with_columns(n=one, what=what))


def _joined(unpacked: list[dict[str, Frame]], name: str) -> Frame:
    """One frame of every packet, end to end, with broker and group beside each row."""
    frames = []
    for frames_of_one in unpacked:
        broker, group = parts_of(frames_of_one["names"].key[0])
        frame = frames_of_one[name]
        count = len(frame)
        frames.append(
            frame.with_columns(broker=np.full(count, broker, dtype=np.int64), group=np.full(count, group, dtype=object))
        )
    return Frame.concat(frames)


def _counted(rows: Frame) -> pa.Table:
    columns = [pa.array(rows.broker.astype(np.int32)), _texts(rows.group), _texts(rows.what), pa.array(rows.n)]
    return pa.table(columns, schema=TALLIES)


def _numbers(values: Iterable[int]) -> Array:
    return np.array([*values], dtype=np.int64)


def _objects(values: Iterable[str]) -> Array:
    return np.array([*values], dtype=object)


def _texts(column: Array) -> pa.Array:
    return pa.array(column, pa.string())


def _named(column: Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    texts = _texts(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _time(us: Array) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)

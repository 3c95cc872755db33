"""What one call found, as one value; and such values as rows of the tables."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.groups.ended import ENDED
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.groups.step import Found
from purgatory_udf.groups.words import FOREVER, KIND_OF, KINDS, RULES
from purgatory_udf.tables import COMPLETIONS, EXPIRATIONS, GROUP_TRANSITIONS, TIMESTAMP

# How often something was counted of a group: disagreements, and operations that have no end by the end of the trace.
TALLIES = pa.schema(
    [("run_id", pa.string()), ("broker", pa.int32()), ("group", pa.string()), ("what", pa.string()), ("n", pa.int64())]
)
OPEN = "open"

_KINDS, _RULES = pa.array(KINDS), pa.array(RULES)
_HEARTBEAT = KIND_OF["heartbeat"]
_TRANSITION_TEXTS = ("from_state", "to_state", "reason")


def packet(key: str, found: Found) -> bytes:
    """Everything that the tables say of a call."""
    changes, tally = found.transitions, found.disagreements
    transitions: dict[str, Array] = {
        "t": np.array([change.at_us for change in changes], dtype=np.int64),
        "generation": np.array([change.generation for change in changes], dtype=np.int64),
        "members": np.array([json.dumps(change.members) for change in changes], dtype=object),
    }
    for name in _TRANSITION_TEXTS:
        transitions[name] = np.array([getattr(change, name) for change in changes], dtype=object)
    counted = {"n": np.array([*tally.values()], dtype=np.int64), "what": np.array([*tally], dtype=object)}
    names = Frame({"key": np.array([key], dtype=object)})
    return pack({"names": names, "ended": found.operations, "transitions": Frame(transitions), "tally": Frame(counted)})


@dataclass(frozen=True)
class Tables:
    """Rows of the tables as a run writes them. What happens after the trace's end does only if the run drains."""

    run_id: str
    trace_end_us: int | None
    drain: bool

    def rows(self, table: str, value: bytes) -> pa.Table:
        frames = unpack(value)
        key = frames["names"].key[0]
        if table == "group_transitions":
            return self._transitions(key, frames["transitions"])
        if table == "group_tallies":
            return self._tallies(key, frames)
        expired = table == "expirations"
        ended = frames["ended"].only(ENDED.names)
        chosen = (ended.expired > 0) == expired
        if not self.drain:
            chosen &= ended.end_t // 1000 <= self._end_ms
        return self._outcomes(key, ended.take(chosen), EXPIRATIONS if expired else COMPLETIONS)

    @property
    def _end_ms(self) -> int:
        return FOREVER if self.trace_end_us is None else self.trace_end_us // 1000

    def _outcomes(self, key: str, ended: Frame, schema: pa.Schema) -> pa.Table:
        broker, group = parts_of(key)
        count = len(ended)
        session = pa.array(ended.kind == _HEARTBEAT)
        keys = pc.if_else(session, pc.binary_join_element_wise(group, _texts(ended.member_id), "-"), group)
        columns = {
            "run_id": pa.repeat(self.run_id, count),
            "operation_id": pa.array(ended.op),
            "kind": _KINDS.take(pa.array(ended.kind)),
            "broker": pa.repeat(pa.scalar(broker, pa.int32()), count),
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

    def _transitions(self, key: str, changes: Frame) -> pa.Table:
        if not self.drain:
            changes = changes.take(changes.t // 1000 <= self._end_ms)
        broker, group = parts_of(key)
        count = len(changes)
        columns = {
            "run_id": pa.repeat(self.run_id, count),
            "broker": pa.repeat(pa.scalar(broker, pa.int32()), count),
            "group": pa.repeat(group, count),
            "at": _time(changes.t),
            **{name: _texts(changes.columns[name]) for name in _TRANSITION_TEXTS},
            "generation": pa.array(changes.generation.astype(np.int32)),
            "members": pa.array([json.loads(text) for text in changes.members], pa.list_(pa.string())),
        }
        return pa.table([columns[name] for name in GROUP_TRANSITIONS.names], schema=GROUP_TRANSITIONS)

    def _tallies(self, key: str, frames: dict[str, Frame]) -> pa.Table:
        ended, counted = frames["ended"], frames["tally"]
        tally = Counter(dict(zip(counted.what.tolist(), counted.n.tolist(), strict=True)))
        if not self.drain:
            tally[OPEN] = int(((ended.end_t // 1000 > self._end_ms) & (ended.t // 1000 <= self._end_ms)).sum())
        broker, group = parts_of(key)
        rows = [(self.run_id, broker, group, what, n) for what, n in tally.items() if n]
        return pa.Table.from_pylist([dict(zip(TALLIES.names, row, strict=True)) for row in rows], schema=TALLIES)


def _texts(column: Array) -> pa.Array:
    return pa.array(column, pa.string())


def _named(column: Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    texts = _texts(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _time(us: Array) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)

"""Settled operations as rows of `completions`, `expirations` and `watches`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.columnar.settle import Settled
from purgatory_udf.columnar.watches import DEADLINE
from purgatory_udf.loop.words import ANY_BROKER, KINDS, NO_PARTITION, UNKNOWN, Code, Error, Reader, Rule, parts_of
from purgatory_udf.tables import COMPLETIONS, EXPIRATIONS, TIMESTAMP, WATCHES


def _words(names: dict[int, str]) -> pa.Array:
    return pa.array([names.get(number) for number in range(max(names) + 1)], pa.string())


_RULES = _words({int(rule): rule.name.lower() for rule in Rule})
_ERRORS = _words({int(error): error.name for error in Error})
_KINDS = _words({int(code): kind for code, kind in KINDS.items()})


def _text(column: Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    texts = pa.array(column, pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _time(us: Array) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)


class Names:
    """Topics, partitions and readable names of the call's keys."""

    def __init__(self, keys: list[str]) -> None:
        parts = [parts_of(key) for key in keys]
        self.topic = pa.array([topic for _, _, topic in parts], pa.string())
        self.partition = pa.array([partition for _, partition, _ in parts], pa.int32())
        self.readable = pa.array(
            [
                topic if broker == ANY_BROKER else (None if partition == NO_PARTITION else f"{topic}-{partition}")
                for broker, partition, topic in parts
            ],
            pa.string(),
        )


def _error_names(watches: Frame) -> pa.Array:
    recorded = watches.final_error == Error.RECORDED
    if not recorded.any():
        return _ERRORS.take(watches.final_error)
    return pc.if_else(pa.array(recorded), pa.array(watches.text, pa.string()), _ERRORS.take(watches.final_error))


def _partitions(watches: Frame, counts: Array, names: Names) -> pa.Array:
    key = pa.array(watches.key)
    structs = pa.StructArray.from_arrays(
        [
            names.topic.take(key),
            names.partition.take(key),
            _error_names(watches),
            pa.array(watches.final_bytes, pa.int64()),
        ],
        ["topic", "partition", "error", "bytes"],
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def outcome_tables(
    settled: Settled, keys: list[str], run_id: str, trace_end_us: int | None
) -> tuple[pa.Table, pa.Table]:
    """Completions and expirations; an expiration after the trace's last event is marked so."""
    ops, watches, names = settled.operations, settled.watches, Names(keys)
    begin = np.searchsorted(watches.op, ops.op)
    real = watches.n > 0
    counts = np.add.reduceat(real.astype(np.int64), begin) if len(begin) else np.zeros(0, dtype=np.int64)
    fetches = ops.code == Code.FETCH
    sums = np.add.reduceat(watches.final_bytes, begin) if len(begin) else np.zeros(0, dtype=np.int64)
    trigger = np.where(ops.trigger == UNKNOWN, 0, ops.trigger) + begin
    triggers = names.readable.take(pa.array(watches.key[trigger]))
    columns = {
        "run_id": pa.array([run_id] * len(ops), pa.string()),
        "operation_id": pa.array(ops.op),
        "kind": _KINDS.take(ops.code),
        "broker": pa.array(ops.broker.astype(np.int32)),
        "request_id": _text(ops.request_id),
        "client_id": _text(ops.client_id),
        "key": names.readable.take(pa.array(watches.key[begin])),
        "started_at": _time(ops.t),
        "completed_at": _time(ops.end_t),
        "expired_at": _time(ops.end_t),
        "deadline": _time(ops.deadline * 1000),
        "wait_ms": pa.array(ops.end_t // 1000 - ops.t // 1000),
        "watched": pa.array(ops.watched > 0),
        "completed_by": _RULES.take(ops.rule),
        "trigger": pc.if_else(pa.array(ops.trigger == UNKNOWN), pa.scalar(None, pa.string()), triggers),
        "bytes": pa.array(sums, mask=~fetches),
        "partitions": _partitions(watches.take(real), counts, names),
        "fetcher": pc.if_else(
            pa.array(fetches),
            pc.if_else(pa.array(ops.mode & 3 == Reader.FOLLOWER), "follower", "consumer"),
            pa.scalar(None, pa.string()),
        ),
        "after_end": pa.array(ops.deadline > (2**62 if trace_end_us is None else trace_end_us // 1000)),
    }
    expired = pa.array(ops.expired > 0)

    def rows(schema: pa.Schema, which: pa.Array) -> pa.Table:
        return pa.table([columns[name] for name in schema.names], schema=schema).filter(which)

    return rows(COMPLETIONS, pc.invert(expired)), rows(EXPIRATIONS, expired)


def watch_table(settled: Settled, keys: list[str], run_id: str) -> pa.Table:
    """One row per finished watch."""
    names = Names(keys)
    watches = settled.watches.take(settled.watches.n > 0)
    key = pa.array(watches.key)
    late = watches.how == DEADLINE
    forced = (watches.rule != Rule.MIN_BYTES) & (watches.code == Code.FETCH)
    status = np.where(late, "expired", np.where(forced, "forced", np.where(watches.error != 0, "error", "satisfied")))
    columns = {
        "run_id": pa.array([run_id] * len(watches), pa.string()),
        "operation_id": pa.array(watches.op),
        "kind": _KINDS.take(watches.code),
        "broker": pa.array(watches.broker.astype(np.int32)),
        "topic": names.topic.take(key),
        "partition": names.partition.take(key),
        "keys": pa.array(watches.n.astype(np.int32)),
        "started_at": _time(watches.t),
        "deadline": _time(watches.deadline * 1000),
        "ended_at": _time(watches.end_t),
        "status": pa.array(status.astype(object), pa.string()),
        "increments": pa.array(watches.increments),
    }
    return pa.table([columns[name] for name in WATCHES.names], schema=WATCHES)

"""Ended operations as rows of `completions`, `expirations` and `watches`; readings as rows of `purgatory_gauges`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.loop.state import Found
from purgatory_udf.loop.words import (
    ANY_BROKER,
    KINDS,
    NO_PARTITION,
    PURGATORIES,
    UNKNOWN,
    Code,
    Error,
    Reader,
    Rule,
    parts_of,
)
from purgatory_udf.loop.world import Records
from purgatory_udf.tables import COMPLETIONS, EXPIRATIONS, PURGATORY_GAUGES, TIMESTAMP, WATCHES


def _words(names: dict[int, str]) -> pa.Array:
    return pa.array([names.get(number) for number in range(max(names) + 1)], pa.string())


_RULES = _words({int(rule): rule.name.lower() for rule in Rule})
_ERRORS = _words({int(error): error.name for error in Error})
_KINDS = _words({int(code): kind for code, kind in KINDS.items()})
_STATUS = pa.array(["satisfied", "error", "forced", "expired"], pa.string())
_FETCHERS = pa.array(["consumer", "follower"], pa.string())
_SATISFIED, _IN_ERROR, _FORCED, _EXPIRED = range(4)


def _taken(words: pa.Array, numbers: Records, known: Records | None = None) -> pa.Array:
    """Words by their numbers; null where the number is not known."""
    mask = None if known is None else ~known
    return words.take(pa.array(np.ascontiguousarray(numbers), pa.int32(), mask=mask))


def _plain(column: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(column))


def _time(us: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(us), pa.int64()).view(TIMESTAMP)


def _text(column: pa.Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    empty = pc.equal(column, "")
    return pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column


class Names:
    """Topics, partitions and readable names of the state's keys."""

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


def _partitions(operations: Records, parts: Records, found: Found, names: Names) -> pa.Array:
    error = _taken(_ERRORS, parts["error"])
    recorded = np.flatnonzero(parts["error"] == Error.RECORDED)
    if len(recorded):
        told = found.errors.take(pa.array(parts["text"][recorded]))
        error = pc.replace_with_mask(error, pa.array(parts["error"] == Error.RECORDED), told)
    fields = ["topic", "partition", "error", "bytes"]
    key = _plain(parts["key"])
    values = [names.topic.take(key), names.partition.take(key), error, _plain(parts["bytes"])]
    offsets = np.append(0, np.cumsum(operations["count"])).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(values, fields))


def outcome_tables(
    found: Found, run_id: str, trace_end_us: int | None, names: Names | None = None
) -> tuple[pa.Table, pa.Table]:
    """Completions and expirations; an expiration after the trace's last event is marked so."""
    names = Names(found.names) if names is None else names
    ops, parts = found.operations, found.parts
    some = ops["count"] > 0
    first = np.where(some, ops["first"], 0)
    key = parts["key"][first] if len(parts) else np.zeros(len(ops), np.int32)
    trigger = np.where(ops["trigger"] == UNKNOWN, 0, ops["first"] + ops["trigger"])
    triggered_by = parts["key"][trigger] if len(parts) else np.zeros(len(ops), np.int32)
    fetches = ops["code"] == Code.FETCH
    total = np.append(0, np.cumsum(parts["bytes"]))
    sums = total[ops["first"] + ops["count"]] - total[ops["first"]]
    text, end_us = _plain(ops["text"]), ops["end_t"]
    end_ms = np.int64(2**62) if trace_end_us is None else np.int64(trace_end_us // 1000)
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(ops)),
        "operation_id": _plain(ops["seq"]),
        "kind": _taken(_KINDS, ops["code"]),
        "broker": _plain(ops["broker"]),
        "request_id": _text(found.request_ids.take(text)),
        "client_id": _text(found.client_ids.take(text)),
        "key": _taken(names.readable, key, some),
        "started_at": _time(ops["t"]),
        "completed_at": _time(end_us),
        "expired_at": _time(end_us),
        "deadline": _time(ops["deadline"] * 1000),
        "wait_ms": pa.array(end_us // 1000 - ops["t"] // 1000),
        "watched": pa.array(ops["watched"] > 0),
        "completed_by": _taken(_RULES, ops["rule"]),
        "trigger": _taken(names.readable, triggered_by, ops["trigger"] != UNKNOWN),
        "bytes": pa.array(sums, mask=~fetches),
        "partitions": _partitions(ops, parts, found, names),
        "fetcher": _taken(_FETCHERS, ops["mode"] == Reader.FOLLOWER, fetches),
        "after_end": pa.array(ops["deadline"] > end_ms),
    }
    completed = int(np.searchsorted(ops["expired"], 1))

    def rows(schema: pa.Schema, begin: int, end: int) -> pa.Table:
        return pa.table([columns[name][begin:end] for name in schema.names], schema=schema)

    return rows(COMPLETIONS, 0, completed), rows(EXPIRATIONS, completed, len(ops))


def watch_table(found: Found, run_id: str, names: Names | None = None) -> pa.Table:
    """One row per finished watch. A fetch's watches end with it; the others each when their partition is settled."""
    names = Names(found.names) if names is None else names
    ops, parts = found.operations, found.parts
    owner = parts["operation"]
    fetch, expired = (ops["code"] == Code.FETCH)[owner], (ops["expired"] > 0)[owner]
    status = np.where(parts["error"] != 0, _IN_ERROR, _SATISFIED)
    forced_alone = fetch & ((ops["count"] == 1) & (ops["rule"] != Rule.MIN_BYTES))[owner]
    status[(parts["settled"] == 2) | forced_alone] = _FORCED
    status[expired & (fetch | (parts["settled"] == 0))] = _EXPIRED
    key = _plain(parts["key"])
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(parts)),
        "operation_id": _plain(ops["seq"][owner]),
        "kind": _taken(_KINDS, ops["code"][owner]),
        "broker": _plain(ops["broker"][owner]),
        "topic": names.topic.take(key),
        "partition": names.partition.take(key),
        "keys": _plain(ops["total"][owner]),
        "started_at": _time(ops["t"][owner]),
        "deadline": _time(ops["deadline"][owner] * 1000),
        "ended_at": _time(parts["end_t"]),
        "status": _taken(_STATUS, status),
        "increments": pa.array(np.where(fetch, parts["told"], 0).astype(np.int64)),
    }
    return pa.table([columns[name] for name in WATCHES.names], schema=WATCHES)


def gauge_table(found: Found, run_id: str) -> pa.Table:
    readings, whose = found.readings, found.purgatories[found.readings["purgatory"]]
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(readings)),
        "broker": _plain(whose["broker"]),
        "purgatory": pa.array([PURGATORIES[Code(code)] for code in whose["code"].tolist()], pa.string()),
        "at": _time(readings["at_ms"] * 1000),
        "watched": pa.array(readings["watched"].astype(np.int64)),
        "delayed": pa.array(readings["delayed"].astype(np.int64)),
        "purged": pa.array(readings["purged"].astype(np.int64)),
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)

"""A trace of produces and fetches of any size, generated as an `events` table in columns.

Arrivals are Poisson processes, and replication delays log-normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import EVENT_PARTITION, EVENTS, TIMESTAMP
from purgatory_udf.rules.groups.column_frames import Array

BEGIN_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Shape:
    """Parameters of a trace: numbers of operations and of keys (partitions), rate, and waits."""

    operations: int
    keys: int
    keys_per_operation: int = 1
    operations_per_second: int = 2_000
    max_wait_ms: int = 500
    # Bytes that a fetch waits for. More than the trace has: watcher lists grow until the fetches expire.
    min_bytes: int = 1
    seed: int = 1
    # Fraction of the operations that start at the first key.
    hot: float = 0.0


def partition_trace(shape: Shape) -> pa.Table:
    """Generate half produces (acks=all) and half fetches.

    The high watermark follows each produce after a log-normal delay.
    """
    random = np.random.default_rng(shape.seed)
    count, wide = shape.operations, shape.keys_per_operation
    gaps = random.exponential(1e6 / shape.operations_per_second, count)
    arrived = BEGIN_US + np.cumsum(gaps).astype(np.int64)
    produces = random.random(count) < 0.5
    first = random.integers(0, shape.keys, count)
    if shape.hot:
        first[random.random(count) < shape.hot] = 0
    key = (first[:, None] + np.arange(wide)) % shape.keys
    # Every produce appends one record to each of its partitions, so log ends are ranks within the partition.
    appended = np.flatnonzero(np.repeat(produces, wide))
    end = np.zeros(count * wide, dtype=np.int64)
    flat = key.ravel()
    end[appended] = _ranks(flat[appended])
    seen = _ends_seen(flat, np.repeat(produces, wide), end)
    latency = np.exp(np.log(4_000) + 1.0 * random.standard_normal(count)).astype(np.int64)
    return _table(shape, arrived, produces, flat, end, seen, latency)


def _ranks(keys: Array) -> Array:
    """Return 1, 2, 3 … within each key, in the given order."""
    order = np.argsort(keys, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0))[: len(keys)]
    lengths = np.diff(np.append(begins, len(keys)))
    ranks = np.empty(len(keys), dtype=np.int64)
    ranks[order] = np.arange(len(keys)) - np.repeat(begins, lengths) + 1
    return ranks


def _ends_seen(keys: Array, appends: Array, end: Array) -> Array:
    """Return for each watch the log end of its partition when its operation arrives.

    Args:
        keys: The partition of each watch, in the order of arrival.
        appends: Whether the operation is a produce, which appends to the partition.
        end: The log end after that append.
    """
    order = np.argsort(keys, kind="stable")
    grown = np.where(appends[order], end[order], 0)
    # Log ends only grow within a partition: take the running maximum, restarted at each partition's first row.
    base = keys[order] * (int(end.max(initial=0)) + 1)
    seen = np.empty_like(end)
    seen[order] = np.maximum.accumulate(grown + base) - base
    return seen


def _table(
    shape: Shape, arrived: Array, produces: Array, keys: Array, end: Array, seen: Array, latency: Array
) -> pa.Table:
    count, wide = shape.operations, shape.keys_per_operation
    commits = np.flatnonzero(np.repeat(produces, wide))
    total = count + len(commits)
    time = np.concatenate([arrived, np.repeat(arrived + latency, wide)[commits]])
    is_operation = np.arange(total) < count
    produce = np.append(produces, np.zeros(len(commits), dtype=bool))
    fetch = is_operation & ~produce
    watches = np.repeat(produces, wide)
    struct = {
        "topic": pa.array(np.full(count * wide, "load", dtype=object), pa.string()),
        "partition": pa.array(keys, pa.int32()),
        "base_offset": _where(watches, end - 1, pa.int64()),
        "last_offset": _where(watches, end - 1, pa.int64()),
        "bytes": _where(watches, np.full(count * wide, 400), pa.int64()),
        "fetch_offset": _where(~watches, seen, pa.int64()),
        "max_bytes": _where(~watches, np.full(count * wide, 1 << 20), pa.int64()),
    }
    parts = pa.StructArray.from_arrays(
        [struct.get(field.name, pa.nulls(count * wide, field.type)) for field in EVENT_PARTITION],
        fields=list(EVENT_PARTITION),
    )
    offsets = np.minimum(np.arange(total + 1), count) * wide
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), parts, mask=pa.array(~is_operation))
    changes = np.full(total, -1, dtype=np.int64)
    changes[count:] = keys[commits]
    grown = np.zeros(total, dtype=np.int64)
    grown[count:] = end[commits]
    texts = np.where(produce, "produce", np.where(fetch, "fetch", "partition")).astype(object)
    columns = {
        "event_time": pa.array(time, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP),
        "time_us": pa.array(time),
        "broker": pa.array(np.zeros(total), pa.int32()),
        "type": pa.array(texts, pa.string()),
        "acks": _where(produce, np.full(total, -1), pa.int32()),
        "timeout_ms": _where(produce, np.full(total, 1_500), pa.int64()),
        "replica_id": _where(fetch, np.full(total, -1), pa.int32()),
        "max_wait_ms": _where(fetch, np.full(total, shape.max_wait_ms), pa.int64()),
        "min_bytes": _where(fetch, np.full(total, shape.min_bytes), pa.int64()),
        "max_bytes": _where(fetch, np.full(total, 50 << 20), pa.int64()),
        "partitions": lists,
        "topic": pc.if_else(is_operation, pa.scalar(None, pa.string()), "load"),
        "partition": _where(~is_operation, changes, pa.int32()),
        "change": pc.if_else(is_operation, pa.scalar(None, pa.string()), "high_watermark"),
        "offset": _where(~is_operation, grown, pa.int64()),
    }
    order = np.lexsort((np.arange(total), time))
    columns["seq"] = pa.array(np.argsort(order), pa.int64())
    table = pa.table({field.name: columns.get(field.name, pa.nulls(total, field.type)) for field in EVENTS}, EVENTS)
    return table.take(pa.array(order)).combine_chunks()


def _where(which: Array, values: Array, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind, mask=~which)

"""A slice as rows of `events`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.simulate.open_loop.requests import (
    Fetches,
    Marks,
    Move,
    Numbers,
    Produces,
    fetches,
    marks,
    move,
    produces,
)
from purgatory_udf.simulate.open_loop.workload import BROKERS, PARTITIONS_PER_TOPIC, Workload
from purgatory_udf.simulate.world import BEGIN_US
from purgatory_udf.tables import EVENT_PARTITION, EVENTS, TIMESTAMP

# `seq` is the slice's number and the row's place in it: a slice has fewer rows than this.
SEQ_STRIDE = 1_000_000_000
FETCH_MAX_BYTES, PARTITION_MAX_BYTES = 52_428_800, 1_048_576
CLIENTS = 100


def slice_rows(workload: Workload, number: int, run_id: str) -> pa.Table:
    """The events of a slice in their order, from nothing but the workload and the slice's number."""
    now = produces(workload, number)
    rising = marks(workload, number, now)
    names = _Names(workload)
    parts = [
        _produce_rows(workload, now, names),
        _mark_rows(rising, names),
        _fetch_rows(workload, fetches(workload, number, now, rising), names),
        _move_rows(number, move(workload, number), names),
    ]
    if number == 0:
        parts.insert(0, _first_rows(workload, names))
    # At one instant the order of these: what a fetch sees happened before it.
    rows = pa.concat_tables([_filled(part) for part in parts])
    rows = rows.take(pa.array(np.argsort(rows["time_us"].to_numpy(), kind="stable")))
    return _named(rows, number * SEQ_STRIDE, run_id)


class _Names:
    """Topics and partition numbers by the workload's own count of partitions."""

    def __init__(self, workload: Workload) -> None:
        everyone = np.arange(workload.partitions)
        self.topics = pa.array([f"topic-{one // PARTITIONS_PER_TOPIC}" for one in everyone.tolist()], pa.string())
        self.numbers = pa.array(everyone % PARTITIONS_PER_TOPIC, pa.int32())
        self.clients = pa.array([f"client-{one}" for one in range(CLIENTS)], pa.string())

    def place(self, partition: Numbers) -> dict[str, pa.Array]:
        chosen = pa.array(partition)
        return {"topic": self.topics.take(chosen), "partition": self.numbers.take(chosen)}

    def client(self, number: Numbers) -> pa.Array:
        return self.clients.take(pa.array(number % CLIENTS))


def _broker(partition: Numbers) -> pa.Array:
    return pa.array(partition % BROKERS + 1, pa.int32())


def _same(value: object, size: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)


def _partitions(columns: dict[str, pa.Array], each: int) -> pa.Array:
    """A list of `each` partitions for every row."""
    size = len(next(iter(columns.values())))
    fields = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENT_PARTITION]
    structs = pa.StructArray.from_arrays(fields, fields=list(EVENT_PARTITION))
    offsets = pa.array(np.arange(0, size + 1, each, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, structs)


def _produce_rows(workload: Workload, now: Produces, names: _Names) -> dict[str, pa.Array]:
    size = len(now.t)
    batches = {
        **names.place(now.partition),
        "base_offset": pa.array(now.base_offset),
        "last_offset": pa.array(now.end_offset - 1),
        "bytes": pa.array(now.bytes),
        "error": _same("NONE", size, pa.string()),
    }
    return {
        "type": _same("produce", size, pa.string()),
        "time_us": pa.array(now.t),
        "broker": _broker(now.partition),
        "client_id": names.client(now.partition),
        "acks": pa.array(now.acks, pa.int32()),
        "timeout_ms": _same(workload.timeout_ms, size, pa.int64()),
        "partitions": _partitions(batches, 1),
    }


def _mark_rows(rising: Marks, names: _Names) -> dict[str, pa.Array]:
    return _change_rows(rising.t, rising.partition, rising.offset, "high_watermark", names)


def _change_rows(t: Numbers, partition: Numbers, offset: Numbers, change: str, names: _Names) -> dict[str, pa.Array]:
    size = len(t)
    return {
        "type": _same("partition", size, pa.string()),
        "time_us": pa.array(t),
        "broker": _broker(partition),
        **names.place(partition),
        "change": _same(change, size, pa.string()),
        "offset": pa.array(offset),
    }


def _fetch_rows(workload: Workload, asked: Fetches, names: _Names) -> dict[str, pa.Array]:
    size, each = len(asked.t), workload.keys
    keys = {
        **names.place(asked.partitions.ravel()),
        "fetch_offset": pa.array(asked.offsets.ravel()),
        "max_bytes": _same(PARTITION_MAX_BYTES, size * each, pa.int64()),
        "current_leader_epoch": _same(-1, size * each, pa.int32()),
        "throttled": _same(False, size * each, pa.bool_()),
    }
    first = asked.partitions[:, 0]
    # The next broker after the one that leads.
    follower = np.where(asked.follower, (first + 1) % BROKERS + 1, -1)
    return {
        "type": _same("fetch", size, pa.string()),
        "time_us": pa.array(asked.t),
        "broker": _broker(first),
        "client_id": names.client(first),
        "replica_id": pa.array(follower, pa.int32()),
        "max_wait_ms": _same(workload.max_wait_ms, size, pa.int64()),
        "min_bytes": _same(1, size, pa.int64()),
        "max_bytes": _same(FETCH_MAX_BYTES, size, pa.int64()),
        "isolation": _same("read_uncommitted", size, pa.string()),
        "partitions": _partitions(keys, each),
    }


def _move_rows(number: int, moved: Move, names: _Names) -> dict[str, pa.Array]:
    partition = np.full(2, moved.partition)
    return {
        "type": _same("partition", 2, pa.string()),
        "time_us": pa.array([moved.resigns_t, moved.leads_t], pa.int64()),
        "broker": _broker(partition),
        **names.place(partition),
        "change": pa.array(["not_leader", "leader"], pa.string()),
        "leader_epoch": pa.array([None, number + 1], pa.int32()),
    }


def _first_rows(workload: Workload, names: _Names) -> dict[str, pa.Array]:
    """All logs are empty when the trace begins."""
    everyone = np.arange(workload.partitions)
    zero = np.zeros(workload.partitions, dtype=np.int64)
    ends = _change_rows(zero, everyone, zero, "log_end", names)
    rises = _change_rows(zero, everyone, zero, "high_watermark", names)
    return {name: pa.concat_arrays([column, rises[name]]) for name, column in ends.items()}


def _filled(columns: dict[str, pa.Array]) -> pa.Table:
    size = len(columns["time_us"])
    arrays = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


def _named(rows: pa.Table, before: int, run_id: str) -> pa.Table:
    """Instants on the calendar, `seq`, and the requests' ids."""
    size = rows.num_rows
    time_us = pc.add(rows["time_us"], BEGIN_US)
    seq = pa.array(np.arange(before + 1, before + size + 1))
    ids = pc.if_else(pc.equal(rows["type"], "partition"), pa.scalar(None, pa.string()), seq.cast(pa.string()))
    for name, column in {
        "run_id": _same(run_id, size, pa.string()),
        "event_time": time_us.cast(pa.timestamp("us")).cast(TIMESTAMP),
        "time_us": time_us,
        "seq": seq,
        "request_id": ids,
        "source": _same("simulate", size, pa.string()),
    }.items():
        rows = rows.set_column(EVENTS.get_field_index(name), EVENTS.field(name), column)
    return rows

"""Columns of `events` out of numbers: names by place, lists of partitions, what a type does not have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from purgatory_udf.simulate.open_loop.streams import Flags, Numbers
from purgatory_udf.simulate.open_loop.workload import BROKERS, PARTITIONS_PER_TOPIC, Workload
from purgatory_udf.tables import EVENT_PARTITION, EVENTS

CLIENTS = 100

Columns = dict[str, pa.Array]


class PartitionNames:
    """Topics and partition numbers by the workload's own count of partitions."""

    def __init__(self, workload: Workload) -> None:
        everyone = np.arange(workload.partitions)
        self.topics = pa.array([f"topic-{number // PARTITIONS_PER_TOPIC}" for number in everyone.tolist()], pa.string())
        self.numbers = pa.array(everyone % PARTITIONS_PER_TOPIC, pa.int32())
        self.clients = pa.array([f"client-{number}" for number in range(CLIENTS)], pa.string())

    def place(self, partition: Numbers) -> Columns:
        chosen = pa.array(partition)
        return {"topic": self.topics.take(chosen), "partition": self.numbers.take(chosen)}

    def client(self, number: Numbers) -> pa.Array:
        return self.clients.take(pa.array(number % CLIENTS))


def broker_of(number: Numbers) -> pa.Array:
    """Partitions, groups and creations go round the brokers."""
    return pa.array(number % BROKERS + 1, pa.int32())


def same(value: object, size: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)


def partitions_of(columns: Columns, each: int) -> pa.Array:
    """A list of `each` partitions for every row."""
    size = len(next(iter(columns.values())))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, size + 1, each, dtype=np.int32)), _structs(columns))


def one_partition_where(chosen: Flags, columns: Columns) -> pa.Array:
    """A list of one partition for the rows chosen, which are those that `columns` has; null for the others."""
    ends = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), _structs(columns), mask=pa.array(~chosen))


def _structs(columns: Columns) -> pa.StructArray:
    size = len(next(iter(columns.values())))
    fields = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENT_PARTITION]
    return pa.StructArray.from_arrays(fields, fields=list(EVENT_PARTITION))


def filled(columns: Columns) -> pa.Table:
    """Rows of `events`: what is not given is null."""
    size = len(columns["time_us"])
    arrays = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)

"""A slice as rows of `events`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.contract.tables import EVENT_TOPIC, EVENTS, TIMESTAMP
from purgatory_udf.simulation.environment import START_US
from purgatory_udf.simulation.open_loop.event_columns import (
    Columns,
    PartitionNames,
    broker_of,
    constant,
    group_rows,
    partitions_of,
    to_event_table,
)
from purgatory_udf.simulation.open_loop.partition_requests import (
    Fetches,
    HighWatermarkRises,
    LastStableOffsets,
    LeaderMove,
    Produces,
    TransactionEnds,
    arrivals,
    choose_partitions,
    fetches,
    high_watermark_rises,
    latencies_us,
    leader_move,
    log_ends,
    produces,
    transaction_ends,
)
from purgatory_udf.simulation.open_loop.random_streams import Flags, Numbers, Purpose, stream
from purgatory_udf.simulation.open_loop.workload import BROKERS, NEW_PARTITIONS, Workload
from purgatory_udf.storage.event_staging import IN_TIME_ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What administrators ask for: that old records are deleted, and that topics are created; and when it is done.
#
# No latency is longer than a slice: what is done in this one was asked for in it, or in the one before.


@dataclass(frozen=True)
class Deletes:
    """Of everything before `offset`: what the log ended at a slice ago."""

    t: Numbers
    partition: Numbers
    offset: Numbers
    done_t: Numbers


@dataclass(frozen=True)
class Creations:
    """`leads_t` has a row for each topic and a column for each of its partitions."""

    t: Numbers
    topic: Numbers
    leads_t: Numbers


def deletes(workload: Workload, number: int) -> Deletes:
    size = arrivals(workload, number).deletes
    random = stream(workload.seed, Purpose.DELETES, number)
    t = random.integers(workload.edge_us(number), workload.edge_us(number + 1), size)
    partition = choose_partitions(workload, random, size)
    old = log_ends(arrivals(workload, number - 1).before)[partition] if number else np.zeros_like(partition)
    return Deletes(t, partition, old, t + latencies_us(workload, random, (size,)))


def creations(workload: Workload, number: int) -> Creations:
    come = arrivals(workload, number)
    random = stream(workload.seed, Purpose.CREATIONS, number)
    t = np.sort(random.integers(workload.edge_us(number), workload.edge_us(number + 1), come.creations))
    topic = come.created_before + np.arange(come.creations)
    return Creations(t, topic, t[:, None] + latencies_us(workload, random, (come.creations, NEW_PARTITIONS)))


def completed_in_slice(workload: Workload, number: int, t: Numbers) -> Flags:
    """What is done in this slice; the last one has all that is done later, too."""
    late = t < workload.edge_us(number + 1) if number < workload.slices - 1 else np.ones_like(t, dtype=np.bool_)
    return np.asarray((t >= workload.edge_us(number)) & late)


# `seq` is the slice's number and the row's place in it: a slice has fewer rows than this.
SEQ_STRIDE = 1_000_000_000
FETCH_MAX_BYTES, PARTITION_MAX_BYTES = 52_428_800, 1_048_576


def slice_rows(workload: Workload, number: int, run_id: str) -> pa.Table:
    """The events of a slice in their order, from nothing but the workload and the slice's number."""
    now = produces(workload, number)
    rising = high_watermark_rises(workload, number, now)
    names = PartitionNames(workload)
    parts = [
        _produce_rows(workload, now, names),
        _high_watermark_rows(rising, names),
        _last_stable_rows(transaction_ends(workload, number, rising), names),
        _fetch_rows(
            workload, _at_last_stable_offsets(workload, number, fetches(workload, number, now, rising), rising), names
        ),
        _move_rows(number, leader_move(workload, number), names),
        *_administration_rows(workload, number, names),
        group_rows(workload, workload.edge_us(number), workload.edge_us(number + 1), names),
    ]
    if number == 0:
        parts.insert(0, _initial_rows(workload, names))
    # At one instant the order of these: what a fetch sees happened before it.
    rows = pa.concat_tables([to_event_table(part) for part in parts])
    rows = rows.take(pa.array(np.argsort(rows["time_us"].to_numpy(), kind="stable")))
    return _identified(rows, number * SEQ_STRIDE, run_id)


def _produce_rows(workload: Workload, now: Produces, names: PartitionNames) -> Columns:
    size = len(now.t)
    batches = {
        **names.place(now.partition),
        "base_offset": pa.array(now.base_offset),
        "last_offset": pa.array(now.end_offset - 1),
        "bytes": pa.array(now.bytes),
        "error": constant("NONE", size, pa.string()),
    }
    return {
        "type": constant("produce", size, pa.string()),
        "time_us": pa.array(now.t),
        "broker": broker_of(now.partition),
        "client_id": names.client(now.partition),
        "acks": pa.array(now.acks, pa.int32()),
        "timeout_ms": constant(workload.timeout_ms, size, pa.int64()),
        "partitions": partitions_of(batches, 1),
    }


def _high_watermark_rows(rising: HighWatermarkRises, names: PartitionNames) -> Columns:
    return _change_rows(rising.t, rising.partition, rising.offset, "high_watermark", names)


def _last_stable_rows(ended: TransactionEnds, names: PartitionNames) -> Columns:
    return _change_rows(ended.t, ended.partition, ended.offset, "last_stable", names)


def _at_last_stable_offsets(workload: Workload, number: int, asked: Fetches, rising: HighWatermarkRises) -> Fetches:
    """Whoever reads committed records is where these end."""
    if not asked.committed.any():
        return asked
    when = np.repeat(asked.t[:, None], workload.keys, axis=1)
    stable = LastStableOffsets(workload, number, rising).at(asked.partitions, when)
    return replace(asked, offsets=np.where(asked.committed[:, None], stable, asked.offsets))


def _change_rows(t: Numbers, partition: Numbers, offset: Numbers, change: str, names: PartitionNames) -> Columns:
    size = len(t)
    return {
        "type": constant("partition", size, pa.string()),
        "time_us": pa.array(t),
        "broker": broker_of(partition),
        **names.place(partition),
        "change": constant(change, size, pa.string()),
        "offset": pa.array(offset),
    }


def _fetch_rows(workload: Workload, asked: Fetches, names: PartitionNames) -> Columns:
    size, each = len(asked.t), workload.keys
    keys = {
        **names.place(asked.partitions.ravel()),
        "fetch_offset": pa.array(asked.offsets.ravel()),
        "max_bytes": constant(PARTITION_MAX_BYTES, size * each, pa.int64()),
        "current_leader_epoch": constant(-1, size * each, pa.int32()),
        "throttled": constant(False, size * each, pa.bool_()),
    }
    first = asked.partitions[:, 0]
    # The next broker after the one that leads.
    follower = np.where(asked.follower, (first + 1) % BROKERS + 1, -1)
    return {
        "type": constant("fetch", size, pa.string()),
        "time_us": pa.array(asked.t),
        "broker": broker_of(first),
        "client_id": names.client(first),
        "replica_id": pa.array(follower, pa.int32()),
        "max_wait_ms": constant(workload.max_wait_ms, size, pa.int64()),
        "min_bytes": constant(1, size, pa.int64()),
        "max_bytes": constant(FETCH_MAX_BYTES, size, pa.int64()),
        "isolation": pc.if_else(pa.array(asked.committed), "read_committed", "read_uncommitted"),
        "partitions": partitions_of(keys, each),
    }


def _move_rows(number: int, moved: LeaderMove, names: PartitionNames) -> Columns:
    partition = np.full(2, moved.partition)
    return {
        "type": constant("partition", 2, pa.string()),
        "time_us": pa.array([moved.resigns_t, moved.leads_t], pa.int64()),
        "broker": broker_of(partition),
        **names.place(partition),
        "change": pa.array(["not_leader", "leader"], pa.string()),
        "leader_epoch": pa.array([None, number + 1], pa.int32()),
    }


def _administration_rows(workload: Workload, number: int, names: PartitionNames) -> list[Columns]:
    deleting, creating = deletes(workload, number), creations(workload, number)
    rows = [_delete_rows(workload, deleting, names), _create_rows(workload, creating)]
    for since in {max(0, number - 1), number}:
        old = deleting if since == number else deletes(workload, since)
        done = completed_in_slice(workload, number, old.done_t)
        rows.append(_change_rows(old.done_t[done], old.partition[done], old.offset[done], "log_start", names))
        rows.append(_new_leader_rows(workload, number, creating if since == number else creations(workload, since)))
    return rows


def _delete_rows(workload: Workload, asked: Deletes, names: PartitionNames) -> Columns:
    size = len(asked.t)
    return {
        "type": constant("delete_records", size, pa.string()),
        "time_us": pa.array(asked.t),
        "broker": broker_of(asked.partition),
        "client_id": constant("admin", size, pa.string()),
        "timeout_ms": constant(workload.timeout_ms, size, pa.int64()),
        "partitions": partitions_of({**names.place(asked.partition), "offset": pa.array(asked.offset)}, 1),
    }


def _create_rows(workload: Workload, asked: Creations) -> Columns:
    size = len(asked.t)
    fields = [_new_topics(asked.topic), constant(NEW_PARTITIONS, size, pa.int32())]
    topics = pa.StructArray.from_arrays(fields, fields=list(EVENT_TOPIC))
    return {
        "type": constant("create_topics", size, pa.string()),
        "time_us": pa.array(asked.t),
        "broker": broker_of(asked.topic),
        "client_id": constant("admin", size, pa.string()),
        "timeout_ms": constant(workload.timeout_ms, size, pa.int64()),
        "topics": pa.ListArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32)), topics),
    }


def _new_leader_rows(workload: Workload, number: int, asked: Creations) -> Columns:
    topic = np.repeat(asked.topic, NEW_PARTITIONS)
    partition = np.tile(np.arange(NEW_PARTITIONS), len(asked.topic))
    done = completed_in_slice(workload, number, asked.leads_t.ravel())
    topic, partition, t = topic[done], partition[done], asked.leads_t.ravel()[done]
    return {
        "type": constant("partition", len(t), pa.string()),
        "time_us": pa.array(t),
        "broker": broker_of(topic + partition),
        "topic": _new_topics(topic),
        "partition": pa.array(partition, pa.int32()),
        "change": constant("leader", len(t), pa.string()),
        "leader_epoch": constant(0, len(t), pa.int32()),
    }


def _new_topics(number: Numbers) -> pa.Array:
    return pc.binary_join_element_wise("new-", pa.array(number).cast(pa.string()), "")


def _initial_rows(workload: Workload, names: PartitionNames) -> Columns:
    """All logs are empty when the trace begins."""
    everyone = np.arange(workload.partitions)
    zero = np.zeros(workload.partitions, dtype=np.int64)
    ends = _change_rows(zero, everyone, zero, "log_end", names)
    rises = _change_rows(zero, everyone, zero, "high_watermark", names)
    return {name: pa.concat_arrays([column, rises[name]]) for name, column in ends.items()}


def _identified(rows: pa.Table, before: int, run_id: str) -> pa.Table:
    """Instants on the calendar, `seq`, and the requests' ids."""
    size = rows.num_rows
    time_us = pc.add(rows["time_us"], START_US)
    seq = pa.array(np.arange(before + 1, before + size + 1))
    ids = pc.if_else(pc.equal(rows["type"], "partition"), pa.scalar(None, pa.string()), seq.cast(pa.string()))
    for name, column in {
        "run_id": constant(run_id, size, pa.string()),
        "event_time": time_us.cast(pa.timestamp("us")).cast(TIMESTAMP),
        "time_us": time_us,
        "seq": seq,
        "request_id": ids,
        "source": constant("simulate", size, pa.string()),
    }.items():
        rows = rows.set_column(EVENTS.get_field_index(name), EVENTS.field(name), column)
    return rows


# The open loop on Spark: each slice of time is a task, and a file of the table.


ROWS_PER_BATCH = 20_000


def events_of(spark: SparkSession, workload: Workload, run_id: str, tasks: int | None = None) -> DataFrame:
    """The whole trace, in time order within and across the frame's partitions, however many there are."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from slice_rows(workload, number, run_id).combine_chunks().to_batches(ROWS_PER_BATCH)

    slices = spark.range(0, workload.slices, 1, tasks or workload.slices)
    return slices.mapInArrow(work, from_arrow_schema(EVENTS))


def write_events(events: DataFrame, path: str) -> None:
    """No shuffle: tasks are slices of time, and Delta lists their files in the order of the tasks."""
    (
        events.write.format("delta")
        .option("userMetadata", IN_TIME_ORDER)
        .option("delta.dataSkippingStatsColumns", "event_time,time_us,seq")
        .save(path)
    )

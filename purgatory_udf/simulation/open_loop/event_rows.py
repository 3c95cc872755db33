"""A slice as rows of `events`, with the requests of admin clients, and the whole trace as a Spark DataFrame.

Deletions and creations complete after a latency. No latency is longer than a slice, so an operation that completes in a
slice was requested in that slice or in the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.delta_store import with_column_comments
from purgatory_udf.contract.tables import COMMENTED_TABLES, EVENT_TOPIC, EVENTS, TIMESTAMP
from purgatory_udf.simulation.open_loop import Flags, Numbers, Purpose, stream
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
    FetchRequests,
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
from purgatory_udf.simulation.open_loop.workload import BROKERS, NEW_PARTITIONS, Workload
from purgatory_udf.simulation.simpy_environment import START_US
from purgatory_udf.storage.event_staging import TIME_ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Deletes:
    """DELETE_RECORDS requests, a row for each: requested at `t`, and completed at `done_t`.

    They delete the records before `offset`, which is the log end at the start of the previous slice.
    """

    t: Numbers
    partition: Numbers
    offset: Numbers
    done_t: Numbers


@dataclass(frozen=True)
class Creations:
    """Creations of topics.

    `leads_t` has a row per topic and a column per partition: the time of the partition's first leader.
    """

    t: Numbers
    topic: Numbers
    leads_t: Numbers


def deletes(workload: Workload, number: int) -> Deletes:
    """Return the DELETE_RECORDS requests of the slice `number`."""
    size = arrivals(workload, number).deletes
    random = stream(workload.seed, Purpose.DELETES, number)
    t = random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), size)
    partition = choose_partitions(workload, random, size)
    old = log_ends(arrivals(workload, number - 1).before)[partition] if number else np.zeros_like(partition)
    return Deletes(t, partition, old, t + latencies_us(workload, random, (size,)))


def creations(workload: Workload, number: int) -> Creations:
    """Return the CREATE_TOPICS requests of the slice `number`."""
    arriving = arrivals(workload, number)
    random = stream(workload.seed, Purpose.CREATIONS, number)
    t = np.sort(
        random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), arriving.creations)
    )
    topic = arriving.created_before + np.arange(arriving.creations)
    return Creations(t, topic, t[:, None] + latencies_us(workload, random, (arriving.creations, NEW_PARTITIONS)))


def completed_in_slice(workload: Workload, number: int, t: Numbers) -> Flags:
    """Return a mask of the times in the slice `number`. The last slice also contains all later times."""
    ends_in_slice = (
        t < workload.slice_start_us(number + 1) if number < workload.slices - 1 else np.ones_like(t, dtype=np.bool_)
    )
    return np.asarray((t >= workload.slice_start_us(number)) & ends_in_slice)


# `seq` is the slice's number times this, plus the row's index from 1: a slice has fewer rows.
SEQ_STRIDE = 1_000_000_000
FETCH_MAX_BYTES, PARTITION_MAX_BYTES = 52_428_800, 1_048_576


def slice_rows(workload: Workload, number: int, run_id: str) -> pa.Table:
    """Return the events of a slice in order. The result depends only on the workload and the slice's number."""
    now = produces(workload, number)
    rises = high_watermark_rises(workload, number, now)
    names = PartitionNames(workload)
    parts = [
        _produce_rows(workload, now, names),
        _high_watermark_rows(rises, names),
        _last_stable_rows(transaction_ends(workload, number, rises), names),
        _fetch_rows(
            workload, _at_last_stable_offsets(workload, number, fetches(workload, number, now, rises), rises), names
        ),
        _move_rows(number, leader_move(workload, number), names),
        *_administration_rows(workload, number, names),
        group_rows(workload, workload.slice_start_us(number), workload.slice_start_us(number + 1), names),
    ]
    if number == 0:
        parts.insert(0, _initial_rows(workload, names))
    # A stable sort: at the same time the order of `parts` counts, so a fetch comes after the appends that it may read.
    rows = pa.concat_tables([to_event_table(part) for part in parts])
    rows = rows.take(pa.array(np.argsort(rows["time_us"].to_numpy(), kind="stable")))
    return _identified(rows, number * SEQ_STRIDE, run_id)


def _produce_rows(workload: Workload, now: Produces, names: PartitionNames) -> Columns:
    size = len(now.t)
    batches = {
        **names.topic_partition(now.partition),
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


def _high_watermark_rows(rises: HighWatermarkRises, names: PartitionNames) -> Columns:
    return _change_rows(rises.t, rises.partition, rises.offset, "high_watermark", names)


def _last_stable_rows(ended: TransactionEnds, names: PartitionNames) -> Columns:
    return _change_rows(ended.t, ended.partition, ended.offset, "last_stable", names)


def _at_last_stable_offsets(
    workload: Workload, number: int, requests: FetchRequests, rises: HighWatermarkRises
) -> FetchRequests:
    """Return the fetches with the last stable offsets as fetch offsets of `read_committed` consumers.

    `requests` are the fetches of the slice `number`, and `rises` the rises of high watermarks in it.
    """
    if not requests.committed.any():
        return requests
    when = np.repeat(requests.t[:, None], workload.keys, axis=1)
    stable = LastStableOffsets(workload, number, rises).at(requests.partitions, when)
    return replace(requests, offsets=np.where(requests.committed[:, None], stable, requests.offsets))


def _change_rows(t: Numbers, partition: Numbers, offset: Numbers, change: str, names: PartitionNames) -> Columns:
    size = len(t)
    return {
        "type": constant("partition", size, pa.string()),
        "time_us": pa.array(t),
        "broker": broker_of(partition),
        **names.topic_partition(partition),
        "change": constant(change, size, pa.string()),
        "offset": pa.array(offset),
    }


def _fetch_rows(workload: Workload, requests: FetchRequests, names: PartitionNames) -> Columns:
    size, each = len(requests.t), workload.keys
    keys = {
        **names.topic_partition(requests.partitions.ravel()),
        "fetch_offset": pa.array(requests.offsets.ravel()),
        "max_bytes": constant(PARTITION_MAX_BYTES, size * each, pa.int64()),
        "current_leader_epoch": constant(-1, size * each, pa.int32()),
        "throttled": constant(False, size * each, pa.bool_()),
    }
    first = requests.partitions[:, 0]
    # The broker after the leader.
    follower = np.where(requests.follower, (first + 1) % BROKERS + 1, -1)
    return {
        "type": constant("fetch", size, pa.string()),
        "time_us": pa.array(requests.t),
        "broker": broker_of(first),
        "client_id": names.client(first),
        "replica_id": pa.array(follower, pa.int32()),
        "max_wait_ms": constant(workload.max_wait_ms, size, pa.int64()),
        "min_bytes": constant(1, size, pa.int64()),
        "max_bytes": constant(FETCH_MAX_BYTES, size, pa.int64()),
        "isolation": pc.if_else(pa.array(requests.committed), "read_committed", "read_uncommitted"),
        "partitions": partitions_of(keys, each),
    }


def _move_rows(number: int, moved: LeaderMove, names: PartitionNames) -> Columns:
    partition = np.full(2, moved.partition)
    return {
        "type": constant("partition", 2, pa.string()),
        "time_us": pa.array([moved.resigns_t, moved.leads_t], pa.int64()),
        "broker": broker_of(partition),
        **names.topic_partition(partition),
        "change": pa.array(["not_leader", "leader"], pa.string()),
        "leader_epoch": pa.array([None, number + 1], pa.int32()),
    }


def _administration_rows(workload: Workload, number: int, names: PartitionNames) -> list[Columns]:
    deleting, creating = deletes(workload, number), creations(workload, number)
    rows = [_delete_rows(workload, deleting, names), _create_rows(workload, creating)]
    for start_slice in {max(0, number - 1), number}:
        old = deleting if start_slice == number else deletes(workload, start_slice)
        done = completed_in_slice(workload, number, old.done_t)
        rows.append(_change_rows(old.done_t[done], old.partition[done], old.offset[done], "log_start", names))
        rows.append(
            _new_leader_rows(workload, number, creating if start_slice == number else creations(workload, start_slice))
        )
    return rows


def _delete_rows(workload: Workload, requests: Deletes, names: PartitionNames) -> Columns:
    size = len(requests.t)
    return {
        "type": constant("delete_records", size, pa.string()),
        "time_us": pa.array(requests.t),
        "broker": broker_of(requests.partition),
        "client_id": constant("admin", size, pa.string()),
        "timeout_ms": constant(workload.timeout_ms, size, pa.int64()),
        "partitions": partitions_of(
            {**names.topic_partition(requests.partition), "offset": pa.array(requests.offset)}, 1
        ),
    }


def _create_rows(workload: Workload, requests: Creations) -> Columns:
    size = len(requests.t)
    fields = [_new_topics(requests.topic), constant(NEW_PARTITIONS, size, pa.int32())]
    topics = pa.StructArray.from_arrays(fields, fields=list(EVENT_TOPIC))
    return {
        "type": constant("create_topics", size, pa.string()),
        "time_us": pa.array(requests.t),
        "broker": broker_of(requests.topic),
        "client_id": constant("admin", size, pa.string()),
        "timeout_ms": constant(workload.timeout_ms, size, pa.int64()),
        "topics": pa.ListArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32)), topics),
    }


def _new_leader_rows(workload: Workload, number: int, requests: Creations) -> Columns:
    topic = np.repeat(requests.topic, NEW_PARTITIONS)
    partition = np.tile(np.arange(NEW_PARTITIONS), len(requests.topic))
    done = completed_in_slice(workload, number, requests.leads_t.ravel())
    topic, partition, t = topic[done], partition[done], requests.leads_t.ravel()[done]
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
    """Return the events of the initial state: of each partition a log end and a high watermark of 0, at time 0."""
    partitions = np.arange(workload.partitions)
    zero = np.zeros(workload.partitions, dtype=np.int64)
    ends = _change_rows(zero, partitions, zero, "log_end", names)
    rises = _change_rows(zero, partitions, zero, "high_watermark", names)
    return {name: pa.concat_arrays([column, rises[name]]) for name, column in ends.items()}


def _identified(rows: pa.Table, before: int, run_id: str) -> pa.Table:
    """Set the times, `seq`, request ids and run id of a slice's rows. `before` is the number of earlier events."""
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


ROWS_PER_BATCH = 20_000


def events_of(spark: SparkSession, workload: Workload, run_id: str, tasks: int | None = None) -> DataFrame:
    """Return the whole trace as rows of `events`, in time order within and across the DataFrame's partitions.

    `tasks` is the number of those partitions, by default one per slice; the rows do not depend on it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from slice_rows(workload, number, run_id).combine_chunks().to_batches(ROWS_PER_BATCH)

    slices = spark.range(0, workload.slices, 1, tasks or workload.slices)
    return slices.mapInArrow(work, from_arrow_schema(EVENTS))


def write_events(events: DataFrame, path: str) -> None:
    """Write the trace as a Delta table without a shuffle.

    Each task is a slice of time, and Delta lists the tasks' files in their order.
    """
    (
        with_column_comments(events, COMMENTED_TABLES["events"])
        .write.format("delta")
        .option("userMetadata", TIME_ORDER)
        .option("delta.dataSkippingStatsColumns", "event_time,time_us,seq")
        .save(path)
    )

"""A slice as rows of `events`, and the whole trace as a Spark DataFrame.

Each kind of request has a function that returns the columns of its rows; columns that it leaves out are null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.delta_store import with_column_comments
from purgatory_udf.contract.tables import COMMENTED_TABLES, EVENT_PARTITION, EVENT_TOPIC, EVENTS, TIMESTAMP
from purgatory_udf.simulation.open_loop import Flags, Numbers
from purgatory_udf.simulation.open_loop.group_schedule import MemberAction, MemberActions, member_actions_between
from purgatory_udf.simulation.open_loop.partition_requests import (
    Creations,
    Deletes,
    FetchRequests,
    HighWatermarkRises,
    LastStableOffsets,
    LeaderMove,
    Produces,
    TransactionEnds,
    completed_in_slice,
    creations,
    deletes,
    fetches,
    high_watermark_rises,
    leader_move,
    produces,
    transaction_ends,
)
from purgatory_udf.simulation.open_loop.workload import BROKERS, NEW_PARTITIONS, PARTITIONS_PER_TOPIC, Workload
from purgatory_udf.simulation.simpy_environment import START_US
from purgatory_udf.storage.event_staging import TIME_ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# `seq` is the slice's number times this, plus the row's index from 1: a slice has fewer rows.
SEQ_STRIDE = 1_000_000_000
FETCH_MAX_BYTES, PARTITION_MAX_BYTES = 52_428_800, 1_048_576
CLIENTS = 100

Columns = dict[str, pa.Array]


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


TYPES = pa.array(["join_group", "join_group", "leave_group", "sync_group", "heartbeat", "offset_commit"], pa.string())
# A JoinGroup version in which a join without a member id receives MEMBER_ID_REQUIRED (4 or later).
JOIN_VERSION = 5
# The rebalance timeout in session timeouts; no scheduled rebalance takes longer.
REBALANCE_TIMEOUT_SESSIONS = 6
RECORDS_PER_COMMIT = 100


def group_rows(workload: Workload, begin_us: int, end_us: int, names: PartitionNames) -> Columns:
    """Return the columns of the group requests from `begin_us` on, before `end_us`."""
    actions = member_actions_between(workload.plan, begin_us, end_us)
    joins_without_id, joins = actions.action == MemberAction.JOIN_WITHOUT_ID, actions.action == MemberAction.JOIN
    joining = joins_without_id | joins
    client = _client(actions.group, actions.member)
    member_id = _member_id(client, actions.incarnation)
    session_ms = workload.session_timeout_ms
    return {
        "type": TYPES.take(pa.array(actions.action)),
        "time_us": pa.array(actions.t),
        "broker": broker_of(actions.group),
        "client_id": client,
        "group": _joined("group-", actions.group),
        "member_id": pc.if_else(pa.array(joins_without_id), pa.scalar(""), member_id),
        "assigned_member_id": _text_where(joins_without_id, member_id),
        "leader_member_id": _text_where(
            joins, _member_id(_client(actions.group, actions.leader), actions.leader_incarnation)
        ),
        "api_version": _constant_where(joining, JOIN_VERSION, pa.int32()),
        "session_timeout_ms": _constant_where(joining, session_ms, pa.int64()),
        "rebalance_timeout_ms": _constant_where(joining, REBALANCE_TIMEOUT_SESSIONS * session_ms, pa.int64()),
        "protocols": _protocols(joining),
        "generation": pa.array(actions.generation.astype(np.int32), mask=joining),
        "leader": pa.array(actions.member == actions.leader, mask=actions.action != MemberAction.SYNC),
        "partitions": _committed(workload, actions, names),
    }


def _client(group: Numbers, place: Numbers) -> pa.Array:
    return _joined("group-", group, "-client-", place)


def _member_id(client: pa.Array, incarnation: Numbers) -> pa.Array:
    return _joined(client, "-", incarnation)


def _joined(*parts: str | Numbers | pa.Array) -> pa.Array:
    texts = [pa.array(part).cast(pa.string()) if isinstance(part, np.ndarray) else part for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def _text_where(chosen: Flags, texts: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(chosen), texts, pa.scalar(None, pa.string()))


def _constant_where(chosen: Flags, value: int, kind: pa.DataType) -> pa.Array:
    return pa.array(np.full(len(chosen), value), kind, mask=~chosen)


def _protocols(chosen: Flags) -> pa.Array:
    ends: npt.NDArray[np.int32] = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int32)
    names = pa.repeat(pa.scalar("range"), int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), names, mask=pa.array(~chosen))


def _committed(workload: Workload, actions: MemberActions, names: PartitionNames) -> pa.Array:
    """Return the column `partitions` of requests of members: a partition and offset for commits, null for others.

    Each member has one partition, in which its offset rises steadily.
    """
    commits = actions.action == MemberAction.COMMIT
    partition = (actions.group[commits] * workload.members + actions.member[commits]) % workload.partitions
    offsets = pa.array(actions.index[commits] * RECORDS_PER_COMMIT)
    return one_partition_where(commits, {**names.topic_partition(partition), "offset": offsets})


class PartitionNames:
    """The topic and partition number of each partition of the workload, and client ids."""

    def __init__(self, workload: Workload) -> None:
        partitions = np.arange(workload.partitions)
        self.topics = pa.array(
            [f"topic-{number // PARTITIONS_PER_TOPIC}" for number in partitions.tolist()], pa.string()
        )
        self.numbers = pa.array(partitions % PARTITIONS_PER_TOPIC, pa.int32())
        self.clients = pa.array([f"client-{number}" for number in range(CLIENTS)], pa.string())

    def topic_partition(self, partition: Numbers) -> Columns:
        """Return the columns `topic` and `partition`."""
        chosen = pa.array(partition)
        return {"topic": self.topics.take(chosen), "partition": self.numbers.take(chosen)}

    def client(self, number: Numbers) -> pa.Array:
        """Return the client id of each number."""
        return self.clients.take(pa.array(number % CLIENTS))


def broker_of(number: Numbers) -> pa.Array:
    """Return the broker of each partition, group or new topic. Brokers are assigned round robin."""
    return pa.array(number % BROKERS + 1, pa.int32())


def constant(value: object, size: int, kind: pa.DataType) -> pa.Array:
    """Return a column of `size` rows with the same value, of the Arrow type `kind`."""
    return pa.repeat(pa.scalar(value, kind), size)


def partitions_of(columns: Columns, each: int) -> pa.Array:
    """Return a column with a list of `each` partitions per row."""
    size = len(next(iter(columns.values())))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, size + 1, each, dtype=np.int32)), _structs(columns))


def one_partition_where(chosen: Flags, columns: Columns) -> pa.Array:
    """Return a column with a list of one partition in the chosen rows, null in the others.

    `columns` has values for the chosen rows only.
    """
    ends = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), _structs(columns), mask=pa.array(~chosen))


def _structs(columns: Columns) -> pa.StructArray:
    size = len(next(iter(columns.values())))
    fields = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENT_PARTITION]
    return pa.StructArray.from_arrays(fields, fields=list(EVENT_PARTITION))


def to_event_table(columns: Columns) -> pa.Table:
    """Return the columns as rows of `events`; columns that are missing are null."""
    size = len(columns["time_us"])
    arrays = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


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

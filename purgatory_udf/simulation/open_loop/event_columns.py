"""Columns of `events` out of numbers: names by place, lists of partitions, what a type does not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import EVENT_PARTITION, EVENTS
from purgatory_udf.simulation.open_loop.group_members import MemberAction, MemberActions
from purgatory_udf.simulation.open_loop.group_schedule import member_actions_between
from purgatory_udf.simulation.open_loop.random_streams import Flags, Numbers
from purgatory_udf.simulation.open_loop.workload import BROKERS, PARTITIONS_PER_TOPIC, Workload

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


def constant(value: object, size: int, kind: pa.DataType) -> pa.Array:
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


def to_event_table(columns: Columns) -> pa.Table:
    """Rows of `events`: what is not given is null."""
    size = len(columns["time_us"])
    arrays = [columns.get(field.name, pa.nulls(size, field.type)) for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


# What members of groups do, as rows of `events`.


TYPES = pa.array(["join_group", "join_group", "leave_group", "sync_group", "heartbeat", "offset_commit"], pa.string())
# The first version in which a join without an id is answered MEMBER_ID_REQUIRED, and one that clients still speak.
JOIN_VERSION = 5
# Longer than any of the plan's rounds takes.
REBALANCE_TIMEOUT_SESSIONS = 6
RECORDS_PER_COMMIT = 100


def group_rows(workload: Workload, begin_us: int, end_us: int, names: PartitionNames) -> Columns:
    acts = member_actions_between(workload.plan, begin_us, end_us)
    asks, joins = acts.act == MemberAction.ASK, acts.act == MemberAction.JOIN
    joining = asks | joins
    client = _client(acts.group, acts.place)
    member_id = _member_id(client, acts.life)
    session_ms = workload.session_timeout_ms
    return {
        "type": TYPES.take(pa.array(acts.act)),
        "time_us": pa.array(acts.t),
        "broker": broker_of(acts.group),
        "client_id": client,
        "group": _joined("group-", acts.group),
        "member_id": pc.if_else(pa.array(asks), pa.scalar(""), member_id),
        "assigned_member_id": _text_where(asks, member_id),
        "leader_member_id": _text_where(joins, _member_id(_client(acts.group, acts.leader), acts.leader_life)),
        "api_version": _constant_where(joining, JOIN_VERSION, pa.int32()),
        "session_timeout_ms": _constant_where(joining, session_ms, pa.int64()),
        "rebalance_timeout_ms": _constant_where(joining, REBALANCE_TIMEOUT_SESSIONS * session_ms, pa.int64()),
        "protocols": _protocols(joining),
        "generation": pa.array(acts.generation.astype(np.int32), mask=joining),
        "leader": pa.array(acts.place == acts.leader, mask=acts.act != MemberAction.SYNC),
        "partitions": _committed(workload, acts, names),
    }


def _client(group: Numbers, place: Numbers) -> pa.Array:
    return _joined("group-", group, "-client-", place)


def _member_id(client: pa.Array, life: Numbers) -> pa.Array:
    return _joined(client, "-", life)


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


def _committed(workload: Workload, acts: MemberActions, names: PartitionNames) -> pa.Array:
    """Each member has one partition, and gets on at a steady pace."""
    commits = acts.act == MemberAction.COMMIT
    partition = (acts.group[commits] * workload.members + acts.place[commits]) % workload.partitions
    offsets = pa.array(acts.index[commits] * RECORDS_PER_COMMIT)
    return one_partition_where(commits, {**names.place(partition), "offset": offsets})

"""Columns of `events`: names from numbers, lists of partitions, and the rows of group requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import EVENT_PARTITION, EVENTS
from purgatory_udf.simulation.open_loop import Flags, Numbers
from purgatory_udf.simulation.open_loop.group_schedule import MemberAction, MemberActions, member_actions_between
from purgatory_udf.simulation.open_loop.workload import BROKERS, PARTITIONS_PER_TOPIC, Workload

CLIENTS = 100

Columns = dict[str, pa.Array]


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

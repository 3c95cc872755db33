"""What members of groups do, as rows of `events`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.simulate.open_loop.acts import Act, Acts
from purgatory_udf.simulate.open_loop.columns import Columns, PartitionNames, broker_of, one_partition_where
from purgatory_udf.simulate.open_loop.groups import acts_between
from purgatory_udf.simulate.open_loop.streams import Flags, Numbers
from purgatory_udf.simulate.open_loop.workload import Workload

TYPES = pa.array(["join_group", "join_group", "leave_group", "sync_group", "heartbeat", "offset_commit"], pa.string())
# The first version in which a join without an id is answered MEMBER_ID_REQUIRED, and one that clients still speak.
JOIN_VERSION = 5
# Longer than any of the plan's rounds takes.
REBALANCE_TIMEOUT_SESSIONS = 6
RECORDS_PER_COMMIT = 100


def group_rows(workload: Workload, begin_us: int, end_us: int, names: PartitionNames) -> Columns:
    acts = acts_between(workload.plan, begin_us, end_us)
    asks, joins = acts.act == Act.ASK, acts.act == Act.JOIN
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
        "assigned_member_id": _only(asks, member_id),
        "leader_member_id": _only(joins, _member_id(_client(acts.group, acts.leader), acts.leader_life)),
        "api_version": _constant(joining, JOIN_VERSION, pa.int32()),
        "session_timeout_ms": _constant(joining, session_ms, pa.int64()),
        "rebalance_timeout_ms": _constant(joining, REBALANCE_TIMEOUT_SESSIONS * session_ms, pa.int64()),
        "protocols": _protocols(joining),
        "generation": pa.array(acts.generation.astype(np.int32), mask=joining),
        "leader": pa.array(acts.place == acts.leader, mask=acts.act != Act.SYNC),
        "partitions": _committed(workload, acts, names),
    }


def _client(group: Numbers, place: Numbers) -> pa.Array:
    return _joined("group-", group, "-client-", place)


def _member_id(client: pa.Array, life: Numbers) -> pa.Array:
    return _joined(client, "-", life)


def _joined(*parts: str | Numbers | pa.Array) -> pa.Array:
    texts = [pa.array(part).cast(pa.string()) if isinstance(part, np.ndarray) else part for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def _only(chosen: Flags, texts: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(chosen), texts, pa.scalar(None, pa.string()))


def _constant(chosen: Flags, value: int, kind: pa.DataType) -> pa.Array:
    return pa.array(np.full(len(chosen), value), kind, mask=~chosen)


def _protocols(chosen: Flags) -> pa.Array:
    ends: npt.NDArray[np.int32] = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int32)
    names = pa.repeat(pa.scalar("range"), int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), names, mask=pa.array(~chosen))


def _committed(workload: Workload, acts: Acts, names: PartitionNames) -> pa.Array:
    """Each member has one partition, and gets on at a steady pace."""
    commits = acts.act == Act.COMMIT
    partition = (acts.group[commits] * workload.members + acts.place[commits]) % workload.partitions
    offsets = pa.array(acts.index[commits] * RECORDS_PER_COMMIT)
    return one_partition_where(commits, {**names.place(partition), "offset": offsets})

"""Events of groups as columns of numeric codes and texts, and batches of requests on their way to the groups' calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json

from purgatory_udf.common.configuration import GroupSettings
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.coordinator.group_requests import (
    DEFAULT_API_VERSION,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
    group_request,
    member_timeouts,
)
from purgatory_udf.rules.coordinator.rebalance import CONVERTED
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED


class Api(IntEnum):
    """Requests of members, and events of the group itself. Requests up to `LAST_LIVENESS_API` only renew a session."""

    HEARTBEAT = 0
    OFFSET_COMMIT = 1
    JOIN_GROUP = 2
    SYNC_GROUP = 3
    LEAVE_GROUP = 4
    GROUP_LOADED = 5
    GROUP_UNLOADED = 6
    GROUP_STOPPED = 7
    CONSUMER_GROUP_HEARTBEAT = 8

    @property
    def label(self) -> str:
        return self.name.lower()


LAST_LIVENESS_API = Api.OFFSET_COMMIT
API_OF = {api.label: int(api) for api in Api}

KINDS = ("heartbeat", "sync", "join", "initial_join", "session", "reconciliation")
KIND_OF = {kind: number for number, kind in enumerate(KINDS)}

# The rules that end an operation (`completed_by`). Rows contain an index into this list.
RULES = (
    *(api.label for api in Api),
    "timeout",
    "all_joined",
    "no_members",
    "all_synced",
    "rebalance",
    "new_generation",
    "assignment",
    "awaiting_join",
    "awaiting_sync",
    "replaced",
    "removed",
    "unloaded",
    "revoked",
    "left",
    "fenced",
    "left_epoch",
    CONVERTED,
    BROKER_STOPPED,
)
RULE_OF = {rule: number for number, rule in enumerate(RULES)}

NONE = "NONE"
# The errors that a request may be answered with. Rows contain an index into this list.
ERRORS = (
    NONE,
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "ILLEGAL_GENERATION",
    "REBALANCE_IN_PROGRESS",
    "MEMBER_ID_REQUIRED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "GROUP_MAX_SIZE_REACHED",
    "INVALID_SESSION_TIMEOUT",
    "INVALID_GROUP_ID",
    "UNKNOWN_SERVER_ERROR",
    "NOT_COORDINATOR",
    "GROUP_ID_NOT_FOUND",
    "INVALID_REQUEST",
    "UNSUPPORTED_ASSIGNOR",
    "UNSUPPORTED_VERSION",
    "FENCED_MEMBER_EPOCH",
    "UNRELEASED_INSTANCE_ID",
    "STALE_MEMBER_EPOCH",
)
ERROR_OF = {error: number for number, error in enumerate(ERRORS)}

# A time after every deadline, in milliseconds.
FOREVER = 2**62


ROWS = FrameLayout(
    numbers=("t", "seq", "api", "generation", "static", "api_version", "session_ms", "rebalance_ms", "coordinator"),
    texts=("request_id", "client_id", "member_id", "instance_id", "assigned", "named_leader", "protocols", "consumer"),
)

# The columns of `events` that are read.
COLUMNS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "group", "member_id", "assigned_member_id",
    "leader_member_id", "group_instance_id", "api_version", "session_timeout_ms", "rebalance_timeout_ms", "protocols",
    "generation", "coordinator", "member_epoch", "subscribed_topics", "subscribed_regex", "server_assignor", "owned",
    "assignments", "assigned", "assigned_epoch",
)  # fmt: skip

_ABSENT = -1
_API_NAMES = [api.label for api in Api]


# The coordinators that a trace may record. Rows contain an index into this list, or `_ABSENT`.
COORDINATORS = ("old", "new")
_RECORDED_COORDINATORS = (*COORDINATORS, None)


def group_key(broker: int, group: str) -> str:
    """Return the key of a group. Groups of the same name at different brokers are different groups."""
    return f"{broker}/{group}"


def split_group_key(key: str) -> tuple[int, str]:
    """Return the broker id and the name of a group, given its key."""
    broker, _, group = key.partition("/")
    return int(broker), group


def _with_all_columns(events: pa.Table) -> pa.Table:
    """Select the columns that are read. Columns that a table of an older version lacks are added, with nulls."""
    columns = [
        events[name] if name in events.column_names else pa.nulls(len(events), EVENTS.field(name).type)
        for name in COLUMNS
    ]
    return pa.table(columns, names=list(COLUMNS))


def _numbers(column: pa.ChunkedArray) -> Array:
    numbers: Array = pc.fill_null(column.cast(pa.int64()), _ABSENT).to_numpy()
    return numbers


def _texts(column: pa.ChunkedArray) -> Array:
    texts: Array = pc.fill_null(column.cast(pa.string()), "").to_numpy().astype(object)
    return texts


def request_rows(events: pa.Table) -> Frame:
    """Convert group events into rows, in the same order."""
    api = pc.index_in(events["type"], pa.array(API_OF)).to_numpy()
    instance = events["group_instance_id"]
    return Frame(
        {
            "t": _numbers(events["time_us"]),
            "seq": _numbers(events["seq"]),
            "api": np.array(list(API_OF.values()), dtype=np.int64)[api],
            "generation": _numbers(events["generation"]),
            "static": pc.is_valid(instance).to_numpy().astype(np.int64),
            "api_version": _numbers(events["api_version"]),
            "session_ms": _numbers(events["session_timeout_ms"]),
            "rebalance_ms": _numbers(events["rebalance_timeout_ms"]),
            "coordinator": _numbers(pc.index_in(events["coordinator"], pa.array(COORDINATORS))),
            "request_id": _texts(events["request_id"]),
            "client_id": _texts(events["client_id"]),
            "member_id": _texts(events["member_id"]),
            "instance_id": _texts(instance),
            "assigned": _texts(events["assigned_member_id"]),
            "named_leader": _texts(events["leader_member_id"]),
            "protocols": _protocols(events["protocols"]),
            "consumer": _consumer_fields(events),
        }
    )


def _protocols(column: pa.ChunkedArray) -> Array:
    """Serialize the protocols as JSON. Only joins have any, so the loop skips all other rows."""
    texts = np.full(len(column), "", dtype=object)
    texts[pc.is_valid(column).to_numpy()] = [json.encode(names).decode() for names in column.drop_null().to_pylist()]
    return texts


# Fields of consumer groups: of their heartbeats, and of classic members that may become members of one.
_CONSUMER_FIELDS = (
    "member_epoch", "subscribed_topics", "subscribed_regex", "server_assignor", "owned", "assignments", "assigned",
    "assigned_epoch",
)  # fmt: skip


def _consumer_fields(events: pa.Table) -> Array:
    """Serialize the fields that only consumer groups use as JSON. Rows without such fields have an empty text."""
    texts = np.full(len(events), "", dtype=object)
    fields: dict[int, dict[str, Any]] = {}
    for name in _CONSUMER_FIELDS:
        rows = np.flatnonzero(pc.is_valid(events[name]).to_numpy()).tolist()
        for row, value in zip(rows, events[name].drop_null().to_pylist(), strict=True):
            fields.setdefault(row, {})[name] = value
    texts[list(fields)] = [json.encode(values).decode() for values in fields.values()]
    return texts


# Requests with no other fields than the columns of numbers and texts, unless `consumer` has any.
_PLAIN_REQUESTS: dict[int, Callable[..., GroupRequest]] = {
    Api.JOIN_GROUP: JoinGroup,
    Api.HEARTBEAT: Heartbeat,
    Api.OFFSET_COMMIT: OffsetCommit,
    Api.SYNC_GROUP: SyncGroup,
    Api.LEAVE_GROUP: LeaveGroup,
}


class GroupEvents:
    """The rows of one group as events, or as requests. An empty text becomes None."""

    def __init__(self, rows: Frame, key: str) -> None:
        self._broker, self._group = split_group_key(key)
        self._columns = {name: rows.columns[name].tolist() for name in ROWS.names}

    def request(self, row: int, config: GroupSettings) -> GroupRequest:
        """Return the row as a request, with what-if settings applied to its timeouts."""
        columns = self._columns
        api = columns["api"][row]
        plain_request = _PLAIN_REQUESTS.get(api)
        if plain_request is None or columns["consumer"][row]:
            return group_request(self[row], config)
        if api == Api.JOIN_GROUP:
            return self._join(row, config)
        return plain_request(
            seq=columns["seq"][row],
            time_us=columns["t"][row],
            broker=self._broker,
            request_id=columns["request_id"][row] or None,
            client_id=columns["client_id"][row] or None,
            group=self._group,
            member_id=columns["member_id"][row],
            instance_id=columns["instance_id"][row] if columns["static"][row] else None,
            generation=columns["generation"][row],
            coordinator=_RECORDED_COORDINATORS[columns["coordinator"][row]],
        )

    def _join(self, row: int, config: GroupSettings) -> JoinGroup:
        columns = self._columns
        client_id, version = columns["client_id"][row] or None, columns["api_version"][row]
        session_ms, rebalance_ms = columns["session_ms"][row], columns["rebalance_ms"][row]
        rebalance_ms = session_ms if rebalance_ms == _ABSENT else rebalance_ms
        session_ms, rebalance_ms = member_timeouts(
            session_ms, rebalance_ms, client_id, self._broker, self._group, config
        )
        return JoinGroup(
            seq=columns["seq"][row],
            time_us=columns["t"][row],
            broker=self._broker,
            request_id=columns["request_id"][row] or None,
            client_id=client_id,
            group=self._group,
            member_id=columns["member_id"][row],
            instance_id=columns["instance_id"][row] if columns["static"][row] else None,
            generation=columns["generation"][row],
            coordinator=_RECORDED_COORDINATORS[columns["coordinator"][row]],
            assigned_member_id=columns["assigned"][row] or None,
            leader_member_id=columns["named_leader"][row] or None,
            api_version=DEFAULT_API_VERSION if version == _ABSENT else version,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocols=decode_protocols(columns["protocols"][row]),
        )

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        columns = self._columns
        event = {
            "type": _API_NAMES[columns["api"][row]],
            "time_us": columns["t"][row],
            "seq": columns["seq"][row],
            "broker": self._broker,
            "group": self._group,
            "request_id": columns["request_id"][row] or None,
            "client_id": columns["client_id"][row] or None,
            "member_id": columns["member_id"][row],
            "group_instance_id": columns["instance_id"][row] if columns["static"][row] else None,
            "generation": columns["generation"][row],
            "coordinator": _RECORDED_COORDINATORS[columns["coordinator"][row]],
        }
        if columns["consumer"][row]:
            event |= json.decode(columns["consumer"][row])
        version, rebalance_ms = columns["api_version"][row], columns["rebalance_ms"][row]
        if columns["api"][row] == Api.CONSUMER_GROUP_HEARTBEAT:
            session_ms = columns["session_ms"][row]
            event["session_timeout_ms"] = None if session_ms == _ABSENT else session_ms
        elif columns["api"][row] in (Api.JOIN_GROUP, Api.GROUP_LOADED):
            event["session_timeout_ms"] = columns["session_ms"][row]
            event["assigned_member_id"] = columns["assigned"][row] or None
            event["leader_member_id"] = columns["named_leader"][row] or None
            event["api_version"] = None if version == _ABSENT else version
            event["protocols"] = decode_protocols(columns["protocols"][row])
        else:
            return event
        event["rebalance_timeout_ms"] = None if rebalance_ms == _ABSENT else rebalance_ms
        return event


@lru_cache(maxsize=1 << 10)
def decode_protocols(text: str) -> tuple[str, ...]:
    """Return the protocols of a row, which has them as JSON."""
    return tuple(json.decode(text or "[]"))


# `group` is an index into the keys of the batch.
_BATCH_ROWS = FrameLayout((*ROWS.numbers, "group"), ROWS.texts)


@dataclass(frozen=True)
class RequestBatch:
    """Requests of several groups. `rows` are ordered by group, and within a group by (time, `seq`)."""

    keys: list[str]
    rows: Frame

    @classmethod
    def from_events(cls, events: pa.Table) -> RequestBatch:
        """Build a batch from the group events in `events`. Other events are ignored."""
        events = _with_all_columns(events).filter(pc.is_in(events["type"], pa.array(API_OF)))
        if not events.num_rows:
            return cls([], _BATCH_ROWS.empty())
        broker = pc.fill_null(events["broker"], 0).cast(pa.string())
        keys = pc.binary_join_element_wise(broker, events["group"], "/").combine_chunks().dictionary_encode()
        return cls(
            keys.dictionary.to_pylist(), _sorted(request_rows(events).with_columns(group=keys.indices.to_numpy()))
        )

    @classmethod
    def concat(cls, parts: Sequence[RequestBatch]) -> RequestBatch:
        """Merge batches. A key that several of them contain appears once."""
        if len(parts) == 1:
            return parts[0]
        number: dict[str, int] = {}
        frames = [_BATCH_ROWS.empty()]
        for part in parts:
            index: Array = np.array([number.setdefault(key, len(number)) for key in part.keys], dtype=np.int64)
            frames.append(part.rows.with_columns(group=index[part.rows.group]) if len(part.rows) else part.rows)
        return cls(list(number), _sorted(Frame.concat(frames)))

    def by_group(self) -> Iterator[tuple[str, Frame]]:
        """Yield each group that has rows, with its rows."""
        return ((key, self.rows.take(rows)) for key, rows in self.bounds().items())

    def bounds(self) -> dict[str, slice]:
        """Return the place of the rows of each group that has any."""
        group = self.rows.group
        begins = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
        names = map(self.keys.__getitem__, group[begins].tolist())
        return dict(zip(names, starmap(slice, pairwise([*begins, len(group)])), strict=True))

    def filter(self, rows: Array) -> RequestBatch:
        """Return a batch with the rows that a mask selects."""
        return RequestBatch(self.keys, self.rows.take(rows))

    def split(self, shard_of: Callable[[str], str]) -> Iterator[tuple[str, RequestBatch]]:
        """Split the batch into shards. `shard_of` returns the shard of a group's key."""
        indices: dict[str, list[int]] = {}
        for index, key in enumerate(self.keys):
            indices.setdefault(shard_of(key), []).append(index)
        group = self.rows.group
        bounds = np.searchsorted(group, np.arange(len(self.keys) + 1))
        for shard, in_shard in indices.items():
            if len(in_shard) == 1:
                rows = self.rows.take(slice(bounds[in_shard[0]], bounds[in_shard[0] + 1]))
                number = np.zeros(len(rows), dtype=np.int64)
            else:
                counts = [bounds[index + 1] - bounds[index] for index in in_shard]
                rows = self.rows.take(
                    np.concatenate([np.arange(bounds[index], bounds[index + 1]) for index in in_shard])
                )
                number = np.repeat(np.arange(len(in_shard)), counts)
            yield shard, RequestBatch([self.keys[index] for index in in_shard], rows.with_columns(group=number))

    def to_bytes(self) -> bytes:
        return pack({"keys": Frame({"key": np.array(self.keys, dtype=object)}), "rows": self.rows})

    @classmethod
    def from_bytes(cls, value: bytes) -> RequestBatch:
        frames = unpack(value)
        return cls(frames["keys"].key.tolist(), frames["rows"])


def _sorted(rows: Frame) -> Frame:
    return rows.take(np.lexsort((rows.seq, rows.t, rows.group)))

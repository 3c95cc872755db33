"""The state of groups between two calls: a snapshot of each group, and the store that serializes them.

The store holds one group, or all groups of a shard. It parses only the groups that a call reads. State that was written
in another format is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct, json

from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.coordinator.consumer_group import ConsumerGroup, from_document, to_document
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_requests import SyncGroup
from purgatory_udf.rules.groups.column_frames import Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_rows import FOREVER, split_group_key

# Open sessions in the order in which they started. `t`, `seq` and `sub` are the `Moment` of the start; `owner` is an
# index into `GroupSnapshot.owners`, or `PENDING`.
SESSIONS = FrameLayout(
    numbers=("owner", "op", "t", "seq", "sub", "deadline"),
    texts=("member_id", "request_id", "client_id"),
)
PENDING = -1


class RebalanceSnapshot(Struct, frozen=True):
    """An open operation of the Rebalance purgatory: a join, initial join or sync, or a member's timer.

    Attributes:
        kind: The kind of operation.
        operation_id: The `seq` of the request that started it.
        started_us: When it started, in epoch microseconds.
        seq: The second part of the `Moment` of its start.
        sub: The third part.
        deadline_ms: When it expires, in epoch milliseconds.
        request_id: The request's id.
        client_id: The request's client.
        remaining_ms: Of an initial join: the time that remains after its current window.
        dead: Whether the operation belongs to an earlier, unloaded instance of the group.
        member_id: Of a timer in a consumer group: the member.
        epoch: Of such a timer: the member's epoch when the timer was started.
    """

    kind: str
    operation_id: int
    started_us: int
    seq: int
    sub: int
    deadline_ms: int
    request_id: str | None
    client_id: str | None
    remaining_ms: int = 0
    dead: bool = False
    member_id: str = ""
    epoch: int = 0


@dataclass(slots=True)
class GroupSnapshot:
    """A group between two calls.

    Attributes:
        group: The group, or None until a request creates it.
        sessions: The open sessions, as columns.
        rebalances: The open operations of the Rebalance purgatory.
        former: Removed members with open sessions, which complete only at their deadlines.
        is_new: Whether the group belongs to the new coordinator (Kafka 4.0); None until its first event.
        consumer: The group, if it is a consumer group.
        commit_ms: When the record with the leader's assignment is committed; None if no such write is in progress.
        text: The JSON of everything but the sessions, or None if the snapshot may have changed since it was read.
    """

    group: Group | None = None
    sessions: Frame = field(default_factory=SESSIONS.empty)
    rebalances: list[RebalanceSnapshot] = field(default_factory=list)
    former: list[Member] = field(default_factory=list)
    is_new: bool | None = None
    commit_ms: int | None = None
    consumer: ConsumerGroup | None = None
    text: str | None = None

    @property
    def owners(self) -> list[Member]:
        """The members that may have sessions: the current ones, then the former ones."""
        return [*(self.group.members.values() if self.group is not None else ()), *self.former]

    @property
    def state(self) -> str:
        if self.consumer is not None:
            return self.consumer.state.value
        return (self.group.state if self.group is not None else GroupState.EMPTY).value

    @property
    def is_stable(self) -> bool:
        return self.group is not None and self.group.state is GroupState.STABLE

    @property
    def open(self) -> int:
        """The number of open operations."""
        return len(self.sessions) + len(self.rebalances)

    def next_deadline_ms(self) -> int:
        """Return the earliest deadline of an open operation, or `FOREVER`."""
        sessions_ms = int(self.sessions.deadline.min()) if len(self.sessions) else FOREVER
        return min(sessions_ms, self.next_other_deadline_ms())

    def next_other_deadline_ms(self) -> int:
        """Return the earliest deadline of joins, syncs and commits, or `FOREVER`."""
        deadlines = [operation.deadline_ms for operation in self.rebalances]
        if self.commit_ms is not None:
            deadlines.append(self.commit_ms)
        return min(deadlines, default=FOREVER)


class _GroupDocument(
    Struct, rename={"leader_is_provisional": "leader_is_stopgap", "derived_operations": "operations_begun"}
):
    """A classic group as JSON: its attributes, without those that follow from others."""

    state: GroupState
    generation: int
    protocol: str | None
    leader: str | None
    leader_is_provisional: bool
    new_member_added: bool
    is_initial_rebalance: bool
    derived_operations: int
    loaded_us: int
    pending_members: list[str]
    pending_syncs: list[str]
    assignments: tuple[tuple[str, str, int], ...]
    uncommitted_sync: SyncGroup | None
    members: list[Member]


# The attributes that a document has unchanged.
_GROUP_FIELDS = (
    *("state", "generation", "protocol", "leader", "leader_is_provisional", "new_member_added", "is_initial_rebalance"),
    *("derived_operations", "loaded_us", "assignments", "uncommitted_sync"),
)


class _SnapshotDocument(Struct, rename={"rebalances": "rounds"}):
    """Everything in a snapshot but its sessions, as JSON."""

    group: _GroupDocument | None
    rebalances: list[RebalanceSnapshot]
    former: list[Member] = []
    is_new: bool | None = None
    commit_ms: int | None = None
    consumer: dict[str, Any] | None = None


_encoder, _decoder = json.Encoder(), json.Decoder(_SnapshotDocument)


def to_text(snapshot: GroupSnapshot) -> str:
    """Return everything in a snapshot but its sessions as JSON, for `from_text`."""
    if snapshot.text is None:
        document = _SnapshotDocument(
            None if snapshot.group is None else _group_document(snapshot.group),
            snapshot.rebalances,
            snapshot.former,
            snapshot.is_new,
            snapshot.commit_ms,
            None if snapshot.consumer is None else to_document(snapshot.consumer),
        )
        snapshot.text = _encoder.encode(document).decode()
    return snapshot.text


def from_text(text: str, sessions: Frame, key: str) -> GroupSnapshot:
    """Restore the snapshot of the group `key` from the result of `to_text` and the group's sessions."""
    document = _decoder.decode(text)
    return GroupSnapshot(
        group=None if document.group is None else _group(document.group, key),
        sessions=sessions,
        rebalances=document.rebalances,
        former=document.former,
        is_new=document.is_new,
        commit_ms=document.commit_ms,
        consumer=None if document.consumer is None else from_document(document.consumer, *split_group_key(key)),
        text=text,
    )


def _group_document(group: Group) -> _GroupDocument:
    return _GroupDocument(
        **{name: getattr(group, name) for name in _GROUP_FIELDS},
        pending_members=sorted(group.pending_members),
        pending_syncs=sorted(group.pending_syncs),
        members=list(group.members.values()),
    )


def _group(document: _GroupDocument, key: str) -> Group:
    group = Group(*split_group_key(key))
    for name in _GROUP_FIELDS:
        setattr(group, name, getattr(document, name))
    group.pending_members, group.pending_syncs = set(document.pending_members), set(document.pending_syncs)
    for member in document.members:
        group.restore_member(member)
    sync = document.uncommitted_sync
    if sync is not None:
        # The leader usually waits with this sync, and its answer depends on their being one request.
        waiting = (member.awaiting_sync for member in document.members)
        group.uncommitted_sync = next((each for each in waiting if each is not None and each.seq == sync.seq), sync)
    return group


# The version of the serialized form.
VERSION = 5


class GroupStateStore:
    """Snapshots by group key: text, sessions, next deadline and state of each group."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._sessions: dict[str, Frame] = {}
        self._deadlines: dict[str, int] = {}
        self._states: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def next_deadline_ms(self) -> int:
        """The earliest deadline of any group, or `FOREVER`."""
        return min(self._deadlines.values(), default=FOREVER)

    @property
    def state(self) -> str | None:
        """The state of the group, or None unless the store holds exactly one."""
        return next(iter(self._states.values())) if len(self._states) == 1 else None

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return sum(map(len, self._sessions.values()))

    def due(self, by_ms: int) -> Iterator[str]:
        """Yield the groups with a deadline at or before `by_ms`."""
        return (key for key, deadline in self._deadlines.items() if deadline <= by_ms)

    def get(self, key: str) -> GroupSnapshot:
        """Return the snapshot of a group, or an empty one if the group is new."""
        text = self._texts.get(key)
        return GroupSnapshot() if text is None else from_text(text, self._sessions[key], key)

    def is_stable(self, key: str) -> bool:
        """Return whether the store holds a classic or consumer group in the state Stable."""
        return self._states.get(key) == GroupState.STABLE.value

    def put(self, key: str, snapshot: GroupSnapshot) -> None:
        """Store the snapshot of a group, in place of its former one."""
        self._texts[key] = to_text(snapshot)
        self._sessions[key] = snapshot.sessions
        self._deadlines[key] = snapshot.next_deadline_ms()
        self._states[key] = snapshot.state

    def to_bytes(self) -> bytes:
        groups = {
            "version": np.full(len(self), VERSION, dtype=np.int64),
            "sessions": np.array([len(self._sessions[key]) for key in self._texts], dtype=np.int64),
            "deadline": np.array(list(self._deadlines.values()), dtype=np.int64),
            "key": np.array(list(self._texts), dtype=object),
            "state": np.array(list(self._states.values()), dtype=object),
            "text": np.array(list(self._texts.values()), dtype=object),
        }
        sessions = Frame.concat(list(self._sessions.values())) if self._sessions else SESSIONS.empty()
        return pack({"groups": Frame(groups), "sessions": sessions})

    @classmethod
    def from_bytes(cls, value: bytes) -> GroupStateStore:
        frames = unpack(value)
        groups, sessions = frames["groups"], frames["sessions"].select(SESSIONS.names)
        store, begin = cls(), 0
        names = ("version", "sessions", "deadline", "key", "state", "text")
        for version, count, deadline, key, state, text in zip(
            *(groups.columns[name].tolist() for name in names), strict=True
        ):
            if version != VERSION:
                raise UserError(
                    f"state of group {key}: written in format {version}, this version reads format {VERSION}: "
                    "finish the run with the version that started it, or restart it with --overwrite"
                )
            store._texts[key], store._deadlines[key], store._states[key] = text, deadline, state
            store._sessions[key] = sessions.take(slice(begin, begin + count))
            begin += count
        return store

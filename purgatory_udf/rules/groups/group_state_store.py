"""Kept groups by key, as one value: a single group, or all of a shard. Only what is taken out is ever looked into.

A value that another version wrote is refused, never guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np

from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup, SyncGroup
from purgatory_udf.rules.groups.frames import Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_codes import FOREVER
from purgatory_udf.rules.groups.group_rows import split_group_key

# What is kept of a group between two calls: the group itself, its open sessions in columns, its open round or sync.


# Open sessions in the order in which they were armed: `t`, `seq` and `sub` say when. `owner` is a place among
# `KeptGroup.owners`, or `PENDING`.
SESSIONS = FrameLayout(
    numbers=("owner", "op", "t", "seq", "sub", "deadline"),
    texts=("member_id", "request_id", "client_id"),
)
PENDING = -1


@dataclass(frozen=True, slots=True)
class RebalanceSnapshot:
    """An open join of a round, or sync of a generation. `remaining_ms` is an initial round's, after this window."""

    kind: str
    operation_id: int
    started_us: int
    seq: int
    sub: int
    deadline_ms: int
    request_id: str | None
    client_id: str | None
    remaining_ms: int = 0
    # Of a group that was unloaded, and is here anew.
    dead: bool = False


@dataclass(slots=True)
class GroupSnapshot:
    """`group` is None until a request makes it. `former` are members that are out, but whose sessions still run:
    nobody told those, so that they end at their deadlines.

    `text` is everything but the sessions as it was read, or None where it may have changed since.
    """

    group: Group | None = None
    sessions: Frame = field(default_factory=SESSIONS.empty)
    rounds: list[RebalanceSnapshot] = field(default_factory=list)
    former: list[Member] = field(default_factory=list)
    text: str | None = None

    @property
    def owners(self) -> list[Member]:
        return [*(self.group.members.values() if self.group is not None else ()), *self.former]

    @property
    def state(self) -> str:
        return (self.group.state if self.group is not None else GroupState.EMPTY).value

    @property
    def is_stable(self) -> bool:
        return self.group is not None and self.group.state is GroupState.STABLE

    @property
    def open(self) -> int:
        """How many operations have not ended."""
        return len(self.sessions) + len(self.rounds)

    def next_deadline_ms(self) -> int:
        deadlines = [round_.deadline_ms for round_ in self.rounds]
        if len(self.sessions):
            deadlines.append(int(self.sessions.deadline.min()))
        return min(deadlines, default=FOREVER)


# A kept group as text, and back: everything but its sessions, which lie in columns.


_MEMBER_FIELDS = tuple(field.name for field in fields(Member))
_member_values = attrgetter(*_MEMBER_FIELDS)
_WAITING_REQUESTS: dict[str, type[JoinGroup] | type[SyncGroup]] = {
    "awaiting_join": JoinGroup,
    "awaiting_sync": SyncGroup,
}

# What a member is most often, and is not said then.
_MEMBER_DEFAULTS: dict[str, Any] = {
    "instance_id": None,
    "client_id": None,
    "awaiting_join": None,
    "awaiting_sync": None,
    "is_new": False,
    "sign_of_life": None,
}

# What a group's text says as it stands.
_GROUP_FIELDS = (
    "generation",
    "protocol",
    "leader",
    "leader_is_stopgap",
    "new_member_added",
    "operations_begun",
    "loaded_us",
)


def to_text(kept: GroupSnapshot) -> str:
    if kept.text is None:
        kept.text = json.dumps(_document(kept), separators=(",", ":"), ensure_ascii=False)
    return kept.text


def from_text(text: str, sessions: Frame, key: str) -> GroupSnapshot:
    document = json.loads(text)
    if document["group"] is None:
        return GroupSnapshot(sessions=sessions, text=text)
    return GroupSnapshot(
        group=_group(document["group"], key),
        sessions=sessions,
        rounds=[RebalanceSnapshot(**values) for values in document["rounds"]],
        former=[_member(values) for values in document["former"]],
        text=text,
    )


def _document(kept: GroupSnapshot) -> dict[str, Any]:
    return {
        "group": _group_document(kept.group) if kept.group is not None else None,
        "rounds": [asdict(round_) for round_ in kept.rounds],
        "former": [_member_document(member) for member in kept.former],
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "state": group.state.value,
        **{name: getattr(group, name) for name in _GROUP_FIELDS},
        "pending_members": sorted(group.pending_members),
        "pending_syncs": sorted(group.pending_syncs),
        "members": [_member_document(member) for member in group.members.values()],
    }


def _group(document: dict[str, Any], key: str) -> Group:
    group = Group(*split_group_key(key))
    group.state = GroupState(document["state"])
    for name in _GROUP_FIELDS:
        setattr(group, name, document[name])
    group.pending_members = set(document["pending_members"])
    group.pending_syncs = set(document["pending_syncs"])
    for member in map(_member, document["members"]):
        group.take_back(member)
    return group


def _member_document(member: Member) -> dict[str, Any]:
    values = {
        name: value
        for name, value in zip(_MEMBER_FIELDS, _member_values(member), strict=True)
        if value != _MEMBER_DEFAULTS.get(name)
    }
    for name in _WAITING_REQUESTS:
        if name in values:
            values[name] = _request_document(values[name])
    return values


def _member(document: dict[str, Any]) -> Member:
    values = _MEMBER_DEFAULTS | document
    values["protocols"] = tuple(values["protocols"])
    for name, api in _WAITING_REQUESTS.items():
        if values[name] is not None:
            values[name] = _request(api, values[name])
    return Member(**values)


def _request_document(request: GroupRequest) -> dict[str, Any]:
    """A waiting request, without the way back to whoever sent it."""
    return {field.name: getattr(request, field.name) for field in fields(request) if field.name != "respond"}


def _request(api: type[JoinGroup] | type[SyncGroup], document: dict[str, Any]) -> GroupRequest:
    if "protocols" in document:
        document = document | {"protocols": tuple(document["protocols"])}
    return api(**document)


VERSION = 4


class GroupStateStore:
    """Of each group its text, its sessions, and when its next timer runs."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._sessions: dict[str, Frame] = {}
        self._deadlines: dict[str, int] = {}
        self._states: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def next_deadline_ms(self) -> int:
        return min(self._deadlines.values(), default=FOREVER)

    @property
    def state(self) -> str | None:
        """Of a single group, its state."""
        return next(iter(self._states.values())) if len(self._states) == 1 else None

    @property
    def sessions(self) -> int:
        return sum(map(len, self._sessions.values()))

    def due(self, by_ms: int) -> Iterator[str]:
        """Groups of which a timer runs by then."""
        return (key for key, deadline in self._deadlines.items() if deadline <= by_ms)

    def take(self, key: str) -> GroupSnapshot:
        """What is kept of this group; nothing yet, if it is new."""
        text = self._texts.get(key)
        return GroupSnapshot() if text is None else from_text(text, self._sessions[key], key)

    def put(self, key: str, kept: GroupSnapshot) -> None:
        self._texts[key] = to_text(kept)
        self._sessions[key] = kept.sessions
        self._deadlines[key] = kept.next_deadline_ms()
        self._states[key] = kept.state

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
        groups, sessions = frames["groups"], frames["sessions"].only(SESSIONS.names)
        shelf, begin = cls(), 0
        names = ("version", "sessions", "deadline", "key", "state", "text")
        for version, count, deadline, key, state, text in zip(
            *(groups.columns[name].tolist() for name in names), strict=True
        ):
            if version != VERSION:
                raise UserError(
                    f"state of group {key}: written in format {version}, this version reads format {VERSION}: "
                    "finish the run with the version that began it, or start it anew with --overwrite"
                )
            shelf._texts[key], shelf._deadlines[key], shelf._states[key] = text, deadline, state
            shelf._sessions[key] = sessions.take(slice(begin, begin + count))
            begin += count
        return shelf

"""A kept group as text, and back: everything but its sessions, which lie in columns."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.member import Member
from purgatory_udf.coordinator.request import GroupRequest, JoinGroup, SyncGroup
from purgatory_udf.coordinator.state import GroupState
from purgatory_udf.frames.frame import Frame
from purgatory_udf.groups.kept import KeptGroup, KeptRound
from purgatory_udf.groups.rows import parts_of

_MEMBER = tuple(field.name for field in fields(Member))
_of_member = attrgetter(*_MEMBER)
_WAITING: dict[str, type[JoinGroup] | type[SyncGroup]] = {"awaiting_join": JoinGroup, "awaiting_sync": SyncGroup}

# What a member is most often, and is not said then.
_USUAL: dict[str, Any] = {
    "instance_id": None,
    "client_id": None,
    "awaiting_join": None,
    "awaiting_sync": None,
    "is_new": False,
    "sign_of_life": None,
}

# What a group's text says as it stands.
_PLAIN = (
    "generation",
    "protocol",
    "leader",
    "leader_is_stopgap",
    "new_member_added",
    "operations_begun",
    "loaded_us",
)


def to_text(kept: KeptGroup) -> str:
    if kept.text is None:
        kept.text = json.dumps(_document(kept), separators=(",", ":"), ensure_ascii=False)
    return kept.text


def from_text(text: str, sessions: Frame, key: str) -> KeptGroup:
    document = json.loads(text)
    if document["group"] is None:
        return KeptGroup(sessions=sessions, text=text)
    return KeptGroup(
        group=_group(document["group"], key),
        sessions=sessions,
        rounds=[KeptRound(**values) for values in document["rounds"]],
        former=[_member(values) for values in document["former"]],
        text=text,
    )


def _document(kept: KeptGroup) -> dict[str, Any]:
    return {
        "group": _group_document(kept.group) if kept.group is not None else None,
        "rounds": [asdict(round_) for round_ in kept.rounds],
        "former": [_member_document(member) for member in kept.former],
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "state": group.state.value,
        **{name: getattr(group, name) for name in _PLAIN},
        "pending_members": sorted(group.pending_members),
        "pending_syncs": sorted(group.pending_syncs),
        "members": [_member_document(member) for member in group.members.values()],
    }


def _group(document: dict[str, Any], key: str) -> Group:
    group = Group(*parts_of(key))
    group.state = GroupState(document["state"])
    for name in _PLAIN:
        setattr(group, name, document[name])
    group.pending_members = set(document["pending_members"])
    group.pending_syncs = set(document["pending_syncs"])
    for member in map(_member, document["members"]):
        group.take_back(member)
    return group


def _member_document(member: Member) -> dict[str, Any]:
    values = {name: value for name, value in zip(_MEMBER, _of_member(member), strict=True) if value != _USUAL.get(name)}
    for name in _WAITING:
        if name in values:
            values[name] = _request_document(values[name])
    return values


def _member(document: dict[str, Any]) -> Member:
    values = _USUAL | document
    values["protocols"] = tuple(values["protocols"])
    for name, api in _WAITING.items():
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

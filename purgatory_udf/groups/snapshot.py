"""A kept group as bytes, and back. A value that another version wrote is refused, never guessed at."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.errors import UserError
from purgatory_udf.groups.kept import SESSIONS, Kept, KeptRound
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.reference.group import Group
from purgatory_udf.reference.group_request import GroupRequest, JoinGroup, SyncGroup
from purgatory_udf.reference.group_state import GroupState
from purgatory_udf.reference.member import Member

VERSION = 1
# One way back to a simulated client, which no recorded request has.
_NOT_KEPT = "respond"


def to_bytes(kept: Kept) -> bytes:
    """Texts as JSON, the sessions in columns."""
    text = json.dumps(_document(kept), separators=(",", ":"), ensure_ascii=False)
    return pack({"group": Frame({"json": np.array([text], dtype=object)}), "sessions": kept.sessions})


def from_bytes(value: bytes, key: str) -> Kept:
    frames = unpack(value)
    document = json.loads(frames["group"].json[0]) if "group" in frames else {}
    if document.get("version") != VERSION:
        raise UserError(
            f"state of group {key}: written in format {document.get('version')}, this version reads format {VERSION}: "
            "finish the run with the version that began it, or start it anew with --overwrite"
        )
    sessions = frames["sessions"].only(SESSIONS.names)
    if document["group"] is None:
        return Kept(sessions=sessions)
    return Kept(
        group=_group(document["group"], key),
        sessions=sessions,
        rounds=[KeptRound(*values) for values in document["rounds"]],
        former=[_member(values) for values in document["former"]],
    )


def _document(kept: Kept) -> dict[str, Any]:
    return {
        "version": VERSION,
        "group": _group_document(kept.group) if kept.group is not None else None,
        "rounds": [_values(round_) for round_ in kept.rounds],
        "former": [_member_document(member) for member in kept.former],
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "state": group.state.value,
        "generation": group.generation,
        "protocol": group.protocol,
        "leader": group.leader,
        "leader_is_stopgap": group._leader_is_stopgap,
        "new_member_added": group.new_member_added,
        "operations_begun": group._operations_begun,
        "pending_members": sorted(group.pending_members),
        "pending_syncs": sorted(group.pending_syncs),
        "members": [_member_document(member) for member in group.members.values()],
    }


def _group(document: dict[str, Any], key: str) -> Group:
    group = Group(*parts_of(key))
    group.state = GroupState(document["state"])
    group.generation = document["generation"]
    group.protocol = document["protocol"]
    group.leader = document["leader"]
    group._leader_is_stopgap = document["leader_is_stopgap"]
    group.new_member_added = document["new_member_added"]
    group._operations_begun = document["operations_begun"]
    group.pending_members = set(document["pending_members"])
    group.pending_syncs = set(document["pending_syncs"])
    for member in map(_member, document["members"]):
        group.members[member.member_id] = member
        if member.instance_id is not None:
            group._static_members[member.instance_id] = member.member_id
    return group


def _member_document(member: Member) -> list[Any]:
    waiting: list[GroupRequest | None] = [member.awaiting_join, member.awaiting_sync]
    plain = [value for name, value in _named(member) if name not in ("awaiting_join", "awaiting_sync")]
    return [*plain, *(None if request is None else _values(request) for request in waiting)]


def _member(document: list[Any]) -> Member:
    *plain, join, sync = document
    names = [one.name for one in fields(Member) if one.name not in ("awaiting_join", "awaiting_sync")]
    values = dict(zip(names, plain, strict=True)) | {"protocols": tuple(plain[names.index("protocols")])}
    return Member(**values, awaiting_join=_request(JoinGroup, join), awaiting_sync=_request(SyncGroup, sync))


def _request(api: Any, values: list[Any] | None) -> Any:
    """A waiting request, without the way back to whoever sent it."""
    if values is None:
        return None
    names = [one.name for one in fields(api) if one.name != _NOT_KEPT]
    named = dict(zip(names, values, strict=True))
    if "protocols" in named:
        named["protocols"] = tuple(named["protocols"])
    return api(**named)


def _named(value: Any) -> list[tuple[str, Any]]:
    return [(one.name, getattr(value, one.name)) for one in fields(value) if one.name != _NOT_KEPT]


def _values(value: Any) -> list[Any]:
    return [kept for _, kept in _named(value)]

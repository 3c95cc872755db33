"""The five requests of a group's members, typed, as read from the events of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from purgatory_udf.config import Group as GroupConfig
from purgatory_udf.scope.override import override
from purgatory_udf.scope.rule import Subject

DEFAULT_API_VERSION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """What all five have. `member_id` is "" where the member has none yet, or does not say.

    `respond` is called with the `Answer`: the way back to a simulated client.
    """

    api: ClassVar[str] = ""

    seq: int
    time_us: int
    broker: int
    request_id: str | None
    client_id: str | None
    group: str
    member_id: str
    instance_id: str | None
    generation: int
    respond: Callable[[Any], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup(GroupRequest):
    """`assigned_member_id` and `leader_member_id` are what the recorded answer said, where the trace knows it."""

    api: ClassVar[str] = "join_group"

    assigned_member_id: str | None
    leader_member_id: str | None
    api_version: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[str, ...]

    @property
    def must_ask_for_an_id(self) -> bool:
        """Since version 4 (KIP-394), a dynamic member is sent away once, to come back with the id it was given."""
        return self.api_version >= 4 and self.instance_id is None

    @property
    def can_skip_assignment(self) -> bool:
        """Since version 9 (KIP-814), a static leader that restarts may be told that it leads a stable group."""
        return self.api_version >= 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup(GroupRequest):
    api: ClassVar[str] = "sync_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(GroupRequest):
    api: ClassVar[str] = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit(GroupRequest):
    api: ClassVar[str] = "offset_commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup(GroupRequest):
    api: ClassVar[str] = "leave_group"


_WITH_A_GENERATION: dict[str, Callable[..., GroupRequest]] = {
    request.api: request for request in (SyncGroup, Heartbeat, OffsetCommit, LeaveGroup)
}

GROUP_EVENTS = frozenset({JoinGroup.api, *_WITH_A_GENERATION})


def group_request(
    event: Mapping[str, Any], config: GroupConfig, respond: Callable[[Any], None] | None = None
) -> GroupRequest:
    """The request in an event of one of `GROUP_EVENTS`, with the timeouts that the configuration asks for."""
    generation = event.get("generation")
    common = {
        "respond": respond,
        "seq": event["seq"],
        "time_us": event["time_us"],
        "broker": event.get("broker") or 0,
        "request_id": event.get("request_id"),
        "client_id": event.get("client_id"),
        "group": event["group"],
        "member_id": event.get("member_id") or "",
        "instance_id": event.get("group_instance_id"),
        "generation": -1 if generation is None else generation,
    }
    if event["type"] == JoinGroup.api:
        return _join_group(event, common, config)
    return _WITH_A_GENERATION[event["type"]](**common)


def _join_group(event: Mapping[str, Any], common: dict[str, Any], config: GroupConfig) -> JoinGroup:
    subject = Subject(common["client_id"], common["broker"], group=common["group"])
    session_ms = event["session_timeout_ms"]
    rebalance_ms = event.get("rebalance_timeout_ms")
    api_version = event.get("api_version")
    return JoinGroup(
        **common,
        assigned_member_id=event.get("assigned_member_id"),
        leader_member_id=event.get("leader_member_id"),
        api_version=DEFAULT_API_VERSION if api_version is None else api_version,
        session_timeout_ms=override(session_ms, config.setting("session_timeout_ms", subject)),
        # Version 0 has no rebalance timeout: the session's stands for it.
        rebalance_timeout_ms=override(
            session_ms if rebalance_ms is None else rebalance_ms, config.setting("rebalance_timeout_ms", subject)
        ),
        protocols=tuple(event.get("protocols") or ()),
    )

"""The requests of a group's members, and the events of the group itself, as typed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.contract.overrides import RequestContext, apply_override

DEFAULT_API_VERSION = 5


class GroupRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields common to all requests. `member_id` is "" if the request names none.

    `coordinator` is "old" or "new" (Kafka 4.0) if the trace records which of Kafka's coordinators the group has.

    If `respond` is set, it is called with the `Answer`. The simulation delivers answers to its clients in this way.
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
    coordinator: str | None = None
    respond: Callable[[Any], None] | None = None

    @property
    def derived_member_id(self) -> str:
        """An id for a member without one whose recorded id is not known."""
        return f"{self.client_id or 'consumer'}-{self.seq}"


class JoinGroup(GroupRequest, frozen=True, kw_only=True):
    """A join. `assigned_member_id` and `leader_member_id` come from the recorded answer, or are None.

    `topics` (the subscription), `owned` and `target` (see `ConsumerHeartbeat`) matter only in a consumer group.
    """

    api: ClassVar[str] = "join_group"

    assigned_member_id: str | None
    leader_member_id: str | None
    api_version: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    owned: tuple[tuple[str, int], ...] = ()
    target: tuple[tuple[str, str, int], ...] | None = None

    @property
    def assigned_or_derived_id(self) -> str:
        """The id of a member that joins without one: as recorded, or derived if none is recorded."""
        return self.assigned_member_id or self.derived_member_id

    @property
    def requires_known_member_id(self) -> bool:
        """Whether a dynamic member must first rejoin with an assigned id: since version 4 (KIP-394)."""
        return self.api_version >= 4 and self.instance_id is None

    @property
    def supports_skipping_assignment(self) -> bool:
        """Whether a restarted static leader may learn that it leads a stable group: since version 9 (KIP-814)."""
        return self.api_version >= 9


class SyncGroup(GroupRequest, frozen=True, kw_only=True):
    """A sync: the member requests its assignment, and the leader provides it.

    `assignments` are the leader's: member, topic and partition. They matter only if the group becomes a consumer group.
    """

    api: ClassVar[str] = "sync_group"

    assignments: tuple[tuple[str, str, int], ...] = ()


class Heartbeat(GroupRequest, frozen=True, kw_only=True):
    """A heartbeat: it proves the member alive."""

    api: ClassVar[str] = "heartbeat"


class OffsetCommit(GroupRequest, frozen=True, kw_only=True):
    """An offset commit. Like a heartbeat, it proves the member alive."""

    api: ClassVar[str] = "offset_commit"


class ConsumerHeartbeat(GroupRequest, frozen=True, kw_only=True):
    """A heartbeat of the consumer protocol (KIP-848), with which a member joins, confirms its assignment, and leaves.

    A field of the request that is None was not sent, because it has not changed. Further fields:

    - `session_timeout_ms` is the setting of the group or its broker, with what-if settings applied.
    - `target` is the recorded target assignment that the coordinator computed with this request, as member, topic and
      partition; or None.
    - `recorded_epoch` is the member epoch in the recorded answer, or None.
    - `recorded_assignment` is the assignment in the recorded answer, as text.
    """

    api: ClassVar[str] = "consumer_group_heartbeat"

    member_epoch: int
    session_timeout_ms: int
    rebalance_timeout_ms: int | None
    topics: frozenset[str] | None
    regex: str | None
    assignor: str | None
    owned: frozenset[tuple[str, int]] | None
    target: tuple[tuple[str, str, int], ...] | None
    recorded_epoch: int | None = None
    recorded_assignment: str | None = None


class LeaveGroup(GroupRequest, frozen=True, kw_only=True):
    """A leave: the member, or an administrator, removes the member from the group."""

    api: ClassVar[str] = "leave_group"


class GroupLoaded(GroupRequest, frozen=True, kw_only=True):
    """The coordinator has loaded this member of the group from its log. Without a `member_id`, the group is empty."""

    api: ClassVar[str] = "group_loaded"

    leader_member_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[str, ...]


class GroupUnloaded(GroupRequest, frozen=True, kw_only=True):
    """The coordinator has resigned: another broker coordinates the group."""

    api: ClassVar[str] = "group_unloaded"


class GroupStopped(GroupRequest, frozen=True, kw_only=True):
    """The coordinator's process has ended."""

    api: ClassVar[str] = "group_stopped"


_GENERATION_REQUESTS: dict[str, Callable[..., GroupRequest]] = {
    request.api: request for request in (SyncGroup, Heartbeat, OffsetCommit, LeaveGroup)
}

_LIFECYCLE_EVENTS: dict[str, Callable[..., GroupRequest]] = {
    event.api: event for event in (GroupUnloaded, GroupStopped)
}

# Requests and events without fields of their own.
_PLAIN_REQUESTS = _GENERATION_REQUESTS | _LIFECYCLE_EVENTS

GROUP_EVENTS = frozenset(
    {JoinGroup.api, ConsumerHeartbeat.api, *_GENERATION_REQUESTS, GroupLoaded.api, *_LIFECYCLE_EVENTS}
)


def group_request(
    event: Mapping[str, Any], config: GroupConfig, respond: Callable[[Any], None] | None = None
) -> GroupRequest:
    """Convert an event of one of `GROUP_EVENTS` into a request, with what-if settings applied to its timeouts."""
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
        "coordinator": event.get("coordinator"),
    }
    if event["type"] == JoinGroup.api:
        return _join_group(event, common, config)
    if event["type"] == GroupLoaded.api:
        return _group_loaded(event, common, config)
    if event["type"] == SyncGroup.api:
        return _sync_group(event, common)
    if event["type"] == ConsumerHeartbeat.api:
        return _consumer_heartbeat(event, common, config)
    if event["type"] == OffsetCommit.api and event.get("member_epoch") is not None:
        common["generation"] = event["member_epoch"]
    return _PLAIN_REQUESTS[event["type"]](**common)


def _join_group(event: Mapping[str, Any], common: dict[str, Any], config: GroupConfig) -> JoinGroup:
    api_version = event.get("api_version")
    session_ms, rebalance_ms = _timeouts(event, common, config)
    return JoinGroup(
        **common,
        assigned_member_id=event.get("assigned_member_id"),
        leader_member_id=event.get("leader_member_id"),
        api_version=DEFAULT_API_VERSION if api_version is None else api_version,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocols=tuple(event.get("protocols") or ()),
        topics=None if event.get("subscribed_topics") is None else tuple(event["subscribed_topics"]),
        owned=tuple(sorted(_partitions(event.get("owned")) or ())),
        target=_assignments(event),
    )


def _sync_group(event: Mapping[str, Any], common: dict[str, Any]) -> SyncGroup:
    return SyncGroup(**common, assignments=_assignments(event) or ())


def _assignments(event: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...] | None:
    if event.get("assignments") is None:
        return None
    return tuple(
        (of_member["member_id"], topic, number)
        for of_member in event["assignments"]
        for topic, number in sorted(_partitions(of_member["assigned"]) or ())
    )


def _consumer_heartbeat(event: Mapping[str, Any], common: dict[str, Any], config: GroupConfig) -> ConsumerHeartbeat:
    subject = RequestContext(common["client_id"], common["broker"], group=common["group"])
    rebalance_ms, topics = event.get("rebalance_timeout_ms"), event.get("subscribed_topics")
    if rebalance_ms is not None and rebalance_ms >= 0:
        rebalance_ms = apply_override(rebalance_ms, config.setting("rebalance_timeout_ms", subject))
    session_ms = event.get("session_timeout_ms")
    session_ms = config.consumer.default_session_timeout_ms if session_ms is None else session_ms
    return ConsumerHeartbeat(
        **common,
        member_epoch=event["member_epoch"],
        session_timeout_ms=apply_override(session_ms, config.setting("consumer.session_timeout_ms", subject)),
        rebalance_timeout_ms=None if rebalance_ms == -1 else rebalance_ms,
        topics=None if topics is None else frozenset(topics),
        regex=event.get("subscribed_regex"),
        assignor=event.get("server_assignor"),
        owned=_partitions(event.get("owned")),
        target=_assignments(event),
        recorded_epoch=event.get("assigned_epoch"),
        recorded_assignment=None if event.get("assigned") is None else partitions_text(_partitions(event["assigned"])),
    )


def partitions_text(partitions: Iterable[tuple[str, int]] | None) -> str:
    """Return partitions as text: `orders:0,1;users:3`, or an empty text for none."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions or ()):
        by_topic.setdefault(topic, []).append(number)
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())


def _partitions(listed: Sequence[Mapping[str, Any]] | None) -> frozenset[tuple[str, int]] | None:
    if listed is None:
        return None
    return frozenset((of_topic["topic"], number) for of_topic in listed for number in of_topic["partitions"])


def _group_loaded(event: Mapping[str, Any], common: dict[str, Any], config: GroupConfig) -> GroupLoaded:
    session_ms, rebalance_ms = _timeouts(event, common, config) if common["member_id"] else (0, 0)
    return GroupLoaded(
        **common,
        leader_member_id=event.get("leader_member_id"),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocols=tuple(event.get("protocols") or ()),
    )


def _timeouts(event: Mapping[str, Any], common: dict[str, Any], config: GroupConfig) -> tuple[int, int]:
    """Return the timeouts of `member_timeouts` for the member that an event describes."""
    session_ms, rebalance_ms = event["session_timeout_ms"], event.get("rebalance_timeout_ms")
    # Version 0 of a join has no rebalance timeout.
    rebalance_ms = session_ms if rebalance_ms is None else rebalance_ms
    return member_timeouts(session_ms, rebalance_ms, common["client_id"], common["broker"], common["group"], config)


def member_timeouts(
    session_ms: int, rebalance_ms: int, client_id: str | None, broker: int, group: str, config: GroupConfig
) -> tuple[int, int]:
    """Return a member's session and rebalance timeouts in milliseconds, with what-if settings applied."""
    if config.keeps_member_timeouts:
        return session_ms, rebalance_ms
    subject = RequestContext(client_id, broker, group=group)
    return (
        apply_override(session_ms, config.setting("session_timeout_ms", subject)),
        apply_override(rebalance_ms, config.setting("rebalance_timeout_ms", subject)),
    )

"""Online migration: a classic group becomes a consumer group, and back (KIP-848).

The first heartbeat of the consumer protocol converts a classic group. Its members stay as classic members; the answer
to the next heartbeat of each member requests it to rejoin. When the last member of the consumer protocol is removed and
classic members remain, the group becomes a classic group again and rebalances.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.consumer_group import (
    ClassicProtocol,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    RefusedError,
)
from purgatory_udf.rules.coordinator.coordinator_journal import NONE, GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import JOIN, SESSION, SYNC, MemberTimers
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_operations import OperationStart
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from purgatory_udf.rules.coordinator.java_hash_order import TimelineOrder, map_order

# Updates a member by a request; see `ConsumerCoordinator.advance`.
Advance = Callable[[JoinGroup, ConsumerGroup, ConsumerMember, ConsumerMember, Partitions | None], ConsumerMember]


def consumer_group_of(classic: Group) -> ConsumerGroup:
    """Return the consumer group that a classic group becomes (`ConsumerGroup.fromClassicGroup`)."""
    group = ConsumerGroup(classic.broker, classic.name, classic.generation, classic.generation)
    group.derived_operations = classic.derived_operations
    assigned: dict[str, set[tuple[str, int]]] = {}
    for member_id, topic, number in classic.assignments:
        assigned.setdefault(member_id, set()).add((topic, number))
    ids = TimelineOrder()
    for member_id in map_order(classic.members):
        ids.put(member_id)
    for member in [classic.members[member_id] for member_id in ids.in_order()]:
        partitions: Partitions = frozenset(assigned.get(member.member_id, ()))
        group.target[member.member_id] = partitions
        group.put(
            ConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                epoch=classic.generation,
                previous_epoch=classic.generation,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=frozenset(member.topics or ()),
                assigned=partitions,
                classic=ClassicProtocol(member.session_timeout_ms, member.protocols),
            )
        )
    for member_id in ids.in_order():
        group.order.put(member_id)
    return group


def classic_group_of(group: ConsumerGroup, gone_id: str, joining: ConsumerMember | None) -> Group:
    """Return the classic group that a consumer group becomes (`ClassicGroup.fromConsumerGroup`).

    Args:
        group: The consumer group.
        gone_id: The member that left, or the static member that `joining` replaces.
        joining: The static member of the classic protocol that joins, or None.
    """
    classic = Group(group.broker, group.name)
    classic.state, classic.generation = GroupState.STABLE, group.epoch
    classic.derived_operations = group.derived_operations
    members = [group.members[each] for each in group.order.in_order() if each != gone_id and each in group.members]
    if joining is not None:
        members = [*(member for member in members if member.member_id != joining.member_id), joining]
    assignments: list[tuple[str, str, int]] = []
    for member in members:
        assert member.classic is not None, "a classic group has classic members only"
        classic.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
                topics=tuple(sorted(member.topics)),
            )
        )
        target = group.target.get(member.member_id, frozenset())
        assignments += [(member.member_id, topic, number) for topic, number in sorted(target)]
    classic.assignments = tuple(assignments)
    classic.protocol = classic.select_protocol()
    # Kafka's order of the members, and so its leader, depends on random ids: a recorded answer decides.
    classic.leader_is_provisional = True
    return classic


class ClassicMembers:
    """Requests of the classic protocol from members of consumer groups.

    Args:
        config: The settings of groups.
        topics: The topics of the cluster.
        timers: The timers of the members.
        journal: Receives answers and changes.
        advance: Updates a member and its group, as `ConsumerCoordinator.advance` does.
        convert: Makes the group a classic one; called with the group, the replaced member, the joining one and the
            time.
    """

    def __init__(
        self,
        config: GroupConfig,
        topics: ClusterTopics,
        timers: MemberTimers,
        journal: GroupJournal,
        advance: Advance,
        convert: Callable[[ConsumerGroup, str, ConsumerMember, int], None],
    ) -> None:
        self._config, self._topics, self._timers, self._journal = config, topics, timers, journal
        self._advance, self._convert = advance, convert

    def join(self, request: JoinGroup, group: ConsumerGroup) -> None:
        now_us = request.time_us
        if len(group.members) >= self._config.consumer.max_size and request.member_id not in group.members:
            raise RefusedError("GROUP_MAX_SIZE_REACHED")
        classic_members = [member for member in group.members.values() if member.classic is not None]
        if not any(
            all(member.classic is not None and name in member.classic.protocols for member in classic_members)
            for name in request.protocols
        ):
            raise RefusedError("INCONSISTENT_GROUP_PROTOCOL")
        member_id = request.member_id or request.assigned_or_derived_id
        if request.member_id == "" and request.requires_known_member_id:
            self._journal.record_answer(request, "MEMBER_ID_REQUIRED", now_us, member_id=member_id)
            return
        before = self._member_before(request, group, member_id)
        member = replace(
            before,
            instance_id=request.instance_id or before.instance_id,
            client_id=request.client_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=before.topics if request.topics is None else frozenset(request.topics),
            classic=ClassicProtocol(request.session_timeout_ms, request.protocols),
        )
        replaced = group.static_member(member.instance_id) if member.instance_id is not None else None
        after = self._advance(request, group, before, member, frozenset(request.owned))
        if replaced is not None and replaced.member_id != member_id and self._is_last_consumer(group, replaced):
            self._convert(group, replaced.member_id, after, now_us)
        else:
            self._timers.cancel(JOIN, group, member_id, request.api, now_us)
            start = OperationStart.derived(group, now_us, request)
            self._timers.schedule(
                SESSION, group, member_id, start, request.session_timeout_ms, request.api, after.epoch
            )
            start = OperationStart.derived(group, now_us, request)
            self._timers.schedule(SYNC, group, member_id, start, request.rebalance_timeout_ms, request.api, after.epoch)
        self._journal.record_classic_join(request, member_id, after.epoch, now_us)

    def _member_before(self, request: JoinGroup, group: ConsumerGroup, member_id: str) -> ConsumerMember:
        if request.instance_id is None:
            return group.members.get(member_id, ConsumerMember(member_id))
        known = group.static_member(request.instance_id)
        if request.member_id == "":
            return (
                ConsumerMember(member_id)
                if known is None
                else replace(known, member_id=member_id, epoch=0, previous_epoch=0)
            )
        if known is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        if known.member_id != member_id:
            raise RefusedError("FENCED_INSTANCE_ID")
        return known

    def _is_last_consumer(self, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
        return (
            replaced.classic is None
            and all(member.classic is not None for member in group.members.values())
            and len(group.members) <= self._config.max_size
        )

    def sync(self, request: SyncGroup, group: ConsumerGroup) -> None:
        member = self._member(request, group)
        self._check_generation(request, member)
        if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._request_rejoin(request, group, member)
            raise RefusedError("REBALANCE_IN_PROGRESS")
        self._timers.cancel(SYNC, group, member.member_id, request.api, request.time_us)
        self._renew_session(request, group, member)
        self._journal.record_answer(request, NONE, request.time_us, awaits_commits=True)

    def heartbeat(self, request: Heartbeat, group: ConsumerGroup) -> None:
        member = self._member(request, group)
        self._check_generation(request, member)
        self._renew_session(request, group, member)
        must_rejoin = (
            member.epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.awaits_release(member))
        )
        if must_rejoin:
            self._request_rejoin(request, group, member)
        error = "REBALANCE_IN_PROGRESS" if must_rejoin else NONE
        self._journal.record_answer(request, error, request.time_us, awaits_commits=True)

    def _request_rejoin(self, request: GroupRequest, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the timer within which the member must rejoin, unless it is running already."""
        if not self._timers.is_running(JOIN, group, member.member_id):
            start = OperationStart.derived(group, request.time_us, request)
            timeout_ms = member.rebalance_timeout_ms
            self._timers.schedule(JOIN, group, member.member_id, start, timeout_ms, request.api, member.epoch)

    def _renew_session(self, request: GroupRequest, group: ConsumerGroup, member: ConsumerMember) -> None:
        assert member.classic is not None, "only a classic member has a session timeout"
        start, timeout_ms = OperationStart.from_request(request), member.classic.session_timeout_ms
        self._timers.schedule(SESSION, group, member.member_id, start, timeout_ms, request.api, member.epoch)

    def leave(self, request: LeaveGroup, group: ConsumerGroup) -> None:
        """Handle a leave. An administrator may remove a static member by its instance id alone.

        Raises:
            RefusedError: The member is unknown or fenced.
        """
        if request.instance_id is None:
            member = group.members.get(request.member_id)
        else:
            member = group.static_member(request.instance_id)
            if member is not None and request.member_id not in ("", member.member_id):
                raise RefusedError("FENCED_INSTANCE_ID")
        if member is None or member.classic is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        now_us = request.time_us
        self._journal.record_write(group, now_us)
        self._journal.record_removal(group, member.member_id, "leave", now_us)
        group.remove(member.member_id)
        group.topics = group.subscribed_topics(self._topics.before(now_us, request.seq).counts)
        group.epoch += 1
        self._timers.cancel_all(group, member.member_id, request.api, now_us)
        self._journal.record_answer(request, NONE, now_us, awaits_commits=True)

    def _member(self, request: GroupRequest, group: ConsumerGroup) -> ConsumerMember:
        """Return the classic member that sent the request (`validateConsumerGroupMember`).

        Raises:
            RefusedError: The member is unknown or fenced.
        """
        if request.instance_id is None:
            member = group.members.get(request.member_id)
        else:
            member = group.static_member(request.instance_id)
            if member is not None and member.member_id != request.member_id:
                raise RefusedError("FENCED_INSTANCE_ID")
        if member is None or member.classic is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        return member

    @staticmethod
    def _check_generation(request: GroupRequest, member: ConsumerMember) -> None:
        if request.generation != member.epoch:
            raise RefusedError("ILLEGAL_GENERATION")

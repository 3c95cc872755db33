"""The coordinator of consumer groups (GroupMetadataManager): heartbeats, leaves and fencing.

The handler of a heartbeat takes the steps of Kafka's `consumerGroupHeartbeat`:

1. Find or create the group and the member, and reject an invalid request.
2. Update the member. A changed subscription or partition count raises the group epoch.
3. Compute a new target assignment if the group epoch is ahead, at most once in each assignment interval.
4. Reconcile the member with the target, and arm or cancel its rebalance timer.
5. Start a new session, and answer.

Kafka applies its records at the end of the request. So the handlers read the state before the request, and change the
group last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.assignors import (
    ASSIGNORS,
    UNIFORM,
    ClusterTopics,
    MemberSubscription,
    TopicSizes,
    assign,
)
from purgatory_udf.rules.coordinator.consumer_group import (
    LEFT_STATIC_EPOCH,
    NO_PARTITIONS,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    RefusedError,
    assignor_counts,
    existing_topics,
    reconciled,
)
from purgatory_udf.rules.coordinator.coordinator_journal import NONE, ChangeRecorder, GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import (
    RECONCILIATION,
    SESSION,
    CoordinatorTimer,
    MemberTimer,
    MemberTimers,
)
from purgatory_udf.rules.coordinator.group_operations import OperationStart
from purgatory_udf.rules.coordinator.group_requests import (
    ConsumerHeartbeat,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
    partitions_text,
)
from purgatory_udf.rules.coordinator.java_hash_order import map_order
from purgatory_udf.rules.coordinator.online_migration import ClassicMembers

Value = TypeVar("Value")

JOINING, LEAVING = 0, -1


class ConsumerCoordinator:
    """All consumer groups of one broker. `groups` is modified in place.

    Args:
        groups: The consumer groups by name.
        config: The settings of groups.
        topics: The topics of the cluster.
        timer: The timer of the broker's coordinator.
        journal: Receives answers, changes and operations.
        to_classic: Converts a group without consumer members into a classic one: called with the group, the member
            that left or was replaced, the joining member or None, and the time.
    """

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        config: GroupConfig,
        topics: ClusterTopics,
        timer: CoordinatorTimer,
        journal: GroupJournal,
        to_classic: Callable[[ConsumerGroup, str, ConsumerMember | None, int], None],
    ) -> None:
        self.groups = groups
        self._config = config
        self._topics = topics
        self._journal = journal
        self._to_classic = to_classic
        self.timers = MemberTimers(timer, journal, self._on_deadline)
        self._recorder = ChangeRecorder(journal)
        self._classic = ClassicMembers(config, topics, self.timers, journal, self.advance, self._convert)

    def handle(self, request: GroupRequest, group: ConsumerGroup) -> None:
        """Apply a request to a consumer group. A new `group` is not in `groups` yet."""
        try:
            match request:
                case ConsumerHeartbeat():
                    self._heartbeat(request, group)
                case JoinGroup():
                    self._classic.join(request, group)
                case SyncGroup():
                    self._classic.sync(request, group)
                case Heartbeat():
                    self._classic.heartbeat(request, group)
                case OffsetCommit():
                    self._commit(request, group)
                case LeaveGroup():
                    self._classic.leave(request, group)
        except RefusedError as refused:
            self._journal.record_answer(request, refused.error, request.time_us)
        self._record(group, _reason(request), request.time_us)

    def adopt(self, group: ConsumerGroup, request: GroupRequest) -> None:
        """Take over a group that was converted from a classic one. Its classic members get new sessions."""
        self.groups[group.name] = group
        self._journal.record_write(group, request.time_us)
        for member in group.members.values():
            assert member.classic is not None, "a converted group has classic members only"
            start, timeout_ms = OperationStart.derived(group, request.time_us), member.classic.session_timeout_ms
            self.timers.schedule(SESSION, group, member.member_id, start, timeout_ms, request.api, member.epoch)

    def timer(
        self, kind: str, group: ConsumerGroup, member_id: str, start: OperationStart, timeout_ms: int, epoch: int
    ) -> MemberTimer:
        """Recreate a member's timer from an earlier call, without starting it.

        Args:
            kind: The kind of timer (`MemberTimers`).
            group: The group.
            member_id: The member.
            start: The operation that the timer belongs to.
            timeout_ms: The timeout, from the start.
            epoch: The member's epoch when the timer was first started.
        """
        return MemberTimer(kind, group, member_id, start, timeout_ms, epoch, self._on_deadline)

    def drop(self, group: ConsumerGroup, now_us: int) -> None:
        """End a group, because its coordinator moves or stops."""
        self._recorder.record_end(group, "the broker no longer coordinates the group", now_us)
        self.timers.cancel_group(group.name, "unloaded", now_us)
        del self.groups[group.name]

    # Heartbeats of the consumer protocol.

    def _heartbeat(self, request: ConsumerHeartbeat, group: ConsumerGroup) -> None:
        if request.member_epoch in (LEAVING, LEFT_STATIC_EPOCH):
            self._leave(request, group)
            return
        if len(group.members) >= self._config.consumer.max_size and request.member_id not in group.members:
            raise RefusedError("GROUP_MAX_SIZE_REACHED")
        member_id = request.member_id or request.derived_member_id
        before = self._member_of(request, group, member_id)
        member = replace(
            before,
            instance_id=request.instance_id or before.instance_id,
            client_id=request.client_id,
            rebalance_timeout_ms=_given(request.rebalance_timeout_ms, before.rebalance_timeout_ms),
            topics=_given(request.topics, before.topics),
            # An empty text ends a subscription by pattern.
            regex=_given(request.regex, before.regex) or None,
            assignor=request.assignor or before.assignor,
            classic=None,
        )
        is_full = request.member_epoch == JOINING or None not in (
            request.rebalance_timeout_ms,
            request.topics if request.topics is not None else request.regex,
            request.owned,
        )

        def assignment_for(after: ConsumerMember) -> str | None:
            return partitions_text(after.assigned) if is_full or after.assigned != before.assigned else None

        def is_recorded(after: ConsumerMember) -> bool:
            return (after.epoch, assignment_for(after)) == (request.recorded_epoch, request.recorded_assignment)

        decides = is_recorded if request.recorded_epoch is not None else None
        after = self.advance(request, group, before, member, request.owned, decides)
        start = OperationStart.from_request(request)
        self.timers.schedule(SESSION, group, member_id, start, request.session_timeout_ms, request.api, after.epoch)
        self._journal.record_epoch(request, member_id, after.epoch, request.time_us, assignment_for(after))

    def _member_of(self, request: ConsumerHeartbeat, group: ConsumerGroup, member_id: str) -> ConsumerMember:
        """Return the member before the request: a known member, a new one, or the replacement of a static member.

        Raises:
            RefusedError: The member is unknown or fenced, or its instance id still belongs to another member.
        """
        joins = request.member_epoch == JOINING
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and not joins:
                raise RefusedError("UNKNOWN_MEMBER_ID")
            if member is None:
                return ConsumerMember(member_id)
            _check_epoch(member, request)
            return member
        known = group.static_member(request.instance_id)
        if joins and known is None:
            return group.members.get(member_id, ConsumerMember(member_id))
        if known is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        if not joins:
            if known.member_id != member_id:
                raise RefusedError("FENCED_INSTANCE_ID")
            _check_epoch(known, request)
            return known
        if known.classic is None and known.epoch != LEFT_STATIC_EPOCH:
            raise RefusedError("UNRELEASED_INSTANCE_ID")
        return replace(known, member_id=member_id, epoch=0, previous_epoch=0)

    def _leave(self, request: ConsumerHeartbeat, group: ConsumerGroup) -> None:
        now_us = request.time_us
        if request.instance_id is None:
            member = group.members.get(request.member_id)
        else:
            member = group.static_member(request.instance_id)
            if member is not None and member.member_id != request.member_id:
                raise RefusedError("FENCED_INSTANCE_ID")
        if member is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        if request.member_epoch == LEFT_STATIC_EPOCH and request.instance_id is not None:
            group.put(replace(member, epoch=LEFT_STATIC_EPOCH, revoking=NO_PARTITIONS))
            self._journal.record_write(group, now_us)
        else:
            self._fence(group, member, "leave", now_us)
        self._journal.record_epoch(request, member.member_id, request.member_epoch, now_us, None)

    # What a heartbeat of the consumer protocol and a join of the classic one have in common.

    def advance(
        self,
        request: ConsumerHeartbeat | JoinGroup,
        group: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        reported: Partitions | None,
        is_recorded: Callable[[ConsumerMember], bool] | None = None,
    ) -> ConsumerMember:
        """Update the member, the group epoch and the target, and reconcile the member. Return the updated member.

        Args:
            request: The heartbeat, or the join of a classic member.
            group: The group, which is updated.
            before: The member as the group had it before the request, or a new one. The difference shows whether the
                subscription changes.
            member: The member with the fields of the request.
            reported: The owned partitions in the request, or None if it has none.
            is_recorded: Returns whether a member matches the recorded answer; None without a recording. The answer
                shows whether the coordinator has computed a target, because the time of its last computation is not
                known to the millisecond.
        """
        now_us = request.time_us
        replaced_id = self._replaced_id(group, member)
        sizes = self._topics.before(now_us, request.seq)
        if member == before and replaced_id is None and _is_settled(group, member, sizes):
            # The recorder compares members that are the same object faster than equal ones.
            group.put(before, records=0)
            return before
        others_own = {
            partition for partition, owner in group.owners().items() if owner not in (member.member_id, replaced_id)
        }
        epoch = group.epoch
        topics = group.topics
        others = [each for each in group.members.values() if each.member_id not in (member.member_id, replaced_id)]
        changed = (member.topics, member.regex) != (before.topics, before.regex)
        current = existing_topics([*others, member], sizes.counts)
        if changed or current != topics:
            epoch, topics = epoch + 1, current
        target_epoch, target = group.target_epoch, dict(group.target)
        if replaced_id is not None:
            target[member.member_id] = target.pop(replaced_id, NO_PARTITIONS)
        assigned_ms = group.assigned_ms

        def moved(target_epoch: int, target: Mapping[str, Partitions]) -> ConsumerMember:
            mine = target.get(member.member_id, NO_PARTITIONS)
            return reconciled(member, target_epoch, mine, reported, others_own, changed)

        after = moved(target_epoch, target)
        if epoch > target_epoch:
            if request.target is not None:
                new_target = _recorded_target(request.target, [*others, member])
            else:
                new_target = self._new_target(group, before, member, replaced_id, target, sizes)
            later = moved(epoch, new_target)
            assigns = self._may_assign(group, now_us)
            if is_recorded is not None and is_recorded(after) != is_recorded(later):
                assigns = is_recorded(later)
            if assigns:
                target_epoch, target, assigned_ms, after = epoch, new_target, now_us // 1000, later
        self._arm_rebalance_timer(request, group, member, after)
        if after != before or epoch != group.epoch or target_epoch != group.target_epoch or replaced_id is not None:
            self._journal.record_write(group, now_us)
        if replaced_id is not None:
            group.remove(replaced_id)
            self._journal.record_removal(group, replaced_id, "replaced", now_us)
        group.epoch, group.topics = epoch, topics
        group.target_epoch, group.target, group.assigned_ms = target_epoch, target, assigned_ms
        group.put(after, (member != before) + (after != member) + (replaced_id is not None))
        self.groups[group.name] = group
        return after

    def _replaced_id(self, group: ConsumerGroup, member: ConsumerMember) -> str | None:
        """Return the earlier member id of the static member that `member` replaces, or None if it replaces none."""
        known = group.static_member(member.instance_id) if member.instance_id is not None else None
        return known.member_id if known is not None and known.member_id != member.member_id else None

    def _may_assign(self, group: ConsumerGroup, now_us: int) -> bool:
        interval_ms = self._config.consumer.assignment_interval_ms
        return group.assigned_ms is None or now_us // 1000 >= group.assigned_ms + interval_ms

    def _new_target(
        self,
        group: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        replaced_id: str | None,
        target: dict[str, Partitions],
        sizes: TopicSizes,
    ) -> dict[str, Partitions]:
        """Compute the target assignment of every member, by member id.

        The assignor gets the members in the order of Kafka's hash tables.

        Args:
            group: The group before the request.
            before: The member before the request.
            member: The member after it.
            replaced_id: The earlier id of a static member that `member` replaces, or None.
            target: The present target assignments.
            sizes: The topics of the cluster.
        """
        members = group.members | {member.member_id: member}
        ids = group.order.in_order()
        if member.member_id not in group.members:
            ids.append(member.member_id)
        if replaced_id is not None:
            ids.remove(replaced_id)
        subscriptions = [
            MemberSubscription(each, members[each].instance_id, members[each].topics, target.get(each, NO_PARTITIONS))
            for each in map_order(ids)
        ]
        return assign(_most_preferred(assignor_counts(group.assignors, before, member)), subscriptions, sizes)

    def _arm_rebalance_timer(
        self, request: GroupRequest, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember
    ) -> None:
        """Start the rebalance timer if the member must give up partitions; cancel it once the member has done so."""
        if after == before or after.classic is not None:
            return
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            start = OperationStart.derived(group, request.time_us, request)
            timeout_ms = after.rebalance_timeout_ms
            self.timers.schedule(RECONCILIATION, group, after.member_id, start, timeout_ms, "revoked", after.epoch)
        else:
            self.timers.cancel(RECONCILIATION, group, after.member_id, "revoked", request.time_us)

    # Removal of members.

    def _on_deadline(self, timer: MemberTimer, now_us: int) -> None:
        """Fence the member of a timer that has reached its deadline, if the timer still applies to it."""
        self.timers.forget(timer)
        expired_us, now_us = now_us, timer.effective_us(now_us)
        group = self.groups.get(timer.key.group)
        member = group.members.get(timer.member_id) if group is not None else None
        kind = timer.request.kind
        if group is None or member is None:
            timer.complete_by("replaced", now_us)
        elif kind == RECONCILIATION and member.epoch != timer.epoch:
            timer.complete_by("left_epoch", now_us)
        else:
            timer.expire(expired_us)
            self._fence(group, member, "rebalance" if kind == RECONCILIATION else kind, now_us)
            self._record(group, f"{kind} of {member.member_id} expired", now_us)

    def _record(self, group: ConsumerGroup, reason: str, now_us: int) -> None:
        """Record the changes of the group, and its end if it became a classic group."""
        self._recorder.record(group, reason, now_us)
        if self.groups.get(group.name) is not group:
            self._recorder.record_end(group, f"{reason}: the group became a classic one", now_us)

    def _fence(self, group: ConsumerGroup, member: ConsumerMember, cause: str, now_us: int) -> None:
        """Remove a member (`consumerGroupFenceMember`): the group epoch rises, or the group becomes a classic one."""
        self._journal.record_write(group, now_us)
        if self._becomes_classic(group, member):
            self._convert(group, member.member_id, None, now_us)
            return
        self._journal.record_removal(group, member.member_id, cause, now_us)
        group.remove(member.member_id)
        group.topics = group.subscribed_topics(self._topics.before(now_us, 2**63 - 1).counts)
        group.epoch += 1
        self.timers.cancel_all(group, member.member_id, _TIMERS_ENDED_BY.get(cause, "fenced"), now_us)

    def _becomes_classic(self, group: ConsumerGroup, gone: ConsumerMember) -> bool:
        """Return whether the group continues as a classic one when the member is gone (`validateOnlineDowngrade…`)."""
        others = [member for member in group.members.values() if member.member_id != gone.member_id]
        return (
            gone.classic is None
            and bool(others)
            and all(member.classic is not None for member in others)
            and len(others) <= self._config.max_size
        )

    def _convert(self, group: ConsumerGroup, gone_id: str, joining: ConsumerMember | None, now_us: int) -> None:
        self.timers.cancel_group(group.name, "converted", now_us)
        del self.groups[group.name]
        self._to_classic(group, gone_id, joining, now_us)

    def _commit(self, request: OffsetCommit, group: ConsumerGroup) -> None:
        """Handle an offset commit (`validateOffsetCommit`). It does not renew the session of a consumer member.

        Raises:
            RefusedError: The member is unknown, or the request has another epoch than the member.
        """
        if request.generation >= 0 or group.members:
            member = group.members.get(request.member_id)
            if member is None:
                raise RefusedError("UNKNOWN_MEMBER_ID")
            if request.generation != member.epoch:
                raise RefusedError("STALE_MEMBER_EPOCH" if member.classic is None else "ILLEGAL_GENERATION")
        self._journal.record_write(group, request.time_us)
        self._journal.record_answer(request, NONE, request.time_us, awaits_commits=True)


# The rules by which the timers of a member end when it is removed; any other cause fences it.
_TIMERS_ENDED_BY = {"leave": "left"}


def _reason(request: GroupRequest) -> str:
    """Return a text that names the request as the reason of a change, such as `member-1 joined`.

    A member may join without an id, and an administrator may remove a static member by its instance id.
    """
    if isinstance(request, ConsumerHeartbeat):
        words = {JOINING: "joined", LEAVING: "left", LEFT_STATIC_EPOCH: "left for a restart"}
        return f"{request.member_id or request.derived_member_id} {words.get(request.member_epoch, 'sent a heartbeat')}"
    sender = request.member_id
    if sender == "":
        sender = request.assigned_or_derived_id if isinstance(request, JoinGroup) else f"instance {request.instance_id}"
    return f"{request.api} of {sender}"


def invalid_heartbeat(request: ConsumerHeartbeat) -> str | None:
    """Return the error of a malformed heartbeat (`throwIfConsumerGroupHeartbeatRequestIsInvalid`), or None."""
    if request.group == "":
        return "INVALID_REQUEST"
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        return "UNSUPPORTED_ASSIGNOR"
    if request.member_epoch == JOINING:
        subscribes = bool(request.topics) or bool(request.regex)
        if request.rebalance_timeout_ms is None or request.owned is None or request.owned or not subscribes:
            return "INVALID_REQUEST"
    elif request.member_id == "" or (request.member_epoch == LEFT_STATIC_EPOCH and request.instance_id is None):
        return "INVALID_REQUEST"
    return None


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raise RefusedError if the epoch in a heartbeat is not the member's (`throwIfConsumerGroupMemberEpochIsInvalid`).

    The previous epoch is accepted if the member owns only assigned partitions: then it has missed an answer.
    """
    epoch = request.member_epoch
    if epoch in (member.epoch, JOINING):
        return
    lost_answer = epoch == member.previous_epoch and request.owned is not None and request.owned <= member.assigned
    if epoch > member.epoch or not lost_answer:
        raise RefusedError("FENCED_MEMBER_EPOCH")


def _is_settled(group: ConsumerGroup, member: ConsumerMember, sizes: TopicSizes) -> bool:
    """Return whether a heartbeat without new values for the member's fields does not change the group."""
    return (
        group.members.get(member.member_id) == member
        and member.is_reconciled_to(group.target_epoch)
        and group.epoch <= group.target_epoch
        and group.subscribed_topics(sizes.counts) == group.topics
    )


def _recorded_target(
    assignments: tuple[tuple[str, str, int], ...], members: list[ConsumerMember]
) -> dict[str, Partitions]:
    by_member: dict[str, set[tuple[str, int]]] = {member.member_id: set() for member in members}
    for member_id, topic, number in assignments:
        if member_id in by_member:
            by_member[member_id].add((topic, number))
    return {member_id: frozenset(partitions) for member_id, partitions in by_member.items()}


def _most_preferred(counts: Mapping[str, int]) -> str:
    """Return the assignor that most members request; in a tie the first one, and `uniform` if `counts` is empty."""
    return max(counts, key=lambda name: counts[name], default=UNIFORM)


def _given(sent: Value | None, known: Value) -> Value:
    return known if sent is None else sent

"""Rebalances: how a group gets from one generation to the next, and how members are removed."""

from __future__ import annotations

from collections.abc import Callable

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.classic_sessions import DelayedHeartbeat, MemberSessions, PendingHeartbeat
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import CoordinatorTimer
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_operations import (
    DelayedJoin,
    DelayedSync,
    DelayWindow,
    GroupOperation,
    InitialDelayedJoin,
    JoinKey,
    OperationStart,
    SyncKey,
)
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, SyncGroup
from purgatory_udf.rules.purgatory.clock import Clock
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import TimerTask

# The group became a group of the other protocol.
CONVERTED = "converted"


class Rebalancer:
    """The Rebalance purgatory: for each group the join of a rebalance, or the sync of a generation.

    The parameter `request` of a method is the request that caused the step; None if a timer caused it.

    If `timer` is given, this is the new coordinator. It has the same operations, but instead of purgatories one timer.
    """

    def __init__(
        self,
        broker: int,
        clock: Clock,
        config: GroupConfig,
        journal: GroupJournal,
        timer: CoordinatorTimer | None = None,
    ) -> None:
        self._config = config
        self._journal = journal
        self._timer = timer
        # Created first, so that within one millisecond sessions expire before joins and syncs.
        heartbeats = clock.new_purgatory(broker, "Heartbeat", config.purge_interval, timer)
        self.sessions = MemberSessions(heartbeats, journal, self._on_session_expired)
        self._purgatory: DelayedOperationPurgatory[GroupOperation] = clock.new_purgatory(
            broker, "Rebalance", config.purge_interval, timer
        )

    @property
    def is_new(self) -> bool:
        """Whether this is the new coordinator."""
        return self._timer is not None

    # Start of a rebalance.

    def maybe_prepare_rebalance(
        self, group: Group, reason: str, now_us: int, request: GroupRequest | None = None
    ) -> None:
        """Start a rebalance, unless one is in progress, which then includes the change.

        For the arguments see `prepare_rebalance`.
        """
        if group.can_rebalance():
            self.prepare_rebalance(group, reason, now_us, request)

    def prepare_rebalance(self, group: Group, reason: str, now_us: int, request: GroupRequest | None = None) -> None:
        """Start a rebalance: answer waiting syncs, complete the sync phase, and start the join phase.

        Args:
            group: The group.
            reason: Text for the group's transition.
            now_us: The time.
            request: The request that caused the rebalance, from which the join operation starts; None if no
                request did.
        """
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, "REBALANCE_IN_PROGRESS", "rebalance", now_us)
        from_state = group.state
        group.pending_syncs.clear()
        group.transition_to(GroupState.PREPARING_REBALANCE)
        self._journal.record_transition(group, from_state, reason, now_us)
        self.check_sync(group, now_us)

        start = OperationStart.derived(group, now_us) if request is None else OperationStart.from_request(request)
        if from_state is GroupState.EMPTY:
            window = DelayWindow.first(self._config.initial_rebalance_delay_ms, self._rebalance_timeout_ms(group))
            self._watch_join(InitialDelayedJoin(group, start, window, self))
        else:
            self._watch_join(DelayedJoin(group, start, self._rebalance_timeout_ms(group), self))

    def extend(self, group: Group, ended: DelayWindow, now_us: int) -> None:
        window = ended.next(self._config.initial_rebalance_delay_ms)
        self._watch_join(InitialDelayedJoin(group, OperationStart.derived(group, now_us), window, self))

    def check_join(self, group: Group, now_us: int) -> None:
        """Check whether the group's join phase is complete, after a member joined or left."""
        self._purgatory.check_and_complete(JoinKey(group.name), now_us)

    def _check_join_after_removal(self, group: Group, cause: str, now_us: int) -> None:
        group.is_removing = self.is_new and cause != "leave"
        self.check_join(group, now_us)
        group.is_removing = False

    # End of the join phase.

    def on_complete_join(self, ended: DelayedJoin, now_us: int) -> None:
        """Remove dynamic members that did not rejoin, and start the next generation with the others."""
        group = ended.group
        if group.state is GroupState.DEAD:
            # Another broker coordinates the group. (Kafka also removes the sessions of members that did not rejoin;
            # here they complete at their own deadlines, which usually come first.)
            return
        reason = _transition_reason(ended)
        for member in group.not_yet_rejoined_members():
            if not member.is_static:
                self._remove_late_member(group, member.member_id, "rejoin", now_us)
        if group.members and not group.maybe_elect_new_joined_leader():
            self._schedule_another_join(group, now_us)
            return
        group.init_next_generation()
        self._journal.record_transition(group, GroupState.PREPARING_REBALANCE, reason, now_us)
        if not group.members:
            self.record_write(group, now_us)
        else:
            self._start_generation(group, now_us)

    def _schedule_another_join(self, group: Group, now_us: int) -> None:
        """Start another join phase, because no member rejoined but static members remain.

        With a rebalance timeout of 0, Kafka's timer thread loops here without a pause. In a replay the delay is at
        least 1 ms, so that time advances.
        """
        delay_ms = max(1, self._rebalance_timeout_ms(group))
        self._watch_join(DelayedJoin(group, OperationStart.derived(group, now_us), delay_ms, self))

    def _start_generation(self, group: Group, now_us: int) -> None:
        """Answer all waiting joins and start new sessions, also for static members that did not rejoin."""
        for member in group.members.values():
            request = member.awaiting_join
            if request is not None:
                member.awaiting_join = None
                self._journal.record_join(request, group, member.member_id, group.leader, now_us)
            self.sessions.restart(group, member, "new_generation", now_us, request)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        start = OperationStart.derived(group, now_us)
        sync = DelayedSync(group, start, self._rebalance_timeout_ms(group), self.on_sync_expired)
        self._watch(sync, SyncKey(group.name))

    # The sync phase.

    def commit_assignment(self, group: Group, leaders_sync: SyncGroup) -> None:
        """Propagate the leader's assignment: at once or, at the new coordinator, when its record is committed."""
        self.record_write(group, leaders_sync.time_us)
        if self._timer is None or not self._config.commit_delay_ms:
            self.propagate_assignment(group, leaders_sync.time_us, leaders_sync)
        elif group.uncommitted_sync is None or group.uncommitted_sync.generation != group.generation:
            self.await_commit(group, leaders_sync)

    def await_commit(self, group: Group, leaders_sync: SyncGroup) -> None:
        """Start the timer after which the record with the leader's assignment is committed (new coordinator only)."""
        assert self._timer is not None, "the old coordinator writes by its produce purgatory"
        group.uncommitted_sync = leaders_sync
        commit = AssignmentCommit(group, leaders_sync, self._config.commit_delay_ms, self._on_committed)
        self._timer.schedule(commit, leaders_sync.time_us // 1000)

    def commit_ms(self, group: Group) -> int | None:
        """Return when the leader's assignment is committed, in epoch milliseconds; None if none awaits its commit."""
        if group.uncommitted_sync is None:
            return None
        return group.uncommitted_sync.time_us // 1000 + self._config.commit_delay_ms

    def _on_committed(self, group: Group, leaders_sync: SyncGroup, now_us: int) -> None:
        """Propagate the committed assignment, unless another rebalance has started."""
        if group.uncommitted_sync is leaders_sync:
            group.uncommitted_sync = None
            if group.state is GroupState.COMPLETING_REBALANCE and leaders_sync.generation == group.generation:
                self.propagate_assignment(group, now_us, leaders_sync)

    def record_write(self, group: Group, now_us: int) -> None:
        """Record that the new coordinator appends records. The appends of the old coordinator are not modelled."""
        if self._timer is not None:
            self._journal.record_write(group, now_us)

    def propagate_assignment(self, group: Group, now_us: int, leaders_sync: SyncGroup) -> None:
        """Answer all waiting syncs with the leader's assignment and make the group Stable."""
        self._answer_syncs(group, "NONE", "assignment", now_us, leaders_sync)
        group.assignments = leaders_sync.assignments
        group.transition_to(GroupState.STABLE)
        self._journal.record_transition(group, GroupState.COMPLETING_REBALANCE, "leader's assignment", now_us)

    def _answer_syncs(
        self, group: Group, error: str, rule: str, now_us: int, leaders_sync: GroupRequest | None = None
    ) -> None:
        """Answer the waiting syncs with `error`, and start new sessions for their members.

        The previous sessions complete by `rule`. `leaders_sync` is the sync that caused this, if any: if it is answered
        at its arrival, it renews the leader's session like a heartbeat.
        """
        for member in group.members.values():
            request = member.awaiting_sync
            if request is not None:
                member.awaiting_sync = None
                self._journal.record_answer(request, error, now_us)
                if request is leaders_sync and request.time_us == now_us:
                    self.sessions.renew(group, member, request)
                else:
                    self.sessions.restart(group, member, rule, now_us, request)

    def remove_pending_sync(self, group: Group, member_id: str, now_us: int) -> None:
        """Record that the member has synced in this generation, and check whether the sync phase is complete."""
        group.pending_syncs.discard(member_id)
        self.check_sync(group, now_us)

    def check_sync(self, group: Group, now_us: int) -> None:
        """Check whether the group's sync phase is complete."""
        self._purgatory.check_and_complete(SyncKey(group.name), now_us)

    def on_sync_expired(self, group: Group, now_us: int) -> None:
        """Remove the members that have not synced, and start another rebalance (`onExpirePendingSync`)."""
        missing = sorted(group.pending_syncs)
        for member_id in missing:
            self._remove_late_member(group, member_id, "sync", now_us)
        self.prepare_rebalance(group, f"{', '.join(missing)} did not sync", now_us)

    # Removal of members.

    def remove_member(
        self, group: Group, member: Member, cause: str, reason: str, now_us: int, request: GroupRequest | None = None
    ) -> None:
        """Remove a member and rebalance (`removeMemberAndUpdateGroup`).

        A waiting join is answered UNKNOWN_MEMBER_ID, as its client may still be alive. A waiting sync is never
        answered.

        Args:
            group: The group.
            member: A member of the group.
            cause: The reason in the `Removal`, for example `session`.
            reason: The text of the transition if a rebalance starts.
            now_us: The time.
            request: The request that removes the member; None for a deadline.
        """
        if member.awaiting_join is not None:
            self._journal.record_answer(member.awaiting_join, "UNKNOWN_MEMBER_ID", now_us, member_id="")
        group.remove(member.member_id)
        self._journal.record_removal(group, member.member_id, cause, now_us)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._check_join_after_removal(group, cause, now_us)
        else:
            self.maybe_prepare_rebalance(group, reason, now_us, request)

    def remove_pending_member(
        self, group: Group, pending_id: str, cause: str, now_us: int, request: GroupRequest | None = None
    ) -> None:
        """Drop a pending id (`removePendingMemberAndUpdateGroup`).

        At the new coordinator, a leave of a pending id starts a rebalance (`classicGroupLeaveToClassicGroup`).

        Args:
            group: The group.
            pending_id: The id.
            cause: The reason in the `Removal`, `pending` or `leave`.
            now_us: The time.
            request: The leave; None for a deadline, which starts no rebalance.
        """
        group.remove(pending_id)
        self._journal.record_removal(group, pending_id, cause, now_us)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._check_join_after_removal(group, cause, now_us)
        elif self.is_new and request is not None and group.members:
            self.maybe_prepare_rebalance(group, f"pending member {pending_id} left", now_us, request)

    def end_for_conversion(self, group: Group, now_us: int) -> None:
        """Answer waiting joins and syncs with REBALANCE_IN_PROGRESS, and end the operations of a group.

        It becomes a consumer group.
        """
        for member in group.members.values():
            for waiting in (member.awaiting_join, member.awaiting_sync):
                if waiting is not None:
                    self._journal.record_answer(waiting, "REBALANCE_IN_PROGRESS", now_us, member.member_id)
            member.awaiting_join = member.awaiting_sync = None
        self.record_write(group, now_us)
        self.abandon(group.name, now_us, CONVERTED)

    def abandon(self, group: str, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End all operations of the group without effect, because the coordinator stopped or the group is converted."""
        self.sessions.abandon(group, now_us, rule)
        self._purgatory.abandon(lambda key: key.group == group, now_us, rule)

    def _remove_late_member(self, group: Group, member_id: str, cause: str, now_us: int) -> None:
        """Remove a member that missed a deadline, and complete its session."""
        member = group.remove(member_id)
        if member is not None:
            self._journal.record_removal(group, member_id, cause, now_us)
            self.sessions.complete_removed(group, member, "removed", now_us)

    def _on_session_expired(self, session: DelayedHeartbeat, now_us: int) -> None:
        group, member_id = session.group, session.member_id
        if isinstance(session, PendingHeartbeat):
            self.remove_pending_member(group, member_id, "pending", now_us)
        else:
            reason = f"session of {member_id} expired"
            self.remove_member(group, group.members[member_id], "session", reason, now_us)

    # Operations.

    def _rebalance_timeout_ms(self, group: Group) -> int:
        """Return the greatest rebalance timeout of the members in milliseconds.

        With the setting `rebalance_timeout: session`, as before Kafka 0.10.1, it is the greatest session timeout.
        """
        if self._config.rebalance_timeout == "session":
            return max((member.session_timeout_ms for member in group.members.values()), default=0)
        return max((member.rebalance_timeout_ms for member in group.members.values()), default=0)

    def _watch_join(self, join: DelayedJoin) -> None:
        self._watch(join, JoinKey(join.group.name))

    def _watch(self, operation: GroupOperation, key: JoinKey | SyncKey) -> None:
        self._journal.operations.append(operation)
        self._purgatory.try_complete_else_watch(operation, [key], operation.started_us)


class AssignmentCommit(TimerTask):
    """Timer task that commits the record with a leader's assignment, `delay_ms` after the leader's sync."""

    def __init__(
        self,
        group: Group,
        leaders_sync: SyncGroup,
        delay_ms: int,
        on_committed: Callable[[Group, SyncGroup, int], None],
    ) -> None:
        super().__init__(leaders_sync.time_us // 1000 + delay_ms)
        self._group, self._leaders_sync, self._on_committed = group, leaders_sync, on_committed

    def run(self, now_ms: int) -> None:
        self._on_committed(self._group, self._leaders_sync, now_ms * 1000)


def _transition_reason(ended: DelayedJoin) -> str:
    group = ended.group
    if not group.members:
        return "no members left"
    if ended.completed_by:
        return "all members joined"
    missing = sorted(member.member_id for member in group.not_yet_rejoined_members())
    if missing:
        return f"{', '.join(missing)} did not rejoin"
    if ended.kind == InitialDelayedJoin.kind:
        return "initial delay over"
    return f"{', '.join(sorted(group.pending_members))} did not join"

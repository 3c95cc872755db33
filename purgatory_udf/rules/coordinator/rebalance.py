"""Rounds: how a group gets from one generation to the next, and how its members go."""

from __future__ import annotations

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
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
from purgatory_udf.rules.coordinator.group_requests import GroupRequest
from purgatory_udf.rules.coordinator.member_sessions import DelayedHeartbeat, MemberSessions, PendingHeartbeat
from purgatory_udf.rules.purgatory.clock import Clock
from purgatory_udf.rules.purgatory.delayed_operation_purgatory import DelayedOperationPurgatory


class Rebalancer:
    """The purgatory Rebalance: of each group, the join of a round or the sync of a generation.

    `request` is what set off a step; a step set off by a timer has none.
    """

    def __init__(self, broker: int, clock: Clock, config: GroupConfig, journal: GroupJournal) -> None:
        self._config = config
        self._journal = journal
        # Made first, so within one millisecond sessions end before rounds and syncs do.
        heartbeats = clock.new_purgatory(broker, "Heartbeat", config.purge_interval)
        self.sessions = MemberSessions(heartbeats, journal, self._session_failed)
        self._purgatory: DelayedOperationPurgatory[GroupOperation] = clock.new_purgatory(
            broker, "Rebalance", config.purge_interval
        )

    # A round begins.

    def maybe_prepare(self, group: Group, reason: str, now_us: int, request: GroupRequest | None = None) -> None:
        """Unless a round is under way already, which somebody who came or went just takes part in."""
        if group.can_rebalance():
            self.prepare(group, reason, now_us, request)

    def prepare(self, group: Group, reason: str, now_us: int, request: GroupRequest | None = None) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, "REBALANCE_IN_PROGRESS", "rebalance", now_us)
        from_state = group.state
        group.pending_syncs.clear()
        group.transition_to(GroupState.PREPARING_REBALANCE)
        self._journal.changed(group, from_state, reason, now_us)
        self._purgatory.check_and_complete(SyncKey(group.name), now_us)

        beginning = OperationStart.derived(group, now_us) if request is None else OperationStart.of(request)
        if from_state is GroupState.EMPTY:
            window = DelayWindow.first(self._config.initial_rebalance_delay_ms, self._rebalance_timeout_ms(group))
            self._watch_join(InitialDelayedJoin(group, beginning, window, self))
        else:
            self._watch_join(DelayedJoin(group, beginning, self._rebalance_timeout_ms(group), self))

    def extend(self, group: Group, ended: DelayWindow, now_us: int) -> None:
        window = ended.next(self._config.initial_rebalance_delay_ms)
        self._watch_join(InitialDelayedJoin(group, OperationStart.derived(group, now_us), window, self))

    def check(self, group: Group, now_us: int) -> None:
        """Somebody came or went: perhaps nobody is missing any more."""
        self._purgatory.check_and_complete(JoinKey(group.name), now_us)

    # A round ends.

    def complete_join(self, ended: DelayedJoin, now_us: int) -> None:
        """Whoever did not come is out, static members excepted; with those who did, the next generation begins."""
        group = ended.group
        if group.state is GroupState.DEAD:
            # Another broker's, by now. (Kafka ends the sessions of those that did not come here; their own deadlines,
            # which are earlier as a rule, do it.)
            return
        reason = _transition_reason(ended)
        for member in group.not_yet_rejoined():
            if not member.is_static:
                self._drop(group, member.member_id, "rejoin", now_us)
        if group.members and not group.elect_joined_leader():
            self._postpone(group, now_us)
            return
        group.init_next_generation()
        self._journal.changed(group, GroupState.PREPARING_REBALANCE, reason, now_us)
        if group.members:
            self._begin_generation(group, now_us)

    def _postpone(self, group: Group, now_us: int) -> None:
        """Nobody came, but static members remain: wait again, until their sessions end or one of them comes.

        With a rebalance timeout of 0 Kafka's timer thread spins here; a replay has to let time pass.
        """
        delay_ms = max(1, self._rebalance_timeout_ms(group))
        self._watch_join(DelayedJoin(group, OperationStart.derived(group, now_us), delay_ms, self))

    def _begin_generation(self, group: Group, now_us: int) -> None:
        """Answer everybody who waits; all sessions start anew, those of members that did not come included."""
        for member in group.members.values():
            request = member.awaiting_join
            if request is not None:
                member.awaiting_join = None
                self._journal.joined(request, group, member.member_id, group.leader, now_us)
            self.sessions.restart(group, member, "new_generation", now_us, request)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        sync = DelayedSync(
            group, OperationStart.derived(group, now_us), self._rebalance_timeout_ms(group), self.sync_expired
        )
        self._watch(sync, SyncKey(group.name))

    def assign(self, group: Group, now_us: int, leaders_sync: GroupRequest) -> None:
        """The leader's assignment has come: everybody who waits for it gets it, and the group is stable."""
        self._answer_syncs(group, "NONE", "assignment", now_us, leaders_sync)
        group.transition_to(GroupState.STABLE)
        self._journal.changed(group, GroupState.COMPLETING_REBALANCE, "leader's assignment", now_us)

    def _answer_syncs(
        self, group: Group, error: str, rule: str, now_us: int, leaders_sync: GroupRequest | None = None
    ) -> None:
        """Answer the waiting syncs. Sessions may have ended unnoticed meanwhile, so each starts anew."""
        for member in group.members.values():
            request = member.awaiting_sync
            if request is not None:
                member.awaiting_sync = None
                self._journal.answered(request, error, now_us)
                if request is leaders_sync:
                    self.sessions.renew(group, member, request)
                else:
                    self.sessions.restart(group, member, rule, now_us, request)

    def synced(self, group: Group, member_id: str, now_us: int) -> None:
        """One less to wait for in this generation."""
        group.pending_syncs.discard(member_id)
        self._purgatory.check_and_complete(SyncKey(group.name), now_us)

    def give_up_sync(self, group: Group, now_us: int) -> None:
        """The group is gone: nobody's sync is waited for."""
        self._purgatory.check_and_complete(SyncKey(group.name), now_us)

    def abandon(self, group: str, now_us: int) -> None:
        """The process is gone, and with it whatever was parked for the group."""
        self.sessions.abandon(group, now_us)
        self._purgatory.abandon(lambda key: key.group == group, now_us)

    # Members go.

    def remove_member(
        self, group: Group, member: Member, cause: str, reason: str, now_us: int, request: GroupRequest | None = None
    ) -> None:
        """A waiting join is told so, for its client may still be there; a waiting sync is never answered."""
        waiting = member.awaiting_join
        if waiting is not None:
            member.awaiting_join = None
            self._journal.answered(waiting, "UNKNOWN_MEMBER_ID", now_us, member_id="")
        group.remove(member.member_id)
        self._journal.removed(group, member.member_id, cause, now_us)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.check(group, now_us)
        else:
            self.maybe_prepare(group, reason, now_us, request)

    def remove_pending(self, group: Group, pending_id: str, cause: str, now_us: int) -> None:
        group.remove(pending_id)
        self._journal.removed(group, pending_id, cause, now_us)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.check(group, now_us)

    def _drop(self, group: Group, member_id: str, cause: str, now_us: int) -> None:
        """Remove somebody who missed a deadline, and end the session."""
        member = group.remove(member_id)
        if member is not None:
            self._journal.removed(group, member_id, cause, now_us)
            self.sessions.gone(group, member, "removed", now_us)

    def _session_failed(self, session: DelayedHeartbeat, now_us: int) -> None:
        group, member_id = session.group, session.member_id
        if isinstance(session, PendingHeartbeat):
            self.remove_pending(group, member_id, "pending", now_us)
        else:
            reason = f"session of {member_id} expired"
            self.remove_member(group, group.members[member_id], "session", reason, now_us)

    def sync_expired(self, group: Group, now_us: int) -> None:
        """The time for this generation's syncs is over."""
        missing = sorted(group.pending_syncs)
        for member_id in missing:
            self._drop(group, member_id, "sync", now_us)
        self.prepare(group, f"{', '.join(missing)} did not sync", now_us)

    # Operations.

    def _rebalance_timeout_ms(self, group: Group) -> int:
        """The greatest of all members'. The seeds' older rule: their session timeouts stand for it."""
        if self._config.rebalance_timeout == "session":
            return max((member.session_timeout_ms for member in group.members.values()), default=0)
        return max((member.rebalance_timeout_ms for member in group.members.values()), default=0)

    def _watch_join(self, join: DelayedJoin) -> None:
        self._watch(join, JoinKey(join.group.name))

    def _watch(self, operation: GroupOperation, key: JoinKey | SyncKey) -> None:
        self._journal.operations.append(operation)
        self._purgatory.try_complete_else_watch(operation, [key], operation.started_us)


def _transition_reason(ended: DelayedJoin) -> str:
    group = ended.group
    if not group.members:
        return "no members left"
    if ended.completed_by:
        return "all members joined"
    missing = sorted(member.member_id for member in group.not_yet_rejoined())
    if missing:
        return f"{', '.join(missing)} did not rejoin"
    if ended.kind == InitialDelayedJoin.kind:
        return "initial delay over"
    return f"{', '.join(sorted(group.pending_members))} did not join"

"""JoinGroup requests: each adds a member, assigns an id, starts or joins a rebalance, or is answered at once."""

from __future__ import annotations

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_requests import JoinGroup
from purgatory_udf.rules.coordinator.rebalance import Rebalancer


class JoinHandler:
    """Handles joins. It checks the group's size, then its protocols, then the member id, then the group's state."""

    def __init__(self, config: GroupConfig, rebalancer: Rebalancer, journal: GroupJournal) -> None:
        self._config = config
        self._rebalancer = rebalancer
        self._journal = journal

    def join(self, group: Group, request: JoinGroup) -> None:
        """Handle a join, and complete the group's join phase if no other join is missing."""
        now_us, member_id = request.time_us, request.member_id
        if not self._accepts_joining_member(group, member_id):
            if group.remove(member_id) is not None:
                self._journal.record_removal(group, member_id, "size", now_us)
            self._journal.record_answer(request, "GROUP_MAX_SIZE_REACHED", now_us, member_id="")
            if self._rebalancer.is_new:
                return
        elif not group.supports_protocols(request.protocols):
            self._journal.record_answer(request, "INCONSISTENT_GROUP_PROTOCOL", now_us)
        elif member_id == "":
            self._join_without_id(group, request)
        elif member_id in group.pending_members:
            self._join_with_pending_id(group, request)
        else:
            self._join_of_member(group, request)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancer.check_join(group, now_us)

    def _accepts_joining_member(self, group: Group, member_id: str) -> bool:
        """Return whether the group has room for the member (`acceptJoiningMember`).

        During a rebalance the members that have joined count, so a full group rejects the last ones to rejoin.
        """
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.awaiting_join is not None
            return waits or len(group.members_awaiting_join()) < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size

    # Members without an id, or with a pending id.

    def _join_without_id(self, group: Group, request: JoinGroup) -> None:
        old_id = group.static_member_id(request.instance_id) if request.instance_id is not None else None
        if old_id is not None:
            self._restart_static_member(group, old_id, request)
        elif request.requires_known_member_id:
            self._assign_member_id(group, request)
        else:
            self._add_member_and_rebalance(group, request, _new_member_id(group, request))

    def _assign_member_id(self, group: Group, request: JoinGroup) -> None:
        new_id = _new_member_id(group, request)
        group.pending_members.add(new_id)
        self._rebalancer.sessions.start_pending(group, new_id, request)
        self._journal.record_answer(request, "MEMBER_ID_REQUIRED", request.time_us, member_id=new_id)

    def _join_with_pending_id(self, group: Group, request: JoinGroup) -> None:
        if request.instance_id is not None:
            # A pending id never belongs to a static member. Kafka's handler throws, which becomes this error.
            self._journal.record_answer(request, "UNKNOWN_SERVER_ERROR", request.time_us)
            return
        self._add_member_and_rebalance(group, request, request.member_id)

    def _add_member_and_rebalance(self, group: Group, request: JoinGroup, member_id: str) -> None:
        """Add a member (`addMemberAndRebalance`). Until its first join is answered its session lasts five minutes."""
        now_us = request.time_us
        in_first_generation = group.generation == 0
        if group.state is GroupState.PREPARING_REBALANCE and (
            group.is_initial_rebalance if self._rebalancer.is_new else in_first_generation
        ):
            group.new_member_added = True
        member = Member.joining(request, member_id)
        group.add(member)
        self._rebalancer.sessions.start(group, member, request, self._config.new_member_timeout_ms)
        self._rebalancer.maybe_prepare_rebalance(group, f"member {member_id} joined", now_us, request)

    # Static members that restart: they have lost their id and get a new one.

    def _restart_static_member(self, group: Group, old_id: str, request: JoinGroup) -> None:
        """Replace the id of a static member (`updateStaticMemberAndRebalance`).

        A rebalance is needed only if the leader may be computing an assignment for the old id, or if the group's
        protocol changes.
        """
        now_us, new_id, leader_before = request.time_us, _new_member_id(group, request), group.leader
        member = self._replace(group, old_id, new_id, now_us)
        self._rebalancer.sessions.start(group, member, request, member.session_timeout_ms)
        member.update(request)
        reason = f"static member {request.instance_id} restarted as {new_id}"
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rebalancer.prepare_rebalance(group, reason, now_us, request)
        elif group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
            member.awaiting_join = None
            # An older client that finds itself named as the leader would compute an assignment that is not needed.
            leader = group.leader if request.supports_skipping_assignment else leader_before
            self._rebalancer.record_write(group, now_us)
            self._journal.record_join(request, group, new_id, leader, now_us, awaits_commits=True)
        elif group.state is GroupState.STABLE:
            self._rebalancer.prepare_rebalance(group, reason, now_us, request)

    def _replace(self, group: Group, old_id: str, new_id: str, now_us: int) -> Member:
        """Give a static member the id `new_id`, and return the member.

        The waiting requests of its former process, with `old_id`, are answered FENCED_INSTANCE_ID.
        """
        member = group.replace_static_member(old_id, new_id)
        for waiting in (member.awaiting_join, member.awaiting_sync):
            if waiting is not None:
                self._journal.record_answer(waiting, "FENCED_INSTANCE_ID", now_us, member_id=old_id)
        member.awaiting_join = member.awaiting_sync = None
        self._journal.record_removal(group, old_id, "replaced", now_us)
        return member

    # Members with an id.

    def _join_of_member(self, group: Group, request: JoinGroup) -> None:
        error = group.validate_member(request.member_id, request.instance_id)
        if error is not None:
            self._journal.record_answer(request, error, request.time_us)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            member.update(request)
        elif group.state is GroupState.STABLE and group.leader == member.member_id:
            # The leader rejoins to trigger a new assignment, for example after the topics have changed.
            self._update_member_and_rebalance(group, member, request, f"leader {member.member_id} joined again")
        elif member.protocols != request.protocols:
            self._update_member_and_rebalance(
                group, member, request, f"member {member.member_id} changed its protocols"
            )
        else:
            # The answer to the member's last join may have been lost.
            self._journal.record_join(request, group, member.member_id, group.leader, request.time_us)

    def _update_member_and_rebalance(self, group: Group, member: Member, request: JoinGroup, reason: str) -> None:
        member.update(request)
        self._rebalancer.prepare_rebalance(group, reason, request.time_us, request)


def _new_member_id(group: Group, request: JoinGroup) -> str:
    """Return the recorded id, or one derived from client id and `seq` if none is recorded or the group uses it."""
    recorded = request.assigned_member_id
    if recorded and recorded not in group.members and recorded not in group.pending_members:
        return recorded
    return request.derived_member_id

"""What a join_group leads to: a new member, a new id for it, a round, or the current generation once more."""

from __future__ import annotations

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_requests import JoinGroup
from purgatory_udf.rules.coordinator.rebalance import Rebalancer


class JoinHandler:
    """Asks, in this order: is there room, is there a common protocol, who is it, and what does the state make of it?"""

    def __init__(self, config: GroupConfig, rounds: Rebalancer, journal: GroupJournal) -> None:
        self._config = config
        self._rounds = rounds
        self._journal = journal

    def join(self, group: Group, request: JoinGroup) -> None:
        now_us, member_id = request.time_us, request.member_id
        if not self._has_room(group, member_id):
            if group.remove(member_id) is not None:
                self._journal.removed(group, member_id, "size", now_us)
            self._journal.answered(request, "GROUP_MAX_SIZE_REACHED", now_us, member_id="")
        elif not group.supports(request.protocols):
            self._journal.answered(request, "INCONSISTENT_GROUP_PROTOCOL", now_us)
        elif member_id == "":
            self._join_without_id(group, request)
        elif member_id in group.pending_members:
            self._join_with_new_id(group, request)
        else:
            self._join_again(group, request)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rounds.check(group, now_us)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """During a round those count who have come: so the last to come back find a full group, not the first."""
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.awaiting_join is not None
            return waits or len(group.waiting_in_join()) < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size

    # A member without an id, or with one that it was just given.

    def _join_without_id(self, group: Group, request: JoinGroup) -> None:
        old_id = group.static_member_id(request.instance_id) if request.instance_id is not None else None
        if old_id is not None:
            self._restart_static(group, old_id, request)
        elif request.must_ask_for_an_id:
            self._give_an_id(group, request)
        else:
            self._add(group, request, _new_member_id(group, request))

    def _give_an_id(self, group: Group, request: JoinGroup) -> None:
        new_id = _new_member_id(group, request)
        group.pending_members.add(new_id)
        self._rounds.sessions.expect(group, new_id, request)
        self._journal.answered(request, "MEMBER_ID_REQUIRED", request.time_us, member_id=new_id)

    def _join_with_new_id(self, group: Group, request: JoinGroup) -> None:
        if request.instance_id is not None:
            # A pending id cannot be a static member's. Kafka's handler throws here, and the client is told just that.
            self._journal.answered(request, "UNKNOWN_SERVER_ERROR", request.time_us)
            return
        self._add(group, request, request.member_id)

    def _add(self, group: Group, request: JoinGroup, member_id: str) -> None:
        """A new member has five minutes until its first join is answered, instead of its session."""
        now_us = request.time_us
        if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
            group.new_member_added = True
        member = Member.joining(request, member_id)
        group.add(member)
        self._rounds.sessions.begin(group, member, request, self._config.new_member_timeout_ms)
        self._rounds.maybe_prepare(group, f"member {member_id} joined", now_us, request)

    # A static member that restarts: it has lost its id, and gets a new one.

    def _restart_static(self, group: Group, old_id: str, request: JoinGroup) -> None:
        """Its place is kept. Only where its old id may be on its way to the leader already is there another round."""
        now_us, new_id, leader_before = request.time_us, _new_member_id(group, request), group.leader
        member = self._replace(group, old_id, new_id, now_us)
        self._rounds.sessions.begin(group, member, request, member.session_timeout_ms)
        member.update(request)
        reason = f"static member {request.instance_id} restarted as {new_id}"
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rounds.prepare(group, reason, now_us, request)
        elif group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
            member.awaiting_join = None
            # An older client that reads its own id as the leader's would compute an assignment which nobody asks for.
            leader = group.leader if request.can_skip_assignment else leader_before
            self._journal.joined(request, group, new_id, leader, now_us)
        elif group.state is GroupState.STABLE:
            self._rounds.prepare(group, reason, now_us, request)

    def _replace(self, group: Group, old_id: str, new_id: str, now_us: int) -> Member:
        """Fence the old process: whatever it waits for is answered so."""
        member = group.replace_static(old_id, new_id)
        for waiting in (member.awaiting_join, member.awaiting_sync):
            if waiting is not None:
                self._journal.answered(waiting, "FENCED_INSTANCE_ID", now_us, member_id=old_id)
        member.awaiting_join = member.awaiting_sync = None
        self._journal.removed(group, old_id, "replaced", now_us)
        return member

    # A member that has its id.

    def _join_again(self, group: Group, request: JoinGroup) -> None:
        error = group.refuses(request.member_id, request.instance_id)
        if error is not None:
            self._journal.answered(request, error, request.time_us)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            member.update(request)
        elif group.state is GroupState.STABLE and group.leader == member.member_id:
            # So the leader has a way to ask for a new assignment, when topics have changed for example.
            self._rebalance(group, member, request, f"leader {member.member_id} joined again")
        elif member.protocols != request.protocols:
            self._rebalance(group, member, request, f"member {member.member_id} changed its protocols")
        else:
            # Perhaps the answer to its last join was lost.
            self._journal.joined(request, group, member.member_id, group.leader, request.time_us)

    def _rebalance(self, group: Group, member: Member, request: JoinGroup, reason: str) -> None:
        member.update(request)
        self._rounds.prepare(group, reason, request.time_us, request)


def _new_member_id(group: Group, request: JoinGroup) -> str:
    """The recorded id, else (or where the group has given that id already) one that every replay of the trace makes."""
    recorded = request.assigned_member_id
    if recorded and recorded not in group.members and recorded not in group.pending_members:
        return recorded
    return f"{request.client_id or 'consumer'}-{request.seq}"

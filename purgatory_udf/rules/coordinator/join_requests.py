"""How members enter a classic group: by JoinGroup requests, or with a group that moves from another coordinator.

A JoinGroup request adds a member, assigns an id, starts or joins a rebalance, or is answered at once.

A group moves if its partition of the offsets topic gets another leader.

Kafka: `GroupCoordinator.onGroupUnloaded`, `GroupCoordinator.onGroupLoaded`, `GroupMetadata.loadGroup`.

    old broker   Stable ──unloaded──► Dead: requests, and joins and syncs that wait, are answered NOT_COORDINATOR
    new broker                         Dead ──loaded──► Stable, with the members from the log and new sessions

Operations at the old broker stay in its purgatories: sessions complete at their deadlines, by `unloaded`, without
effect, and a join expires at its deadline without effect. A pending id is dropped at once; Kafka drops it at its
deadline.

If the old broker's process stops, its operations end by `broker_stopped`, including those of groups that it had
unloaded before. Their requests are never answered (`DelayedOperationPurgatory.shutdown`).
"""

from __future__ import annotations

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_requests import GroupLoaded, GroupStopped, GroupUnloaded, JoinGroup
from purgatory_udf.rules.coordinator.rebalance import Rebalancer

NOT_COORDINATOR = "NOT_COORDINATOR"
UNLOADED, STOPPED = "unloaded", "stopped"


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
            # The number of members is compared first, because counting the waiting ones takes a scan.
            most = self._config.max_size
            return waits or len(group.members) < most or len(group.members_awaiting_join()) < most
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


class GroupLoader:
    """Loads and unloads groups. `groups` is the coordinator's own dictionary and is modified in place."""

    def __init__(
        self, broker: int, config: GroupConfig, groups: dict[str, Group], rebalancer: Rebalancer, journal: GroupJournal
    ) -> None:
        self._broker, self._config, self._groups = broker, config, groups
        self._rebalancer, self._journal = rebalancer, journal

    def unload(self, event: GroupUnloaded) -> None:
        """Make the group Dead and answer its waiting requests NOT_COORDINATOR. An unknown group is recorded as Dead."""
        now_us, group = event.time_us, self._groups.get(event.group)
        if group is None:
            self._replace_group(event.group)
            return
        if group.state is GroupState.DEAD:
            return
        from_state = group.state
        group.transition_to(GroupState.DEAD)
        self._journal.record_transition(group, from_state, UNLOADED, now_us)
        for member in group.members.values():
            for waiting in (member.awaiting_join, member.awaiting_sync):
                if waiting is not None:
                    self._journal.record_answer(waiting, NOT_COORDINATOR, now_us)
            member.awaiting_join = member.awaiting_sync = None
            # The session is not checked now: it completes by this rule at its deadline, or when the group is loaded.
            member.liveness_signal = UNLOADED
        for pending_id in sorted(group.pending_members):
            group.pending_members.discard(pending_id)
            self._rebalancer.sessions.complete_pending(group, pending_id, now_us)
        group.pending_syncs.clear()
        self._rebalancer.check_sync(group, now_us)

    def stop(self, event: GroupStopped) -> None:
        """Abandon the group's operations, those of earlier unloads included, and replace the group by a Dead one."""
        now_us, group = event.time_us, self._groups.get(event.group)
        if group is not None and group.state is not GroupState.DEAD:
            from_state = group.state
            group.transition_to(GroupState.DEAD)
            self._journal.record_transition(group, from_state, STOPPED, now_us)
        self._rebalancer.abandon(event.group, now_us)
        self._replace_group(event.group)

    def load(self, event: GroupLoaded) -> None:
        """Load one member. The first event of a load creates the group; an event without a member loads it empty.

        All events of one load have the same time. Events for a group that is already loaded are ignored.
        """
        group = self._groups.get(event.group)
        if group is None or group.state is GroupState.DEAD:
            group = self._replace_group(event.group)
            group.generation, group.loaded_us = event.generation, event.time_us
            group.state = GroupState.STABLE if event.member_id else GroupState.EMPTY
            if event.member_id:
                self._add(group, event)
            self._journal.record_transition(group, GroupState.DEAD, "loaded", event.time_us)
        elif event.time_us != group.loaded_us or event.member_id in ("", *group.members, *group.pending_members):
            return
        else:
            self._add(group, event)
            self._journal.record_loaded_member(group)
        if event.member_id:
            self._rebalancer.sessions.renew(group, group.members[event.member_id], event)
        if len(group.members) > self._config.max_size and group.state is GroupState.STABLE:
            self._rebalancer.prepare_rebalance(group, "loaded with more members than it may have", event.time_us)

    def _add(self, group: Group, event: GroupLoaded) -> None:
        member = Member(
            event.member_id,
            event.instance_id,
            event.client_id,
            # A group is loaded as a whole: no session may expire before the last member has been loaded.
            max(1, event.session_timeout_ms),
            event.rebalance_timeout_ms,
            event.protocols,
        )
        group.restore_member(member)
        group.leader = event.leader_member_id or group.leader or event.member_id
        group.protocol = group.select_protocol() if group.supports_protocols(event.protocols) else group.protocol

    def _replace_group(self, name: str) -> Group:
        """Create a Dead group in place of the former one. Its derived ids continue, so that no id is used twice."""
        group, former = Group(self._broker, name), self._groups.get(name)
        group.derived_operations = former.derived_operations if former is not None else 0
        group.state = GroupState.DEAD
        self._groups[name] = group
        return group

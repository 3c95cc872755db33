"""A group that moves to another coordinator, because its partition of the offsets topic has another leader.

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
from purgatory_udf.rules.coordinator.group_requests import GroupLoaded, GroupStopped, GroupUnloaded
from purgatory_udf.rules.coordinator.rebalance import Rebalancer

NOT_COORDINATOR = "NOT_COORDINATOR"
UNLOADED, STOPPED = "unloaded", "stopped"


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
            is_new=False,
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

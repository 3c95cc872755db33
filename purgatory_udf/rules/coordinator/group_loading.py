"""A group that moves: its partition of the coordinators' log has another leader now (Kafka: `onGroupUnloaded`,
`onGroupLoaded` of `GroupCoordinator`; `GroupMetadata.loadGroup`).

    old broker   Stable ──unloaded──► Dead: requests are answered NOT_COORDINATOR, waiting joins and syncs as well
    new broker                         Dead ──loaded──► Stable, with the members that the log has: sessions start anew

What was parked at the old broker stays there for its time: sessions end at their deadlines, by `unloaded`, and nothing
follows; a round that was under way ends at its deadline, with nobody. (An id that was given and not used yet is
forgotten at once, which in Kafka happens at its deadline.)

If the old broker's process ends (`DelayedOperationPurgatory.shutdown` completes nothing), what is parked there is gone
with it, of a group that it had given away before as well: each operation ends by `broker_stopped`, and nobody is
answered.
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
    """`groups` are the coordinator's own."""

    def __init__(
        self, broker: int, config: GroupConfig, groups: dict[str, Group], rounds: Rebalancer, journal: GroupJournal
    ) -> None:
        self._broker, self._config, self._groups = broker, config, groups
        self._rounds, self._journal = rounds, journal

    def unload(self, event: GroupUnloaded) -> None:
        """Of a group that never was here, only that it is not."""
        now_us, group = event.time_us, self._groups.get(event.group)
        if group is None:
            self._new(event.group)
            return
        if group.state is GroupState.DEAD:
            return
        from_state = group.state
        group.transition_to(GroupState.DEAD)
        self._journal.changed(group, from_state, UNLOADED, now_us)
        for member in group.members.values():
            for waiting in (member.awaiting_join, member.awaiting_sync):
                if waiting is not None:
                    self._journal.answered(waiting, NOT_COORDINATOR, now_us)
            member.awaiting_join = member.awaiting_sync = None
            # Its session is not told: it ends by this when its time is over, or when the group comes back.
            member.sign_of_life = UNLOADED
        for pending_id in sorted(group.pending_members):
            group.pending_members.discard(pending_id)
            self._rounds.sessions.forget(group, pending_id, now_us)
        group.pending_syncs.clear()
        self._rounds.give_up_sync(group, now_us)

    def stop(self, event: GroupStopped) -> None:
        """Of a group that was Dead already, what it left behind goes."""
        now_us, group = event.time_us, self._groups.get(event.group)
        if group is not None and group.state is not GroupState.DEAD:
            from_state = group.state
            group.transition_to(GroupState.DEAD)
            self._journal.changed(group, from_state, STOPPED, now_us)
        self._rounds.abandon(event.group, now_us)
        self._new(event.group)

    def load(self, event: GroupLoaded) -> None:
        """One member more; the first of them brings the group, or an event of none, which says that it is empty. All
        events of one load have one time; a group that is here already is not loaded."""
        group = self._groups.get(event.group)
        if group is None or group.state is GroupState.DEAD:
            group = self._new(event.group)
            group.generation, group.loaded_us = event.generation, event.time_us
            group.state = GroupState.STABLE if event.member_id else GroupState.EMPTY
            if event.member_id:
                self._add(group, event)
            self._journal.changed(group, GroupState.DEAD, "loaded", event.time_us)
        elif event.time_us != group.loaded_us or event.member_id in ("", *group.members, *group.pending_members):
            return
        else:
            self._add(group, event)
        if event.member_id:
            self._rounds.sessions.renew(group, group.members[event.member_id], event)
        if len(group.members) > self._config.max_size and group.state is GroupState.STABLE:
            self._rounds.prepare(group, "loaded with more members than it may have", event.time_us)

    def _add(self, group: Group, event: GroupLoaded) -> None:
        member = Member(
            event.member_id,
            event.instance_id,
            event.client_id,
            # A group is loaded as a whole: no session ends before the last member is there.
            max(1, event.session_timeout_ms),
            event.rebalance_timeout_ms,
            event.protocols,
            is_new=False,
        )
        group.take_back(member)
        group.leader = event.leader_member_id or group.leader or event.member_id
        group.protocol = group.select_protocol() if group.supports(event.protocols) else group.protocol

    def _new(self, name: str) -> Group:
        """In place of the one before, of which only its count of operations goes on: no id may be given twice."""
        group, before = Group(self._broker, name), self._groups.get(name)
        group.operations_begun = before.operations_begun if before is not None else 0
        group.state = GroupState.DEAD
        self._groups[name] = group
        return group

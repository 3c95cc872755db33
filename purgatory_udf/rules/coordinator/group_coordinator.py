"""The classic group coordinator of Kafka 3.9, the last version in which it uses purgatories.

| event | Empty | PreparingRebalance | CompletingRebalance | Stable |
|---|---|---|---|---|
| join, no id (v4+, dynamic) | MEMBER_ID_REQUIRED | same; delays the join | same | same |
| join, new or pending id | add; initial join | add; check | add; rebalance | add; rebalance |
| join, known id | UNKNOWN_MEMBER_ID | wait; check | A), else generation | A) or B), else generation |
| join, no id, known instance | – | new id; wait | new id; rebalance | new id; C), else generation |
| sync | UNKNOWN_MEMBER_ID | REBALANCE_IN_PROGRESS | wait; leader's: all, → Stable | assignment; renew |
| heartbeat | UNKNOWN_MEMBER_ID | renew; REBALANCE_IN_PROGRESS | renew | renew |
| offset commit | D) | renew; stored | REBALANCE_IN_PROGRESS | renew; stored |
| leave, session expiration | UNKNOWN_MEMBER_ID | remove; check | remove; rebalance | remove; rebalance |

A) The member's protocols have changed: rebalance. B) The member is the leader: rebalance. C) The group's protocol would
change: rebalance. D) Stored if the commit names no generation. *Generation*: answered at once with the current one.
*Check*: whether all members have joined. *Renew*: "complete and schedule next", the session completes and the next one
starts.

Operations
----------
The operations in the purgatories are not the requests, but the phases for which requests wait. The tables list them:

- `initial_join` starts with the first join of an empty group, and with each extension. It always expires, at the end of
  its window.
- `join` starts with any other rebalance, and again if no member rejoined. It is completed by `all_joined` or
  `no_members`. When it expires, members that have not rejoined are removed.
- `sync` starts with a generation. It is completed by `all_synced`, or by `rebalance` when another rebalance starts.
  When it expires, members that have not synced are removed.
- `heartbeat`, a session, starts with a request that proves the member alive, with the answer to a waiting request, or
  with an assigned id. It is completed by the next such request (the API's name), by such an answer (`new_generation`,
  `assignment`, `rebalance`), or because no heartbeat is due at its deadline (`awaiting_join`, `awaiting_sync`,
  `replaced`, `removed`). When it expires, its member has failed, or the assigned id is dropped.

A group that another broker coordinates is Dead at this one: see `join_requests`.

A member's waiting request is not an operation. Its wait is recorded in its `Answer`.

Ids
---
The `operation_id` is the `seq` of a request in two cases: for the session started by a heartbeat, a commit, a sync that
is answered at once (the leader's included) or an assigned id, and for the rebalance started by a join or leave. No
request starts both. Every other operation has a negative id: see `Group.next_derived_operation_id`.

Ties
----
Everything due at or before a request's millisecond happens before the request. Within a millisecond sessions expire
before joins and syncs do, and sessions expire in the order in which they were started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.consumer_group import ConsumerGroup, ConsumerMember
from purgatory_udf.rules.coordinator.consumer_group_coordinator import ConsumerCoordinator, invalid_heartbeat
from purgatory_udf.rules.coordinator.coordinator_journal import NONE, Answer, GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import CoordinatorTimer
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_requests import (
    ConsumerHeartbeat,
    GroupLoaded,
    GroupRequest,
    GroupStopped,
    GroupUnloaded,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
    group_request,
)
from purgatory_udf.rules.coordinator.join_requests import NOT_COORDINATOR, GroupLoader, JoinHandler
from purgatory_udf.rules.coordinator.online_migration import classic_group_of, consumer_group_of
from purgatory_udf.rules.coordinator.rebalance import Rebalancer
from purgatory_udf.rules.purgatory.clock import Clock

GROUP_LIFECYCLE_EVENTS = (GroupLoaded, GroupUnloaded, GroupStopped)


class GroupCoordinator:
    """All groups of one broker. The caller advances the clock to a request's time before it applies the request."""

    def __init__(
        self,
        broker: int,
        clock: Clock,
        config: GroupConfig,
        journal: GroupJournal,
        is_new: bool = False,
        topics: ClusterTopics | None = None,
    ) -> None:
        self.is_new = is_new
        self.groups: dict[str, Group] = {}
        self._broker = broker
        self._config = config
        self._journal = journal
        timer = CoordinatorTimer() if is_new else None
        self.rebalancer = Rebalancer(broker, clock, config, journal, timer)
        self.consumers: ConsumerCoordinator | None = None
        if timer is not None:
            self.consumers = ConsumerCoordinator(
                {}, config, topics or ClusterTopics(), timer, journal, self._become_classic
            )
        self._joins = JoinHandler(config, self.rebalancer, journal)
        self._loader = GroupLoader(broker, config, self.groups, self.rebalancer, journal)

    def handle(self, request: GroupRequest) -> None:
        """Apply a request. Its answer is recorded in the journal, now or at the end of its wait."""
        if request.group == "" and not isinstance(request, OffsetCommit):
            # Kafka accepts offset commits without a group name for compatibility with very old clients.
            self._answer(request, "INVALID_GROUP_ID")
            return
        group = self.groups.get(request.group)
        if group is not None and group.state is GroupState.DEAD and not isinstance(request, GROUP_LIFECYCLE_EVENTS):
            self._answer(request, NOT_COORDINATOR)
            return
        if self.consumers is not None and self._handle_as_consumer_group(request, self.consumers):
            return
        match request:
            case JoinGroup():
                self._join(request)
            case SyncGroup():
                self._sync(request)
            case Heartbeat():
                self._heartbeat(request)
            case OffsetCommit():
                self._commit(request)
            case LeaveGroup():
                self._leave(request)
            case GroupLoaded():
                self._loader.load(request)
            case GroupUnloaded():
                self._loader.unload(request)
            case GroupStopped():
                self._loader.stop(request)
            case ConsumerHeartbeat():
                # The old coordinator does not know the consumer protocol.
                self._answer(request, "UNSUPPORTED_VERSION")

    # Consumer groups.

    def _handle_as_consumer_group(self, request: GroupRequest, consumers: ConsumerCoordinator) -> bool:
        """Apply a request to a consumer group, which it may create. Return False if the group is a classic group."""
        group = consumers.groups.get(request.group)
        if isinstance(request, GROUP_LIFECYCLE_EVENTS):
            if group is not None:
                consumers.drop(group, request.time_us)
            return False
        if isinstance(request, ConsumerHeartbeat):
            error = invalid_heartbeat(request)
            if error is None and group is None:
                group, error = self._consumer_group_for(request)
            if group is None or error is not None:
                self._answer(request, error)
                return True
        elif group is not None and not group.members and isinstance(request, JoinGroup):
            # An empty consumer group gives way to a classic one.
            del consumers.groups[request.group]
            return False
        if group is None:
            return False
        consumers.handle(request, group)
        return True

    def _consumer_group_for(self, request: ConsumerHeartbeat) -> tuple[ConsumerGroup | None, str | None]:
        """Return (group, None) for the consumer group that a first heartbeat creates, or converts from a classic one.

        Returns (None, error) if the coordinator refuses the heartbeat.
        """
        classic = self.groups.get(request.group)
        if request.member_epoch != 0:
            return None, "GROUP_ID_NOT_FOUND"
        if classic is None or classic.state is GroupState.EMPTY:
            group = ConsumerGroup(self._broker, request.group)
            if classic is not None:
                group.derived_operations = classic.derived_operations
                self._convert(classic, request.time_us)
            return group, None
        if len(classic.members) > self._config.consumer.max_size:
            return None, "GROUP_ID_NOT_FOUND"
        self._convert(classic, request.time_us)
        group = consumer_group_of(classic)
        assert self.consumers is not None, "only the new coordinator has consumer groups"
        self.consumers.adopt(group, request)
        return group, None

    def _convert(self, classic: Group, now_us: int) -> None:
        """End a classic group that becomes a consumer group."""
        self.rebalancer.end_for_conversion(classic, now_us)
        del self.groups[classic.name]
        self._journal.record_conversion(classic, "consumer", now_us)

    def _become_classic(self, group: ConsumerGroup, gone_id: str, joining: ConsumerMember | None, now_us: int) -> None:
        """Continue a consumer group as a classic one, which rebalances unless a static member took over.

        `gone_id` is the member that left, or that the static member `joining` replaces.
        """
        classic = classic_group_of(group, gone_id, joining)
        self.groups[group.name] = classic
        self._journal.record_conversion(classic, "classic", now_us)
        for member in classic.members.values():
            self.rebalancer.sessions.restart(classic, member, "converted", now_us, None)
        if joining is None:
            self.rebalancer.prepare_rebalance(classic, "last member of the consumer protocol left", now_us)

    # Classic groups.

    def _join(self, request: JoinGroup) -> None:
        """Handle a join. A group is created only for a member without an id."""
        shortest, longest = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            self._answer(request, "INVALID_SESSION_TIMEOUT")
            return
        group = self.groups.get(request.group)
        if group is None and request.member_id == "":
            group = self._add_group(request.group)
            self.rebalancer.record_write(group, request.time_us)
        if group is None:
            self._answer(request, "UNKNOWN_MEMBER_ID")
        else:
            self._joins.join(group, request)

    def _sync(self, request: SyncGroup) -> None:
        group, error = self._validate(request)
        if group is None or error is not None:
            self._answer(request, error)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            self._answer(request, "REBALANCE_IN_PROGRESS")
        elif group.state is GroupState.COMPLETING_REBALANCE:
            member.awaiting_sync = request
            self.rebalancer.remove_pending_sync(group, member.member_id, request.time_us)
            if group.leader == member.member_id:
                self.rebalancer.commit_assignment(group, request)
        else:
            self.rebalancer.remove_pending_sync(group, member.member_id, request.time_us)
            self._answer(request)
            if not self.is_new:
                self.rebalancer.sessions.renew(group, member, request)

    def _heartbeat(self, request: Heartbeat) -> None:
        group, error = self._validate(request)
        if group is None or error is not None:
            self._answer(request, error)
            return
        self.rebalancer.sessions.renew(group, group.members[request.member_id], request)
        error = "REBALANCE_IN_PROGRESS" if group.state is GroupState.PREPARING_REBALANCE else NONE
        self._answer(request, error, awaits_commits=True)

    def _commit(self, request: OffsetCommit) -> None:
        group = self.groups.get(request.group)
        if group is None and request.generation < 0:
            group = self._add_group(request.group)
        if group is None:
            # The sender names a generation of a group that this coordinator does not have.
            self._answer(request, "ILLEGAL_GENERATION")
        elif request.generation < 0 and group.state is GroupState.EMPTY:
            # The sender assigns its partitions itself and uses the group only to store offsets.
            self._store_offsets(group, request)
        else:
            self._commit_of_member(request)

    def _commit_of_member(self, request: OffsetCommit) -> None:
        group, error = self._validate(request)
        if group is None or error is not None:
            self._answer(request, error)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # The member has received the answer to its join and should sync first.
            self._answer(request, "REBALANCE_IN_PROGRESS")
        else:
            self.rebalancer.sessions.renew(group, group.members[request.member_id], request)
            self._store_offsets(group, request)

    def _store_offsets(self, group: Group, request: OffsetCommit) -> None:
        self.rebalancer.record_write(group, request.time_us)
        self._answer(request, awaits_commits=True)

    def _leave(self, request: LeaveGroup) -> None:
        """Handle a leave. An administrator may remove a static member by its instance id only."""
        group = self.groups.get(request.group)
        if group is None:
            self._answer(request, "UNKNOWN_MEMBER_ID")
            return
        member_id = request.member_id
        if member_id == "" and request.instance_id is not None:
            member_id = group.static_member_id(request.instance_id) or ""
        if member_id in group.pending_members:
            self.rebalancer.remove_pending_member(group, member_id, "leave", request.time_us, request)
            self._answer(request, awaits_commits=True)
            return
        error = group.validate_member(member_id, request.instance_id)
        if error is None:
            self._remove(group, member_id, request)
        self._answer(request, error, awaits_commits=True)

    def _remove(self, group: Group, member_id: str, request: LeaveGroup) -> None:
        member = group.members[member_id]
        self.rebalancer.remove_member(group, member, "leave", f"member {member_id} left", request.time_us, request)
        self.rebalancer.sessions.complete_removed(group, member, request.api, request.time_us)

    def _validate(self, request: GroupRequest) -> tuple[Group | None, str | None]:
        """Return (group, error): the error is None if the sender is a member of the group's current generation.

        The group is None if it is unknown.
        """
        group = self.groups.get(request.group)
        if group is None:
            return None, "UNKNOWN_MEMBER_ID"
        error = group.validate_member(request.member_id, request.instance_id)
        if error is None and request.generation != group.generation:
            error = "ILLEGAL_GENERATION"
        return group, error

    def _add_group(self, name: str) -> Group:
        group = self.groups[name] = Group(self._broker, name)
        return group

    def _answer(self, request: GroupRequest, error: str | None = None, awaits_commits: bool = False) -> None:
        self._journal.record_answer(request, error or NONE, request.time_us, awaits_commits=awaits_commits)


class Coordinators:
    """The group coordinators of a cluster, on one clock. Groups of the same name at two brokers are independent."""

    def __init__(self, clock: Clock, config: GroupConfig, topics: ClusterTopics | None = None) -> None:
        self._topics = topics
        self.journal = GroupJournal()
        self._clock = clock
        self._config = config
        self._coordinators: dict[tuple[int, bool], GroupCoordinator] = {}
        self._has_new: dict[tuple[int, str], bool] = {}

    def handle(self, event: Mapping[str, Any], respond: Callable[[Answer], None] | None = None) -> None:
        """Apply an event of one of `GROUP_EVENTS`. `respond` is called with the answer: at once, later, or never."""
        request = group_request(event, self._config, respond)
        broker, group = request.broker, request.group
        is_new = self._has_new.setdefault((broker, group), has_new_coordinator(event, self._config))
        coordinator = self._coordinators.get((broker, is_new))
        if coordinator is None:
            coordinator = GroupCoordinator(broker, self._clock, self._config, self.journal, is_new, self._topics)
            self._coordinators[broker, is_new] = coordinator
        coordinator.handle(request)


def has_new_coordinator(first: Mapping[str, Any], config: GroupConfig) -> bool:
    """Return whether a group belongs to the new coordinator: by the configuration, or by its first event."""
    if config.coordinator is not None:
        return config.coordinator == "new"
    recorded = first.get("coordinator")
    return recorded == "new" if recorded else bool(first["type"] == ConsumerHeartbeat.api)

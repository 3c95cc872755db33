"""The classic group coordinator of Kafka 3.9, the last one that waits in purgatories.

| event | Empty | PreparingRebalance | CompletingRebalance | Stable |
|---|---|---|---|---|
| join, no id (v4+, dynamic) | MEMBER_ID_REQUIRED | same; holds the round | same | same |
| join, new or pending id | add; initial round | add; check | add; new round | add; new round |
| join, known id | UNKNOWN_MEMBER_ID | wait; check | A), else generation | A) or B), else generation |
| join, no id, known instance | – | new id; wait | new id; new round | new id; C), else generation |
| sync | UNKNOWN_MEMBER_ID | REBALANCE_IN_PROGRESS | wait; leader's: all, → Stable | assignment; renew |
| heartbeat | UNKNOWN_MEMBER_ID | renew; REBALANCE_IN_PROGRESS | renew | renew |
| offset commit | D) | renew; stored | REBALANCE_IN_PROGRESS | renew; stored |
| leave, session expiry | UNKNOWN_MEMBER_ID | remove; check | remove; new round | remove; new round |

A) its protocols have changed: new round. B) it is the leader: new round. C) the group's protocol would change: new
round. D) stored if it names no generation. *Generation*: answered at once with the current one. *Check*: whether nobody
is missing in the round any more. *Renew*: "complete and schedule next", the session ends and the next begins.

Operations
----------
What waits in the purgatories are not requests but what requests wait for, and that is what the tables list:

- `initial_join` begins with the first join of an empty group, and with each extension. It always expires: at the end of
  its window.
- `join` begins with any other round, and again if nobody came back. It is completed by `all_joined` or `no_members`.
  When it expires, members that have not rejoined are out.
- `sync` begins with a generation. It is completed by `all_synced` or `rebalance` (another round); when it expires,
  members that have not synced are out.
- `heartbeat`, a session, begins with a sign of life, with an answer that was waited for, or with an id given. It is
  completed by the next sign of life (the api's name), by such an answer (`new_generation`, `assignment`, `rebalance`),
  or because nobody needs it (`awaiting_join`, `awaiting_sync`, `replaced`, `removed`). When it expires, its member has
  failed, or the id is forgotten.

A group that another broker coordinates is Dead here: see `moves`.

The request that a member waits with is not an operation; that it waited, and how long, is in its `Answer`.

Ids
---
`operation_id` is the `seq` of the request that begins the operation for itself: the session of whoever sends a
heartbeat, a commit or a sync (the leader's, or one that is answered at once), or is given an id; the round of whoever
joins or leaves. No request begins two of these. Every other operation has a negative id: see
`Group.derived_operation_id`.

Ties
----
Everything due at or before a request's millisecond has happened before it. In one millisecond sessions end before
rounds and syncs do, and among themselves in the order in which they were armed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import NONE, Answer, GroupJournal
from purgatory_udf.rules.coordinator.group_loading import NOT_COORDINATOR, GroupLoader
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_requests import (
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
from purgatory_udf.rules.coordinator.join_requests import JoinHandler
from purgatory_udf.rules.coordinator.rebalance import Rebalancer
from purgatory_udf.rules.purgatory.clock import Clock

GROUP_LIFECYCLE_EVENTS = (GroupLoaded, GroupUnloaded, GroupStopped)


class GroupCoordinator:
    """All groups of one broker. Whoever applies a request moves the clock to its time first."""

    def __init__(self, broker: int, clock: Clock, config: GroupConfig, journal: GroupJournal) -> None:
        self.groups: dict[str, Group] = {}
        self._broker = broker
        self._config = config
        self._journal = journal
        self.rounds = Rebalancer(broker, clock, config, journal)
        self._joins = JoinHandler(config, self.rounds, journal)
        self._moves = GroupLoader(broker, config, self.groups, self.rounds, journal)

    def handle(self, request: GroupRequest) -> None:
        if request.group == "" and not isinstance(request, OffsetCommit):
            # Offsets may be stored under no name, for the sake of very old clients.
            self._answer(request, "INVALID_GROUP_ID")
            return
        group = self.groups.get(request.group)
        if group is not None and group.state is GroupState.DEAD and not isinstance(request, GROUP_LIFECYCLE_EVENTS):
            self._answer(request, NOT_COORDINATOR)
            return
        match request:
            case GroupLoaded():
                self._moves.load(request)
            case GroupUnloaded():
                self._moves.unload(request)
            case GroupStopped():
                self._moves.stop(request)
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

    def _join(self, request: JoinGroup) -> None:
        """Only a member without an id can make a group."""
        shortest, longest = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            self._answer(request, "INVALID_SESSION_TIMEOUT")
            return
        group = self.groups.get(request.group)
        if group is None and request.member_id == "":
            group = self._add_group(request.group)
        if group is None:
            self._answer(request, "UNKNOWN_MEMBER_ID")
        else:
            self._joins.join(group, request)

    def _sync(self, request: SyncGroup) -> None:
        group, error = self._sender(request)
        if group is None or error is not None:
            self._answer(request, error)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            self._answer(request, "REBALANCE_IN_PROGRESS")
        elif group.state is GroupState.COMPLETING_REBALANCE:
            member.awaiting_sync = request
            self.rounds.synced(group, member.member_id, request.time_us)
            if group.leader == member.member_id:
                self.rounds.assign(group, request.time_us, request)
        else:
            self.rounds.synced(group, member.member_id, request.time_us)
            self._answer(request)
            self.rounds.sessions.renew(group, member, request)

    def _heartbeat(self, request: Heartbeat) -> None:
        group, error = self._sender(request)
        if group is None or error is not None:
            self._answer(request, error)
            return
        self.rounds.sessions.renew(group, group.members[request.member_id], request)
        self._answer(request, "REBALANCE_IN_PROGRESS" if group.state is GroupState.PREPARING_REBALANCE else NONE)

    def _commit(self, request: OffsetCommit) -> None:
        group = self.groups.get(request.group)
        if group is None and request.generation < 0:
            group = self._add_group(request.group)
        if group is None:
            # Whoever names a generation remembers a group that is not here (any more).
            self._answer(request, "ILLEGAL_GENERATION")
        elif request.generation < 0 and group.state is GroupState.EMPTY:
            # The sender manages its partitions itself and uses the group's name only to store offsets under.
            self._answer(request)
        else:
            self._commit_of_member(request)

    def _commit_of_member(self, request: OffsetCommit) -> None:
        group, error = self._sender(request)
        if group is None or error is not None:
            self._answer(request, error)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # It has its join's answer and ought to sync first.
            self._answer(request, "REBALANCE_IN_PROGRESS")
        else:
            self.rounds.sessions.renew(group, group.members[request.member_id], request)
            self._answer(request)

    def _leave(self, request: LeaveGroup) -> None:
        """An instance may be sent away by somebody else, who does not know its member id."""
        group = self.groups.get(request.group)
        if group is None:
            self._answer(request, "UNKNOWN_MEMBER_ID")
            return
        member_id = request.member_id
        if member_id == "" and request.instance_id is not None:
            member_id = group.static_member_id(request.instance_id) or ""
        if member_id in group.pending_members:
            self.rounds.remove_pending(group, member_id, "leave", request.time_us)
            self._answer(request)
            return
        error = group.refuses(member_id, request.instance_id)
        if error is None:
            self._remove(group, member_id, request)
        self._answer(request, error)

    def _remove(self, group: Group, member_id: str, request: LeaveGroup) -> None:
        member = group.members[member_id]
        self.rounds.remove_member(group, member, "leave", f"member {member_id} left", request.time_us, request)
        self.rounds.sessions.gone(group, member, request.api, request.time_us)

    def _sender(self, request: GroupRequest) -> tuple[Group | None, str | None]:
        """The group if the sender is a member of its current generation, else the error that it gets."""
        group = self.groups.get(request.group)
        if group is None:
            return None, "UNKNOWN_MEMBER_ID"
        error = group.refuses(request.member_id, request.instance_id)
        if error is None and request.generation != group.generation:
            error = "ILLEGAL_GENERATION"
        return group, error

    def _add_group(self, name: str) -> Group:
        group = self.groups[name] = Group(self._broker, name)
        return group

    def _answer(self, request: GroupRequest, error: str | None = None) -> None:
        self._journal.answered(request, error or NONE, request.time_us)


# The group coordinators of all brokers of a trace, on one clock.


class Coordinators:
    """Each broker is a world of its own: the same group at two brokers is two groups."""

    def __init__(self, clock: Clock, config: GroupConfig) -> None:
        self.journal = GroupJournal()
        self._clock = clock
        self._config = config
        self._by_broker: dict[int, GroupCoordinator] = {}

    def handle(self, event: Mapping[str, Any], respond: Callable[[Answer], None] | None = None) -> None:
        """An event of one of `GROUP_EVENTS`. `respond` is told the answer, perhaps later, perhaps never."""
        request = group_request(event, self._config, respond)
        coordinator = self._by_broker.get(request.broker)
        if coordinator is None:
            coordinator = GroupCoordinator(request.broker, self._clock, self._config, self.journal)
            self._by_broker[request.broker] = coordinator
        coordinator.handle(request)

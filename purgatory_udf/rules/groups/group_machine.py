"""The coordinator for one group, taken up from what was kept of it and put down again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, GroupJournal
from purgatory_udf.rules.coordinator.group_coordinator import GroupCoordinator
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member
from purgatory_udf.rules.coordinator.group_operations import (
    DelayedJoin,
    DelayedSync,
    DelayWindow,
    GroupOperation,
    InitialDelayedJoin,
    OperationStart,
)
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup, group_request
from purgatory_udf.rules.coordinator.member_sessions import DelayedHeartbeat, MemberHeartbeat, PendingHeartbeat
from purgatory_udf.rules.groups.frames import Frame, FrameLayout
from purgatory_udf.rules.groups.group_codes import API_OF, ERROR_OF, LAST_LIVENESS_API, NONE
from purgatory_udf.rules.groups.group_rows import split_group_key
from purgatory_udf.rules.groups.group_state_store import PENDING, SESSIONS, GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.operation_timeline import GroupClock, Moment, OperationTimeline

# Answers in columns, beside what the trace says of the recorded ones. What goes without saying is left out: that a
# heartbeat or a commit is well.


# Asked at `t`, answered at `at`. `asked` is the generation that the request names, `generation` the one that a join is
# granted (-1: none). `given` is the member id in the answer, `leader` the leader; `assigned` and `named_leader` are
# what the recorded answer had there ("": not recorded).
ANSWERS = FrameLayout(
    numbers=("seq", "t", "at", "api", "error", "asked", "generation"),
    texts=("request_id", "member_id", "given", "leader", "assigned", "named_leader"),
)


class AnswerJournal(GroupJournal):
    """A journal that keeps, of each answer that is not left out, the request it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[GroupRequest, Answer]] = []

    def answered(self, request: GroupRequest, error: str, now_us: int, member_id: str | None = None) -> None:
        super().answered(request, error, now_us, member_id)
        if error != NONE or API_OF[request.api] > LAST_LIVENESS_API:
            self._keep(request)

    def joined(self, request: JoinGroup, group: Group, member_id: str, leader: str | None, now_us: int) -> None:
        super().joined(request, group, member_id, leader, now_us)
        self._keep(request)

    def _keep(self, request: GroupRequest) -> None:
        answer = self.entries[-1]
        assert isinstance(answer, Answer)
        self.kept.append((request, answer))


def answer_frame(answered: Iterable[tuple[GroupRequest, Answer]]) -> Frame:
    return ANSWERS.of([_answer_row(request, answer) for request, answer in answered])


def _answer_row(request: GroupRequest, answer: Answer) -> tuple[int | str, ...]:
    join = request if isinstance(request, JoinGroup) else None
    return (
        request.seq,
        request.time_us,
        answer.at_us,
        API_OF[request.api],
        ERROR_OF[answer.error],
        request.generation,
        -1 if answer.generation is None else answer.generation,
        request.request_id or "",
        request.member_id,
        answer.member_id,
        answer.leader or "",
        (join.assigned_member_id or "") if join else "",
        (join.leader_member_id or "") if join else "",
    )


class GroupMachine:
    """Its journal and chronicle have what happened since it was taken up. Nobody else may use the `KeptGroup` that it
    was made from."""

    def __init__(self, key: str, config: GroupConfig, kept: GroupSnapshot) -> None:
        broker, self._name = split_group_key(key)
        self._config = config
        self.journal = AnswerJournal()
        self.chronicle = OperationTimeline(self.journal)
        self.clock = GroupClock(self.chronicle.note)
        self._coordinator = GroupCoordinator(broker, self.clock, config, self.journal)
        self.chronicle.purgatories = self.clock.purgatories
        if kept.group is not None:
            self._coordinator.groups[self._name] = kept.group
            self._take_up(kept, kept.group)

    @property
    def group(self) -> Group | None:
        return self._coordinator.groups.get(self._name)

    def apply(self, event: Mapping[str, Any]) -> None:
        """Before an event, everything that is due by its millisecond happens."""
        self.clock.advance_to(event["time_us"] // 1000)
        self._coordinator.handle(group_request(event, self._config))
        self.clock.event(event["time_us"], event["seq"])

    def put_down(self) -> GroupSnapshot:
        """What has to be kept: with it, a new machine goes on as this one would."""
        sessions, rounds = [], []
        for operation in self.chronicle.still_open:
            if isinstance(operation, DelayedHeartbeat):
                sessions.append(operation)
            else:
                dead = operation.group is not self.group
                rounds.append(_rebalance_snapshot(operation, self.chronicle.began[operation], dead))
        owners = list(self.group.members.values()) if self.group is not None else []
        places = {id(member): place for place, member in enumerate(owners)}
        former: list[Member] = []
        owner = []
        for session in sessions:
            member = session.member if isinstance(session, MemberHeartbeat) else None
            if member is not None and id(member) not in places:
                places[id(member)] = len(places)
                former.append(member)
            owner.append(PENDING if member is None else places[id(member)])
        return GroupSnapshot(self.group, _session_frame(sessions, owner, self.chronicle.began), rounds, former)

    # -- taking up ----------------------------------------------------------------------------------------------------

    def _take_up(self, kept: GroupSnapshot, group: Group) -> None:
        heartbeats, rebalances = self.clock.purgatories
        # Those of one deadline end in the order of their turns: before any that this machine begins, as they stand.
        first_turn, owners, keeper = -len(kept.sessions), kept.owners, self._coordinator.rounds.sessions
        rows = zip(*(kept.sessions.columns[name].tolist() for name in SESSIONS.names), strict=True)
        for place, (owner, operation_id, t, seq, sub, deadline, member_id, request_id, client_id) in enumerate(rows):
            beginning, delay, turn = OperationStart(operation_id, t, None), deadline - t // 1000, first_turn + place
            session: DelayedHeartbeat
            if owner == PENDING:
                session = PendingHeartbeat(group, member_id, beginning, delay, keeper, turn)
            else:
                session = MemberHeartbeat(group, owners[owner], beginning, delay, keeper, turn, armed_as=member_id)
            heartbeats.watch_again(self._known(session, Moment(t, seq, sub), request_id or None, client_id or None))
        for kept_round in kept.rounds:
            began = Moment(kept_round.started_us, kept_round.seq, kept_round.sub)
            rebalances.watch_again(
                self._known(self._round(kept_round, group), began, kept_round.request_id, kept_round.client_id)
            )

    def _round(self, kept: RebalanceSnapshot, group: Group) -> GroupOperation:
        beginning, rounds = OperationStart(kept.operation_id, kept.started_us, None), self._coordinator.rounds
        if kept.dead:
            group = Group(group.broker, group.name)
            group.state = GroupState.DEAD
        delay_ms = kept.deadline_ms - kept.started_us // 1000
        if kept.kind == InitialDelayedJoin.kind:
            return InitialDelayedJoin(group, beginning, DelayWindow(delay_ms, kept.remaining_ms), rounds)
        if kept.kind == DelayedJoin.kind:
            return DelayedJoin(group, beginning, delay_ms, rounds)
        return DelayedSync(group, beginning, delay_ms, rounds.sync_expired)

    def _known(
        self, operation: GroupOperation, began: Moment, request_id: str | None, client_id: str | None
    ) -> GroupOperation:
        operation.request = replace(operation.request, request_id=request_id, client_id=client_id)
        self.chronicle.take_back(operation, began)
        return operation


def _rebalance_snapshot(operation: GroupOperation, began: Moment, dead: bool) -> RebalanceSnapshot:
    request = operation.request
    remaining_ms = operation.window.remaining_ms if isinstance(operation, InitialDelayedJoin) else 0
    return RebalanceSnapshot(
        operation.kind,
        operation.operation_id,
        operation.started_us,
        began.seq,
        began.sub,
        operation.deadline_ms,
        request.request_id,
        request.client_id,
        remaining_ms,
        dead,
    )


def _session_frame(sessions: list[DelayedHeartbeat], owner: list[int], began: Mapping[GroupOperation, Moment]) -> Frame:
    if not sessions:
        return SESSIONS.empty()
    numbers = {
        "owner": owner,
        "op": [session.operation_id for session in sessions],
        "t": [session.started_us for session in sessions],
        "seq": [began[session].seq for session in sessions],
        "sub": [began[session].sub for session in sessions],
        "deadline": [session.deadline_ms for session in sessions],
    }
    texts = {
        "member_id": [session.member_id for session in sessions],
        "request_id": [session.request.request_id or "" for session in sessions],
        "client_id": [session.request.client_id or "" for session in sessions],
    }
    columns = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    return Frame(columns | {name: np.array(values, dtype=object) for name, values in texts.items()})

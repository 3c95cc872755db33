"""The coordinator for one group: restored from a snapshot, fed with events, and converted into a snapshot again."""

from __future__ import annotations

import numpy as np

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.classic_sessions import DelayedHeartbeat, MemberHeartbeat, PendingHeartbeat
from purgatory_udf.rules.coordinator.consumer_group import ConsumerGroup
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import MemberTimer
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
from purgatory_udf.rules.coordinator.group_requests import ConsumerHeartbeat, GroupRequest, JoinGroup
from purgatory_udf.rules.groups.column_frames import Frame, FrameLayout
from purgatory_udf.rules.groups.group_rows import API_OF, ERROR_OF, LAST_LIVENESS_API, NONE, split_group_key
from purgatory_udf.rules.groups.group_state_store import PENDING, SESSIONS, GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.operation_timeline import GroupClock, Moment, OperationTimeline
from purgatory_udf.rules.purgatory.clock import Pauses

# Answers of the replay, and what the trace records of the same answers. Successful heartbeats and commits are left out.
# The assignment in an answer without one.
NOT_SENT = "not sent"

# `t` is the time of the request, `at` of the answer. `request_generation` is the generation in the request,
# `generation` the one in the answer to a join (else -1). `given` and `leader` are the member id and leader in the
# answer; `assigned` and `named_leader` are the recorded ones ("" if unrecorded).
# `assignment` is the assignment in an answer of the consumer protocol (`NOT_SENT`, or "none" if empty), and
# `recorded_assignment` the recorded one ("" if unrecorded), as `recorded_epoch` is the recorded epoch (-1).
ANSWERS = FrameLayout(
    numbers=("seq", "t", "at", "api", "error", "request_generation", "generation", "recorded_epoch"),
    texts=(
        *("request_id", "member_id", "given", "leader", "assigned", "named_leader"),
        *("assignment", "recorded_assignment"),
    ),
)


class AnswerJournal(GroupJournal):
    """A journal that keeps each answer together with its request, for the rows of `ANSWERS`."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[tuple[GroupRequest, Answer]] = []

    def record_answer(
        self,
        request: GroupRequest,
        error: str,
        now_us: int,
        member_id: str | None = None,
        awaits_commits: bool = False,
    ) -> None:
        super().record_answer(request, error, now_us, member_id, awaits_commits)
        if error != NONE or API_OF[request.api] > LAST_LIVENESS_API:
            self._add(request)

    def record_join(
        self,
        request: JoinGroup,
        group: Group,
        member_id: str,
        leader: str | None,
        now_us: int,
        awaits_commits: bool = False,
    ) -> None:
        super().record_join(request, group, member_id, leader, now_us, awaits_commits)
        self._add(request)

    def record_classic_join(self, request: JoinGroup, member_id: str, epoch: int, now_us: int) -> None:
        super().record_classic_join(request, member_id, epoch, now_us)
        self._add(request)

    def record_epoch(
        self, request: ConsumerHeartbeat, member_id: str, epoch: int, now_us: int, assignment: str | None
    ) -> None:
        """Record the answer to a heartbeat, and keep it if its epoch or assignment differs from the recorded answer."""
        super().record_epoch(request, member_id, epoch, now_us, assignment)
        recorded = _recorded_assignment(request)
        if request.recorded_epoch not in (None, epoch) or recorded not in ("", _assignment_cell(assignment)):
            self._add(request)

    def _add(self, request: GroupRequest) -> None:
        answer = self.entries[-1]
        assert isinstance(answer, Answer)
        self.answered.append((request, answer))


def answer_row(request: GroupRequest, answer: Answer) -> tuple[int | str, ...]:
    """Return a request and its answer as a row of `ANSWERS`."""
    join = request if isinstance(request, JoinGroup) else None
    consumer = request if isinstance(request, ConsumerHeartbeat) else None
    return (
        request.seq,
        request.time_us,
        answer.at_us,
        API_OF[request.api],
        ERROR_OF[answer.error],
        request.generation,
        -1 if answer.generation is None else answer.generation,
        -1 if consumer is None or consumer.recorded_epoch is None else consumer.recorded_epoch,
        request.request_id or "",
        request.member_id,
        answer.member_id,
        answer.leader or "",
        (join.assigned_member_id or "") if join else "",
        (join.leader_member_id or "") if join else "",
        _assignment_cell(answer.assignment) if consumer else "",
        _recorded_assignment(consumer) if consumer else "",
    )


def _recorded_assignment(request: ConsumerHeartbeat) -> str:
    """Return the recorded assignment of a heartbeat in the form of `ANSWERS`.

    If the trace records an epoch, it records the whole answer, so a missing assignment means that it had none.
    """
    if request.recorded_epoch is None and request.recorded_assignment is None:
        return ""
    return _assignment_cell(request.recorded_assignment)


def _assignment_cell(assignment: str | None) -> str:
    return NOT_SENT if assignment is None else assignment or "none"


class GroupMachine:
    """The coordinator of one group. Its journal and timeline cover the time since it was restored.

    The machine takes ownership of the snapshot, which must not be used afterwards.
    """

    def __init__(
        self,
        key: str,
        config: GroupConfig,
        snapshot: GroupSnapshot,
        topics: ClusterTopics | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        broker, self._name = split_group_key(key)
        self.journal = AnswerJournal()
        self.timeline = OperationTimeline(self.journal)
        self.clock = GroupClock(self.timeline.record, broker, pauses)
        self._is_new = bool(snapshot.is_new)
        self._coordinator = GroupCoordinator(broker, self.clock, config, self.journal, self._is_new, topics)
        self.timeline.purgatories = self.clock.purgatories
        self._restore_consumer_group(snapshot)
        if snapshot.group is not None:
            self._coordinator.groups[self._name] = snapshot.group
            self._restore(snapshot, snapshot.group)

    @property
    def group(self) -> Group | None:
        return self._coordinator.groups.get(self._name)

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The group if it is a consumer group (KIP-848), otherwise None."""
        consumers = self._coordinator.consumers
        return consumers.groups.get(self._name) if consumers is not None else None

    def apply(self, request: GroupRequest) -> None:
        """Apply a request or event, after running every timer up to its millisecond."""
        self.clock.advance_to(request.time_us // 1000)
        self._coordinator.handle(request)
        self.clock.on_event(request.time_us, request.seq)

    def snapshot(self) -> GroupSnapshot:
        """Return a snapshot from which a new machine continues as this one would."""
        sessions, rebalances = [], []
        for operation in self.timeline.still_open:
            if isinstance(operation, DelayedHeartbeat):
                sessions.append(operation)
            elif isinstance(operation, MemberTimer):
                rebalances.append(_timer_snapshot(operation))
            else:
                assert isinstance(operation, DelayedJoin | DelayedSync), "the group's other operations"
                rebalances.append(_rebalance_snapshot(operation, operation.group is not self.group))
        owners = list(self.group.members.values()) if self.group is not None else []
        indices = {id(member): index for index, member in enumerate(owners)}
        former: list[Member] = []
        owner = []
        for session in sessions:
            member = session.member if isinstance(session, MemberHeartbeat) else None
            if member is not None and id(member) not in indices:
                indices[id(member)] = len(indices)
                former.append(member)
            owner.append(PENDING if member is None else indices[id(member)])
        return GroupSnapshot(
            self.group,
            _session_frame(sessions, owner),
            rebalances,
            former,
            self._is_new,
            self._coordinator.rebalancer.commit_ms(self.group) if self.group is not None else None,
            self.consumer,
        )

    def release(self) -> None:
        """Drop the operations. They and their purgatories refer to each other, so only a collection would free them."""
        self.journal.operations.clear()
        self.timeline.clear()
        for purgatory in self.clock.purgatories:
            purgatory.shutdown()
        if self._coordinator.consumers is not None:
            self._coordinator.consumers.timers.clear()

    # Restoring.

    def _restore_consumer_group(self, snapshot: GroupSnapshot) -> None:
        consumers = self._coordinator.consumers
        if consumers is None or snapshot.consumer is None:
            return
        consumers.groups[self._name] = snapshot.consumer
        for stored in snapshot.rebalances:
            if stored.member_id:
                start = OperationStart(stored.operation_id, stored.started_us, None)
                delay_ms = stored.deadline_ms - stored.started_us // 1000
                timer = consumers.timer(stored.kind, snapshot.consumer, stored.member_id, start, delay_ms, stored.epoch)
                self._restored(
                    timer, Moment(stored.started_us, stored.seq, stored.sub), stored.request_id, stored.client_id
                )
                consumers.timers.restore(timer)

    def _restore(self, snapshot: GroupSnapshot, group: Group) -> None:
        heartbeat_purgatory, rebalance_purgatory = self.clock.purgatories
        # Sessions of one deadline expire in their order: restored ones before any that this machine starts.
        first_order, owners = -len(snapshot.sessions), snapshot.owners
        listener = self._coordinator.rebalancer.sessions
        rows = zip(*(snapshot.sessions.columns[name].tolist() for name in SESSIONS.names), strict=True)
        for index, (owner, operation_id, t, seq, sub, deadline, member_id, request_id, client_id) in enumerate(rows):
            start, delay, order = OperationStart(operation_id, t, None), deadline - t // 1000, first_order + index
            session: DelayedHeartbeat
            if owner == PENDING:
                session = PendingHeartbeat(group, member_id, start, delay, listener, order)
            else:
                session = MemberHeartbeat(group, owners[owner], start, delay, listener, order, started_as=member_id)
            heartbeat_purgatory.restore(
                self._restored(session, Moment(t, seq, sub), request_id or None, client_id or None)
            )
        for stored in snapshot.rebalances:
            if stored.member_id:
                continue
            started = Moment(stored.started_us, stored.seq, stored.sub)
            operation = self._rebalance_operation(stored, group)
            rebalance_purgatory.restore(self._restored(operation, started, stored.request_id, stored.client_id))
        if group.uncommitted_sync is not None:
            self._coordinator.rebalancer.await_commit(group, group.uncommitted_sync)

    def _rebalance_operation(self, stored: RebalanceSnapshot, group: Group) -> GroupOperation:
        start, rebalancer = OperationStart(stored.operation_id, stored.started_us, None), self._coordinator.rebalancer
        if stored.dead:
            group = Group(group.broker, group.name)
            group.state = GroupState.DEAD
        delay_ms = stored.deadline_ms - stored.started_us // 1000
        if stored.kind == InitialDelayedJoin.kind:
            return InitialDelayedJoin(group, start, DelayWindow(delay_ms, stored.remaining_ms), rebalancer)
        if stored.kind == DelayedJoin.kind:
            return DelayedJoin(group, start, delay_ms, rebalancer)
        return DelayedSync(group, start, delay_ms, rebalancer.on_sync_expired)

    def _restored(
        self, operation: GroupOperation, started: Moment, request_id: str | None, client_id: str | None
    ) -> GroupOperation:
        operation.request.request_id, operation.request.client_id = request_id, client_id
        self.timeline.restore(operation, started)
        return operation


def _rebalance_snapshot(operation: DelayedJoin | DelayedSync, dead: bool) -> RebalanceSnapshot:
    request = operation.request
    remaining_ms = operation.window.remaining_ms if isinstance(operation, InitialDelayedJoin) else 0
    return RebalanceSnapshot(
        operation.kind,
        operation.operation_id,
        operation.started_us,
        *operation.start_moment[1:],
        operation.deadline_ms,
        request.request_id,
        request.client_id,
        remaining_ms,
        dead,
    )


def _timer_snapshot(timer: MemberTimer) -> RebalanceSnapshot:
    request = timer.request
    return RebalanceSnapshot(
        request.kind,
        timer.operation_id,
        timer.started_us,
        *timer.start_moment[1:],
        timer.deadline_ms,
        request.request_id,
        request.client_id,
        member_id=timer.member_id,
        epoch=timer.epoch,
    )


def _session_frame(sessions: list[DelayedHeartbeat], owner: list[int]) -> Frame:
    if not sessions:
        return SESSIONS.empty()
    numbers = {
        "owner": owner,
        "op": [session.operation_id for session in sessions],
        "t": [session.started_us for session in sessions],
        "seq": [session.start_moment[1] for session in sessions],
        "sub": [session.start_moment[2] for session in sessions],
        "deadline": [session.deadline_ms for session in sessions],
    }
    texts = {
        "member_id": [session.member_id for session in sessions],
        "request_id": [session.request.request_id or "" for session in sessions],
        "client_id": [session.request.client_id or "" for session in sessions],
    }
    columns = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    return Frame(columns | {name: np.array(values, dtype=object) for name, values in texts.items()})

"""Sessions of members of classic groups (DelayedHeartbeat).

A member that sends no liveness signal before its deadline has failed. For members of consumer groups see
`coordinator_timer`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Protocol

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import CoordinatorTimer
from purgatory_udf.rules.coordinator.group_metadata import Group, Member
from purgatory_udf.rules.coordinator.group_operations import GroupOperation, MemberKey, OperationStart
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import Timer, TimerTask


class SessionListener(Protocol):
    """Interface for the callbacks of a session."""

    def on_timer(self, session: DelayedHeartbeat, now_ms: int) -> None:
        """Schedule `expire` for a session that has reached its deadline."""

    def on_expired(self, session: DelayedHeartbeat, now_us: int) -> None:
        """Handle a session that expired without a liveness signal."""


class DelayedHeartbeat(GroupOperation):
    """A session: "complete and schedule next", each liveness signal completes it and starts the next one.

    A session that is not needed any more at its deadline completes without effect instead of expiring. So an expired
    session always means a failed member. There are two such cases:

    - The member waits for the answer to a join or sync and owes no heartbeat: completed by `awaiting_join` or
      `awaiting_sync`. The answer starts the next session.
    - The member id is no longer in use: completed by `replaced` or `removed`.

    `order` is the order in which sessions were started at the coordinator.
    """

    kind = "heartbeat"

    def __init__(
        self,
        group: Group,
        member_id: str,
        start: OperationStart,
        timeout_ms: int,
        listener: SessionListener,
        order: int,
    ) -> None:
        super().__init__(group, MemberKey(group.name, member_id), start, timeout_ms)
        self.group = group
        self.member_id = member_id
        self.order = order
        self._listener = listener

    @abstractmethod
    def completion_rule(self) -> str | None:
        """Return the rule that completes the session now, or None if it waits for a liveness signal."""

    def try_complete(self, now_us: int) -> bool:
        rule = self.completion_rule()
        return rule is not None and self.complete_by(rule, now_us)

    def run(self, now_ms: int) -> None:
        # Kafka's timer submits due sessions to an executor thread; one of them may complete another before it runs.
        self._listener.on_timer(self, now_ms)

    def expire(self, now_ms: int) -> None:
        """Complete or expire the session at its deadline, as `run` does for other operations."""
        if not self.completed and not self.try_complete(now_ms * 1000):
            super().run(now_ms)

    def on_expiration(self, now_us: int) -> None:
        self._listener.on_expired(self, self.effective_us(now_us))


class MemberHeartbeat(DelayedHeartbeat):
    """The session of a member. Its key stays the member id at its start, even if the member gets another id."""

    def __init__(
        self,
        group: Group,
        member: Member,
        start: OperationStart,
        timeout_ms: int,
        listener: SessionListener,
        order: int,
        started_as: str | None = None,
    ) -> None:
        super().__init__(group, started_as or member.member_id, start, timeout_ms, listener, order)
        self.member = member

    def completion_rule(self) -> str | None:
        if self.member.member_id != self.member_id:
            return "replaced"
        if self.member_id not in self.group.members:
            return self.member.liveness_signal or "removed"
        return self.member.heartbeat_satisfied_by()


class PendingHeartbeat(DelayedHeartbeat):
    """The session of an id assigned with MEMBER_ID_REQUIRED: the client has to rejoin with the id before it expires."""

    def completion_rule(self) -> str | None:
        if self.member_id in self.group.members:
            return "join_group"
        return None if self.member_id in self.group.pending_members else "removed"


class SessionTimer:
    """A timer that expires the sessions of one millisecond in the order in which they were started.

    A timing wheel runs the tasks of one millisecond in an order that depends on the wheels they passed through, and
    thus on other load of the broker. For most operations the order makes no difference. But if two members fail at the
    same time, the first one starts a rebalance, which the second one leaves. The order here depends only on the group's
    events.
    """

    def __init__(self, timer: Timer) -> None:
        self.alarm = timer.alarm
        self._timer = timer
        self._due: list[tuple[DelayedHeartbeat, int]] = []

    @property
    def resumed_ms(self) -> int:
        return self._timer.resumed_ms

    @resumed_ms.setter
    def resumed_ms(self, at_ms: int) -> None:
        self._timer.resumed_ms = at_ms

    def expire_in_order(self, session: DelayedHeartbeat, now_ms: int) -> None:
        """Note a session that has reached its deadline. It expires after the wheel has run all due tasks, in order."""
        self._due.append((session, now_ms))

    def add(self, task: TimerTask) -> None:
        self._timer.add(task)

    def advance_clock(self, now_ms: int) -> bool:
        ran = self._timer.advance_clock(now_ms)
        return self._expire_due() or ran

    def run_due(self) -> bool:
        ran = self._timer.run_due()
        return self._expire_due() or ran

    def next_wake_ms(self) -> int | None:
        return self._timer.next_wake_ms()

    def size(self) -> int:
        return self._timer.size()

    def shutdown(self) -> None:
        self._timer.shutdown()

    def _expire_due(self) -> bool:
        due = sorted(self._due, key=lambda timed: (timed[0].deadline_ms, timed[0].order))
        self._due.clear()
        for session, now_ms in due:
            session.expire(now_ms)
        return bool(due)


class MemberSessions:
    """The Heartbeat purgatory, keyed by member. A member has at most one open session under its current id.

    The new coordinator has no such purgatory, but the same sessions. Its `CoordinatorTimer` decides their order.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory[DelayedHeartbeat],
        journal: GroupJournal,
        on_failure: Callable[[DelayedHeartbeat, int], None],
    ) -> None:
        self._timer: SessionTimer | None = None
        if not isinstance(purgatory.timer, CoordinatorTimer):
            self._timer = purgatory.timer = SessionTimer(purgatory.timer)
        self._purgatory = purgatory
        self._journal = journal
        self._on_failure = on_failure
        self._order = count()

    def renew(self, group: Group, member: Member, request: GroupRequest) -> None:
        """Complete the member's session and start the next one: the request proves the member alive."""
        self._complete_and_schedule_next(
            group, member, request.api, OperationStart.from_request(request), member.session_timeout_ms
        )

    def restart(self, group: Group, member: Member, rule: str, now_us: int, answered: GroupRequest | None) -> None:
        """Complete the session by `rule` and start the next one.

        Called when the member gets the answer to its waiting request `answered`, or when a generation starts.
        """
        start = OperationStart.derived(group, now_us, answered)
        self._complete_and_schedule_next(group, member, rule, start, member.session_timeout_ms)

    def start(self, group: Group, member: Member, join: JoinGroup, timeout_ms: int) -> None:
        """Start the first session of a member id, which lasts `timeout_ms`.

        The session's operation id is a derived one, because the join may also start a rebalance.
        """
        start = OperationStart.derived(group, join.time_us, join)
        self._complete_and_schedule_next(group, member, join.api, start, timeout_ms)

    def start_pending(self, group: Group, pending_id: str, join: JoinGroup) -> None:
        """Start the session of an id that was assigned in answer to `join` (`addPendingMemberExpiration`).

        It lasts one session timeout of that join.
        """
        timeout_ms = join.session_timeout_ms
        start = OperationStart.from_request(join)
        self._start(PendingHeartbeat(group, pending_id, start, timeout_ms, self, next(self._order)))

    def complete_pending(self, group: Group, pending_id: str, now_us: int) -> None:
        """Complete the session of a pending id that has been dropped."""
        self._check(group, pending_id, now_us)

    def complete_removed(self, group: Group, member: Member, rule: str, now_us: int) -> None:
        """Complete the session of a removed member by `rule`."""
        member.liveness_signal = rule
        self._check(group, member.member_id, now_us)

    def abandon(self, group: str, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End all sessions of the group without effect. `rule` is the reason in the tables."""
        self._purgatory.abandon(lambda key: key.group == group, now_us, rule)

    def on_timer(self, session: DelayedHeartbeat, now_ms: int) -> None:
        if self._timer is None:
            session.expire(now_ms)
        else:
            self._timer.expire_in_order(session, now_ms)

    def on_expired(self, session: DelayedHeartbeat, now_us: int) -> None:
        self._on_failure(session, now_us)

    def _complete_and_schedule_next(
        self, group: Group, member: Member, liveness_signal: str, start: OperationStart, timeout_ms: int
    ) -> None:
        """Complete the session by `liveness_signal`, and start the next one at `start`, which lasts `timeout_ms`.

        The next session completes at once if the member waits for an answer, because no heartbeat is due then.
        """
        member.liveness_signal = liveness_signal
        self._check(group, member.member_id, start.at_us)
        member.liveness_signal = None
        self._start(MemberHeartbeat(group, member, start, timeout_ms, self, next(self._order)))

    def _start(self, session: DelayedHeartbeat) -> None:
        self._journal.operations.append(session)
        self._purgatory.try_complete_else_watch(session, [session.key], session.started_us)

    def _check(self, group: Group, member_id: str, now_us: int) -> None:
        self._purgatory.check_and_complete(MemberKey(group.name, member_id), now_us)

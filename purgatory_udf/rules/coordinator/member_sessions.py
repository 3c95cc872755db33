"""DelayedHeartbeat: the session of a member. Whoever shows no sign of life before its end has failed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Protocol

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_metadata import Group, Member
from purgatory_udf.rules.coordinator.group_operations import GroupOperation, MemberKey, OperationStart
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup
from purgatory_udf.rules.purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import Timer, TimerTask


class SessionListener(Protocol):
    def timer_fired(self, session: DelayedHeartbeat) -> None:
        """The session's deadline has come; have `end` called in its turn."""

    def failed(self, session: DelayedHeartbeat, now_us: int) -> None:
        """The session ended without a sign of life."""


class DelayedHeartbeat(GroupOperation):
    """Armed for one session timeout. "Complete and schedule next": each sign of life ends it and arms the next one.

    Sometimes nobody needs the session any more when its deadline comes. It ends without effect then, completed, not
    expired, so that an expired session is always a member that failed:

    - the member waits for the answer to a join or a sync, and owes no heartbeat ("swallowed"): completed by
      `awaiting_join` or `awaiting_sync`. The answer will arm the next session;
    - the member id has gone and its session was not told: completed by `replaced` or `removed`.
    """

    kind = "heartbeat"

    def __init__(
        self,
        group: Group,
        member_id: str,
        beginning: OperationStart,
        timeout_ms: int,
        keeper: SessionListener,
        turn: int,
    ) -> None:
        super().__init__(group, MemberKey(group.name, member_id), beginning, timeout_ms)
        self.member_id = member_id
        self.turn = turn
        self._keeper = keeper

    @abstractmethod
    def needless_by(self) -> str | None:
        """Why no sign of life is waited for, or None if one is."""

    def try_complete(self, now_us: int) -> bool:
        rule = self.needless_by()
        return rule is not None and self.complete_by(rule, now_us)

    def run(self) -> None:
        # Kafka's timer hands what is due to an executor thread, which may find it completed by one that was due too.
        self._keeper.timer_fired(self)

    def end(self) -> None:
        """The deadline has come, and the turn: `run` of any other operation."""
        if not self.completed and not self.try_complete(self.deadline_ms * 1000):
            super().run()

    def on_expiration(self, now_us: int) -> None:
        self._keeper.failed(self, self.effective_us(now_us))


class MemberHeartbeat(DelayedHeartbeat):
    """The session of a member of the group. It goes by the id that it was armed under, which the member may lose."""

    def __init__(
        self,
        group: Group,
        member: Member,
        beginning: OperationStart,
        timeout_ms: int,
        keeper: SessionListener,
        turn: int,
        armed_as: str | None = None,
    ) -> None:
        super().__init__(group, armed_as or member.member_id, beginning, timeout_ms, keeper, turn)
        self.member = member

    def needless_by(self) -> str | None:
        if self.member.member_id != self.member_id:
            return "replaced"
        if self.member_id not in self.group.members:
            return self.member.sign_of_life or "removed"
        return self.member.alive_by()


class PendingHeartbeat(DelayedHeartbeat):
    """The session of an id given with MEMBER_ID_REQUIRED: time to come back and use it."""

    def needless_by(self) -> str | None:
        if self.member_id in self.group.members:
            return "join_group"
        return None if self.member_id in self.group.pending_members else "removed"


# Sessions that end in one millisecond end in the order in which they were armed.


class SessionTimer:
    """A timer whose due sessions are collected, then ended in their turn.

    In which order a timing wheel comes by the tasks of one millisecond depends on the wheels in which they waited, and
    so on everything else that goes on at the broker. For most operations that decides nothing. But of two members that
    fail together, the first starts a round which the second then leaves. What becomes of a group must depend on nothing
    but its own events; so the order is that of arming.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._fired: list[DelayedHeartbeat] = []

    def fired(self, session: DelayedHeartbeat) -> None:
        self._fired.append(session)

    def add(self, task: TimerTask) -> None:
        self._timer.add(task)

    def advance_clock(self, now_ms: int) -> bool:
        ran = self._timer.advance_clock(now_ms)
        return self._end_fired() or ran

    def run_due(self) -> bool:
        ran = self._timer.run_due()
        return self._end_fired() or ran

    def next_wake_ms(self) -> int | None:
        return self._timer.next_wake_ms()

    def size(self) -> int:
        return self._timer.size()

    def shutdown(self) -> None:
        self._timer.shutdown()

    def _end_fired(self) -> bool:
        fired = sorted(self._fired, key=lambda session: (session.deadline_ms, session.turn))
        self._fired.clear()
        for session in fired:
            session.end()
        return bool(fired)


# The sessions of all members: "complete and schedule the next heartbeat".


class MemberSessions:
    """The purgatory Heartbeat, keyed by member. A live member has one session at most."""

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory[DelayedHeartbeat],
        journal: GroupJournal,
        on_failure: Callable[[DelayedHeartbeat, int], None],
    ) -> None:
        self._in_turn = SessionTimer(purgatory.timer)
        purgatory.timer = self._in_turn
        self._purgatory = purgatory
        self._journal = journal
        self._on_failure = on_failure
        self._turns = count()

    def renew(self, group: Group, member: Member, sign_of_life: GroupRequest) -> None:
        """The request proves its sender alive."""
        self._complete_and_schedule_next(
            group, member, sign_of_life.api, OperationStart.of(sign_of_life), member.session_timeout_ms
        )

    def restart(self, group: Group, member: Member, rule: str, now_us: int, answered: GroupRequest | None) -> None:
        """The member has its answer now, or there is a new generation: by that rule its time starts anew."""
        beginning = OperationStart.derived(group, now_us, answered)
        self._complete_and_schedule_next(group, member, rule, beginning, member.session_timeout_ms)

    def begin(self, group: Group, member: Member, join: JoinGroup, timeout_ms: int) -> None:
        """The member's id is in the group from this join on. The join may begin a round too, which has its `seq`."""
        beginning = OperationStart.derived(group, join.time_us, join)
        self._complete_and_schedule_next(group, member, join.api, beginning, timeout_ms)

    def expect(self, group: Group, pending_id: str, join: JoinGroup) -> None:
        """Whoever was given this id has one session timeout to come back with it."""
        timeout_ms = join.session_timeout_ms
        self._arm(PendingHeartbeat(group, pending_id, OperationStart.of(join), timeout_ms, self, next(self._turns)))

    def forget(self, group: Group, pending_id: str, now_us: int) -> None:
        """An id that was given is not expected any more."""
        self._check(group, pending_id, now_us)

    def gone(self, group: Group, member: Member, why: str, now_us: int) -> None:
        """The member is not in the group any more."""
        member.sign_of_life = why
        self._check(group, member.member_id, now_us)

    def abandon(self, group: str, now_us: int) -> None:
        """Those of the group, members' and others'."""
        self._purgatory.abandon(lambda key: key.group == group, now_us)

    def timer_fired(self, session: DelayedHeartbeat) -> None:
        self._in_turn.fired(session)

    def failed(self, session: DelayedHeartbeat, now_us: int) -> None:
        self._on_failure(session, now_us)

    def _complete_and_schedule_next(
        self, group: Group, member: Member, sign_of_life: str, beginning: OperationStart, timeout_ms: int
    ) -> None:
        """One that is scheduled while the member waits for an answer completes at once."""
        member.sign_of_life = sign_of_life
        self._check(group, member.member_id, beginning.at_us)
        member.sign_of_life = None
        self._arm(MemberHeartbeat(group, member, beginning, timeout_ms, self, next(self._turns)))

    def _arm(self, session: DelayedHeartbeat) -> None:
        self._journal.operations.append(session)
        self._purgatory.try_complete_else_watch(session, [session.key], session.started_us)

    def _check(self, group: Group, member_id: str, now_us: int) -> None:
        self._purgatory.check_and_complete(MemberKey(group.name, member_id), now_us)

"""The sessions of all members: "complete and schedule the next heartbeat"."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.heartbeat import DelayedHeartbeat, MemberHeartbeat, PendingHeartbeat
from purgatory_udf.coordinator.journal import GroupJournal
from purgatory_udf.coordinator.member import Member
from purgatory_udf.coordinator.operation import Beginning, MemberKey
from purgatory_udf.coordinator.request import GroupRequest, JoinGroup
from purgatory_udf.coordinator.session_timer import InTurn
from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory


class Sessions:
    """The purgatory Heartbeat, keyed by member. A live member has one session at most."""

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory[DelayedHeartbeat],
        journal: GroupJournal,
        on_failure: Callable[[DelayedHeartbeat, int], None],
    ) -> None:
        self._in_turn = InTurn(purgatory.timer)
        purgatory.timer = self._in_turn
        self._purgatory = purgatory
        self._journal = journal
        self._on_failure = on_failure
        self._turns = count()

    def renew(self, group: Group, member: Member, sign_of_life: GroupRequest) -> None:
        """The request proves its sender alive."""
        self._complete_and_schedule_next(
            group, member, sign_of_life.api, Beginning.of(sign_of_life), member.session_timeout_ms
        )

    def restart(self, group: Group, member: Member, rule: str, now_us: int, answered: GroupRequest | None) -> None:
        """The member has its answer now, or there is a new generation: by that rule its time starts anew."""
        beginning = Beginning.derived(group, now_us, answered)
        self._complete_and_schedule_next(group, member, rule, beginning, member.session_timeout_ms)

    def begin(self, group: Group, member: Member, join: JoinGroup, timeout_ms: int) -> None:
        """The member's id is in the group from this join on. The join may begin a round too, which has its `seq`."""
        beginning = Beginning.derived(group, join.time_us, join)
        self._complete_and_schedule_next(group, member, join.api, beginning, timeout_ms)

    def expect(self, group: Group, pending_id: str, join: JoinGroup) -> None:
        """Whoever was given this id has one session timeout to come back with it."""
        timeout_ms = join.session_timeout_ms
        self._arm(PendingHeartbeat(group, pending_id, Beginning.of(join), timeout_ms, self, next(self._turns)))

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
        self, group: Group, member: Member, sign_of_life: str, beginning: Beginning, timeout_ms: int
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

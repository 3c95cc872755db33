"""DelayedHeartbeat: the session of a member. Whoever shows no sign of life before its end has failed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.member import Member
from purgatory_udf.coordinator.operation import Beginning, GroupOperation, MemberKey


class SessionKeeper(Protocol):
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
        self, group: Group, member_id: str, beginning: Beginning, timeout_ms: int, keeper: SessionKeeper, turn: int
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
        beginning: Beginning,
        timeout_ms: int,
        keeper: SessionKeeper,
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

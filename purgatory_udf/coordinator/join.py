"""DelayedJoin: a round of the group. Everybody has to join again before the next generation begins."""

from __future__ import annotations

from typing import Protocol

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.operation import Beginning, GroupOperation, JoinKey
from purgatory_udf.coordinator.state import GroupState


class Round(Protocol):
    def complete_join(self, ended: DelayedJoin, now_us: int) -> None:
        """The round is over: remove who did not come, and begin the next generation with those who did."""


class DelayedJoin(GroupOperation):
    """One per round, on which the joins of all members wait. Its delay is the greatest rebalance timeout of them all.

    It completes when every member waits in a join and no id is pending, or when nobody is left. When it expires, the
    round goes on with those who came. Of a group that was unloaded meanwhile it just expires.
    """

    kind = "join"

    def __init__(self, group: Group, beginning: Beginning, timeout_ms: int, round_: Round) -> None:
        super().__init__(group, JoinKey(group.name), beginning, timeout_ms)
        self._round = round_

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD or not self.group.has_all_members_joined():
            return False
        return self.complete_by("all_joined" if self.group.members else "no_members", now_us)

    def on_complete(self, now_us: int) -> None:
        super().on_complete(now_us)
        self._round.complete_join(self, self.effective_us(now_us))

"""InitialDelayedJoin: an empty group waits for more members before its first round ends (Kafka 0.11, KIP-134).

With a delay of 3 s and a rebalance timeout of 10 s, while members keep coming:

    0 s            3 s            6 s            9 s    10 s
    a joins, b     c              d              e      the round ends with all of them
    │ window of 3  │ window of 3  │ window of 3  │ of 1 │
    │ 7 s remain   │ 4 s remain   │ 1 s remains  │ none │
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.join import DelayedJoin, Round
from purgatory_udf.coordinator.operation import Beginning
from purgatory_udf.coordinator.state import GroupState


@dataclass(frozen=True, slots=True)
class Window:
    """How long this one lasts, and how much time remains after it."""

    delay_ms: int
    remaining_ms: int

    @classmethod
    def first(cls, delay_ms: int, rebalance_timeout_ms: int) -> Window:
        return cls(delay_ms, max(rebalance_timeout_ms - delay_ms, 0))

    def next(self, configured_delay_ms: int) -> Window:
        return Window(min(configured_delay_ms, self.remaining_ms), max(self.remaining_ms - self.delay_ms, 0))


class InitialRound(Round, Protocol):
    def extend(self, group: Group, ended: Window, now_us: int) -> None:
        """Wait for another window."""


class InitialDelayedJoin(DelayedJoin):
    """One per window. It never completes early, even if everybody has come, so its deadline always ends it."""

    kind = "initial_join"

    def __init__(self, group: Group, beginning: Beginning, window: Window, initial_round: InitialRound) -> None:
        super().__init__(group, beginning, window.delay_ms, initial_round)
        self.window = window
        self._initial_round = initial_round

    def try_complete(self, now_us: int) -> bool:
        return False

    def on_complete(self, now_us: int) -> None:
        dead = self.group.state is GroupState.DEAD
        if not dead and self.group.new_member_added and self.window.remaining_ms > 0:
            self.group.new_member_added = False
            self._initial_round.extend(self.group, self.window, self.effective_us(now_us))
        else:
            super().on_complete(now_us)

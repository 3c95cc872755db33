"""The time of one group: two purgatories, whose timers are heaps that can be filled anew from a kept state.

The reference's timing wheels keep more than the deadlines (how far each wheel lags behind), which decides when a purge
happens and what a gauge reads, never how an operation ends. A group's own clock needs the deadlines only.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from purgatory_udf.groups.words import FOREVER
from purgatory_udf.reference.clock import Clock
from purgatory_udf.reference.purgatory import DelayedOperationPurgatory, Watchers
from purgatory_udf.reference.timer_task import TimerTask


class Deadlines:
    """A timer: tasks by deadline, those of one millisecond in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._added = 0

    def add(self, task: TimerTask) -> None:
        if not task.cancelled:
            self._added += 1
            heappush(self._heap, (task.deadline_ms, self._added, task))

    def advance_clock(self, now_ms: int) -> bool:
        found = False
        while (next_ms := self.next_wake_ms()) is not None and next_ms <= now_ms:
            found = True
            heappop(self._heap)[2].run()
        return found

    def run_due(self) -> bool:
        return False

    def next_wake_ms(self) -> int | None:
        while self._heap and self._heap[0][2].cancelled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def size(self) -> int:
        return sum(not task.cancelled for _, _, task in self._heap)

    def shutdown(self) -> None:
        self._heap.clear()


class KeptPurgatory(DelayedOperationPurgatory[Any]):
    """A purgatory that takes back operations which were watched before: they are not tried again by that."""

    def watch_again(self, operation: Any) -> None:
        self._watchers_by_key.setdefault(operation.key, Watchers()).watch(operation)
        operation.watched = self.used = True
        self.timer.add(operation)


class GroupClock(Clock):
    """A clock without wheels, reapers and gauges. Time is what it is told; a timer runs at its own millisecond."""

    def __init__(self) -> None:
        super().__init__(start_ms=0)
        self.purgatories: list[KeptPurgatory] = []

    def new_purgatory(self, broker_id: int, name: str, purge_interval: int) -> KeptPurgatory:
        """Sessions come first, since their purgatory is made first: so they end before rounds and syncs do."""
        self.purgatories.append(KeptPurgatory(name, Deadlines(), purge_interval))
        return self.purgatories[-1]

    def next_deadline_ms(self) -> int:
        """When the next timer runs; `FOREVER` if there is none."""
        return min((self._wake_ms(purgatory) for purgatory in self.purgatories), default=FOREVER)

    def advance_to(self, now_ms: int) -> None:
        """Timers in their order up to `now_ms`, one millisecond and one purgatory at a time: a timer that runs may add
        another, to any purgatory, that is due by `now_ms` as well."""
        while self.purgatories:
            first = min(self.purgatories, key=self._wake_ms)
            due_ms = self._wake_ms(first)
            if due_ms > now_ms or due_ms == FOREVER:
                return
            first.timer.advance_clock(due_ms)

    @staticmethod
    def _wake_ms(purgatory: KeptPurgatory) -> int:
        wake_ms = purgatory.timer.next_wake_ms()
        return FOREVER if wake_ms is None else wake_ms

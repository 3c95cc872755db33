"""The time of one group: two purgatories, whose timers are heaps that can be filled anew from a kept state.

Timing wheels (`purgatory.timing_wheel`) keep more than the deadlines (how far each lags behind), which decides when a
purge happens and what a gauge reads, not how an operation ends. A group's own clock needs the deadlines only, and
says of everything when in the order of the whole trace it happened (`Moment`): the gauges follow from that, afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from purgatory_udf.groups.words import FOREVER
from purgatory_udf.loop.words import UNKNOWN
from purgatory_udf.purgatory.clock import Clock
from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory, Watchers
from purgatory_udf.purgatory.timer_task import TimerTask

# Instead of an event, of what the clock alone brings about: it comes before all events of its millisecond.
BY_CLOCK = UNKNOWN


class Moment(NamedTuple):
    """Time, event (`BY_CLOCK` if none), and a step of what that event or the clock brings about at that time.

    A timer that runs may begin what is due at once, in the other purgatory as well. The purgatories take turns, and the
    steps of the clock count the turns: even ones are the sessions', odd ones those of rounds and syncs. So it is after
    an event, too, for what it begins without delay: the event itself is step 0, and the turns are counted from 1.
    """

    t: int
    seq: int
    sub: int


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
        ran = False
        while (next_ms := self.next_wake_ms()) is not None and next_ms <= now_ms:
            ran = True
            heappop(self._heap)[2].run()
        return ran

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
    """A purgatory that takes back operations which were watched before: they are not tried again by that.

    `walked` are the keys whose list was walked without completing anything, since somebody last emptied it.
    """

    def __init__(self, name: str, timer: Deadlines, purge_interval: int) -> None:
        super().__init__(name, timer, purge_interval)
        self.walked: list[Any] = []

    def watch_again(self, operation: Any) -> None:
        self._watchers_by_key.setdefault(operation.key, Watchers()).watch(operation)
        operation.watched = self.used = True
        self.timer.add(operation)

    def check_and_complete(self, key: Any, now_us: int) -> int:
        completed = super().check_and_complete(key, now_us)
        if not completed:
            self.walked.append(key)
        return completed


class GroupClock(Clock):
    """A clock without wheels, reapers and gauges. Time is what it is told; a timer runs at its own millisecond.

    `happened` is called after each step in which something may have happened.
    """

    def __init__(self, happened: Callable[[Moment], None]) -> None:
        super().__init__(start_ms=0)
        self.purgatories: list[KeptPurgatory] = []
        self._happened = happened
        self._event = Moment(-1, BY_CLOCK, 0)

    def new_purgatory(self, broker_id: int, name: str, purge_interval: int) -> KeptPurgatory:
        """Sessions come first, since their purgatory is made first: so they end before rounds and syncs do."""
        self.purgatories.append(KeptPurgatory(name, Deadlines(), purge_interval))
        return self.purgatories[-1]

    def next_deadline_ms(self) -> int:
        """When the next timer runs; `FOREVER` if there is none."""
        return min((self._wake_ms(purgatory) for purgatory in self.purgatories), default=FOREVER)

    def event(self, t: int, seq: int) -> None:
        """This event has just been applied."""
        self._event = Moment(t, seq, 0)
        self._happened(self._event)

    def advance_to(self, now_ms: int) -> None:
        """Timers in their order up to `now_ms`, one millisecond and one purgatory at a time: a timer that runs may add
        another, to any purgatory, that is due by `now_ms` as well."""
        last_ms, turn = -1, 0
        while self.purgatories:
            due_ms, place = min((self._wake_ms(purgatory), place) for place, purgatory in enumerate(self.purgatories))
            if due_ms > now_ms or due_ms == FOREVER:
                return
            turn = place if due_ms != last_ms else turn + (turn % 2 != place)
            last_ms = due_ms
            self.purgatories[place].timer.advance_clock(due_ms)
            self._happened(self._moment(due_ms, turn))

    def _moment(self, due_ms: int, turn: int) -> Moment:
        """What is due by the last event's millisecond was begun by it."""
        if due_ms * 1000 <= self._event.t:
            return self._event._replace(sub=1 + turn)
        return Moment(due_ms * 1000, BY_CLOCK, turn)

    @staticmethod
    def _wake_ms(purgatory: KeptPurgatory) -> int:
        wake_ms = purgatory.timer.next_wake_ms()
        return FOREVER if wake_ms is None else wake_ms

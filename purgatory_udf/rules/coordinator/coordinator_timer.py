"""The timer of the new group coordinator (Kafka 4.0).

The old coordinator has a timer in each of its two purgatories. The new one schedules everything in one `SystemTimer`;
a due task puts an event on the coordinator's queue (`CoordinatorTimerImpl`). Deadlines are exact in both. Tasks
that are due in the same millisecond run in the order of the wheel's bucket, and that is not always the order in which
they were started:

    a, started at 0 for 10,000       waits in a bucket of 8 s, from 8,000 on in a bucket of 400 ms, …
    b, started at 5,000 for 10,000   is less than 8 s ahead: in that bucket of 400 ms at once, so it runs before a

`wheel_order` computes the order from start and deadline. It assumes that the wheel's clock does not lag, so the order
depends on the group's own events only.
"""

from __future__ import annotations

from heapq import heappop, heappush

from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation
from purgatory_udf.rules.purgatory.timing_wheel import TICK_MS, WHEEL_SIZE, Alarm, TimerTask


def wheel_order(start_ms: int, deadline_ms: int) -> tuple[int, ...]:
    """Return the sort key of a task among tasks with the same deadline: when it enters its buckets, finest wheel first.

    The last entry is the start of the task. Times are doubled, and the start is made odd, because tasks that move from
    a coarser bucket precede tasks that are started in the same millisecond.

    Args:
        start_ms: When the task was started, in epoch milliseconds.
        deadline_ms: Its deadline, in epoch milliseconds.
    """
    entered = [2 * start_ms + 1]
    at_ms = start_ms
    while (tick_ms := _tick_ms(at_ms, deadline_ms)) > TICK_MS:
        at_ms = deadline_ms - deadline_ms % tick_ms
        entered.append(2 * at_ms)
    return tuple(reversed(entered))


def _tick_ms(now_ms: int, deadline_ms: int) -> int:
    """Return the bucket size, in milliseconds, of the wheel into which a task is put at `now_ms`."""
    tick_ms = TICK_MS
    while deadline_ms >= now_ms - now_ms % tick_ms + tick_ms * WHEEL_SIZE:
        tick_ms *= WHEEL_SIZE
    return tick_ms


class CoordinatorTimer:
    """A timer that runs tasks by deadline, and tasks of one millisecond in the order of a timing wheel."""

    def __init__(self) -> None:
        self.alarm = Alarm()
        self.resumed_ms = 0
        self._heap: list[tuple[int, tuple[int, ...], int, TimerTask]] = []
        self._added = 0

    def add(self, task: TimerTask) -> None:
        """Schedule an operation. Its timeout counts from the operation's start."""
        assert isinstance(task, DelayedOperation), "only an operation knows its start"
        self.schedule(task, task.started_us // 1000)

    def schedule(self, task: TimerTask, start_ms: int) -> None:
        """Schedule a task. Its start (epoch milliseconds) determines the order among tasks with the same deadline."""
        if not task.cancelled:
            self._added += 1
            heappush(self._heap, (task.deadline_ms, wheel_order(start_ms, task.deadline_ms), self._added, task))
            self.alarm.bring_forward(task.deadline_ms)

    def advance_clock(self, now_ms: int) -> bool:
        ran = False
        while (next_ms := self.next_wake_ms()) is not None and next_ms <= now_ms:
            ran = True
            task = heappop(self._heap)[-1]
            task.run(max(task.deadline_ms, self.resumed_ms))
        return ran

    def run_due(self) -> bool:
        return False

    def next_wake_ms(self) -> int | None:
        while self._heap and self._heap[0][-1].cancelled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def size(self) -> int:
        return sum(not task.cancelled for *_, task in self._heap)

    def shutdown(self) -> None:
        self._heap.clear()

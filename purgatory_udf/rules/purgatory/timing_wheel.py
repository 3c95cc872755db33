"""Hierarchical timing wheels: starting and cancelling a timer take constant time, however many timers there are.

A wheel is a ring of 20 buckets. Each bucket of the first wheel spans 1 ms. A deadline 20 ms ahead or more overflows
into a second wheel with buckets of 20 ms, then into a third with buckets of 400 ms, 8 s, 160 s, and so on. Overflow
wheels are created on demand.

A bucket expires when its slot *starts*. Its tasks are then reinserted into the finer wheels, so no task runs early:

    clock 1003, a task for 1404          wheel 1 reaches to 1023, wheel 2 ([1000, 1400) in buckets of 20) to 1400,
                                         so it overflows to wheel 3, bucket [1200, 1600), which expires at 1200

    1200  that bucket expires            the clock is 1200 now: wheel 2 reaches to 1600,
                                         the task is reinserted into its bucket [1400, 1420)
    1400  that bucket expires            1404 is less than 20 ms ahead: wheel 1, bucket [1404, 1405)
    1404  that bucket expires            1404 < clock + 1: the task is due and runs, at its deadline to the millisecond

The wheel clock advances only when a bucket expires, so it may lag behind the current time. This is harmless: a task
added in between is put into a coarser bucket than necessary, possibly an expired one, and is reinserted at the next
wake-up.

Cancelling a task removes it from its bucket, but the bucket stays in the delay queue and wakes the reaper even if it
is empty by then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

TICK_MS = 1
WHEEL_SIZE = 20


class TaskCounter:
    """The number of tasks in one timer, over all buckets and wheels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class TimerTask(ABC):
    """A task that runs at `deadline_ms` unless it is cancelled first. A cancelled task cannot be added again."""

    cancelled = False
    bucket: TimerTaskList | None = None

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms

    @abstractmethod
    def run(self, now_ms: int) -> None:
        """Run the task. `now_ms` is `deadline_ms`, or later if the broker stood still at the deadline."""

    def cancel(self) -> None:
        """Remove the task from the timer. Its bucket stays queued, even if it is empty, and still wakes the reaper."""
        self.cancelled = True
        if self.bucket is not None:
            self.bucket.remove(self)


class TimerTaskList:
    """A bucket: the tasks of one slot of a wheel, in order of insertion."""

    __slots__ = ("_counter", "_tasks", "expiration_ms")

    def __init__(self, counter: TaskCounter) -> None:
        self._counter = counter
        self._tasks: dict[TimerTask, None] = {}
        self.expiration_ms = -1

    def add(self, task: TimerTask) -> None:
        self._tasks[task] = None
        self._counter.value += 1
        task.bucket = self

    def remove(self, task: TimerTask) -> None:
        del self._tasks[task]
        self._counter.value -= 1
        task.bucket = None

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set the start of the slot. Return True if it changed, so that the bucket has to be queued again."""
        changed = self.expiration_ms != expiration_ms
        self.expiration_ms = expiration_ms
        return changed

    def flush(self, reinsert: Callable[[TimerTask], None]) -> None:
        """Remove all tasks, pass each to `reinsert`, and reset the bucket for a later slot."""
        while self._tasks:
            task = next(iter(self._tasks))
            self.remove(task)
            reinsert(task)
        self.expiration_ms = -1


class DelayQueue:
    """A queue of buckets, ordered by expiration. Buckets with equal expiration keep the order of insertion."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTaskList]] = []
        self._offered = 0

    def offer(self, bucket: TimerTaskList) -> None:
        self._offered += 1
        heappush(self._heap, (bucket.expiration_ms, self._offered, bucket))

    def earliest_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def poll(self, now_ms: int) -> TimerTaskList | None:
        """Remove and return the earliest bucket if it has expired by `now_ms`."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heappop(self._heap)[2]
        return None


class TimingWheel:
    """One wheel. It creates its overflow wheel when the first deadline needs one."""

    def __init__(self, tick_ms: int, start_ms: int, counter: TaskCounter, queue: DelayQueue) -> None:
        self._tick_ms = tick_ms
        self._interval_ms = tick_ms * WHEEL_SIZE
        self._now_ms = start_ms - start_ms % tick_ms
        self._counter = counter
        self._queue = queue
        self._buckets = [TimerTaskList(counter) for _ in range(WHEEL_SIZE)]
        self._overflow_wheel: TimingWheel | None = None

    def add(self, task: TimerTask) -> bool:
        """Put the task into its bucket. Return False if it is cancelled or already due, and therefore in no bucket."""
        if task.cancelled or task.deadline_ms < self._now_ms + self._tick_ms:
            return False
        if task.deadline_ms >= self._now_ms + self._interval_ms:
            return self._get_overflow_wheel().add(task)
        virtual_id = task.deadline_ms // self._tick_ms
        bucket = self._buckets[virtual_id % WHEEL_SIZE]
        bucket.add(task)
        if bucket.set_expiration(virtual_id * self._tick_ms):
            self._queue.offer(bucket)
        return True

    def advance_clock(self, now_ms: int) -> None:
        """Move the wheel to `now_ms`. Buckets of slots before it are reused for later slots."""
        if now_ms >= self._now_ms + self._tick_ms:
            self._now_ms = now_ms - now_ms % self._tick_ms
            if self._overflow_wheel is not None:
                self._overflow_wheel.advance_clock(self._now_ms)

    def _get_overflow_wheel(self) -> TimingWheel:
        if self._overflow_wheel is None:
            self._overflow_wheel = TimingWheel(self._interval_ms, self._now_ms, self._counter, self._queue)
        return self._overflow_wheel


class Alarm:
    """The earliest time at which any of several timers may have a task to run. The timers share the alarm."""

    __slots__ = ("at_ms",)

    def __init__(self) -> None:
        self.at_ms = 0

    def bring_forward(self, at_ms: int) -> None:
        if at_ms < self.at_ms:
            self.at_ms = at_ms


class Timer(Protocol):
    """The timer of a purgatory. Timers may share an alarm; a task that is due earlier moves it forward.

    `resumed_ms` is the time at which the broker last resumed from a pause. Overdue tasks run at that time.
    """

    alarm: Alarm
    resumed_ms: int

    def add(self, task: TimerTask) -> None:
        """Schedule `task` for its deadline. A task that is already cancelled never runs."""

    def advance_clock(self, now_ms: int) -> bool:
        """Run every task with deadline <= `now_ms`, earliest first. Return False if no bucket had expired."""

    def run_due(self) -> bool:
        """Run the tasks that were already due when they were added. Return False if there were none."""

    def next_wake_ms(self) -> int | None:
        """Return when `advance_clock` next has an expired bucket to process; the bucket may turn out to be empty."""

    def size(self) -> int:
        """Return the number of scheduled tasks."""

    def shutdown(self) -> None:
        """Stop the timer: no further task runs."""


class SystemTimer:
    """Kafka's timer: timing wheels, and a delay queue of their buckets."""

    def __init__(self, start_ms: int) -> None:
        self._counter = TaskCounter()
        self._queue = DelayQueue()
        self._wheel = TimingWheel(TICK_MS, start_ms, self._counter, self._queue)
        self._due: deque[TimerTask] = deque()
        self._closed = False
        self.alarm = Alarm()
        self.resumed_ms = 0

    def add(self, task: TimerTask) -> None:
        if self._wheel.add(task):
            self.alarm.bring_forward(self._queue.earliest_ms() or 0)
        elif not task.cancelled:
            # Kafka submits a task that is already due to an executor thread, so the caller finishes first.
            self._due.append(task)
            self.alarm.bring_forward(task.deadline_ms)

    def advance_clock(self, now_ms: int) -> bool:
        self.run_due()
        bucket = self._poll(now_ms)
        if bucket is None:
            return False
        while bucket is not None:
            self._wheel.advance_clock(bucket.expiration_ms)
            bucket.flush(self.add)
            self.run_due()
            bucket = self._poll(now_ms)
        return True

    def run_due(self) -> bool:
        ran = bool(self._due) and not self._closed
        while self._due and not self._closed:
            task = self._due.popleft()
            task.run(max(task.deadline_ms, self.resumed_ms))
        return ran

    def next_wake_ms(self) -> int | None:
        return None if self._closed else self._queue.earliest_ms()

    def size(self) -> int:
        return self._counter.value

    def shutdown(self) -> None:
        self._closed = True

    def _poll(self, now_ms: int) -> TimerTaskList | None:
        return None if self._closed else self._queue.poll(now_ms)

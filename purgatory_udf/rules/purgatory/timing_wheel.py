"""Hierarchical timing wheels: adding and cancelling a timer cost the same however many there are.

One wheel is a ring of 20 buckets. The buckets of the first wheel hold one millisecond each; what lies 20 ms ahead or
more overflows into a second wheel with buckets of 20 ms, then into a third with buckets of 400 ms, 8 s, 160 s, and so
on. Wheels are made when they are first needed.

A bucket fires when its slot *begins*, and puts its tasks back into the finer wheels, so nothing runs early:

    clock 1003, a task for 1404          wheel 1 reaches to 1023, wheel 2 ([1000, 1400) in buckets of 20) to 1400,
                                         so it goes to wheel 3, into the bucket [1200, 1600), which begins at 1200

    1200  that bucket begins             the clock is 1200 now: wheel 2 reaches to 1600,
                                         the task goes into its bucket [1400, 1420)
    1400  that bucket begins             1404 is less than 20 ms ahead: wheel 1, bucket [1404, 1405)
    1404  that bucket begins             1404 < clock + 1: the task is due and runs, at its deadline to the millisecond

The clock moves only when a bucket begins, so it may lag behind the time. That does no harm: a task added meanwhile goes
into a coarser bucket than it needed, perhaps one that has begun already, and is put back down at the next wake-up.

A cancelled task leaves its bucket, but the bucket stays queued, and wakes whoever waits for it with nothing to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

# A task with a deadline, and the bucket of a timing wheel in which it waits.


class TaskCount:
    """How many tasks wait in the buckets of one timer, over all its wheels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class TimerTask(ABC):
    """Something to run at `deadline_ms`, unless it is cancelled before. Cancelling is for good."""

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.cancelled = False
        self.bucket: Bucket | None = None

    @abstractmethod
    def run(self) -> None:
        """The deadline has come: it is `deadline_ms` now."""

    def cancel(self) -> None:
        """Leave the timer at once. The bucket stays queued, even if it is empty now: it still wakes the reaper."""
        self.cancelled = True
        if self.bucket is not None:
            self.bucket.remove(self)


class Bucket:
    """The tasks of one slot of a wheel, in the order in which they came (Kafka: TimerTaskList)."""

    __slots__ = ("_count", "_tasks", "begins_ms")

    def __init__(self, count: TaskCount) -> None:
        self._count = count
        self._tasks: dict[TimerTask, None] = {}
        self.begins_ms = -1

    def add(self, task: TimerTask) -> None:
        self._tasks[task] = None
        self._count.value += 1
        task.bucket = self

    def remove(self, task: TimerTask) -> None:
        del self._tasks[task]
        self._count.value -= 1
        task.bucket = None

    def begin_at(self, begins_ms: int) -> bool:
        """Say when the slot begins. True if that is news: the bucket was flushed since and must be queued again."""
        news = self.begins_ms != begins_ms
        self.begins_ms = begins_ms
        return news

    def flush(self, each: Callable[[TimerTask], None]) -> None:
        """Empty the bucket into `each`, and make it ready to be used for a later slot."""
        while self._tasks:
            task = next(iter(self._tasks))
            self.remove(task)
            each(task)
        self.begins_ms = -1


TICK_MS = 1
BUCKETS = 20


class BucketQueue:
    """Buckets in the order of their beginning (Kafka: a DelayQueue)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Bucket]] = []
        self._offered = 0

    def offer(self, bucket: Bucket) -> None:
        self._offered += 1
        heappush(self._heap, (bucket.begins_ms, self._offered, bucket))

    def earliest_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def poll(self, now_ms: int) -> Bucket | None:
        """The earliest bucket if it has begun by `now_ms`, taken off the queue."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heappop(self._heap)[2]
        return None


class TimingWheel:
    """One wheel, and the coarser wheel above it once one was needed."""

    def __init__(self, tick_ms: int, start_ms: int, count: TaskCount, queue: BucketQueue) -> None:
        self._tick_ms = tick_ms
        self._interval_ms = tick_ms * BUCKETS
        self._now_ms = start_ms - start_ms % tick_ms
        self._count = count
        self._queue = queue
        self._buckets = [Bucket(count) for _ in range(BUCKETS)]
        self._overflow: TimingWheel | None = None

    def add(self, task: TimerTask) -> bool:
        """Put the task into its bucket. False if it was cancelled or is due already, so that it is in none."""
        if task.cancelled or task.deadline_ms < self._now_ms + self._tick_ms:
            return False
        if task.deadline_ms >= self._now_ms + self._interval_ms:
            return self._overflow_wheel().add(task)
        slot = task.deadline_ms // self._tick_ms
        bucket = self._buckets[slot % BUCKETS]
        bucket.add(task)
        if bucket.begin_at(slot * self._tick_ms):
            self._queue.offer(bucket)
        return True

    def advance_clock(self, now_ms: int) -> None:
        """The slots before `now_ms` are over: their buckets now stand for later slots."""
        if now_ms >= self._now_ms + self._tick_ms:
            self._now_ms = now_ms - now_ms % self._tick_ms
            if self._overflow is not None:
                self._overflow.advance_clock(self._now_ms)

    def _overflow_wheel(self) -> TimingWheel:
        if self._overflow is None:
            self._overflow = TimingWheel(self._interval_ms, self._now_ms, self._count, self._queue)
        return self._overflow


# The timer of a purgatory: tasks in, each run at its deadline when the clock is moved on.


class Alarm:
    """Before `at_ms` none of the timers that share it has anything to do, and nobody need look at them."""

    __slots__ = ("at_ms",)

    def __init__(self) -> None:
        self.at_ms = 0

    def bring_forward(self, at_ms: int) -> None:
        if at_ms < self.at_ms:
            self.at_ms = at_ms


class Timer(Protocol):
    def add(self, task: TimerTask) -> None:
        """Have `task` run at its deadline; a task that is cancelled already never runs."""

    def advance_clock(self, now_ms: int) -> bool:
        """Run every task with deadline <= `now_ms`, earliest first. False if there was nothing to wake up for."""

    def run_due(self) -> bool:
        """Run the tasks that were due when they were added: they need no waking up. False if there were none."""

    def next_wake_ms(self) -> int | None:
        """When `advance_clock` will next have something to do; perhaps only to find that it was cancelled."""

    def size(self) -> int:
        """How many tasks wait."""

    def shutdown(self) -> None:
        """Run nothing any more."""


class SystemTimer:
    """Kafka's timer: hierarchical timing wheels, and a queue of their buckets in order of beginning."""

    def __init__(self, start_ms: int) -> None:
        self._waiting = TaskCount()
        self._queue = BucketQueue()
        self._wheel = TimingWheel(TICK_MS, start_ms, self._waiting, self._queue)
        self._due: deque[TimerTask] = deque()
        self._closed = False
        self.alarm = Alarm()

    def add(self, task: TimerTask) -> None:
        if self._wheel.add(task):
            self.alarm.bring_forward(self._queue.earliest_ms() or 0)
        elif not task.cancelled:
            # Kafka hands a task that is due already to another thread, so whoever adds it finishes first.
            self._due.append(task)
            self.alarm.bring_forward(task.deadline_ms)

    def advance_clock(self, now_ms: int) -> bool:
        self.run_due()
        bucket = self._poll(now_ms)
        if bucket is None:
            return False
        while bucket is not None:
            self._wheel.advance_clock(bucket.begins_ms)
            bucket.flush(self.add)
            self.run_due()
            bucket = self._poll(now_ms)
        return True

    def run_due(self) -> bool:
        ran = bool(self._due) and not self._closed
        while self._due and not self._closed:
            self._due.popleft().run()
        return ran

    def next_wake_ms(self) -> int | None:
        return None if self._closed else self._queue.earliest_ms()

    def size(self) -> int:
        return self._waiting.value

    def shutdown(self) -> None:
        self._closed = True

    def _poll(self, now_ms: int) -> Bucket | None:
        return None if self._closed else self._queue.poll(now_ms)

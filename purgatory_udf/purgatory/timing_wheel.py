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

from heapq import heappop, heappush

from purgatory_udf.purgatory.timer_task import Bucket, TaskCount, TimerTask

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

"""The timer of a purgatory: tasks in, each run at its deadline when the clock is moved on."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from purgatory_udf.purgatory.timer_task import Bucket, TaskCount, TimerTask
from purgatory_udf.purgatory.timing_wheel import TICK_MS, BucketQueue, TimingWheel


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

"""A task with a deadline, and the bucket of a timing wheel in which it waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


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

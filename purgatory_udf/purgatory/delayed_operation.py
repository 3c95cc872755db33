"""A request that may have to wait: tried on arrival and at every event of its keys, until it completes or expires."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

from purgatory_udf.purgatory.timer_task import TimerTask


class DelayedOperation(TimerTask):
    """Completed exactly once: by whoever first finds its condition true, or by the timer at its deadline.

    Instants are microseconds, as in the trace; the purgatory's own time is whole milliseconds, so the deadline is the
    start cut to a millisecond plus the delay.
    """

    def __init__(self, started_us: int, delay_ms: int) -> None:
        super().__init__(started_us // 1000 + max(0, delay_ms))
        self.started_us = started_us
        self.ended_us: int | None = None
        self.expired = False
        self.abandoned = False
        self.watched = False
        self.trigger: str | None = None

    @property
    def completed(self) -> bool:
        """Ended: its condition came true, it expired, or its broker is gone."""
        return self.ended_us is not None

    @abstractmethod
    def try_complete(self, now_us: int) -> bool:
        """Check the condition; if it holds, `force_complete`. True only if this very call completed the operation."""

    @abstractmethod
    def on_complete(self, now_us: int) -> None:
        """Answer the request. Called once, by `force_complete`."""

    @abstractmethod
    def on_expiration(self, now_us: int) -> None:
        """Count the expiration. Called after the answer, and only if it was the deadline that ended the operation."""

    def maybe_try_complete(self, now_us: int) -> bool:
        """A check by an event. Kafka's threads may share one attempt; here every check makes its own."""
        return not self.completed and self.try_complete(now_us)

    def force_complete(self, now_us: int) -> bool:
        """End the operation now. Only the first caller does so, and is told True."""
        if self.completed:
            return False
        self.cancel()
        self.ended_us = now_us
        self.on_complete(now_us)
        return True

    def waits_for(self, key: Hashable) -> bool:
        """Whether it is this key that it waits for; an operation of several may be done with some of them."""
        return True

    def abandon(self, now_us: int) -> None:
        """Its broker is gone: it ends, and nobody is answered."""
        self.cancel()
        self.abandoned = True
        self.ended_us = now_us

    def run(self) -> None:
        now_us = self.deadline_ms * 1000
        if self.force_complete(now_us):
            self.expired = True
            self.on_expiration(now_us)

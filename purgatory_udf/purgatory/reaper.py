"""Who moves the clock: one reaper per purgatory, as Kafka has one thread per purgatory."""

from __future__ import annotations

from typing import Any

from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory
from purgatory_udf.purgatory.timer import Alarm, SystemTimer

IDLE_MS = 200


class Reaper:
    """Wakes when the timer's earliest bucket begins, else 200 ms after it last woke.

    When it wakes decides nothing about any operation, for the wheels are exact; it decides when purges happen.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], start_ms: int) -> None:
        self.purgatory = purgatory
        self._last_wake_ms = start_ms

    def skip_to(self, now_ms: int) -> None:
        """Nothing can have happened since the last wake-up: keep the rhythm without waking."""
        self._last_wake_ms += (now_ms - self._last_wake_ms) // IDLE_MS * IDLE_MS

    def next_wake_ms(self, now_ms: int) -> int:
        idle_ms = self._last_wake_ms + IDLE_MS
        bucket_ms = self.purgatory.timer.next_wake_ms()
        # A bucket may have begun before something was put into it; nobody wakes in the past.
        return idle_ms if bucket_ms is None else min(idle_ms, max(bucket_ms, now_ms))

    def wake(self, at_ms: int) -> None:
        self._last_wake_ms = at_ms
        self.purgatory.advance_clock(at_ms)


class Reapers:
    """All reapers on one clock: they wake in order of time, at one time in the order in which they were added.

    The order matters where one purgatory's expiration puts something into another, as an expired heartbeat does.
    """

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self._start_ms = start_ms
        self._reapers: list[Reaper] = []
        self._alarm = Alarm()

    def add(self, purgatory: DelayedOperationPurgatory[Any]) -> None:
        """Its reaper has been waking every 200 ms since the start, to find nothing."""
        reaper = Reaper(purgatory, self._start_ms)
        reaper.skip_to(self.now_ms)
        self._reapers.append(reaper)
        assert isinstance(purgatory.timer, SystemTimer), "no other rings the alarm"
        purgatory.timer.alarm = self._alarm
        self._alarm.at_ms = self.now_ms

    def next_bucket_ms(self) -> int | None:
        """When a bucket next begins in any purgatory; before it, nothing expires."""
        begins = (reaper.purgatory.timer.next_wake_ms() for reaper in self._reapers)
        return min((begins_ms for begins_ms in begins if begins_ms is not None), default=None)

    def advance_to(self, now_ms: int) -> None:
        """Expire everything with deadline <= `now_ms`, and purge where a purge is due on the way."""
        while self._reapers and self._alarm.at_ms <= now_ms:
            self._run_due()
            at_ms, _, reaper = min(
                (reaper.next_wake_ms(self.now_ms), order, reaper) for order, reaper in enumerate(self._reapers)
            )
            self._alarm.at_ms = at_ms
            if at_ms <= now_ms:
                self.now_ms = at_ms
                reaper.wake(at_ms)
        self.now_ms = now_ms

    def skip_to(self, now_ms: int) -> None:
        """As `advance_to`, where it is known that no bucket begins on the way and every purge has been done."""
        for reaper in self._reapers:
            reaper.skip_to(now_ms)
        self.now_ms = self._alarm.at_ms = now_ms

    def _run_due(self) -> None:
        """Tasks due when they were added wake no reaper; one that runs may add another, to any purgatory."""
        while any(reaper.purgatory.timer.run_due() for reaper in self._reapers):
            pass

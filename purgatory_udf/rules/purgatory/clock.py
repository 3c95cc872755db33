"""The one clock of all purgatories: moving it expires operations, purges, and reads the gauges on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import Alarm, SystemTimer

# Who moves the clock: one reaper per purgatory, as Kafka has one thread per purgatory.


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


# The two gauges of every purgatory, read each 200 ms as an operator's monitoring would.


STEP_MS = 200


@dataclass
class Series:
    """One purgatory's readings, kept where they changed."""

    broker: int
    purgatory: DelayedOperationPurgatory[Any]
    changes: list[Gauge]
    purged_before: int = 0

    def read(self, at_ms: int) -> None:
        purgatory = self.purgatory
        purged = purgatory.purged - self.purged_before
        self.purged_before = purgatory.purged
        reading = Gauge(self.broker, purgatory.name, at_ms, purgatory.watched(), purgatory.num_delayed(), purged)
        last = self.changes[-1] if self.changes else None
        if last is None or purged or last.purged or (last.watched, last.delayed) != (reading.watched, reading.delayed):
            self.changes.append(reading)

    def at_every_step(self, start_ms: int, end_ms: int) -> list[Gauge]:
        readings: list[Gauge] = []
        current = Gauge(self.broker, self.purgatory.name, start_ms, 0, 0, 0)
        changes = {reading.at_ms: reading for reading in self.changes}
        for at_ms in range(start_ms + STEP_MS, end_ms + 1, STEP_MS):
            current = changes.get(at_ms) or replace(current, at_ms=at_ms)
            readings.append(current)
        return readings


def changed(gauges: Iterable[Gauge]) -> list[Gauge]:
    """The steps at which a purgatory reads otherwise than at the step before (at first: than empty), or purged."""
    before: dict[tuple[int, str], tuple[int, int]] = {}
    kept = []
    for gauge in gauges:
        series, reading = (gauge.broker, gauge.purgatory), (gauge.watched, gauge.delayed)
        if gauge.purged or reading != before.get(series, (0, 0)):
            kept.append(gauge)
        before[series] = reading
    return kept


# After this long without events every reaper has woken, what it purged was read, and the step after that as well.
_SETTLED_MS = IDLE_MS + 3 * STEP_MS


class Clock:
    """Starts at a gauge step. Whoever applies an event moves the clock to its time first, so expiration wins ties."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.series: list[Series] = []
        self._reapers = Reapers(start_ms)
        self._next_step_ms = start_ms + STEP_MS

    @property
    def last_step_ms(self) -> int:
        """The last step at which the gauges were read."""
        return self._next_step_ms - STEP_MS

    def new_purgatory(self, broker_id: int, name: str, purge_interval: int) -> DelayedOperationPurgatory[Any]:
        """A purgatory with a reaper and gauges. Of those that expire at one time, the one made first goes first."""
        purgatory: DelayedOperationPurgatory[Any] = DelayedOperationPurgatory(
            name, SystemTimer(self.start_ms), purge_interval
        )
        self._reapers.add(purgatory)
        self.series.append(Series(broker_id, purgatory, []))
        return purgatory

    def num_delayed(self) -> int:
        return sum(series.purgatory.num_delayed() for series in self.series)

    def next_expiration_ms(self) -> int | None:
        """No operation expires before this, and the clock need not be moved."""
        return self._reapers.next_bucket_ms()

    def advance_to(self, now_ms: int) -> None:
        """Expire everything with deadline <= `now_ms`. A step's gauges are read after the expirations of its time."""
        while now_ms - self._reapers.now_ms > _SETTLED_MS:
            # A wheel that lags after a quiet time may have taken a task into a bucket whose time has begun.
            settled_ms, quiet_ms = self._reapers.now_ms + _SETTLED_MS, self._quiet_until(now_ms)
            if quiet_ms > settled_ms:
                self._step_to(settled_ms)
                self._skip_to(quiet_ms)
            self._step_to(min(max(quiet_ms, self._reapers.now_ms) + 1, now_ms))
        self._step_to(now_ms)

    def _step_to(self, now_ms: int) -> None:
        while self._next_step_ms <= now_ms:
            self._reapers.advance_to(self._next_step_ms)
            for series in self.series:
                series.read(self._next_step_ms)
            self._next_step_ms += STEP_MS
        self._reapers.advance_to(now_ms)

    def _quiet_until(self, now_ms: int) -> int:
        """Until the next bucket begins nothing happens; a trace may pause for days."""
        bucket_ms = self.next_expiration_ms()
        return now_ms if bucket_ms is None else min(now_ms, bucket_ms - 1)

    def _skip_to(self, now_ms: int) -> None:
        """Through quiet time: every reading would be as the last one."""
        if now_ms > self._reapers.now_ms:
            self._reapers.skip_to(now_ms)
            self._next_step_ms += max(0, (now_ms - self.last_step_ms) // STEP_MS * STEP_MS)

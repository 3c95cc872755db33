"""The clock of a replay: it wakes the expiration reapers, which expire and purge, and reads the gauges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import Alarm, SystemTimer, Timer

# Longest sleep of a reaper, in milliseconds.
IDLE_MS = 200
# Later than any wake-up.
NEVER_MS = 1 << 62
# Interval at which the gauges are read, in milliseconds, as an operator's monitoring would.
STEP_MS = 200


class Pause(NamedTuple):
    """A period in which a broker stood still: its timers fire up to `paused_ms`, and again from `resumed_ms` on."""

    broker: int
    paused_ms: int
    resumed_ms: int


# Events of a trace that begin and end a pause.
PAUSE_EVENTS = (PAUSED, RESUMED) = ("paused", "resumed")


class Pauses:
    """The pauses of the cluster's brokers. The pauses of one broker do not overlap and are in time order."""

    def __init__(self, pauses: Iterable[Pause] = ()) -> None:
        self._of: dict[int, list[Pause]] = {}
        # Whether there are any pauses.
        self.exist = False
        for pause in pauses:
            self.add(pause)

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], end_us: int = 0) -> Pauses:
        """Collect the pauses from events in any order.

        A pause without an event `resumed` lasts until after the last event, or after `end_us` if that is later.
        """
        since: dict[int, int] = {}
        pauses, end_ms = cls(), end_us // 1000
        for event in sorted(events, key=lambda event: (event["time_us"], event["seq"])):
            broker, at_ms = event.get("broker") or 0, event["time_us"] // 1000
            if event["type"] == PAUSED:
                since.setdefault(broker, at_ms)
            elif event["type"] == RESUMED and broker in since:
                pauses.add(Pause(broker, since.pop(broker), at_ms))
            end_ms = max(end_ms, at_ms)
        for broker, paused_ms in since.items():
            pauses.add(Pause(broker, paused_ms, end_ms + 1))
        return pauses

    def add(self, pause: Pause) -> None:
        """Add a pause that is later than all others of its broker."""
        self._of.setdefault(pause.broker, []).append(pause)
        self.exist = True

    def end_last(self, broker: int, resumed_ms: int) -> None:
        """Change the end of the broker's last pause to `resumed_ms`, which the clock must not have reached yet."""
        self._of[broker][-1] = self._of[broker][-1]._replace(resumed_ms=resumed_ms)

    def of(self, broker: int) -> list[Pause]:
        """Return the pauses of the broker."""
        return self._of.get(broker, [])

    def __iter__(self) -> Iterator[Pause]:
        """Yield all pauses, by broker and time."""
        for broker in sorted(self._of):
            yield from self._of[broker]

    def fires_ms(self, broker: int, due_ms: int) -> int:
        """Return when a timer that is due at `due_ms` fires: then, or when the broker resumes from a pause."""
        of_broker = self.of(broker)
        before = bisect_left(of_broker, due_ms, key=lambda pause: pause.paused_ms)
        return max(due_ms, of_broker[before - 1].resumed_ms) if before else due_ms

    def next_after(self, now_ms: int, broker: int | None = None) -> Pause | None:
        """Return the first pause, of this broker or of any, that lasts beyond `now_ms`; None without one."""
        brokers = self._of if broker is None else [broker]
        following = []
        for each in brokers:
            of_broker = self.of(each)
            first = bisect_right(of_broker, now_ms, key=lambda pause: pause.resumed_ms)
            following += of_broker[first : first + 1]
        return min(following, key=lambda pause: pause.paused_ms, default=None)


class ExpiredOperationReaper:
    """The thread that advances one purgatory's clock: it wakes when the next bucket expires, at most 200 ms later.

    The wake-up times do not affect any operation, because the wheels are exact. They decide when purges happen. Only a
    wake-up that was due while the broker stood still delays operations: they expire when the broker resumes.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], start_ms: int, broker: int, pauses: Pauses) -> None:
        self.purgatory = purgatory
        self._last_wake_ms = start_ms
        self._broker = broker
        self._pauses = pauses

    def skip_to(self, now_ms: int) -> None:
        """Skip idle wake-ups up to `now_ms` and keep their 200 ms rhythm. No bucket may expire on the way."""
        while (pause := self._pauses.next_after(self._last_wake_ms, self._broker)) and pause.paused_ms < now_ms:
            self._skip_idle(max(pause.paused_ms, self._last_wake_ms))
            wake_ms = self._fires_ms(self._last_wake_ms + IDLE_MS)
            if wake_ms > now_ms:
                return
            self._last_wake_ms = wake_ms
        self._skip_idle(now_ms)

    def next_wake_ms(self, now_ms: int) -> int:
        wake_ms = self._last_wake_ms + IDLE_MS
        bucket_ms = self.purgatory.timer.next_wake_ms()
        if bucket_ms is not None and bucket_ms < wake_ms:
            # A task may be added to a bucket that has already expired; the reaper cannot wake in the past.
            wake_ms = bucket_ms if bucket_ms > now_ms else min(wake_ms, now_ms)
        return self._fires_ms(wake_ms) if self._pauses.exist else wake_ms

    def next_bucket_ms(self, now_ms: int) -> int | None:
        """Return when the reaper takes the next bucket, or None if it has none."""
        bucket_ms = self.purgatory.timer.next_wake_ms()
        return None if bucket_ms is None else self._fires_ms(max(bucket_ms, now_ms))

    def wake(self, at_ms: int) -> None:
        if self._fires_ms(at_ms - 1) == at_ms:
            self.purgatory.timer.resumed_ms = at_ms
        self._last_wake_ms = at_ms
        self.purgatory.advance_clock(at_ms)

    def _skip_idle(self, now_ms: int) -> None:
        self._last_wake_ms += (now_ms - self._last_wake_ms) // IDLE_MS * IDLE_MS

    def _fires_ms(self, due_ms: int) -> int:
        return self._pauses.fires_ms(self._broker, due_ms) if self._pauses.exist else due_ms


class Reapers:
    """The reapers of a cluster. They wake in time order; reapers that are due together wake in order of creation.

    The order matters if an expiration in one purgatory adds an operation to another, as an expired heartbeat does.
    """

    def __init__(self, start_ms: int, pauses: Pauses | None = None) -> None:
        self.now_ms = start_ms
        self._start_ms = start_ms
        self._pauses = Pauses() if pauses is None else pauses
        self._reapers: list[ExpiredOperationReaper] = []
        self._alarm = Alarm()
        self._alarm.at_ms = NEVER_MS

    def add(self, purgatory: DelayedOperationPurgatory[Any], broker: int = 0) -> None:
        """Add the reaper of a new, empty purgatory, as if it had woken every 200 ms since the start."""
        reaper = ExpiredOperationReaper(purgatory, self._start_ms, broker, self._pauses)
        reaper.skip_to(self.now_ms)
        self._reapers.append(reaper)
        purgatory.timer.alarm = self._alarm
        self._alarm.at_ms = self.now_ms

    def next_bucket_ms(self) -> int | None:
        """Return when the next bucket of any purgatory expires; None without one. No operation expires before it."""
        wake_times = (reaper.next_bucket_ms(self.now_ms) for reaper in self._reapers)
        return min((wake_ms for wake_ms in wake_times if wake_ms is not None), default=None)

    def is_idle_until(self, now_ms: int) -> bool:
        """Return whether no reaper wakes up to `now_ms`."""
        return self._alarm.at_ms > now_ms

    def advance_to(self, now_ms: int) -> None:
        """Expire every operation with deadline <= `now_ms`, purging where a purge is due on the way."""
        alarm = self._alarm
        while alarm.at_ms <= now_ms:
            self._run_due()
            at_ms, following_ms, reaper = self._next_wake()
            if at_ms > now_ms:
                alarm.at_ms = at_ms
                break
            self.now_ms = at_ms
            alarm.at_ms = following_ms
            # May bring the alarm forward, by adding tasks.
            reaper.wake(at_ms)
            alarm.bring_forward(reaper.next_wake_ms(at_ms))
        self.now_ms = now_ms

    def _next_wake(self) -> tuple[int, int, ExpiredOperationReaper]:
        """Return the time of the next wake-up, that of the one after it, and the reaper that wakes first."""
        first, at_ms, following_ms = self._reapers[0], NEVER_MS, NEVER_MS
        for reaper in self._reapers:
            wake_ms = reaper.next_wake_ms(self.now_ms)
            if wake_ms < at_ms:
                first, at_ms, following_ms = reaper, wake_ms, at_ms
            elif wake_ms < following_ms:
                following_ms = wake_ms
        return at_ms, following_ms, first

    def skip_to(self, now_ms: int) -> None:
        """Advance to `now_ms` without waking reapers. No bucket may expire on the way and no purge may be due."""
        for reaper in self._reapers:
            reaper.skip_to(now_ms)
        self.now_ms = now_ms
        if self._reapers:
            self._alarm.at_ms = now_ms

    def _run_due(self) -> None:
        """Run the tasks that were already due when they were added. Each may add further due tasks to any purgatory."""
        ran = True
        while ran:
            ran = False
            for reaper in self._reapers:
                if reaper.purgatory.timer.run_due():
                    ran = True
                    break


@dataclass
class GaugeSeries:
    """The gauge readings of one purgatory. Only readings that differ from the previous one are stored.

    A replay in steps removes the stored readings after each step, and keeps the last values as `reported`.
    """

    broker: int
    purgatory: DelayedOperationPurgatory[Any]
    changes: list[Gauge]
    purged_before: int = 0
    reported: tuple[int, int] = (0, 0)

    def read(self, at_ms: int) -> None:
        purgatory = self.purgatory
        purged = purgatory.purged - self.purged_before
        self.purged_before = purgatory.purged
        reading = Gauge(self.broker, purgatory.name, at_ms, purgatory.watched(), purgatory.num_delayed(), purged)
        last = self.changes[-1] if self.changes else None
        if last is None or purged or last.purged or (last.watched, last.delayed) != (reading.watched, reading.delayed):
            self.changes.append(reading)

    def may_change(self) -> bool:
        """Return whether a later reading may differ from the last one without a further event or expiration."""
        purgatory, last = self.purgatory, self.changes[-1] if self.changes else None
        values = purgatory.watched(), purgatory.num_delayed()
        is_changed = values != ((0, 0) if last is None else (last.watched, last.delayed))
        return is_changed or purgatory.purged > self.purged_before or purgatory.needs_purge()

    def at_every_step(self, start_ms: int, end_ms: int) -> list[Gauge]:
        """Return one reading for each 200 ms step after `start_ms` up to `end_ms`."""
        readings: list[Gauge] = []
        current = Gauge(self.broker, self.purgatory.name, start_ms, 0, 0, 0)
        changes = {reading.at_ms: reading for reading in self.changes}
        for at_ms in range(start_ms + STEP_MS, end_ms + 1, STEP_MS):
            current = changes.get(at_ms) or replace(current, at_ms=at_ms)
            readings.append(current)
        return readings


def gauge_changes(gauges: Iterable[Gauge]) -> list[Gauge]:
    """Return the readings that count a purge or differ from the previous one of their purgatory, initially 0."""
    previous: dict[tuple[int, str], tuple[int, int]] = {}
    changes = []
    for gauge in gauges:
        series, reading = (gauge.broker, gauge.purgatory), (gauge.watched, gauge.delayed)
        if gauge.purged or reading != previous.get(series, (0, 0)):
            changes.append(gauge)
        previous[series] = reading
    return changes


# After this time without events every reaper has woken and purged, the purge has been read, and so has the next step.
_SETTLED_MS = IDLE_MS + 3 * STEP_MS


class Clock:
    """The clock of a trace, with the reapers and gauges that it drives. It starts at a gauge step.

    Before an event is applied, the caller advances the clock to the event's time, so expiration wins ties.
    """

    def __init__(self, start_ms: int, pauses: Pauses | None = None) -> None:
        self.start_ms = start_ms
        self.pauses = Pauses() if pauses is None else pauses
        self.series: list[GaugeSeries] = []
        self._purgatories: list[DelayedOperationPurgatory[Any]] = []
        self._reapers = Reapers(start_ms, self.pauses)
        self._next_step_ms = start_ms + STEP_MS

    @property
    def last_step_ms(self) -> int:
        """The last step at which the gauges were read."""
        return self._next_step_ms - STEP_MS

    def new_purgatory(
        self, broker_id: int, name: str, purge_interval: int, timer: Timer | None = None
    ) -> DelayedOperationPurgatory[Any]:
        """Create a purgatory with a reaper and gauges.

        If operations of several purgatories are due at the same time, the purgatory created first expires first.

        Args:
            broker_id: Id of the purgatory's broker.
            name: Name of the purgatory.
            purge_interval: The purge interval, in operations.
            timer: A shared timer of Kafka's new group coordinator, which has no gauges; None for a timer of the
                purgatory alone.
        """
        purgatory: DelayedOperationPurgatory[Any] = DelayedOperationPurgatory(
            name, SystemTimer(self.start_ms) if timer is None else timer, purge_interval
        )
        self._purgatories.append(purgatory)
        self._reapers.add(purgatory, broker_id)
        if timer is None:
            self.series.append(GaugeSeries(broker_id, purgatory, []))
        return purgatory

    def num_delayed(self) -> int:
        return sum(purgatory.num_delayed() for purgatory in self._purgatories)

    def next_expiration_ms(self) -> int | None:
        """Return a time before which no operation expires, or None if no timer is running."""
        return self._reapers.next_bucket_ms()

    def next_reading_ms(self) -> int | None:
        """Return when the gauges are read next; None if no reading changes before the next event or expiration."""
        return self._next_step_ms if any(series.may_change() for series in self.series) else None

    def advance_to(self, now_ms: int) -> None:
        """Expire every operation with deadline <= `now_ms` and read the gauges, each step after its expirations."""
        if now_ms < self._next_step_ms and self._reapers.is_idle_until(now_ms):
            self._reapers.now_ms = now_ms
            return
        while now_ms - self._reapers.now_ms > _SETTLED_MS:
            pause = self.pauses.next_after(self._reapers.now_ms)
            if pause is not None and pause.paused_ms <= self._reapers.now_ms + _SETTLED_MS:
                self._step_to(min(pause.resumed_ms, now_ms))
                continue
            # After quiet time a lagging wheel may have put a task into a bucket that has already expired.
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
        """Return the last millisecond before the next bucket or pause, at most `now_ms`.

        A trace may have no events for days, which `_skip_to` then skips.
        """
        bucket_ms, pause = self.next_expiration_ms(), self.pauses.next_after(self._reapers.now_ms)
        quiet_ms = now_ms if pause is None else min(now_ms, pause.paused_ms)
        return quiet_ms if bucket_ms is None else min(quiet_ms, bucket_ms - 1)

    def _skip_to(self, now_ms: int) -> None:
        """Advance through quiet time, in which every reading repeats the last one."""
        if now_ms > self._reapers.now_ms:
            self._reapers.skip_to(now_ms)
            self._next_step_ms += max(0, (now_ms - self.last_step_ms) // STEP_MS * STEP_MS)

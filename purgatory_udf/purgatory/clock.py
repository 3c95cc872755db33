"""The one clock of all purgatories: moving it expires operations, purges, and reads the gauges on the way."""

from __future__ import annotations

from typing import Any

from purgatory_udf.purgatory.gauges import STEP_MS, Series
from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory
from purgatory_udf.purgatory.reaper import IDLE_MS, Reapers
from purgatory_udf.purgatory.timer import SystemTimer

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

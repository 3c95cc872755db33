"""What a simulation runs on: one clock in milliseconds, what is to happen at which time, and the host's cores.

Whatever a client or a broker does costs it some milliseconds of a core. While no more of them are busy than there are
cores, each is done after just that; else all share the cores evenly and take as much longer (processor sharing).

    worked    how much each busy one has been given so far; it grows by 1 a millisecond, or by cores / busy

A piece of work of w ms that begins when `worked` is W is done when `worked` is W + w, however many others come and go
meanwhile: so one heap, ordered by that, holds all of them.

A long step is long for another reason: it waited for a disk, a timer, a pause. What exceeds `stall_ms` is no work that
sharing could stretch, but time that passes: `stretch` makes it what it was where it was measured. It counts as busy
meanwhile, as it did there.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Do = Callable[..., None]


class Machine:
    """`cores` is None where nothing is shared: then work takes its time, and no longer."""

    def __init__(
        self, begin_ms: float, cores: float | None, stall_ms: float = float("inf"), stretch: float = 1.0
    ) -> None:
        self.now = begin_ms
        self._stall_ms = stall_ms
        self._stretch = stretch
        self._cores = cores
        self._times: list[tuple[float, int, Do, Any]] = []
        self._works: list[tuple[float, int, Do, Any]] = []
        self._worked = 0.0
        self._worked_at = begin_ms
        self._stalled = 0
        self._made = 0

    def at(self, time_ms: float, do: Do, subject: Any) -> None:
        """`do(subject)` then."""
        self._made += 1
        heappush(self._times, (time_ms, self._made, do, subject))

    def work(self, amount_ms: float, do: Do, subject: Any) -> None:
        """`do(subject)` once that much has been worked for it."""
        if self._cores is None:
            self.at(self.now + amount_ms, do, subject)
            return
        if amount_ms > self._stall_ms:
            stalled = (amount_ms - self._stall_ms) * self._stretch
            do, subject, amount_ms = self._wait, (stalled, do, subject), self._stall_ms
        self._catch_up()
        self._made += 1
        heappush(self._works, (self._worked + amount_ms, self._made, do, subject))

    def run(self, until_ms: float) -> None:
        times, works, cores = self._times, self._works, self._cores
        while times or works:
            done = None
            if works:
                assert cores is not None
                busy = len(works) + self._stalled
                done = self._worked_at + (works[0][0] - self._worked) * (busy / cores if busy > cores else 1.0)
            if done is None or (times and times[0][0] <= done):
                if times[0][0] > until_ms:
                    break
                self.now, _, do, subject = heappop(times)
            else:
                if done > until_ms:
                    break
                self.now = max(self.now, done)
                self._worked, self._worked_at = works[0][0], self.now
                _, _, do, subject = heappop(works)
            do(subject)
        self.now = until_ms

    def _wait(self, stalled: tuple[float, Do, Any]) -> None:
        """It is still one of those that are busy, as it was where it was measured."""
        length_ms, do, subject = stalled
        self._catch_up()
        self._stalled += 1
        self.at(self.now + length_ms, self._waited, (do, subject))

    def _waited(self, after: tuple[Do, Any]) -> None:
        do, subject = after
        self._catch_up()
        self._stalled -= 1
        do(subject)

    def _catch_up(self) -> None:
        busy = len(self._works) + self._stalled
        if busy:
            assert self._cores is not None
            share = self._cores / busy if busy > self._cores else 1.0
            self._worked += (self.now - self._worked_at) * share
        self._worked_at = self.now

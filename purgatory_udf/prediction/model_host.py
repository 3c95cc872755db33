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

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

Do = Callable[..., None]


class ModelHost:
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


# What a simulation leaves behind: a line for each answered request, and what the gauges read.


FETCH, PRODUCE = "FETCH", "PRODUCE"


class AnsweredRequest(NamedTuple):
    """`at_ms`: when it was answered. `expired` of a produce: a partition of it timed out."""

    client: str
    api: str
    broker: int
    at_ms: float
    waited_ms: float
    expired: bool
    bytes: int
    follower: bool


@dataclass(slots=True)
class Measurements:
    """Times from 0, which is when the warm-up is over. `reached_ms`: from a batch's append to each consumer's answer;
    `acknowledged_ms`: from a batch's first record to its producer's answer.

    `gauges` are (broker, purgatory, watched, delayed), read every 200 ms. `events` is a trace in the contract's form,
    where one is asked for.
    """

    answered: list[AnsweredRequest] = field(default_factory=list)
    reached_ms: list[tuple[str, float]] = field(default_factory=list)
    acknowledged_ms: list[tuple[str, float]] = field(default_factory=list)
    gauges: list[tuple[int, str, int, int]] = field(default_factory=list)
    events: list[dict[str, Any]] | None = None

    def event(self, now_ms: float, type: str, broker: int, **fields: Any) -> int:
        """Its `seq`, -1 where no trace is kept."""
        if self.events is None:
            return -1
        seq = len(self.events)
        self.events.append({"time_us": round(now_ms * 1000), "seq": seq, "type": type, "broker": broker, **fields})
        return seq


# Draws from a distribution that is kept by its quantiles.


class Sampler:
    """`quantiles` are evenly spaced, from the first to the last; between two of them all are alike."""

    def __init__(self, quantiles: Sequence[float], random: Random) -> None:
        self._quantiles = list(quantiles)
        self._last = len(self._quantiles) - 1
        self._random = random.random

    def __call__(self) -> float:
        if not self._last:
            return self._quantiles[0]
        place = self._random() * self._last
        below = int(place)
        low = self._quantiles[below]
        return low + (place - below) * (self._quantiles[below + 1] - low)


class SamplerBySize:
    """A distribution for each range of sizes: `bounds` are where the next one begins."""

    def __init__(self, bounds: Sequence[int], quantiles: Sequence[Sequence[float]], random: Random) -> None:
        self._bounds = list(bounds)
        self._samplers = [Sampler(each, random) for each in quantiles]

    def __call__(self, size: int) -> float:
        return self._samplers[bisect_right(self._bounds, size)]()

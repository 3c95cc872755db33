"""What an open loop is asked for, and what follows from it: how many requests, how long, in how many slices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from purgatory_udf.errors import UserError

# The 75th and the 99.9th percentile of the normal distribution.
_Z75, _Z999 = 0.6744897501960817, 3.090232306167813

BROKERS = 3
PARTITIONS_PER_TOPIC = 50
# Of each partition that moves: it resigns, and leads again.
EVENTS_PER_MOVE = 2
# Each partition begins with its log end and its high watermark.
EVENTS_PER_PARTITION = 2
MAX_SLICES = 2**24 - 1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """`events` is exact. Half of the requests are produces, each with the rise of its high watermark after a latency
    that is log-normal by `median_ms` and `p75_ms`; the others are fetches of `keys` partitions each."""

    events: int
    seed: int = 1
    partitions: int = 1000
    rate: float = 10_000
    skew: float = 0.0
    keys: int = 4
    median_ms: float = 20
    p75_ms: float = 60
    timeout_ms: int = 1000
    max_wait_ms: int = 500
    # About how many events a file of the table holds; more where that would make a slice shorter than a latency.
    events_per_slice: int = 50_000

    def __post_init__(self) -> None:
        if self.p75_ms < self.median_ms:
            raise UserError(f"--p75-ms {self.p75_ms:g} is below --median-ms {self.median_ms:g}")
        if self.keys > self.partitions // BROKERS:
            raise UserError(f"--keys {self.keys}: a broker leads only {self.partitions // BROKERS} partitions")
        if self.requests < 2:
            least = EVENTS_PER_PARTITION * self.partitions + EVENTS_PER_MOVE + 3
            raise UserError(f"--events {self.events}: {self.partitions} partitions need at least {least}")
        if self.slices > MAX_SLICES:
            raise UserError(f"--rate {self.rate:g}: {self.slices:,} slices of time are more than {MAX_SLICES:,}")

    @property
    def sigma(self) -> float:
        return math.log(self.p75_ms / self.median_ms) / _Z75

    @property
    def longest_ms(self) -> int:
        """Latencies are cut here, at their 99.9th percentile, so that a slice only has to know the one before it."""
        return math.ceil(self.median_ms * math.exp(_Z999 * self.sigma))

    @cached_property
    def slice_us(self) -> int:
        """A slice is whole milliseconds: no file border splits one."""
        wanted_ms = math.ceil(self.events_per_slice / (1.5 * self.rate) * 1000)
        return max(self.longest_ms, wanted_ms) * 1000

    @cached_property
    def slices(self) -> int:
        return max(1, math.ceil(self._rough_requests / self.rate * 1_000_000 / self.slice_us))

    @property
    def _rough_requests(self) -> int:
        return (self.events - EVENTS_PER_PARTITION * self.partitions) * 2 // 3

    @cached_property
    def requests(self) -> int:
        """What the events leave room for, with a produce taking two."""
        room = self.events - EVENTS_PER_PARTITION * self.partitions - EVENTS_PER_MOVE * self.slices
        return self.fetches_of(room) + (room - self.fetches_of(room)) // 2 if room > 0 else 0

    @staticmethod
    def fetches_of(room: int) -> int:
        """A third of the events, one more where the rest would be odd."""
        return room // 3 + (room - room // 3) % 2

    @cached_property
    def fetches(self) -> int:
        return self.fetches_of(self.events - EVENTS_PER_PARTITION * self.partitions - EVENTS_PER_MOVE * self.slices)

    @property
    def produces(self) -> int:
        return self.requests - self.fetches

    @property
    def length_us(self) -> int:
        """How long the requests come for, in whole milliseconds."""
        return max(1, math.ceil(self.requests / self.rate * 1000)) * 1000

    def edge_us(self, number: int) -> int:
        """Where a slice begins, counted from the beginning of the trace."""
        return self.length_us if number >= self.slices else min(number * self.slice_us, self.length_us)

    @cached_property
    def weights(self) -> Floats:
        """How often each partition is asked for: 1, 1/2^skew, 1/3^skew, … spread over topics and brokers."""
        ranks = np.arange(1, self.partitions + 1, dtype=np.float64) ** -self.skew
        return ranks / ranks.sum()

"""Chance: every entity of a simulation draws from a stream of its own, so none disturbs another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

# The 75th percentile of the normal distribution.
_Z75 = 0.6744897501960817


class Spread(Protocol):
    """A log-normal distribution as people measure one."""

    @property
    def median_ms(self) -> float: ...

    @property
    def p75_ms(self) -> float: ...


class Chance:
    """The random numbers of one entity: a function of the seed and the entity's name, and of nothing else."""

    def __init__(self, seed: int, *entity: str) -> None:
        # A text seeds through SHA-512, whatever the process's hash seed is.
        self._random = Random("/".join([str(seed), *entity]))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def interval_us(self, per_second: float) -> int:
        """Until the next arrival of a Poisson process."""
        return round(self._random.expovariate(per_second) * 1_000_000)

    def delay_us(self, spread: Spread) -> int:
        """A latency: log-normal by median and 75th percentile, as in Kafka's own purgatory benchmark."""
        sigma = math.log(spread.p75_ms / spread.median_ms) / _Z75
        return round(spread.median_ms * 1000 * math.exp(self._random.gauss(0, 1) * sigma))

    def around(self, mean: int) -> int:
        """A whole number from half of `mean` to one and a half."""
        return max(1, round(self._random.uniform(0.5, 1.5) * mean))

    def choose(self, weights: Sequence[float]) -> int:
        """The place of one of the cumulated weights."""
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def zipf(count: int, skew: float) -> list[float]:
    """Cumulated weights 1, 1/2^skew, 1/3^skew, …; a skew of 0 makes all alike."""
    return list(accumulate(1 / (rank + 1) ** skew for rank in range(count)))

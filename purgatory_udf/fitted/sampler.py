"""Draws from a distribution that is kept by its quantiles."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random


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

"""How many cores clients and brokers shared, and so how much work each of their steps was.

Of every step we know when it began and when it was over: from an answer to the client's next request, and the handling
of each. So we know how many were under way at any time. If they shared c cores evenly, a step's work is the integral of
min(1, c / under way) over its time. The right c is the one that makes work independent of how many were under way: a
step is not larger for being disturbed. With too many cores disturbed steps look large, with too few small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
# None: nothing is shared.
CANDIDATES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# With less correlation than this, sharing explains nothing; of such as differ by less than that, the most are taken,
# for a busy time's answers are larger, too, and so is the work that follows them.
INDEPENDENT, AS_GOOD = 0.1, 0.03
LEAST_MS = 0.01


@dataclass(frozen=True)
class Sharing:
    """`correlation`: of work with how many were under way, at these cores; `unshared`: if nothing were shared."""

    cores: float | None
    correlation: float
    unshared: float
    _times: Floats
    _worked: Floats

    def work(self, begin: pd.Series[float], end: pd.Series[float]) -> Floats:
        """How much each of these steps was."""
        if self.cores is None:
            return np.asarray(end - begin, dtype=float)
        return np.asarray(np.interp(end, self._times, self._worked) - np.interp(begin, self._times, self._worked))


def sharing(begin: Floats, end: Floats, kind: npt.NDArray[np.int64], judged: npt.NDArray[np.bool_]) -> Sharing:
    """Of all steps; works are compared within a `kind`, by those that are `judged`."""
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    busy = np.cumsum(np.concatenate([np.ones(len(begin)), -np.ones(len(end))])[order])[:-1]
    lengths = np.diff(times)
    crowd = _integral(busy, lengths)
    mine, until, kinds = begin[judged], end[judged], kind[judged]
    around = (np.interp(until, times, crowd) - np.interp(mine, times, crowd)) / np.maximum(until - mine, LEAST_MS)
    tried: list[tuple[float, float | None, Floats]] = []
    for cores in (*CANDIDATES, None):
        worked = _integral(np.ones(len(busy)) if cores is None else np.minimum(1, cores / np.maximum(busy, 1)), lengths)
        amounts = np.interp(until, times, worked) - np.interp(mine, times, worked)
        tried.append((_correlation(amounts, around, kinds), cores, worked))
    unshared = tried[-1]
    least = min(abs(correlation) for correlation, _, _ in tried)
    best = [candidate for candidate in tried if abs(candidate[0]) <= least + AS_GOOD][-1]
    if unshared[0] < INDEPENDENT:
        best = unshared
    return Sharing(best[1], best[0], unshared[0], times, best[2])


def _integral(rate: Floats, lengths: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(rate * lengths)])


def _correlation(amounts: Floats, around: Floats, kinds: npt.NDArray[np.int64]) -> float:
    """Spearman's, of the logarithms with each kind's mean taken away."""
    if len(amounts) < 3:
        return 0.0
    logs = pd.Series(np.log(np.maximum(amounts, LEAST_MS)))
    level = logs - logs.groupby(kinds).transform("mean")
    correlation = level.rank().corr(pd.Series(around).rank())
    return 0.0 if np.isnan(correlation) else float(correlation)

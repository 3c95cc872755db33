"""Measures the steps of clients and brokers: from a response to the next request, and the handling of each request.

Start and end of every step are known, so the number of active steps is known at any time. If the steps share c cores
evenly, the work of a step is the integral of min(1, c / active) over its duration. With the right c, work does not
depend on the number of active steps. If c is too large, steps that ran concurrently seem to have more work than others;
if it is too small, they seem to have less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.prediction.recording import Recording, RecordingWindow
from purgatory_udf.simulation.fitted_scenario import WorkBySize

# Candidates for the number of shared cores.
CANDIDATES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# If work and concurrency correlate less than `MIN_CORRELATION` without sharing, nothing is shared. Of candidates within
# `CORRELATION_TOLERANCE` of the best, the largest is chosen: in busy times responses are larger, and so is the work
# after them.
MIN_CORRELATION, CORRELATION_TOLERANCE = 0.1, 0.03
MIN_STEP_MS = 0.01


@dataclass(frozen=True)
class CoreSharing:
    """The fitted number of shared cores; None if steps do not slow each other down.

    `correlation` is the remaining correlation of work and concurrency, `unshared` the correlation without sharing.
    """

    cores: float | None
    correlation: float
    unshared: float
    _times: Floats
    _worked: Floats

    def work(self, begin: pd.Series[float], end: pd.Series[float]) -> Floats:
        """Return the work of each step from `begin` to `end` (milliseconds), in milliseconds of a core."""
        if self.cores is None:
            return np.asarray(end - begin, dtype=float)
        return np.asarray(np.interp(end, self._times, self._worked) - np.interp(begin, self._times, self._worked))


def fit_core_sharing(
    begin: Floats, end: Floats, kind: npt.NDArray[np.int64], judged: npt.NDArray[np.bool_]
) -> CoreSharing:
    """Fit the number of cores to all steps.

    Args:
        begin: Start times of the steps, in milliseconds.
        end: End times of the steps, in milliseconds.
        kind: The kind of each step. Work is compared only between steps of the same kind.
        judged: Mask of the steps to compare.
    """
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    busy = np.cumsum(np.concatenate([np.ones(len(begin)), -np.ones(len(end))])[order])[:-1]
    lengths = np.diff(times)
    concurrency = _integral(busy, lengths)
    starts, until, kinds = begin[judged], end[judged], kind[judged]
    around = (np.interp(until, times, concurrency) - np.interp(starts, times, concurrency)) / np.maximum(
        until - starts, MIN_STEP_MS
    )
    tried: list[tuple[float, float | None, Floats]] = []
    for cores in (*CANDIDATES, None):
        worked = _integral(np.ones(len(busy)) if cores is None else np.minimum(1, cores / np.maximum(busy, 1)), lengths)
        amounts = np.interp(until, times, worked) - np.interp(starts, times, worked)
        tried.append((_correlation(amounts, around, kinds), cores, worked))
    unshared = tried[-1]
    least = min(abs(correlation) for correlation, _, _ in tried)
    best = [candidate for candidate in tried if abs(candidate[0]) <= least + CORRELATION_TOLERANCE][-1]
    if unshared[0] < MIN_CORRELATION:
        best = unshared
    return CoreSharing(best[1], best[0], unshared[0], times, best[2])


def _integral(rate: Floats, lengths: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(rate * lengths)])


def _correlation(amounts: Floats, around: Floats, kinds: npt.NDArray[np.int64]) -> float:
    """Return Spearman's correlation between work and the concurrency `around` each step.

    The work is its logarithm less the mean of the step's kind, so that kinds of different size can be compared.
    """
    if len(amounts) < 3:
        return 0.0
    logs = pd.Series(np.log(np.maximum(amounts, MIN_STEP_MS)))
    level = logs - logs.groupby(kinds).transform("mean")
    correlation = level.rank().corr(pd.Series(around).rank())
    return 0.0 if np.isnan(correlation) else float(correlation)


# Number of quantiles of a distribution, and the minimum number of samples of a range of sizes.
QUANTILE_COUNT, MIN_SAMPLES = 101, 40
# The quantile of work above which the rest of a step counts as a stall.
STALL_QUANTILE = 0.8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimedSteps:
    """The work of the steps in the window.

    `turns` are the fetches, with `turn` (work since the previous response), `before` (size of that response) and
    `handling`. `produces` have `handling` and `answering`.
    """

    sharing: CoreSharing
    stall_ms: float | None
    stretch: float
    turns: pd.DataFrame
    produces: pd.DataFrame


def measure_steps(recording: Recording, window: RecordingWindow) -> TimedSteps:
    """Return the work of the steps in the window, by the number of cores that fits best."""
    turns = _turns(recording.fetches)
    turns = turns[(turns["tried"] >= window.begin) & (turns["tried"] < window.end)]
    produces = window.select(recording.produces, "tried")
    begin = [turns["answered_before"], turns["begun"], produces["tried"] - produces["handled"], produces["answered"]]
    end = [turns["begun"], turns["tried"], produces["tried"], produces["written"]]
    kinds = pd.concat([turns["client"]] * 2 + [produces["client"]] * 2).astype("category").cat.codes.to_numpy()
    judged = np.zeros(len(kinds), dtype=bool)
    judged[: len(turns)] = True
    shared = fit_core_sharing(_together(begin), _together(end), kinds.astype(np.int64), judged)
    turns = turns.assign(
        turn=shared.work(turns["answered_before"], turns["begun"]), handling=shared.work(turns["begun"], turns["tried"])
    )
    produces = produces.assign(
        handling=shared.work(produces["tried"] - produces["handled"], produces["tried"]),
        answering=shared.work(produces["answered"], produces["written"]),
    )
    stall_ms, stretch = _stalls(turns) if shared.cores is not None else (None, 1.0)
    return TimedSteps(shared, stall_ms, stretch, turns, produces)


def _stalls(turns: pd.DataFrame) -> tuple[float | None, float]:
    """Return the work (ms) above which a step counts as stalled, and the ratio of duration to work of stalled steps.

    They are None and 1 if no step has stalled.
    """
    stall_ms = float(turns["turn"].quantile(STALL_QUANTILE)) if len(turns) else 0.0
    stalled = turns[turns["turn"] > stall_ms]
    if stall_ms <= 0 or stalled.empty:
        return None, 1.0
    length = (stalled["begun"] - stalled["answered_before"]).sum()
    return round(stall_ms, 3), round(max(1.0, float(length / stalled["turn"].sum())), 3)


def _turns(fetches: pd.DataFrame) -> pd.DataFrame:
    """Return the fetches with their previous response.

    A follower's turn lasts until the handling of its request, which reports its position; a consumer's turn lasts
    until the first try.
    """
    ordered = fetches.sort_values("tried")
    of_one = ordered.groupby(["client", "broker"])
    before = of_one["answered"].shift()
    begun = (ordered["tried"] - ordered["handled"]).where(ordered["replica"] >= 0, ordered["tried"])
    turns = ordered.assign(answered_before=before, before=of_one["bytes"].shift(), begun=np.maximum(begun, before))
    return turns[(before <= ordered["tried"]) & before.notna()]


def quantiles(samples: Floats) -> list[float]:
    """Return evenly spaced quantiles, at most as many as there are samples.

    With many samples, the last value is chosen so that interpolation gives the highest hundredth the right mean. The
    maximum would be too high, because a single outlier would raise the whole highest hundredth.
    """
    if not len(samples):
        return [0.0]
    samples = np.sort(np.maximum(0, samples))
    count = min(QUANTILE_COUNT, max(2, len(samples)))
    levels = np.quantile(samples, np.linspace(0, 1, count))
    if len(samples) > QUANTILE_COUNT:
        highest = samples[-math.ceil(len(samples) / (QUANTILE_COUNT - 1)) :]
        levels[-1] = max(levels[-2], 2 * highest.mean() - levels[-2])
    return [round(float(value), 3) for value in levels]


def quantiles_by_size(samples: Floats, size: Floats) -> WorkBySize:
    """Return the quantiles of the samples in each range of sizes: 0, up to the median, to the 90th percentile, above.

    Ranges with fewer than `MIN_SAMPLES` samples are combined with a neighbour.
    """
    some = size[size > 0]
    bounds = [1, round(float(np.quantile(some, 0.5))), round(float(np.quantile(some, 0.9)))] if len(some) else []
    kept: list[int] = []
    for bound in sorted(set(bounds)):
        low = kept[-1] if kept else 0
        if ((size >= low) & (size < bound)).sum() >= MIN_SAMPLES and (size >= bound).sum() >= MIN_SAMPLES:
            kept.append(bound)
    ranges = np.searchsorted(np.asarray(kept), size, side="right")
    return WorkBySize(bounds=kept, quantiles=[quantiles(samples[ranges == each]) for each in range(len(kept) + 1)])


def _together(series: list[pd.Series[float]]) -> Floats:
    return np.concatenate([column.to_numpy(dtype=float) for column in series])

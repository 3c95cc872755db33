"""The steps that clients and brokers took: from an answer to the next request, and the handling of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.prediction.recording import Recording, RecordingWindow
from purgatory_udf.simulation.fitted_scenario import WorkBySize

# How many cores clients and brokers shared, and so how much work each of their steps was.
#
# Of every step we know when it began and when it was over: from an answer to the client's next request, and the
# handling of each. So we know how many were under way at any time. If they shared c cores evenly, a step's work is the
# integral of min(1, c / under way) over its time. The right c is the one that makes work independent of how many were
# under way: a step is not larger for being disturbed. With too many cores disturbed steps look large, with too few
# small.


# None: nothing is shared.
CANDIDATES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# With less correlation than this, sharing explains nothing; of such as differ by less than that, the most are taken,
# for a busy time's answers are larger, too, and so is the work that follows them.
MIN_CORRELATION, CORRELATION_TOLERANCE = 0.1, 0.03
MIN_STEP_MS = 0.01


@dataclass(frozen=True)
class CoreSharing:
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


def fit_core_sharing(
    begin: Floats, end: Floats, kind: npt.NDArray[np.int64], judged: npt.NDArray[np.bool_]
) -> CoreSharing:
    """Of all steps; works are compared within a `kind`, by those that are `judged`."""
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    busy = np.cumsum(np.concatenate([np.ones(len(begin)), -np.ones(len(end))])[order])[:-1]
    lengths = np.diff(times)
    crowd = _integral(busy, lengths)
    mine, until, kinds = begin[judged], end[judged], kind[judged]
    around = (np.interp(until, times, crowd) - np.interp(mine, times, crowd)) / np.maximum(until - mine, MIN_STEP_MS)
    tried: list[tuple[float, float | None, Floats]] = []
    for cores in (*CANDIDATES, None):
        worked = _integral(np.ones(len(busy)) if cores is None else np.minimum(1, cores / np.maximum(busy, 1)), lengths)
        amounts = np.interp(until, times, worked) - np.interp(mine, times, worked)
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
    """Spearman's, of the logarithms with each kind's mean taken away."""
    if len(amounts) < 3:
        return 0.0
    logs = pd.Series(np.log(np.maximum(amounts, MIN_STEP_MS)))
    level = logs - logs.groupby(kinds).transform("mean")
    correlation = level.rank().corr(pd.Series(around).rank())
    return 0.0 if np.isnan(correlation) else float(correlation)


# How finely a distribution is kept, and how many samples make one of their own.
QUANTILE_COUNT, MIN_SAMPLES = 101, 40
# The share of steps that are no longer than their work makes them.
STALL_QUANTILE = 0.8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimedSteps:
    """`turns` are fetches with `turn` (work from the answer before, whose size is `before`) and `handling`; `produces`
    with `handling` and `answering`; all of the window."""

    sharing: CoreSharing
    stall_ms: float | None
    stretch: float
    turns: pd.DataFrame
    produces: pd.DataFrame


def measure_steps(recording: Recording, window: RecordingWindow) -> TimedSteps:
    turns = _turns(recording.fetches)
    turns = turns[(turns["tried"] >= window.begin) & (turns["tried"] < window.end)]
    produces = window.of(recording.produces, "tried")
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
    """From which work on a step counts as stalled, and how much longer than their work such steps were."""
    stall_ms = float(turns["turn"].quantile(STALL_QUANTILE)) if len(turns) else 0.0
    stalled = turns[turns["turn"] > stall_ms]
    if stall_ms <= 0 or stalled.empty:
        return None, 1.0
    length = (stalled["begun"] - stalled["answered_before"]).sum()
    return round(stall_ms, 3), round(max(1.0, float(length / stalled["turn"].sum())), 3)


def _turns(fetches: pd.DataFrame) -> pd.DataFrame:
    """A follower tells of its progress when its request begins to be handled, a consumer first when it is tried."""
    ordered = fetches.sort_values("tried")
    of_one = ordered.groupby(["client", "broker"])
    before = of_one["answered"].shift()
    begun = (ordered["tried"] - ordered["handled"]).where(ordered["replica"] >= 0, ordered["tried"])
    turns = ordered.assign(answered_before=before, before=of_one["bytes"].shift(), begun=np.maximum(begun, before))
    return turns[(before <= ordered["tried"]) & before.notna()]


def quantiles(samples: Floats) -> list[float]:
    """Evenly spaced, no more of them than there are samples.

    Of many samples, the last stands for the highest hundredth: halfway from the one before lies their mean. One in a
    thousand may be as long as a hundred others are, which must not make of every hundredth half as much.
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
    """Apart: what is about nothing, and what is about much, as far as there are samples for either."""
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

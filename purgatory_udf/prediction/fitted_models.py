"""What a scenario takes from a recording: when records arrived, and how much work each step of clients and brokers is.

A producer sends a request when the first record of a batch has waited for `linger.ms`. So that record arrived
`linger.ms` before the request was sent, and the others arrived in between. Requests that wait for the previous response
one after another form a queue; their records are spread over the duration of the whole queue. If a request has many
more records than would arrive at random in its time, they arrived as a burst, at the same time.

A step lasts from a response to the next request, or is the handling of a request. Start and end of every step are
known, so the number of active steps is known at any time. If the steps share c cores evenly, the work of a step is the
integral of min(1, c / active) over its duration. With the right c, work does not depend on the number of active steps.
If c is too large, steps that ran concurrently seem to have more work than others; if it is too small, less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.prediction.model_producer import BATCH_OVERHEAD, SENDING_MS
from purgatory_udf.prediction.recording import Recording, RecordingWindow
from purgatory_udf.simulation.scenario_sections import FittedAppends, FittedProducer, WorkBySize

# Kafka's default since 4.0, used if a recording does not show the linger time.
DEFAULT_LINGER_MS = 5
# The linger time is estimated from at least this many gaps between requests. It is accepted if the mean gap is at most
# `MAX_MEAN_GAP_RATIO` times the estimate, or if significantly many gaps are shorter than `MIN_LINGER_MS` (no
# lingering).
MIN_GAPS, MAX_MEAN_GAP_RATIO, MIN_LINGER_MS = 200, 20, 2.0
# The shortest gaps come from pauses of the host, which delay one request but not the next. This share is ignored.
LOW_GAP_SHARE = 0.02
# A request that is handled within this time after the previous response was waiting for it. After a long wait there is
# nearly always one, so a longer time is allowed for a busy host. The gaps of a producer are usable if at
# most `MAX_QUEUED_SHARE` of its requests waited like this.
QUEUED_MS, QUEUED_AFTER_LONG_WAIT_MS, LONG_WAIT_MS, MAX_QUEUED_SHARE = 3.0, 20.0, 30.0, 0.05
# A request with at least this many records is a burst if that number arrives at random with at most this probability.
# Bursts are then excluded from the random arrivals and the test is repeated, which reveals more bursts.
MIN_BURST_RECORDS, BURST_PROBABILITY, ROUNDS, MAX_RANDOM_RECORDS = 4, 1e-3, 5, 1000
# Duration of a burst, independent of the linger time.
BURST_MS = 0.5
# If more than this share of a producer's requests are bursts, all its requests with several records count as bursts.
BURSTY_SHARE = 0.5

Floats = npt.NDArray[np.float64]


def estimate_linger_ms(produces: pd.DataFrame) -> int | None:
    """Estimate `linger.ms` from the shortest gaps between a producer's requests to a broker, which usually equal it.

    Returns None if there are too few gaps, if they are too long, or if requests wait for each other.
    """
    started, broker = produces["tried"] - produces["handled"], produces["broker"]
    gaps = started.groupby(broker).diff().dropna()
    if len(gaps) < MIN_GAPS or (_queued(produces) & _after_long_wait(produces)).mean() > MAX_QUEUED_SHARE:
        return None
    # Model: a gap is the linger time plus an exponentially distributed time until the next record.
    low = (
        float((np.percentile(gaps, 100 * LOW_GAP_SHARE) - LOW_GAP_SHARE * gaps.mean()) / (1 - LOW_GAP_SHARE))
        - SENDING_MS
    )
    none_at_all = low < MIN_LINGER_MS and gaps.mean() * math.sqrt(LOW_GAP_SHARE / len(gaps)) < MIN_LINGER_MS
    return max(0, round(low)) if none_at_all or gaps.mean() < MAX_MEAN_GAP_RATIO * max(1, low) else None


def _queued(produces: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of requests that waited for the previous response of the same broker."""
    started = produces["tried"] - produces["handled"]
    after = started - produces["written"].groupby(produces["broker"]).shift()
    return after < np.where(_after_long_wait(produces), QUEUED_AFTER_LONG_WAIT_MS, QUEUED_MS)


def _after_long_wait(produces: pd.DataFrame) -> pd.Series[bool]:
    lasted = produces["written"] - (produces["tried"] - produces["handled"])
    return lasted.groupby(produces["broker"]).shift() > LONG_WAIT_MS


def record_arrivals(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.DataFrame:
    """Return the arrivals of the records of these requests, with `at` (ms), `key` and `bytes`, ordered by time.

    Args:
        produces: Requests of one producer, as in `Recording.produces`.
        batches: The batches that they appended, as in `Recording.batches`.
        linger_ms: The producer's `linger.ms`, estimated or assumed.
    """
    broker = produces["broker"]
    sent = produces["tried"] - produces["handled"] - SENDING_MS
    queued = _queued(produces)
    burst = _bursts(produces, batches, linger_ms)
    if burst[~queued].mean() > BURSTY_SHARE:
        # Small requests and requests that waited are bursts, too.
        burst |= _counts(produces, batches) > 1
    else:
        # The records of a request that waited may have accumulated during the wait.
        burst &= ~queued
    gathered = queued & ~burst
    queue = pd.MultiIndex.from_arrays([broker, (~gathered).groupby(broker).cumsum()])
    begin = (sent - linger_ms).where(~gathered, sent.groupby(queue).transform("first"))
    end = sent.where(~gathered, sent.groupby(queue).transform("last"))
    end = end.where(~burst, np.minimum(end, begin + BURST_MS))
    selected = batches[batches["request"].isin(produces.index)]
    each = selected.loc[selected.index.repeat(selected["records"])]
    within = np.random.default_rng(0).random(len(each))
    # The first record of each request arrived at the start of its time.
    of = produces.index.get_indexer(each["request"])
    first = ~each["request"].duplicated().to_numpy() & ~gathered.to_numpy()[of]
    within[first] = 0
    at = pd.Series(begin.to_numpy()[of] + within * (end - begin).to_numpy()[of])
    # The records of a queue keep the order of their requests.
    at = at.groupby([queue.codes[0][of], queue.codes[1][of], gathered.to_numpy()[of]]).transform(np.sort)
    size = np.maximum(0, (each["bytes"] - BATCH_OVERHEAD) // each["records"])
    arrived = pd.DataFrame({"at": at.to_numpy(), "key": each["key"].to_numpy(), "bytes": size.to_numpy()})
    return arrived.sort_values("at", ignore_index=True)


def _bursts(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.Series[bool]:
    """Return a mask of the requests with a burst of records.

    A request has a burst if it has too many records for independent arrivals. If records arrived at random, at the rate
    of the other requests, the number in one linger time would be this high with at most `BURST_PROBABILITY`.
    """
    count = _counts(produces, batches)
    length_ms = max(1.0, float(np.ptp(produces["tried"])))
    burst = pd.Series(False, index=produces.index)
    for _ in range(ROUNDS):
        random_count = count.where(~burst, 0).groupby(produces["broker"]).transform("sum") / length_ms * linger_ms
        more = {mean: _random_limit(mean) for mean in random_count.unique()}
        burst = (count >= MIN_BURST_RECORDS) & (count - 1 >= random_count.map(more))
    return burst


def _counts(produces: pd.DataFrame, batches: pd.DataFrame) -> pd.Series[int]:
    """Return the number of records of each request, indexed like `produces`; 0 without batches."""
    return batches.groupby("request")["records"].sum().reindex(produces.index, fill_value=0)


def _random_limit(mean: float) -> int:
    """Return a count that a Poisson variable of this mean exceeds with a probability of at most `BURST_PROBABILITY`."""
    number, probability, left = 0, math.exp(-mean), 1.0
    while left > BURST_PROBABILITY and number < MAX_RANDOM_RECORDS:
        left -= probability
        number += 1
        probability *= mean / number
    return number


def fit_producer(
    records: pd.DataFrame, window: RecordingWindow, handling: WorkBySize, answer: list[float]
) -> FittedProducer:
    """Return the scenario's producer that repeats the records of the window, with the work of requests and responses.

    Args:
        records: Arrivals of the producer's records, as `record_arrivals` returns them.
        window: The period to fit.
        handling: Work of a request, by its size.
        answer: Quantiles of the work of a response.
    """
    selected = window.select(records, "at")
    return FittedProducer(
        first_ms=_first(selected["at"].to_numpy(), window),
        gaps_ms=_cyclic_gaps(selected["at"].to_numpy(), window),
        partitions=selected["key"].tolist(),
        record_bytes=selected["bytes"].tolist(),
        handling=handling,
        answer=answer,
    )


def fit_appends(others: pd.DataFrame, window: RecordingWindow) -> FittedAppends:
    """Return the appends of the window that no producer made, as `gaps_ms`, partitions and sizes of one cycle."""
    selected = window.select(others, "at").sort_values("at")
    return FittedAppends(
        first_ms=_first(selected["at"].to_numpy(), window),
        gaps_ms=_cyclic_gaps(selected["at"].to_numpy(), window),
        partitions=selected["key"].tolist(),
        batch_bytes=selected["bytes"].tolist(),
    )


def _first(at: Floats, window: RecordingWindow) -> float:
    return round(float(at[0] - window.begin), 3) if len(at) else 0.0


def _cyclic_gaps(at: Floats, window: RecordingWindow) -> list[float]:
    """Return the gap before each arrival in milliseconds, if the arrivals `at` repeat with the length of the window.

    The first gap is that to the last arrival of the previous cycle.
    """
    if not len(at):
        return []
    gaps = np.diff(at, prepend=at[-1] - window.length)
    return [round(float(gap), 3) for gap in gaps]


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

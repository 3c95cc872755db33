"""Estimates when a producer's records arrived from the times of its requests.

A producer sends a request when the first record of a batch has waited for `linger.ms`. So that record arrived
`linger.ms` before the request was sent, and the others arrived in between. Requests that wait for the previous response
one after another form a queue; their records are spread over the duration of the whole queue. If a request has many
more records than would arrive at random in its time, they arrived as a burst, at the same time.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.prediction.model_producer import BATCH_OVERHEAD, SENDING_MS
from purgatory_udf.prediction.recording import RecordingWindow
from purgatory_udf.simulation.fitted_scenario import FittedAppends, FittedProducer, WorkBySize

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

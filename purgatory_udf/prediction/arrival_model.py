"""When a producer's records were handed to it, as far as its requests tell.

A request goes when its first record has lingered. So the first came `linger` before the request was sent, and the
others meanwhile. Requests that had to wait for the one before, one after the other, were sent at some time before: the
records of all of them are spread over the time that this went on. Where a request has more records than come in its
time at random, they came in a burst: at once, as far as lingering goes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.prediction.model_producer import BATCH_OVERHEAD, SENDING_MS
from purgatory_udf.prediction.recording import RecordingWindow
from purgatory_udf.simulation.fitted_scenario import FittedAppends, FittedProducer, WorkBySize

# Kafka's default from 4.0 on, where a recording has too few requests to tell.
DEFAULT_LINGER_MS = 5
# So many requests tell how long records linger, if they come as close as so many times that; and that they do not, if
# so many come closer than this that it is no chance.
MIN_GAPS, MAX_MEAN_GAP_RATIO, MIN_LINGER_MS = 200, 20, 2.0
# The least gaps are a host's hiccups: a request that came late, and the next one did not. So many more are left out.
LOW_GAP_SHARE = 0.02
# A request that is handled so soon after the answer before had been waiting for it; after a long wait there hardly ever
# is none, so a busy host may take its time. A producer is free where long waits are rare.
QUEUED_MS, QUEUED_AFTER_LONG_WAIT_MS, LONG_WAIT_MS, MAX_QUEUED_SHARE = 3.0, 20.0, 30.0, 0.05
# So many records, which come at random with no more than this chance, are a burst. What is one is no longer among those
# that come at random: then others are seen to be bursts, too.
MIN_BURST_RECORDS, BURST_PROBABILITY, ROUNDS, MAX_RANDOM_RECORDS = 4, 1e-3, 5, 1000
# How long a burst takes, however long its records linger.
BURST_MS = 0.5
# A producer of whose requests more than this share are bursts has them as a rule.
BURSTY_SHARE = 0.5

Floats = npt.NDArray[np.float64]


def estimate_linger_ms(produces: pd.DataFrame) -> int | None:
    """Between two requests to a broker lies the linger time at least, as a rule: the least gaps tell it. None where
    they are too few, or too wide, or requests wait for each other."""
    begun, broker = produces["tried"] - produces["handled"], produces["broker"]
    gaps = begun.groupby(broker).diff().dropna()
    if len(gaps) < MIN_GAPS or (_queued(produces) & _after_a_long_one(produces)).mean() > MAX_QUEUED_SHARE:
        return None
    # Were a gap what a record lingers and then as long as it takes until the next one comes, some exponential time:
    low = (
        float((np.percentile(gaps, 100 * LOW_GAP_SHARE) - LOW_GAP_SHARE * gaps.mean()) / (1 - LOW_GAP_SHARE))
        - SENDING_MS
    )
    none_at_all = low < MIN_LINGER_MS and gaps.mean() * math.sqrt(LOW_GAP_SHARE / len(gaps)) < MIN_LINGER_MS
    return max(0, round(low)) if none_at_all or gaps.mean() < MAX_MEAN_GAP_RATIO * max(1, low) else None


def _queued(produces: pd.DataFrame) -> pd.Series[bool]:
    """Whether each was handled because the one before, of the same broker, was answered."""
    begun = produces["tried"] - produces["handled"]
    after = begun - produces["written"].groupby(produces["broker"]).shift()
    return after < np.where(_after_a_long_one(produces), QUEUED_AFTER_LONG_WAIT_MS, QUEUED_MS)


def _after_a_long_one(produces: pd.DataFrame) -> pd.Series[bool]:
    lasted = produces["written"] - (produces["tried"] - produces["handled"])
    return lasted.groupby(produces["broker"]).shift() > LONG_WAIT_MS


def record_arrivals(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.DataFrame:
    """`at`, `key`, `bytes` of each record of these requests, which are in their order."""
    broker = produces["broker"]
    sent = produces["tried"] - produces["handled"] - SENDING_MS
    queued = _queued(produces)
    burst = _bursts(produces, batches, linger_ms)
    if burst[~queued].mean() > BURSTY_SHARE:
        # Then what is too little to tell was one, too; and so was what waited.
        burst |= _counts(produces, batches) > 1
    else:
        # Records may have gathered while a request waited.
        burst &= ~queued
    gathered = queued & ~burst
    queue = pd.MultiIndex.from_arrays([broker, (~gathered).groupby(broker).cumsum()])
    begin = (sent - linger_ms).where(~gathered, sent.groupby(queue).transform("first"))
    end = sent.where(~gathered, sent.groupby(queue).transform("last"))
    end = end.where(~burst, np.minimum(end, begin + BURST_MS))
    mine = batches[batches["request"].isin(produces.index)]
    each = mine.loc[mine.index.repeat(mine["records"])]
    within = np.random.default_rng(0).random(len(each))
    # One of each request's records is the one that it was sent for.
    of = produces.index.get_indexer(each["request"])
    first = ~each["request"].duplicated().to_numpy() & ~gathered.to_numpy()[of]
    within[first] = 0
    at = pd.Series(begin.to_numpy()[of] + within * (end - begin).to_numpy()[of])
    # Those of a queue keep the order of their requests.
    at = at.groupby([queue.codes[0][of], queue.codes[1][of], gathered.to_numpy()[of]]).transform(np.sort)
    size = np.maximum(0, (each["bytes"] - BATCH_OVERHEAD) // each["records"])
    arrived = pd.DataFrame({"at": at.to_numpy(), "key": each["key"].to_numpy(), "bytes": size.to_numpy()})
    return arrived.sort_values("at", ignore_index=True)


def _bursts(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.Series[bool]:
    """Whether a request's records came all at once: had they come one by one, as those of the other requests did, so
    many would hardly ever have come while the first one lingered."""
    count = _counts(produces, batches)
    length_ms = max(1.0, float(np.ptp(produces["tried"])))
    burst = pd.Series(False, index=produces.index)
    for _ in range(ROUNDS):
        meanwhile = count.where(~burst, 0).groupby(produces["broker"]).transform("sum") / length_ms * linger_ms
        more = {mean: _hardly_ever(mean) for mean in meanwhile.unique()}
        burst = (count >= MIN_BURST_RECORDS) & (count - 1 >= meanwhile.map(more))
    return burst


def _counts(produces: pd.DataFrame, batches: pd.DataFrame) -> pd.Series[int]:
    """Each request's records."""
    return batches.groupby("request")["records"].sum().reindex(produces.index, fill_value=0)


def _hardly_ever(mean: float) -> int:
    """So many come at random, where so many come on average, with no more than this chance (Poisson's)."""
    number, exactly, left = 0, math.exp(-mean), 1.0
    while left > BURST_PROBABILITY and number < MAX_RANDOM_RECORDS:
        left -= exactly
        number += 1
        exactly *= mean / number
    return number


def fit_producer(
    records: pd.DataFrame, window: RecordingWindow, handling: WorkBySize, answer: list[float]
) -> FittedProducer:
    mine = window.of(records, "at")
    return FittedProducer(
        first_ms=_first(mine["at"].to_numpy(), window),
        gaps_ms=_circle(mine["at"].to_numpy(), window),
        partitions=mine["key"].tolist(),
        record_bytes=mine["bytes"].tolist(),
        handling=handling,
        answer=answer,
    )


def fit_appends(others: pd.DataFrame, window: RecordingWindow) -> FittedAppends:
    mine = window.of(others, "at").sort_values("at")
    return FittedAppends(
        first_ms=_first(mine["at"].to_numpy(), window),
        gaps_ms=_circle(mine["at"].to_numpy(), window),
        partitions=mine["key"].tolist(),
        batch_bytes=mine["bytes"].tolist(),
    )


def _first(at: Floats, window: RecordingWindow) -> float:
    return round(float(at[0] - window.begin), 3) if len(at) else 0.0


def _circle(at: Floats, window: RecordingWindow) -> list[float]:
    """The time before each, the first one's from the last: played again and again, it takes the window's time."""
    if not len(at):
        return []
    gaps = np.diff(at, prepend=at[-1] - window.length)
    return [round(float(gap), 3) for gap in gaps]

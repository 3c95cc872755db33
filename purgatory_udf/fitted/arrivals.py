"""When a producer's records were handed to it, as far as its requests tell.

A request goes when its first record has lingered. So the first came `linger` before the request was sent, and the
others meanwhile. Requests that had to wait for the one before, one after the other, were sent at some time before: the
records of all of them are spread over the time that this went on. Where a request has many times the records that come
in its time on average, they came in a burst: at once, as far as lingering goes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.fitted.producer import BATCH_OVERHEAD, SENDING_MS
from purgatory_udf.fitted.window import RecordingWindow
from purgatory_udf.simulate.fitted import FittedAppends, FittedProducer, WorkBySize

# Kafka's default from 4.0 on, where a recording has too few requests to tell.
LINGER_MS = 5
# So many requests tell how long records linger, if they come as close as so many times that.
TELLING, CLOSE = 200, 20
# A request that is handled so soon after the answer before had been waiting for it.
QUEUED_MS = 3.0
# So many records, and so many times more than on average, are a burst; it takes this share of the time they linger.
BURST, OFTEN, BURST_TAKES = 4, 6.0, 0.1
# A producer of whose requests more than this share are bursts has them as a rule.
BURSTY = 0.5

Floats = npt.NDArray[np.float64]


def linger_of(produces: pd.DataFrame) -> int | None:
    """Between two requests to a broker lies the linger time at least, as a rule: the least gaps tell it."""
    gaps = _gaps(produces).dropna()
    if len(gaps) < TELLING:
        return None
    low = float(np.percentile(gaps, 1) - 0.01 * gaps.mean())
    return max(0, round(low)) if gaps.mean() < CLOSE * max(1, low) else None


def _gaps(produces: pd.DataFrame) -> pd.Series[float]:
    begun = (produces["tried"] - produces["handled"]).rename("begun")
    return begun.groupby(produces["broker"]).diff()


def records(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.DataFrame:
    """`at`, `key`, `bytes` of each record of these requests, which are in their order."""
    broker = produces["broker"]
    sent = produces["tried"] - produces["handled"] - SENDING_MS
    queued = (sent + SENDING_MS - produces["written"].groupby(broker).shift()) < QUEUED_MS
    burst = _bursts(produces, batches, linger_ms)
    # Records may have gathered while a request waited: then the others tell whether this producer has bursts.
    burst &= ~queued | bool(burst[~queued].mean() > BURSTY)
    gathered = queued & ~burst
    queue = pd.MultiIndex.from_arrays([broker, (~gathered).groupby(broker).cumsum()])
    begin = (sent - linger_ms).where(~gathered, sent.groupby(queue).transform("first"))
    end = sent.where(~gathered, sent.groupby(queue).transform("last"))
    end = begin + (end - begin) * np.where(burst, BURST_TAKES, 1.0)
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
    found = pd.DataFrame({"at": at.to_numpy(), "key": each["key"].to_numpy(), "bytes": size.to_numpy()})
    return found.sort_values("at", ignore_index=True)


def _bursts(produces: pd.DataFrame, batches: pd.DataFrame, linger_ms: float) -> pd.Series[bool]:
    """Whether a request's records came all at once."""
    count = batches.groupby("request")["records"].sum().reindex(produces.index, fill_value=0)
    length_ms = max(1.0, float(np.ptp(produces["tried"])))
    by_broker = count.groupby(produces["broker"]).transform("sum") / length_ms
    return (count >= BURST) & (count - 1 > OFTEN * by_broker * linger_ms)


def fitted_producer(
    found: pd.DataFrame, window: RecordingWindow, handling: WorkBySize, answer: list[float]
) -> FittedProducer:
    mine = window.of(found, "at")
    return FittedProducer(
        first_ms=_first(mine["at"].to_numpy(), window),
        gaps_ms=_circle(mine["at"].to_numpy(), window),
        partitions=mine["key"].tolist(),
        record_bytes=mine["bytes"].tolist(),
        handling=handling,
        answer=answer,
    )


def fitted_appends(others: pd.DataFrame, window: RecordingWindow) -> FittedAppends:
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

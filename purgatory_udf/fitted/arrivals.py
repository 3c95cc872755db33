"""When a producer's records were handed to it, as far as its requests tell.

A request goes when its first record has lingered. So the first came `linger` before the request was sent, and the
others meanwhile. Where one request after the other had to wait for the one before, the producer had as many under way
as it may have, and its records gathered: those are spread over the time since the request before. Where a request has
many times the records that come in its time on average, they came in a burst: at once, as far as lingering goes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory_udf.fitted.model import FittedAppends, FittedProducer, WorkBySize
from purgatory_udf.fitted.producer import BATCH_OVERHEAD, SENDING_MS
from purgatory_udf.fitted.window import Window

# Kafka's default from 4.0 on, where a recording has too few requests to tell.
LINGER_MS = 5
# So many requests tell how long records linger, if they come as close as so many times that.
TELLING, CLOSE = 200, 20
# A request that is handled so soon after the answer before had been waiting for it; so many in a row are a jam.
QUEUED_MS, JAM = 4.0, 3
# So many records, and so many times more than on average, are a burst; it takes this share of the time they linger.
BURST, OFTEN, BURST_TAKES = 4, 6.0, 0.1

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
    """`at`, `key`, `bytes` of each record of these requests."""
    sent = produces["tried"] - produces["handled"] - SENDING_MS
    before = produces["written"].groupby(produces["broker"]).shift()
    since = sent.groupby(produces["broker"]).shift()
    queued = (produces["tried"] - produces["handled"] - before) < QUEUED_MS
    runs = (~queued).groupby(produces["broker"]).cumsum()
    jammed = queued.groupby([produces["broker"], runs]).cumsum() >= JAM
    begin = (sent - linger_ms).where(~jammed, np.minimum(since, sent - linger_ms))
    mine = batches[batches["request"].isin(produces.index)]
    each = mine.loc[mine.index.repeat(mine["records"])]
    end = begin + (sent - begin) * np.where(_bursts(produces, mine, sent - begin), BURST_TAKES, 1.0)
    within = np.random.default_rng(0).random(len(each))
    # One of each request's records is the one that it was sent for.
    within[~each["request"].duplicated().to_numpy()] = 0
    start, end = (series.reindex(each["request"]).to_numpy() for series in (begin, end))
    at = start + within * (end - start)
    size = np.maximum(0, (each["bytes"] - BATCH_OVERHEAD) // each["records"])
    found = pd.DataFrame({"at": at, "key": each["key"].to_numpy(), "bytes": size.to_numpy()})
    return found.sort_values("at", ignore_index=True)


def _bursts(produces: pd.DataFrame, batches: pd.DataFrame, time_ms: pd.Series[float]) -> npt.NDArray[np.bool_]:
    """Whether a request's records came all at once."""
    count = batches.groupby("request")["records"].sum().reindex(produces.index, fill_value=0)
    length_ms = max(1.0, float(np.ptp(produces["tried"])))
    by_broker = count.groupby(produces["broker"]).transform("sum") / length_ms
    return np.asarray((count >= BURST) & (count - 1 > OFTEN * by_broker * time_ms))


def fitted_producer(found: pd.DataFrame, window: Window, handling: WorkBySize, answer: list[float]) -> FittedProducer:
    mine = window.of(found, "at")
    return FittedProducer(
        first_ms=_first(mine["at"].to_numpy(), window),
        gaps_ms=_circle(mine["at"].to_numpy(), window),
        partitions=mine["key"].tolist(),
        record_bytes=mine["bytes"].tolist(),
        handling=handling,
        answer=answer,
    )


def fitted_appends(others: pd.DataFrame, window: Window) -> FittedAppends:
    mine = window.of(others, "at").sort_values("at")
    return FittedAppends(
        first_ms=_first(mine["at"].to_numpy(), window),
        gaps_ms=_circle(mine["at"].to_numpy(), window),
        partitions=mine["key"].tolist(),
        batch_bytes=mine["bytes"].tolist(),
    )


def _first(at: Floats, window: Window) -> float:
    return round(float(at[0] - window.begin), 3) if len(at) else 0.0


def _circle(at: Floats, window: Window) -> list[float]:
    """The time before each, the first one's from the last: played again and again, it takes the window's time."""
    if not len(at):
        return []
    gaps = np.diff(at, prepend=at[-1] - window.length)
    return [round(float(gap), 3) for gap in gaps]

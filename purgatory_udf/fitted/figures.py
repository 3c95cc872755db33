"""Each client's figures, of a recording and of a simulation alike.

per_s: requests a second; waited: share that was in the purgatory; expired: share of fetches that waited and got fewer
bytes than they asked for, of produces with a partition that timed out; p50_ms, p95_ms, p99_ms: of the waits of all its
requests, 0 included; kb: KiB of records a request. Followers' fetches are told together, as `follower`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from purgatory_udf.fitted.diary import FETCH, PRODUCE, Diary
from purgatory_udf.fitted.recording import Recording
from purgatory_udf.fitted.window import RecordingWindow

FOLLOWER = "follower"
NAMES = ("per_s", "waited", "expired", "p50_ms", "p95_ms", "p99_ms", "kb")
# Of whom, by api.
Figures = dict[str, dict[str, dict[str, float]]]
_COLUMNS = ("who", "api", "waited", "expired", "bytes")


def recorded_figures(recording: Recording, window: RecordingWindow) -> Figures:
    fetches = window.of(recording.fetches, "written")
    fetches = pd.DataFrame(
        {
            "who": fetches["client"].where(fetches["replica"] < 0, FOLLOWER),
            "api": FETCH,
            "waited": fetches["waited"],
            "expired": fetches["outcome"] == "expired",
            "bytes": fetches["bytes"],
        }
    )
    size = recording.batches.groupby("request")["bytes"].sum()
    produces = recording.produces.assign(bytes=size.reindex(recording.produces.index, fill_value=0))
    produces = window.of(produces, "written")
    produces = pd.DataFrame(
        {
            "who": produces["client"],
            "api": PRODUCE,
            "waited": produces["waited"],
            "expired": produces["outcome"] == "expired",
            "bytes": produces["bytes"],
        }
    )
    frame = pd.concat([fetches, produces])
    return _figures(frame[~frame["who"].isin(window.absent)], window.length / 1000)


def simulated_figures(diary: Diary, seconds: float) -> Figures:
    rows = [
        (FOLLOWER if answer.follower else answer.client, answer.api, answer.waited_ms, answer.expired, answer.bytes)
        for answer in diary.answered
    ]
    return _figures(pd.DataFrame(rows, columns=list(_COLUMNS)), seconds)


def _figures(frame: pd.DataFrame, seconds: float) -> Figures:
    by_client: Figures = {}
    for (who, api), mine in frame.groupby(["who", "api"]):
        waits = mine["waited"].to_numpy(dtype=float)
        p50, p95, p99 = np.percentile(waits, [50, 95, 99])
        figures = (len(mine) / seconds, (waits > 0).mean(), mine["expired"].mean(), p50, p95, p99)
        values = dict(zip(NAMES, (*figures, mine["bytes"].mean() / 1024), strict=True))
        by_client.setdefault(str(who), {})[str(api)] = {name: round(float(value), 4) for name, value in values.items()}
    return by_client


def medians(of_seeds: Iterable[Figures]) -> Figures:
    return _over(of_seeds, lambda values: float(np.median(values)))


def ranges(of_seeds: Iterable[Figures]) -> tuple[Figures, Figures]:
    """The least and the greatest."""
    every = list(of_seeds)
    return _over(every, min), _over(every, max)


def _over(of_seeds: Iterable[Figures], take: object) -> Figures:
    every = list(of_seeds)
    assert callable(take)
    return {
        who: {
            api: {
                name: round(
                    take([of_seed[who][api][name] for of_seed in every if api in of_seed.get(who, {})]),
                    4,
                )
                for name in NAMES
            }
            for api in apis
        }
        for who, apis in every[0].items()
    }

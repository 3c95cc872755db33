"""The fit's own check: the unchanged scenario, simulated, beside what was recorded, client by client.

What it does not reproduce it says, and a prediction for that client is not to be trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from purgatory_udf.common.console import Cell, Table
from purgatory_udf.prediction.model_host import FETCH, PRODUCE, Measurements
from purgatory_udf.prediction.recording import Recording, RecordingWindow
from purgatory_udf.simulation.fitted_scenario import Fitted

# Each client's figures, of a recording and of a simulation alike.
#
# per_s: requests a second; waited: share that was in the purgatory; expired: share of fetches that waited and got
# fewer bytes than they asked for, of produces with a partition that timed out; p50_ms, p95_ms, p99_ms: of the waits of
# all its requests, 0 included; kb: KiB of records a request. Followers' fetches are told together, as `follower`.


FOLLOWER = "follower"
FIGURE_NAMES = ("per_s", "waited", "expired", "p50_ms", "p95_ms", "p99_ms", "kb")
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


def simulated_figures(diary: Measurements, seconds: float) -> Figures:
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
        values = dict(zip(FIGURE_NAMES, (*figures, mine["bytes"].mean() / 1024), strict=True))
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
                for name in FIGURE_NAMES
            }
            for api in apis
        }
        for who, apis in every[0].items()
    }


# What is as near as two recordings of the same cluster are: shares by their difference, rates by a share, times by a
# share or these milliseconds.
SHARE_TOLERANCE, RATE_TOLERANCE, FETCH_TIME_TOLERANCE, PRODUCE_TIME_TOLERANCE, TIME_TOLERANCE_MS = (
    0.05,
    0.10,
    0.15,
    0.20,
    5.0,
)
CHECKED_FIGURES = ("per_s", "waited", "expired", "p50_ms", "p95_ms")


@dataclass(frozen=True)
class FitCheck:
    """`far`: which figures of whom, by (client, api), are not reproduced; `doubts`: other reasons, by client."""

    recorded: Figures
    simulated: Figures
    far: dict[tuple[str, str], tuple[str, ...]]
    doubts: Mapping[str, str]

    @property
    def judged(self) -> int:
        return sum(len(CHECKED_FIGURES) for apis in self.recorded.values() for _ in apis)

    @property
    def near(self) -> int:
        return self.judged - sum(map(len, self.far.values()))

    def trusts(self, who: str) -> bool:
        return who not in self.doubts and not any(client == who for client, _ in self.far)

    def reasons(self) -> list[str]:
        """Why whose prediction is not to be trusted."""
        said = [f"{who}: {', '.join(names)} of its {api} not reproduced" for (who, api), names in self.far.items()]
        return [*said, *(f"{who}: {why}" for who, why in self.doubts.items())]

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for who, apis in self.recorded.items():
            for api, recorded in apis.items():
                simulated = self.simulated.get(who, {}).get(api)
                far = self.far.get((who, api), ())
                verdict = "yes" if self.trusts(who) else f"no: {', '.join(far)}" if far else "no"
                for source, figures in (("recorded", recorded), ("simulated", simulated)):
                    values = [None if figures is None else round(figures[name], 3) for name in FIGURE_NAMES]
                    rows.append((who, api, source, *values, verdict if source == "simulated" else ""))
        return Table("Recorded and simulated", ("who", "api", "", *FIGURE_NAMES, "to be trusted"), rows)

    def lines(self) -> list[str]:
        said = [f"{self.near} of {self.judged} figures are reproduced"]
        reasons = self.reasons()
        if reasons:
            said += ["Not to be trusted:", *(f"  {reason}" for reason in reasons)]
        return [*self.table().lines(), "", *said]

    def verdict(self) -> list[str]:
        """How far a prediction can be trusted."""
        reasons = self.reasons()
        doubts = ["Not to be trusted, for the unchanged scenario misses it:", *(f"  {reason}" for reason in reasons)]
        near = f"The unchanged scenario reproduces {self.near} of {self.judged} recorded figures"
        return [near, *(doubts if reasons else [])]


def check_fit(fitted: Fitted, simulated: Figures) -> FitCheck:
    recorded: Figures = {
        who: {api: figures.model_dump() for api, figures in apis.items()} for who, apis in fitted.recorded.items()
    }
    far = {}
    for who, apis in recorded.items():
        for api, figures in apis.items():
            played = simulated.get(who, {}).get(api)
            missed = tuple(
                name
                for name in CHECKED_FIGURES
                if played is None or not is_within_tolerance(name, api, played[name], figures[name])
            )
            if missed:
                far[who, api] = missed
    doubts = {"follower" if client in _followers(fitted) else client: why for client, why in fitted.doubts.items()}
    return FitCheck(recorded, simulated, far, doubts)


def is_within_tolerance(name: str, api: str, figure: float, expected: float) -> bool:
    """Whether a figure is as near to another as two recordings' figures are."""
    error = abs(figure - expected)
    if name in ("waited", "expired"):
        return error <= SHARE_TOLERANCE
    if name.endswith("_ms"):
        return error <= max(
            TIME_TOLERANCE_MS, (PRODUCE_TIME_TOLERANCE if api == PRODUCE else FETCH_TIME_TOLERANCE) * expected
        )
    return error <= RATE_TOLERANCE * expected


def _followers(fitted: Fitted) -> set[str]:
    return {client for client, reader in fitted.readers.items() if reader.replica >= 0}


# What a setting does to others than whom it is set for: brokers' load, records' way to consumers, purgatories.


PERCENTILES = (50, 95, 99)
# By name; a name says whose and in which unit.
Effects = dict[str, float]


def effects(diary: Measurements, seconds: float) -> Effects:
    figures: Effects = {}
    requests: dict[int, int] = defaultdict(int)
    expired = 0
    for answer in diary.answered:
        requests[answer.broker] += 1
        expired += answer.expired
    figures["expirations_per_s"] = expired / seconds
    for broker, count in sorted(requests.items()):
        figures[f"broker {broker}: requests_per_s"] = count / seconds
    figures |= _times("append_to_answer", diary.reached_ms) | _times("produce_latency", diary.acknowledged_ms)
    gauges: dict[tuple[str, str], list[int]] = defaultdict(list)
    for broker, purgatory, watched, delayed in diary.gauges:
        gauges[f"broker {broker}: {purgatory}", "PurgatorySize"].append(watched)
        gauges[f"broker {broker}: {purgatory}", "NumDelayedOperations"].append(delayed)
    for (whose, gauge), values in sorted(gauges.items()):
        figures[f"{whose} {gauge}, mean"] = float(np.mean(values))
        figures[f"{whose} {gauge}, most"] = float(max(values))
    return {name: round(value, 4) for name, value in figures.items()}


def _times(what: str, times: list[tuple[str, float]]) -> Effects:
    """Quantiles of everybody's, and of each client's."""
    by_client: dict[str, list[float]] = defaultdict(list)
    for client, ms in times:
        by_client[client].append(ms)
    everybody = [ms for _, ms in times]
    return {
        f"{whose}{what}_p{share}_ms": float(value)
        for whose, mine in [("", everybody), *((f"{client}: ", by_client[client]) for client in sorted(by_client))]
        if mine
        for share, value in zip(PERCENTILES, np.percentile(mine, PERCENTILES), strict=True)
    }

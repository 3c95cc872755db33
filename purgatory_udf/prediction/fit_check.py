"""Checks a fit: compares a simulation of the unchanged scenario with the recording, client by client.

If the simulation does not reproduce a recorded figure of a client, the client's predictions are marked as unreliable.

Each client's figures, per API:

- `per_s`: requests per second
- `waited`: share of requests that waited in the purgatory
- `expired`: share of fetches that waited and got fewer bytes than `min_bytes`, or of produces with a timed-out
  partition
- `p50_ms`, `p95_ms`, `p99_ms`: percentiles of the wait, including requests without one
- `kb`: KiB of records per request

Followers count together, as `follower`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from purgatory_udf.common.console import Cell, Table, printable
from purgatory_udf.prediction.model_broker import FETCH, PRODUCE, Measurements
from purgatory_udf.prediction.recording import Recording, RecordingWindow
from purgatory_udf.simulation.scenario_sections import Fitted

FOLLOWER = "follower"
FIGURE_NAMES = ("per_s", "waited", "expired", "p50_ms", "p95_ms", "p99_ms", "kb")
# {client: {API: {figure: value}}}
Figures = dict[str, dict[str, dict[str, float]]]
_COLUMNS = ("client", "api", "waited", "expired", "bytes")


def recorded_figures(recording: Recording, window: RecordingWindow) -> Figures:
    """Return the figures in the window of the recording, by client, API and name of the figure."""
    fetches = window.select(recording.fetches, "written")
    fetches = pd.DataFrame(
        {
            "client": fetches["client"].where(fetches["replica"] < 0, FOLLOWER),
            "api": FETCH,
            "waited": fetches["waited"],
            "expired": fetches["outcome"] == "expired",
            "bytes": fetches["bytes"],
        }
    )
    size = recording.batches.groupby("request")["bytes"].sum()
    produces = recording.produces.assign(bytes=size.reindex(recording.produces.index, fill_value=0))
    produces = window.select(produces, "written")
    produces = pd.DataFrame(
        {
            "client": produces["client"],
            "api": PRODUCE,
            "waited": produces["waited"],
            "expired": produces["outcome"] == "expired",
            "bytes": produces["bytes"],
        }
    )
    frame = pd.concat([fetches, produces])
    return _figures(frame[~frame["client"].isin(window.absent)], window.length / 1000)


def simulated_figures(measurements: Measurements, seconds: float) -> Figures:
    """Return the figures of a simulation, by client, API and name. `seconds` is the length of its measured period."""
    rows = [
        (FOLLOWER if answer.follower else answer.client, answer.api, answer.waited_ms, answer.expired, answer.bytes)
        for answer in measurements.answered
    ]
    return _figures(pd.DataFrame(rows, columns=list(_COLUMNS)), seconds)


def _figures(frame: pd.DataFrame, seconds: float) -> Figures:
    by_client: Figures = {}
    for (client, api), group in frame.groupby(["client", "api"]):
        waits = group["waited"].to_numpy(dtype=float)
        p50, p95, p99 = np.percentile(waits, [50, 95, 99])
        figures = (len(group) / seconds, (waits > 0).mean(), group["expired"].mean(), p50, p95, p99)
        values = dict(zip(FIGURE_NAMES, (*figures, group["bytes"].mean() / 1024), strict=True))
        by_client.setdefault(str(client), {})[str(api)] = {
            name: round(float(value), 4) for name, value in values.items()
        }
    return by_client


def medians(of_seeds: Iterable[Figures]) -> Figures:
    """Return the median of each figure over the seeds."""
    return _aggregate(of_seeds, lambda values: float(np.median(values)))


def ranges(of_seeds: Iterable[Figures]) -> tuple[Figures, Figures]:
    """Return the minimum and the maximum of each figure over the seeds."""
    every = list(of_seeds)
    return _aggregate(every, min), _aggregate(every, max)


def _aggregate(of_seeds: Iterable[Figures], aggregate: object) -> Figures:
    every = list(of_seeds)
    assert callable(aggregate)
    return {
        client: {
            api: {
                name: round(
                    aggregate([of_seed[client][api][name] for of_seed in every if api in of_seed.get(client, {})]),
                    4,
                )
                for name in FIGURE_NAMES
            }
            for api in apis
        }
        for client, apis in every[0].items()
    }


# Tolerances, chosen so that two recordings of the same cluster agree: an absolute difference for shares, a relative one
# for rates, and a relative or absolute one, whichever is larger, for times.
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
    """The result of a check.

    Attributes:
        recorded: The figures of the recording.
        simulated: The figures of the simulation.
        missed: The names of figures that are not reproduced, by (client, API).
        doubts: Other reasons for which a client's predictions are not trusted.
    """

    recorded: Figures
    simulated: Figures
    missed: dict[tuple[str, str], tuple[str, ...]]
    doubts: Mapping[str, str]

    @property
    def compared(self) -> int:
        """The number of compared figures."""
        return sum(len(CHECKED_FIGURES) for apis in self.recorded.values() for _ in apis)

    @property
    def reproduced(self) -> int:
        """The number of compared figures within tolerance."""
        return self.compared - sum(map(len, self.missed.values()))

    def is_trusted(self, client: str) -> bool:
        """Return whether predictions for the client can be trusted."""
        return client not in self.doubts and all(client != missed for missed, _ in self.missed)

    def reasons(self) -> list[str]:
        """Return the clients that are not trusted, each with its reason."""
        missed = [
            f"{client}: its {api} {self._difference(client, api, names)}"
            for (client, api), names in self.missed.items()
        ]
        reasons = [*missed, *(f"{client}: {reason}" for client, reason in self.doubts.items())]
        return list(map(printable, reasons))

    def _difference(self, client: str, api: str, names: Iterable[str]) -> str:
        simulated, recorded = self.simulated.get(client, {}).get(api), self.recorded[client][api]
        if simulated is None:
            return "is not simulated"
        figures = (f"{name} {simulated[name]:,.4g} instead of {recorded[name]:,.4g}" for name in names)
        return f"is simulated with {', '.join(figures)}"

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for client, apis in self.recorded.items():
            for api, recorded in apis.items():
                simulated = self.simulated.get(client, {}).get(api)
                missed = self.missed.get((client, api), ())
                verdict = "yes" if self.is_trusted(client) else f"no: {', '.join(missed)}" if missed else "no"
                for source, figures in (("recorded", recorded), ("simulated", simulated)):
                    values = [None if figures is None else round(figures[name], 3) for name in FIGURE_NAMES]
                    rows.append((client, api, source, *values, verdict if source == "simulated" else ""))
        return Table("Recorded and simulated", ("client", "api", "", *FIGURE_NAMES, "trusted"), rows)

    def lines(self) -> list[str]:
        lines = [f"{self.reproduced} of {self.compared} figures are reproduced"]
        reasons = self.reasons()
        if reasons:
            lines += ["Not to be trusted:", *(f"  {reason}" for reason in reasons)]
        return [*self.table().lines(), "", *lines]

    def verdict(self) -> list[str]:
        """Return lines of text: how many figures the fit reproduces, and which clients are not trusted and why."""
        reasons = self.reasons()
        doubts = ["Not to be trusted:", *(f"  {reason}" for reason in reasons)]
        summary = f"The unchanged scenario reproduces {self.reproduced} of {self.compared} recorded figures"
        return [summary, *(doubts if reasons else [])]


def check_fit(fitted: Fitted, simulated: Figures) -> FitCheck:
    """Compare the simulated figures of the unchanged scenario with the recorded ones."""
    recorded: Figures = {
        client: {api: figures.model_dump() for api, figures in apis.items()} for client, apis in fitted.recorded.items()
    }
    missed = {}
    for client, apis in recorded.items():
        for api, figures in apis.items():
            found = simulated.get(client, {}).get(api)
            names = tuple(
                name
                for name in CHECKED_FIGURES
                if found is None or not is_within_tolerance(name, api, found[name], figures[name])
            )
            if names:
                missed[client, api] = names
    doubts = {"follower" if client in _followers(fitted) else client: why for client, why in fitted.doubts.items()}
    return FitCheck(recorded, simulated, missed, doubts)


def is_within_tolerance(name: str, api: str, figure: float, expected: float) -> bool:
    """Return whether a figure is close to the expected one: within the variation between recordings of one cluster."""
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


PERCENTILES = (50, 95, 99)
# {name: value}; the name contains the broker or client and the unit.
Effects = dict[str, float]


def effects(measurements: Measurements, seconds: float) -> Effects:
    """Return figures of the whole cluster: load of brokers, latency of records, sizes of purgatories.

    `seconds` is the length of the simulation's measured period.
    """
    figures: Effects = {}
    requests: dict[int, int] = defaultdict(int)
    expired = 0
    for answer in measurements.answered:
        requests[answer.broker] += 1
        expired += answer.expired
    figures["expirations_per_s"] = expired / seconds
    for broker, count in sorted(requests.items()):
        figures[f"broker {broker}: requests_per_s"] = count / seconds
    figures |= _times("append_to_answer", measurements.delivery_ms) | _times(
        "produce_latency", measurements.produce_latency_ms
    )
    gauges: dict[tuple[str, str], list[int]] = defaultdict(list)
    for broker, purgatory, watched, delayed in measurements.gauges:
        gauges[f"broker {broker}: {purgatory}", "PurgatorySize"].append(watched)
        gauges[f"broker {broker}: {purgatory}", "NumDelayedOperations"].append(delayed)
    for (whose, gauge), values in sorted(gauges.items()):
        figures[f"{whose} {gauge}, mean"] = float(np.mean(values))
        figures[f"{whose} {gauge}, most"] = float(max(values))
    return {name: round(value, 4) for name, value in figures.items()}


def _times(what: str, times: list[tuple[str, float]]) -> Effects:
    """Return percentiles of times in ms, over all clients and of each client, as in `append_to_answer_p99_ms`.

    `what` is the first part of the figures' names, `times` are pairs of client and ms.
    """
    by_client: dict[str, list[float]] = defaultdict(list)
    for client, ms in times:
        by_client[client].append(ms)
    all_times = [ms for _, ms in times]
    return {
        f"{whose}{what}_p{share}_ms": float(value)
        for whose, group in [("", all_times), *((f"{client}: ", by_client[client]) for client in sorted(by_client))]
        if group
        for share, value in zip(PERCENTILES, np.percentile(group, PERCENTILES), strict=True)
    }

"""Fits a scenario to a recording: settings, arrivals, and the work of clients and brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from purgatory_udf.prediction.fit_check import FOLLOWER, recorded_figures
from purgatory_udf.prediction.fitted_models import (
    DEFAULT_LINGER_MS,
    TimedSteps,
    estimate_linger_ms,
    fit_appends,
    fit_producer,
    measure_steps,
    quantiles,
    quantiles_by_size,
    record_arrivals,
)
from purgatory_udf.prediction.recording import Recording, RecordingWindow, steady_window
from purgatory_udf.prediction.simulation_plan import assignment_by_topic
from purgatory_udf.simulation.scenario import Brokers, Consumers, Producers, Scenario, Topic
from purgatory_udf.simulation.scenario_sections import Fitted, FittedFigures, FittedHost, FittedPartition, FittedReader

BATCH_BYTES = 16_384
# If more than this share of a client's fetches overlap at a broker, several clients share its name.
MAX_OVERLAPPING_SHARE = 0.05
ALL = -1


def fit(recording: Recording) -> Scenario:
    """Fit a scenario to the steady period of a recording; its section `fitted` has the measured distributions."""
    window = steady_window(recording)
    timed = measure_steps(recording, window)
    return _Fit(recording, window, timed).scenario()


class _Fit:
    def __init__(self, recording: Recording, window: RecordingWindow, steps: TimedSteps) -> None:
        self.recording = recording
        self.window = window
        self.steps = steps
        self.leaders = recording.leaders_at(window.begin)
        self.unknown: list[str] = []
        self.doubts: dict[str, str] = {}

    def scenario(self) -> Scenario:
        recording, window = self.recording, self.window
        readers = {client: self._reader(client, group) for client, group in self._turns()}
        producers, fitted_producers = self._producers()
        brokers = self._brokers()
        shared = self.steps.sharing
        if window.moves:
            self.unknown.append(
                f"leaders moved at {', '.join(f'{at / 1000:.1f} s' for at in window.moves[:10])}"
                f"{' …' if len(window.moves) > 10 else ''}; fitted to the longest period between the moves"
            )
        if window.absent:
            self.unknown.append(f"clients absent for most of the recording, left out: {', '.join(window.absent)}")
        fitted = Fitted(
            begin_s=round(window.begin / 1000, 3),
            host=FittedHost(
                cores=shared.cores,
                stall_ms=self.steps.stall_ms,
                stretch=self.steps.stretch,
                correlation=round(shared.correlation, 3),
                correlation_unshared=round(shared.unshared, 3),
            ),
            lateness_ms=self._lateness(),
            partitions=[self._partition(place, readers.values()) for place in range(len(recording.keys))],
            readers=readers,
            producers=fitted_producers,
            appends=fit_appends(recording.others, window),
            recorded={
                client: {api: FittedFigures(**figures) for api, figures in apis.items()}
                for client, apis in recorded_figures(recording, window).items()
            },
            unknown=self.unknown,
            doubts=self.doubts,
        )
        return Scenario(
            shows="A recorded cluster, to be simulated under other settings.",
            duration_s=round(window.length / 1000, 3),
            brokers=brokers,
            topics=self._topics(),
            producers=producers,
            consumers=self._consumers(readers),
            fitted=fitted,
        )

    def _brokers(self) -> Brokers:
        followers = self.window.select(self.recording.fetches, "tried")
        followers = followers[followers["replica"] >= 0]
        numbers = {broker for led in self.leaders.values() for broker in (led.leader, *led.replicas)}
        logged = {*self.recording.fetches["broker"], *self.recording.produces["broker"]}
        self.unknown += [
            f"broker {broker}: no requests in the recording; the partitions that it leads are not simulated"
            for broker in sorted(numbers - logged)
        ]
        if followers.empty:
            return Brokers(count=max(1, len(numbers)))
        return Brokers(
            count=len(numbers),
            replica_fetch_wait_max_ms=int(followers["max_wait"].mode().iloc[0]),
            replica_fetch_min_bytes=max(1, int(followers["min_bytes"].mode().iloc[0])),
        )

    # Readers.

    def _turns(self) -> list[tuple[str, pd.DataFrame]]:
        turns = self.steps.turns
        turns = turns[~turns["client"].isin(self.window.absent)]
        return [(str(client), group) for client, group in turns.groupby("client")]

    def _reader(self, client: str, turns: pd.DataFrame) -> FittedReader:
        recording = self.recording
        fetches = self._fetches(client)
        follows = int(fetches["replica"].iloc[0]) >= 0
        reads: dict[int, list[int]] = {}
        reads_elsewhere = False
        for broker, group in fetches.groupby("broker"):
            (most, _), *_ = Counter(group["keys"]).most_common(1)
            led = [place for place in recording.key_sets[most] if self._leads(int(broker), place)]
            reads_elsewhere = reads_elsewhere or len(led) < len(recording.key_sets[most])
            if led:
                reads[int(broker)] = led
        before = fetches.sort_values("tried").groupby("broker")["answered"].shift()
        overlapping = float((fetches.sort_values("tried")["tried"] < before).mean())
        if overlapping > MAX_OVERLAPPING_SHARE:
            self.doubts[client] = (
                f"{overlapping:.0%} of its fetches overlap at one broker: several clients with this name are simulated "
                "as one"
            )
        if client == FOLLOWER:
            self.doubts[client] = (
                "a client of this name cannot be distinguished from the followers, which use it in figures"
            )
        if reads_elsewhere and not follows:
            self.doubts[client] = (
                "it reads from followers or from leaders that moved; only its fetches to leaders are simulated"
            )
        return FittedReader(
            replica=int(fetches["replica"].iloc[0]),
            reads=reads,
            **(_sizes(fetches, "partition_max_bytes", "max_bytes") if follows else {}),
            turn=quantiles_by_size(turns["turn"].to_numpy(), turns["before"].to_numpy()),
            handling=quantiles(turns["handling"].to_numpy()) if follows else [0.0],
        )

    def _consumers(self, readers: dict[str, FittedReader]) -> list[Consumers]:
        return [
            Consumers(
                name=client,
                group=self.recording.groups.get(client) or None,
                assign=assignment_by_topic(reader, self.recording.keys),
                fetch_min_bytes=max(1, _usual(self._fetches(client), "min_bytes") or 1),
                fetch_max_wait_ms=_usual(self._fetches(client), "max_wait") or 0,
                **_sizes(self._fetches(client), "max_partition_fetch_bytes", "fetch_max_bytes"),
            )
            for client, reader in readers.items()
            if reader.replica < 0 and reader.reads
        ]

    def _fetches(self, client: str) -> pd.DataFrame:
        return self.window.select(self.recording.fetches[self.recording.fetches["client"] == client], "tried")

    def _lateness(self) -> list[float]:
        """Return quantiles of the reaper's delay in ms, from the fetches that expired."""
        expired = self.window.select(self.recording.fetches, "tried")
        expired = expired[expired["outcome"] == "expired"]
        if expired.empty:
            self.unknown.append("delay of expirations: nothing expired; assumed: up to 1 ms")
            return [0.0, 1.0]
        late = expired["answered"] - np.floor(expired["tried"]) - expired["max_wait"]
        # Fetches that ended earlier with too few bytes did not expire.
        return quantiles(late[late > -1].to_numpy())

    # Producers.

    def _producers(self) -> tuple[list[Producers], dict[str, Any]]:
        settings, fitted = [], {}
        every = self.recording.produces
        for client, group in every[~every["client"].isin(self.window.absent)].groupby("client"):
            batches = self.recording.batches
            group = group.sort_values("tried")
            sent = batches[batches["request"].isin(group.index)]
            in_window = self.steps.produces[self.steps.produces["client"] == client]
            if in_window.empty:
                continue
            linger = estimate_linger_ms(group)
            if linger is None:
                self.unknown.append(f"{client}: linger.ms, not visible in its requests; assumed: {DEFAULT_LINGER_MS}")
                linger = DEFAULT_LINGER_MS
            arrived = self.window.select(all_records := record_arrivals(group, batches, linger), "at")
            if arrived.empty:
                continue
            name = str(client)
            fitted[name] = fit_producer(
                all_records,
                self.window,
                quantiles_by_size(in_window["handling"].to_numpy(), np.zeros(len(in_window))),
                quantiles(in_window["answering"].to_numpy()),
            )
            acks = int(group["acks"].mode().iloc[0])
            settings.append(
                Producers(
                    name=name,
                    topics=sorted({self.recording.keys[key].topic for key in sent["key"].unique()}),
                    rate=float(f"{len(arrived) / self.window.length * 1000:.5g}"),
                    record_bytes=max(1, round(float(arrived["bytes"].mean()))),
                    linger_ms=linger,
                    batch_bytes=max(BATCH_BYTES, int(sent["bytes"].max())),
                    acks="all" if acks == ALL else 1 if acks == 1 else 0,
                    request_timeout_ms=max(1, int(group["timeout"].mode().iloc[0])),
                )
            )
        if settings:
            self.unknown += [
                f"producers' batch.size; assumed: {BATCH_BYTES:,}, or the largest recorded batch",
                "producers' max.in.flight.requests.per.connection; assumed: 5",
                "arrival times of the records in a batch; assumed: spread over its linger time",
            ]
        return settings, fitted

    # The cluster.

    def _partition(self, place: int, readers: Iterable[FittedReader]) -> FittedPartition:
        """Return the partition at the index `place`, with its leader and the replicas that fetch it.

        Replicas that do not fetch it are out of sync and delay no produce, so they are left out.
        """
        key, led = self.recording.keys[place], self.leaders.get(place)
        leader = 1 if led is None else led.leader
        follow = {reader.replica for reader in readers if reader.replica >= 0 and place in reader.reads.get(leader, ())}
        return FittedPartition(topic=key.topic, partition=key.partition, replicas=[leader, *sorted(follow)])

    def _leads(self, broker: int, place: int) -> bool:
        led = self.leaders.get(place)
        return led is not None and led.leader == broker

    def _topics(self) -> list[Topic]:
        topics: dict[str, list[int]] = {}
        for place, key in enumerate(self.recording.keys):
            topics.setdefault(key.topic, []).append(place)
        settings = []
        for name, places in sorted(topics.items()):
            led = [self.leaders[place] for place in places if place in self.leaders]
            settings.append(
                Topic(
                    name=name,
                    partitions=max(self.recording.keys[place].partition for place in places) + 1,
                    replication=max((len(partition.replicas) for partition in led), default=1),
                    min_isr=max((partition.min_isr for partition in led), default=1),
                )
            )
        return settings


def _usual(requests: pd.DataFrame, name: str) -> int | None:
    """Return the most frequent value of a field; None without one."""
    usual = requests[name].dropna().mode()
    return int(usual.iloc[0]) if len(usual) else None


def _sizes(fetches: pd.DataFrame, of_partition: str, of_request: str) -> dict[str, Any]:
    """Return the most frequent size limits of fetches in bytes, by setting.

    `of_partition` and `of_request` name the settings of the limit per partition and per request. A limit that no fetch
    has is left out.
    """
    sizes = {of_partition: _usual(fetches, "most"), of_request: _usual(fetches, "max_bytes")}
    return {name: most for name, most in sizes.items() if most}

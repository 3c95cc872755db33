"""The reference replay: applies a trace event by event and returns every operation's outcome, and the gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge, Outcome, ShareDelivery, Transition
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_coordinator import Coordinators
from purgatory_udf.rules.coordinator.group_requests import GROUP_EVENTS
from purgatory_udf.rules.purgatory.clock import STEP_MS, GaugeSeries, Pauses
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import (
    REMOTE_STORAGE_EVENTS,
    REQUESTS,
    SHARE_EVENTS,
    apply_change,
)

Event = Mapping[str, Any]


class Operation(Protocol):
    """Interface of the operations that a replay reports, of partitions, topics and groups."""

    @property
    def operation_id(self) -> int: ...

    @property
    def completed(self) -> bool: ...

    def outcome(self) -> Outcome: ...


@dataclass
class Replay:
    """The result of a replay.

    `outcomes` are in order of arrival, those of groups last. `open` lists the operations that are still open at the
    end, which is only possible if the replay is not drained. `deliveries` are those of share groups, with broker.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    groups: GroupJournal = field(default_factory=GroupJournal)
    deliveries: list[tuple[int, ShareDelivery]] = field(default_factory=list)
    series: list[GaugeSeries] = field(default_factory=list)
    start_ms: int = 0
    end_ms: int = 0

    @property
    def gauges(self) -> list[Gauge]:
        """Readings of both gauges at every 200 ms step of the trace, for every purgatory that was ever used."""
        readings = [
            reading
            for series in self.series
            if series.purgatory.used
            for reading in series.at_every_step(self.start_ms, self.end_ms)
        ]
        return sorted(readings, key=lambda reading: (reading.at_ms, reading.broker, reading.purgatory))


class Replayer:
    """Applies events, in order, to a cluster and collects the operations that they start."""

    def __init__(
        self, config: Config, start_ms: int, topics: ClusterTopics | None = None, pauses: Pauses | None = None
    ) -> None:
        self.config = config
        self.cluster = Cluster(config, start_ms // STEP_MS * STEP_MS, pauses)
        self.operations: list[Operation] = []
        self.coordinators = Coordinators(self.cluster.clock, config.group, topics)
        self._last_event_ms = start_ms

    def apply(self, event: Event) -> None:
        """Apply an event, after expiring every deadline up to its millisecond: expiration wins ties."""
        self._last_event_ms = event["time_us"] // 1000
        self.cluster.clock.advance_to(self._last_event_ms)
        handler = HANDLERS.get(event["type"])
        if handler is not None:
            handler(self, event)
        if event["type"] in FINISHED_BY_BROKER:
            self.cluster.broker(event.get("broker") or 0).finish_request(event["time_us"])

    def finish(self) -> Replay:
        """Expire every deadline up to the last event, drain if configured, and return the result."""
        clock = self.cluster.clock
        clock.advance_to(self._last_event_ms)
        if self.config.drain:
            self._drain()
        groups = self.coordinators.journal
        operations: list[Operation] = [*self.operations, *groups.operations]
        return Replay(
            outcomes=[operation.outcome() for operation in operations if operation.completed],
            open=[operation.operation_id for operation in operations if not operation.completed],
            transitions=[change.transition for change in groups.changes],
            groups=groups,
            deliveries=[
                (broker.broker_id, delivery)
                for broker in self.cluster.brokers.values()
                if broker.has_shares
                for delivery in broker.shares.deliveries
            ],
            series=clock.series,
            start_ms=clock.start_ms,
            end_ms=clock.last_step_ms,
        )

    def _drain(self) -> None:
        """Advance the clock until no operation is open, then to the next gauge step after the last event."""
        clock, ended_ms = self.cluster.clock, self._last_event_ms + 1
        while clock.num_delayed() and (next_ms := clock.next_expiration_ms()) is not None:
            clock.advance_to(next_ms)
            ended_ms = max(ended_ms, next_ms)
        if clock.last_step_ms < ended_ms:
            clock.advance_to(clock.last_step_ms + STEP_MS)


def replay(events: Iterable[Event], config: Config) -> Replay:
    """Replay a trace. Events are sorted by (`time_us`, `seq`) first."""
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    if not ordered:
        return Replay()
    topics, pauses = ClusterTopics.from_events(ordered), Pauses.from_events(ordered)
    replayer = Replayer(config, ordered[0]["time_us"] // 1000, topics, pauses)
    for event in ordered:
        replayer.apply(event)
    return replayer.finish()


# Events after which the broker runs deferred actions: requests and appends.
FINISHED_BY_BROKER = {*REQUESTS, "share_acknowledge", "share_release", *GROUP_EVENTS, "partition"}

Handler = Callable[[Replayer, Event], None]


def _change_handler(change: Callable[[Cluster, Event], None]) -> Handler:
    return lambda replayer, event: change(replayer.cluster, event)


def _request_handler(request: Callable[[Cluster, Event], DelayedRequest]) -> Handler:
    def handle(replayer: Replayer, event: Event) -> None:
        replayer.operations.append(request(replayer.cluster, event))

    return handle


# Any other type of event, such as `clock` or `paused`, only advances the time.
HANDLERS: dict[str, Handler] = {
    "partition": _change_handler(apply_change),
    **{kind: _change_handler(change) for kind, change in (REMOTE_STORAGE_EVENTS | SHARE_EVENTS).items()},
    **{kind: _request_handler(request) for kind, request in REQUESTS.items()},
    **dict.fromkeys(GROUP_EVENTS, lambda replayer, event: replayer.coordinators.handle(event)),
}

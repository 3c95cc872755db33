"""The reference replay: applies a trace event by event and returns every operation's outcome, and the gauges.

Share groups are decided by the same classes in a stream, too, from appends, high watermarks, leaders and requests of
share groups only. `ShareReplay` does this in steps, with serialized state between them. One replay has all brokers,
because a share partition that moves to another broker continues there with its persisted state.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from purgatory_udf.common.configuration import Config, ShareSettings
from purgatory_udf.contract.outcome import Gauge, Outcome, ShareDelivery, Transition
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_coordinator import Coordinators
from purgatory_udf.rules.coordinator.group_requests import GROUP_EVENTS
from purgatory_udf.rules.purgatory.clock import STEP_MS, GaugeSeries, Pauses
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest
from purgatory_udf.rules.reference.broker import Cluster, ReplicaBroker, ReplicaCluster
from purgatory_udf.rules.reference.delayed_produce import NONE, VALID_ACKS
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.event_handlers import (
    REMOTE_STORAGE_EVENTS,
    REQUESTS,
    SHARE_EVENTS,
    SHARE_STORAGE_EVENTS,
    Event,
    apply_change,
    share_fetch,
)
from purgatory_udf.rules.reference.partition import Partition
from purgatory_udf.rules.reference.share_broker import ShareBroker


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
            outcomes=[operation.outcome() for operation in operations if _is_answered(operation)],
            open=[operation.operation_id for operation in operations if not _is_answered(operation)],
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


def _is_answered(operation: Operation) -> bool:
    """Return whether the operation has ended. A share fetch may leave its purgatory before it is answered."""
    return operation.completed and not (isinstance(operation, DelayedShareFetch) and operation.is_outside)


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


# The version of the serialized form, which contains the names of modules and classes.
VERSION = 11

# Batches of a log that are remembered although no share group needs them. Older ones become one batch.
RETAINED_BATCHES = 1000


@dataclass
class ShareResults:
    """The results of a step: ended share fetches, ended deliveries with their broker, and changed gauges."""

    outcomes: list[Outcome] = field(default_factory=list)
    deliveries: list[tuple[int, ShareDelivery]] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)


class ShareReplay:
    """A replay of share groups by the reference. Each `step` applies further events and returns their results."""

    def __init__(self, config: Config, start_ms: int, pauses: Pauses | None = None) -> None:
        self.cluster = ReplicaCluster(config, start_ms // STEP_MS * STEP_MS, pauses)
        self.open: dict[int, DelayedShareFetch] = {}

    def step(self, events: Iterable[Event], horizon_ms: int | None) -> ShareResults:
        """Apply the events, then advance the clock: to the horizon, or without one until nothing is scheduled."""
        for event in events:
            self._apply(event)
        if horizon_ms is None:
            self._run_out()
        else:
            self.cluster.clock.advance_to(horizon_ms)
        return self._take_results()

    @property
    def share_partitions(self) -> int:
        """The number of share partitions."""
        return sum(len(shares.partitions) for shares in self._shares())

    def gauges(self) -> list[tuple[int, int, int]]:
        """Return broker, `PurgatorySize` and `NumDelayedOperations` of each purgatory."""
        return [
            (shares.broker_id, shares.purgatory.watched(), shares.purgatory.num_delayed()) for shares in self._shares()
        ]

    def _shares(self) -> Iterator[ShareBroker]:
        return (broker.shares for broker in self.cluster.brokers.values() if broker.has_shares)

    def next_wake_ms(self) -> int | None:
        """Return the epoch millisecond of the next expiration, or of the next gauge reading that may change."""
        clock = self.cluster.clock
        times = (clock.next_expiration_ms(), clock.next_reading_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _apply(self, event: Event) -> None:
        kind, now_us = event["type"], event["time_us"]
        self.cluster.clock.advance_to(now_us // 1000)
        if kind == "share_fetch":
            self.open[event["seq"]] = share_fetch(self.cluster, event)
        elif (handler := _HANDLERS.get(kind)) is not None:
            handler(self.cluster, event)
        if kind in FINISHED_BY_BROKER:
            self.cluster.broker(event.get("broker") or 0).finish_request(now_us)

    def _run_out(self) -> None:
        """Advance the clock until no timer is running and the gauges have their last values."""
        clock = self.cluster.clock
        while clock.num_delayed() and (next_ms := clock.next_expiration_ms()) is not None:
            clock.advance_to(next_ms)
        while (next_ms := clock.next_reading_ms()) is not None:
            clock.advance_to(next_ms)

    def _take_results(self) -> ShareResults:
        results = ShareResults()
        ended = [operation for operation in self.open.values() if _is_answered(operation)]
        for operation in ended:
            del self.open[operation.operation_id]
            results.outcomes.append(operation.outcome())
        for shares in self._shares():
            results.deliveries += [(shares.broker_id, delivery) for delivery in shares.deliveries]
            shares.deliveries.clear()
            shares.answers.clear()
        for series in self.cluster.clock.series:
            # The last reading stays: later ones are compared with it.
            changes, last = series.changes, series.reported
            for reading in changes:
                if reading.purged or (reading.watched, reading.delayed) != last:
                    results.gauges.append(reading)
                last = reading.watched, reading.delayed
            series.reported = last
            changes[:] = [replace(reading, purged=0) for reading in changes[-1:]]
        return results

    def to_bytes(self) -> bytes:
        return _dumps(self)

    @classmethod
    def from_bytes(cls, value: memoryview, config: Config) -> ShareReplay:
        """Restore a replay from its serialized state, which does not contain the configuration of the run."""
        replay = _loads(value, config)
        assert isinstance(replay, cls)
        return replay


def _produce(cluster: ReplicaCluster, event: Event) -> None:
    if event["acks"] not in VALID_ACKS:
        return
    broker = cluster.broker(event.get("broker") or 0)
    for entry in event["partitions"]:
        if (entry.get("error") or NONE) == NONE:
            replica = broker.replica_of(entry)
            change = replica.append(entry["last_offset"] + 1, entry.get("bytes") or 0, True)
            broker.check_after_append(replica, change, event["time_us"])
            _trim_log(cluster, broker, replica)


def _follower_fetch(cluster: ReplicaCluster, event: Event) -> None:
    replica_id = event.get("replica_id")
    if replica_id is None or replica_id < 0:
        return
    broker = cluster.broker(event.get("broker") or 0)
    for entry in event["partitions"]:
        replica = broker.replica_of(entry)
        if replica.update_follower_fetch_state(replica_id, entry["fetch_offset"]):
            broker.check_all(replica, event["time_us"])


def _change(cluster: ReplicaCluster, event: Event) -> None:
    apply_change(cluster, event)
    if event["change"] == "log_end":
        broker = cluster.broker(event.get("broker") or 0)
        _trim_log(cluster, broker, broker.replica_of(event))


_HANDLERS: dict[str, Callable[[ReplicaCluster, Event], None]] = {
    "produce": _produce,
    "fetch": _follower_fetch,
    "partition": _change,
    **SHARE_EVENTS,
    **SHARE_STORAGE_EVENTS,
}


def _trim_log(cluster: ReplicaCluster, broker: ReplicaBroker, replica: Partition) -> None:
    """Merge old batches of a log that no share group needs, each time the log has grown by `RETAINED_BATCHES`."""
    log, key = replica.log, replica.key
    if len(log) % RETAINED_BATCHES or not len(log):
        return
    needed = cluster.share_groups.start_offsets(key)
    if broker.has_shares:
        needed += [share.start_offset for (_, of), share in broker.shares.partitions.items() if of == key]
    oldest = min(needed, default=None)
    log.merge_oldest(len(log) - RETAINED_BATCHES, oldest)
    replica.aborted = [each for each in replica.aborted if oldest is None or each[1] >= oldest]


_FOREIGN = {("collections", "deque"), ("builtins", "set"), ("builtins", "object")}

# The state: a graph of objects. Each object of the rules is one record, and refers to others by number, so that the
# depth of the serialized form does not grow with the graph.


class _GraphPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._numbers: dict[int, int] = {}
        self.nodes: list[Any] = []

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Config | ShareSettings):
            return type(value).__name__
        kind = type(value)
        if not kind.__module__.startswith("purgatory_udf.rules.") or isinstance(value, type | tuple | Enum):
            return None
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.nodes)
            self.nodes.append(value)
        return number


class _GraphUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, config: Config) -> None:
        super().__init__(file)
        self._config = config
        self.nodes: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        """Return a class by name. Raises UnpicklingError for any class that no state of a replay contains."""
        if module.startswith(("purgatory_udf.rules.", "purgatory_udf.contract.")) or (module, name) in _FOREIGN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"state: refers to {module}.{name}")

    def persistent_load(self, number: Any) -> Any:
        if number == "Config":
            return self._config
        return self._config.share if number == "ShareSettings" else self.nodes[number]


def _dumps(root: Any) -> bytes:
    kinds, states = io.BytesIO(), io.BytesIO()
    pickler = _GraphPickler(states)
    pickler.dump(root)
    at = 0
    while at < len(pickler.nodes):
        pickler.dump(_attributes(pickler.nodes[at]))
        at += 1
    pickle.dump([type(node) for node in pickler.nodes], kinds, protocol=5)
    head = kinds.getvalue()
    return len(head).to_bytes(8, "little") + head + states.getvalue()


def _loads(value: memoryview, config: Config) -> Any:
    size = int.from_bytes(value[:8], "little")
    kinds = _GraphUnpickler(io.BytesIO(value[8 : 8 + size]), config).load()
    unpickler = _GraphUnpickler(io.BytesIO(value[8 + size :]), config)
    unpickler.nodes = [object.__new__(kind) for kind in kinds]
    root = unpickler.load()
    for node in unpickler.nodes:
        for name, attribute in unpickler.load().items():
            object.__setattr__(node, name, attribute)
    return root


def _attributes(node: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict(getattr(node, "__dict__", {}))
    for kind in type(node).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name not in ("__dict__", "__weakref__"):
                values[name] = getattr(node, name)
    return values

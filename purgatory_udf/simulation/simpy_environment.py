"""The environment of a simulation: clock, random streams, trace, and the reference engine that completes requests.

There are two clocks. SimPy's clock counts microseconds and jumps from event to event. The purgatories' timers count
milliseconds; `Environment` advances them whenever SimPy's clock passes the next deadline. So the response of an expired
request is sent at its deadline, and all later actions of the client are later in the trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from random import Random
from typing import Any, Protocol, TypeVar

import simpy

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.coordinator.group_coordinator import GroupCoordinator
from purgatory_udf.rules.coordinator.group_requests import GROUP_EVENTS, group_request
from purgatory_udf.rules.purgatory.clock import Pause
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import (
    REMOTE_STORAGE_EVENTS,
    SHARE_EVENTS,
    Event,
    apply_change,
    create_topics,
    delete_records,
    fetch,
    produce,
    share_fetch,
)
from purgatory_udf.rules.reference.reference_replay import FINISHED_BY_BROKER, Replayer

# The 75th percentile of the normal distribution.
_Z75 = 0.6744897501960817


class LatencyDistribution(Protocol):
    """A log-normal latency, described by its median and 75th percentile."""

    @property
    def median_ms(self) -> float: ...

    @property
    def p75_ms(self) -> float: ...


class RandomStream:
    """The random numbers of one entity (a client, a connection, …).

    They depend only on the seed and the entity's name, so an additional entity does not change the numbers of others.
    """

    def __init__(self, seed: int, *entity: str) -> None:
        # `Random` hashes a string seed with SHA-512, which does not depend on PYTHONHASHSEED.
        self._random = Random("/".join([str(seed), *entity]))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def exponential_us(self, per_second: float) -> int:
        """Draw the time until the next arrival of a Poisson process, in microseconds."""
        return round(self._random.expovariate(per_second) * 1_000_000)

    def delay_us(self, latency: LatencyDistribution) -> int:
        """Draw a log-normal latency in microseconds, the distribution that Kafka's purgatory benchmark uses."""
        sigma = math.log(latency.p75_ms / latency.median_ms) / _Z75
        return round(latency.median_ms * 1000 * math.exp(self._random.gauss(0, 1) * sigma))

    def uniform_around(self, mean: int) -> int:
        """Draw a whole number between 0.5 and 1.5 times `mean`, at least 1."""
        return max(1, round(self._random.uniform(0.5, 1.5) * mean))

    def choose_index(self, weights: Sequence[float]) -> int:
        """Draw an index with the given cumulative weights."""
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def cumulative_zipf(count: int, skew: float) -> list[float]:
    """Return the cumulative weights of 1, 1/2^skew, 1/3^skew, …; with a skew of 0 all weights are equal."""
    return list(accumulate(1 / (rank + 1) ** skew for rank in range(count)))


Respond = Callable[[Any], None]

OPERATION_HANDLERS: dict[str, Callable[[Cluster, Event, Respond | None], DelayedRequest]] = {
    "produce": produce,
    "fetch": fetch,
    "delete_records": delete_records,
    "create_topics": create_topics,
    "share_fetch": share_fetch,
}


class LiveReference(Replayer):
    """The reference engine, which gets one event at a time and calls back with each response.

    It applies events exactly as a replay does, so its outcomes are the ground truth for the trace.
    """

    def __init__(self, config: Config, start_ms: int) -> None:
        super().__init__(config, start_ms)
        self._coordinators: dict[int, GroupCoordinator] = {}
        self._advanced_to_ms = start_ms
        self._due_now = False

    def submit(self, event: Event, respond: Respond | None = None) -> None:
        """Apply an event.

        `respond` receives the response, now or when a later event or a deadline completes the request.
        """
        self._last_event_ms = now_ms = event["time_us"] // 1000
        self.advance_to(now_ms)
        kind = event["type"]
        if kind in OPERATION_HANDLERS:
            operation = OPERATION_HANDLERS[kind](self.cluster, event, respond)
            self.operations.append(operation)
            self._due_now = not operation.completed and operation.deadline_ms <= now_ms
        elif kind in GROUP_EVENTS:
            self.coordinator(event["broker"]).handle(group_request(event, self.config.group, respond))
            self._due_now = True
        elif kind == "partition":
            apply_change(self.cluster, event)
        elif kind in REMOTE_STORAGE_EVENTS:
            REMOTE_STORAGE_EVENTS[kind](self.cluster, event)
        elif kind in SHARE_EVENTS:
            SHARE_EVENTS[kind](self.cluster, event)
        if kind in FINISHED_BY_BROKER:
            self.cluster.broker(event["broker"]).finish_request(event["time_us"])
        self.advance_to(now_ms)

    def advance_to(self, now_ms: int) -> None:
        """Expire due operations. A request with a timeout of 0 expires in the millisecond in which it arrives."""
        if self._due_now or now_ms > self._advanced_to_ms:
            self._due_now = False
            self._advanced_to_ms = now_ms
            self.cluster.clock.advance_to(now_ms)

    def next_due_ms(self) -> int | None:
        """Return the time of the next possible expiration, or None if nothing waits."""
        return self.cluster.clock.next_expiration_ms()

    def coordinator(self, broker: int) -> GroupCoordinator:
        """Return the group coordinator of a broker."""
        known = self._coordinators.get(broker)
        if known is None:
            journal = self.coordinators.journal
            known = GroupCoordinator(broker, self.cluster.clock, self.config.group, journal)
            self._coordinators[broker] = known
        return known


T = TypeVar("T")
# A SimPy process, or a subroutine that processes run by `yield from`; it returns a T.
ProcessGenerator = Generator[simpy.Event, Any, T]

# Every simulation starts at 2026-01-01T00:00:00Z.
START_US = 1_767_225_600_000_000


class Environment:
    """The SimPy environment of a simulation, its trace (`events`), and the engine that completes requests."""

    def __init__(self, seed: int, config: Config) -> None:
        self.env = simpy.Environment(initial_time=START_US)
        self.engine = LiveReference(config, START_US // 1000)
        self.events: list[dict[str, Any]] = []
        self._seed = seed
        self._next_wake_us: int | None = None

    @property
    def now_us(self) -> int:
        # All delays are whole microseconds, so `env.now` is a whole number too.
        return int(self.env.now)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def random_stream(self, *entity: str) -> RandomStream:
        """Return the random stream of an entity, for example `random_stream("producer", "checkout-1")`."""
        return RandomStream(self._seed, *entity)

    def record(self, type: str, broker: int, respond: Respond | None = None, **fields: Any) -> int:
        """Append an event that happens now to the trace, apply it to the engine, and return its `seq`.

        Args:
            type: Event type.
            broker: Broker id.
            respond: Called with the response of a request, now or later.
            fields: The other fields of the event.
        """
        seq = len(self.events) + 1
        event = {"time_us": self.now_us, "seq": seq, "type": type, "broker": broker, **fields}
        self.events.append(event)
        self.engine.submit(event, respond)
        self._schedule_wake()
        return seq

    def pause_broker(self, broker: int, until_us: int) -> None:
        """Record that the broker stands still: none of its timers fires before `until_us`."""
        self.record("paused", broker)
        self.engine.cluster.clock.pauses.add(Pause(broker, self.now_ms, until_us // 1000))

    def extend_pause(self, broker: int, until_us: int) -> None:
        """Change the time at which a broker that stands still resumes."""
        self.engine.cluster.clock.pauses.end_last(broker, until_us // 1000)

    def schedule(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action(*arguments)` after `delay_us`."""
        self.sleep_us(delay_us).callbacks.append(lambda _: action(*arguments))

    def sleep_us(self, delay_us: int) -> simpy.Event:
        return self.env.timeout(max(0, int(delay_us)))

    def sleep_ms(self, delay_ms: float) -> simpy.Event:
        return self.sleep_us(round(delay_ms * 1000))

    def run(self, until_us: int) -> None:
        """Run the simulation up to `until_us`, exclusive."""
        self.env.run(until=until_us)

    def _schedule_wake(self) -> None:
        due_ms = self.engine.next_due_ms()
        if due_ms is None:
            return
        # Everything due in this millisecond has expired. A timing wheel's bucket that has started may hold later
        # deadlines.
        due_us = max(due_ms, self.now_ms + 1) * 1000
        if self._next_wake_us is None or due_us < self._next_wake_us:
            self._next_wake_us = due_us
            self.schedule(due_us - self.now_us, self._wake)

    def _wake(self) -> None:
        # A later wake-up was scheduled before this one became necessary; it is obsolete.
        if self.now_us == self._next_wake_us:
            self._next_wake_us = None
            self.engine.advance_to(self.now_ms)
            self._schedule_wake()

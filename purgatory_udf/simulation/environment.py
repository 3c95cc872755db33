"""The world: one clock in microseconds, one trace, and the engine that decides what becomes of each request.

SimPy's clock jumps from happening to happening. The purgatories' timers have a clock of their own, in milliseconds,
and are looked at whenever SimPy's passes the next of their deadlines: so an expiration's answer leaves at the deadline,
and what a client does then comes after it in the trace.
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
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import apply_change, create_topics, delete_records, fetch, produce
from purgatory_udf.rules.reference.reference_replay import Event, Replayer

# Chance: every entity of a simulation draws from a stream of its own, so none disturbs another.


# The 75th percentile of the normal distribution.
_Z75 = 0.6744897501960817


class LatencyDistribution(Protocol):
    """A log-normal distribution as people measure one."""

    @property
    def median_ms(self) -> float: ...

    @property
    def p75_ms(self) -> float: ...


class RandomStream:
    """The random numbers of one entity: a function of the seed and the entity's name, and of nothing else."""

    def __init__(self, seed: int, *entity: str) -> None:
        # A text seeds through SHA-512, whatever the process's hash seed is.
        self._random = Random("/".join([str(seed), *entity]))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def interval_us(self, per_second: float) -> int:
        """Until the next arrival of a Poisson process."""
        return round(self._random.expovariate(per_second) * 1_000_000)

    def delay_us(self, spread: LatencyDistribution) -> int:
        """A latency: log-normal by median and 75th percentile, as in Kafka's own purgatory benchmark."""
        sigma = math.log(spread.p75_ms / spread.median_ms) / _Z75
        return round(spread.median_ms * 1000 * math.exp(self._random.gauss(0, 1) * sigma))

    def around(self, mean: int) -> int:
        """A whole number from half of `mean` to one and a half."""
        return max(1, round(self._random.uniform(0.5, 1.5) * mean))

    def choose(self, weights: Sequence[float]) -> int:
        """The place of one of the cumulated weights."""
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def cumulative_zipf(count: int, skew: float) -> list[float]:
    """Cumulated weights 1, 1/2^skew, 1/3^skew, …; a skew of 0 makes all alike."""
    return list(accumulate(1 / (rank + 1) ** skew for rank in range(count)))


# The reference, made to answer: what becomes of a request is told to whoever sent it.


Respond = Callable[[Any], None]

OPERATION_HANDLERS: dict[str, Callable[[Cluster, Event, Respond | None], DelayedRequest]] = {
    "produce": produce,
    "fetch": fetch,
    "delete_records": delete_records,
    "create_topics": create_topics,
}


class LiveReference(Replayer):
    """Applies events as a replay does. Its outcomes are the truth about the trace that the events make."""

    def __init__(self, config: Config, start_ms: int) -> None:
        super().__init__(config, start_ms)
        self._coordinators: dict[int, GroupCoordinator] = {}
        self._passed_ms = start_ms
        self._due_now = False

    def submit(self, event: Event, respond: Respond | None = None) -> None:
        """Apply an event; `respond` is told its answer, now or when a later event or the time ends the wait."""
        self._last_event_ms = now_ms = event["time_us"] // 1000
        self.pass_time(now_ms)
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
        self.pass_time(now_ms)

    def pass_time(self, now_ms: int) -> None:
        """Expire what is due: a wait of no time is, in the millisecond in which it began."""
        if self._due_now or now_ms > self._passed_ms:
            self._due_now = False
            self._passed_ms = now_ms
            self.cluster.clock.advance_to(now_ms)

    def next_due_ms(self) -> int | None:
        """Nothing expires before."""
        return self.cluster.clock.next_expiration_ms()

    def coordinator(self, broker: int) -> GroupCoordinator:
        known = self._coordinators.get(broker)
        if known is None:
            journal = self.coordinators.journal
            known = GroupCoordinator(broker, self.cluster.clock, self.config.group, journal)
            self._coordinators[broker] = known
        return known


T = TypeVar("T")
# A part of a SimPy process: `yield from` it; it returns a T.
ProcessGenerator = Generator[simpy.Event, Any, T]

# Every simulation begins at this instant: 2026-01-01T00:00:00Z.
START_US = 1_767_225_600_000_000


class World:
    def __init__(self, seed: int, config: Config) -> None:
        self.env = simpy.Environment(initial_time=START_US)
        self.engine = LiveReference(config, START_US // 1000)
        self.events: list[dict[str, Any]] = []
        self._seed = seed
        self._wakes_us: int | None = None

    @property
    def now_us(self) -> int:
        # All delays are whole microseconds, so the clock is one too.
        return int(self.env.now)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def chance(self, *entity: str) -> RandomStream:
        return RandomStream(self._seed, *entity)

    def record(self, type: str, broker: int, respond: Respond | None = None, **fields: Any) -> int:
        """An event happens at a broker, now: it enters the trace, and the engine. Its `seq` is returned."""
        seq = len(self.events) + 1
        event = {"time_us": self.now_us, "seq": seq, "type": type, "broker": broker, **fields}
        self.events.append(event)
        self.engine.submit(event, respond)
        self._wake_when_due()
        return seq

    # Time.

    def later(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        self.sleep_us(delay_us).callbacks.append(lambda _: action(*arguments))

    def sleep_us(self, delay_us: int) -> simpy.Event:
        return self.env.timeout(max(0, int(delay_us)))

    def sleep_ms(self, delay_ms: float) -> simpy.Event:
        return self.sleep_us(round(delay_ms * 1000))

    def run(self, until_us: int) -> None:
        self.env.run(until=until_us)

    def _wake_when_due(self) -> None:
        due_ms = self.engine.next_due_ms()
        if due_ms is None:
            return
        # What was due in this millisecond has ended: a bucket that has begun holds something for later.
        due_us = max(due_ms, self.now_ms + 1) * 1000
        if self._wakes_us is None or due_us < self._wakes_us:
            self._wakes_us = due_us
            self.later(due_us - self.now_us, self._wake)

    def _wake(self) -> None:
        # A wake-up that an earlier one has overtaken is nobody's any more.
        if self.now_us == self._wakes_us:
            self._wakes_us = None
            self.engine.pass_time(self.now_ms)
            self._wake_when_due()

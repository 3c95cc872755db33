"""The model of a broker and of the host whose cores all clients and brokers share.

A broker has partitions, two purgatories, and the events that check them (Kafka: ReplicaManager). Errors are not
modelled: no leader changes, no deletion, no truncation.

The host is a clock in milliseconds, scheduled callbacks, and cores. Every step of a client or broker takes some
milliseconds of a core. If no more steps are active than there are cores, a step takes just this time; otherwise all
active steps share the cores evenly (processor sharing).

    worked    the work that each active step has received so far; grows by min(1, cores / active) per millisecond

A step of w ms that starts when `worked` is W is complete when `worked` is W + w, regardless of other steps that start
or end in between. So a single heap, ordered by that value, holds all steps.

Very long steps have another cause, such as a disk, a timer or a pause. The part of a step that exceeds `stall_ms` is
therefore treated as elapsed time, which the sharing of cores does not extend. It is multiplied by `stretch` to restore
its measured length. The step counts as active during that time, as it did in the recording.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple, Protocol

from purgatory_udf.prediction.simulation_plan import PurgePlan

Do = Callable[..., None]


class ModelHost:
    """Clock and event loop of the host of all clients and brokers; their steps share its cores.

    Without `cores`, steps do not slow each other down.
    """

    def __init__(
        self, begin_ms: float, cores: float | None, stall_ms: float = float("inf"), stretch: float = 1.0
    ) -> None:
        self.now = begin_ms
        self._stall_ms = stall_ms
        self._stretch = stretch
        self._cores = cores
        self._times: list[tuple[float, int, Do, Any]] = []
        self._works: list[tuple[float, int, Do, Any]] = []
        self._worked = 0.0
        self._worked_at = begin_ms
        self._stalled = 0
        self._scheduled = 0

    def schedule(self, time_ms: float, do: Do, subject: Any) -> None:
        """Call `do(subject)` when the clock reaches `time_ms`."""
        self._scheduled += 1
        heappush(self._times, (time_ms, self._scheduled, do, subject))

    def work(self, amount_ms: float, do: Do, subject: Any) -> None:
        """Call `do(subject)` after a step of `amount_ms` milliseconds of work."""
        if self._cores is None:
            self.schedule(self.now + amount_ms, do, subject)
            return
        if amount_ms > self._stall_ms:
            stalled = (amount_ms - self._stall_ms) * self._stretch
            do, subject, amount_ms = self._wait, (stalled, do, subject), self._stall_ms
        self._catch_up()
        self._scheduled += 1
        heappush(self._works, (self._worked + amount_ms, self._scheduled, do, subject))

    def run(self, until_ms: float) -> None:
        times, works, cores = self._times, self._works, self._cores
        while times or works:
            done = None
            if works:
                assert cores is not None
                active = len(works) + self._stalled
                done = self._worked_at + (works[0][0] - self._worked) * (active / cores if active > cores else 1.0)
            if done is None or (times and times[0][0] <= done):
                if times[0][0] > until_ms:
                    break
                self.now, _, do, subject = heappop(times)
            else:
                if done > until_ms:
                    break
                self.now = max(self.now, done)
                self._worked, self._worked_at = works[0][0], self.now
                _, _, do, subject = heappop(works)
            do(subject)
        self.now = until_ms

    def _wait(self, stalled: tuple[float, Do, Any]) -> None:
        """Wait for the stalled part of a step, given as (milliseconds, function, its argument).

        The step counts as active during that time. The function is called afterwards.
        """
        length_ms, do, subject = stalled
        self._catch_up()
        self._stalled += 1
        self.schedule(self.now + length_ms, self._waited, (do, subject))

    def _waited(self, after: tuple[Do, Any]) -> None:
        do, subject = after
        self._catch_up()
        self._stalled -= 1
        do(subject)

    def _catch_up(self) -> None:
        active = len(self._works) + self._stalled
        if active:
            assert self._cores is not None
            share = self._cores / active if active > self._cores else 1.0
            self._worked += (self.now - self._worked_at) * share
        self._worked_at = self.now


FETCH, PRODUCE = "FETCH", "PRODUCE"


class AnsweredRequest(NamedTuple):
    """A request that was answered at `at_ms`. A produce is `expired` if one of its partitions timed out."""

    client: str
    api: str
    broker: int
    at_ms: float
    waited_ms: float
    expired: bool
    bytes: int
    follower: bool


@dataclass(slots=True)
class Measurements:
    """The results of a simulation after its warm-up, from 0 ms on.

    Attributes:
        answered: The requests with a response.
        delivery_ms: (client, time from the append of a batch to the response that delivers it to the consumer).
        produce_latency_ms: (client, time from the first record of a batch to the producer's response).
        gauges: (broker, purgatory, watched, delayed), read every 200 ms.
        events: A trace by the event contract, if one is requested; otherwise None.
    """

    answered: list[AnsweredRequest] = field(default_factory=list)
    delivery_ms: list[tuple[str, float]] = field(default_factory=list)
    produce_latency_ms: list[tuple[str, float]] = field(default_factory=list)
    gauges: list[tuple[int, str, int, int]] = field(default_factory=list)
    events: list[dict[str, Any]] | None = None

    def event(self, now_ms: float, type: str, broker: int, **fields: Any) -> int:
        """Add an event to the trace and return its `seq`, or -1 if no trace is requested."""
        if self.events is None:
            return -1
        seq = len(self.events)
        self.events.append({"time_us": round(now_ms * 1000), "seq": seq, "type": type, "broker": broker, **fields})
        return seq


class Sampler:
    """Draws from a distribution that is given by evenly spaced quantiles. Values between two quantiles are uniform."""

    def __init__(self, quantiles: Sequence[float], random: Random) -> None:
        self._quantiles = list(quantiles)
        self._last = len(self._quantiles) - 1
        self._random = random.random

    def __call__(self) -> float:
        if not self._last:
            return self._quantiles[0]
        place = self._random() * self._last
        below = int(place)
        low = self._quantiles[below]
        return low + (place - below) * (self._quantiles[below + 1] - low)


class SamplerBySize:
    """Draws from the distribution of the range in which a size is. Each of `bounds` is the start of the next range."""

    def __init__(self, bounds: Sequence[int], quantiles: Sequence[Sequence[float]], random: Random) -> None:
        self._bounds = list(bounds)
        self._samplers = [Sampler(each, random) for each in quantiles]

    def __call__(self, size: int) -> float:
        return self._samplers[bisect_right(self._bounds, size)]()


class ModelPartition:
    """A partition at its leader: the ends of its log and of its followers, and the high watermark.

    Positions count batches. `sizes[n]` is the total size of the first n batches in bytes, so that the bytes between two
    positions are a difference.
    """

    def __init__(self, topic: str, partition: int, leader: int, followers: Iterable[int]) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.sizes = [0]
        self.appended_ms: list[float] = []
        self.followed = dict.fromkeys(followers, 0)
        self.high_watermark = 0

    @property
    def end(self) -> int:
        """The log end, as a position: the number of batches in the log."""
        return len(self.appended_ms)

    def append(self, size: int, now_ms: float) -> bool:
        """Append a batch; return whether the high watermark rose. With followers, it rises only after their fetches."""
        self.sizes.append(self.sizes[-1] + size)
        self.appended_ms.append(now_ms)
        return self._raise_high_watermark()

    def follower_reached(self, replica: int, position: int) -> bool:
        """Record the position of a follower; return whether the high watermark rose."""
        if self.followed[replica] >= position:
            return False
        self.followed[replica] = position
        return self._raise_high_watermark()

    def _raise_high_watermark(self) -> bool:
        least = min(self.followed.values(), default=self.end)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True


REAPER_MS = 200


class ModelOperation(Protocol):
    """A delayed operation: a fetch or a produce."""

    done: bool

    def holds(self) -> bool:
        """Return whether the completion condition is met."""

    def end(self, expired: bool) -> None:
        """Send the response, because the operation has completed or expired."""


class ModelPurgatory:
    """Watcher lists by key, a timer, the purge and the gauges (Kafka: DelayedOperationPurgatory).

    The rules are those of the reference. A test replays a trace of the model with the reference and compares both.
    """

    def __init__(self, host: ModelHost, purge_interval: int) -> None:
        self.watched = 0
        self.delayed = 0
        self._host = host
        self._purge_interval = purge_interval
        self._watchers: dict[ModelPartition, list[ModelOperation]] = {}
        self._estimated = 0

    def try_complete_else_watch(
        self, operation: ModelOperation, keys: list[ModelPartition], deadline_ms: float
    ) -> None:
        if operation.holds():
            operation.done = True
            operation.end(expired=False)
            return
        for key in keys:
            self._watchers.setdefault(key, []).append(operation)
        self.watched += len(keys)
        self.delayed += 1
        self._estimated += 1
        self._host.schedule(deadline_ms, self._expire, operation)

    def check_and_complete(self, key: ModelPartition) -> None:
        watchers = self._watchers.get(key)
        if not watchers:
            return
        kept = []
        for operation in watchers:
            if operation.done:
                continue
            if operation.holds():
                self._end(operation, expired=False)
            else:
                kept.append(operation)
        self.watched -= len(watchers) - len(kept)
        watchers[:] = kept

    def reap(self) -> None:
        """Purge ended operations from the watcher lists if the estimate of their number exceeds the purge interval."""
        if self._estimated - self.delayed > self._purge_interval:
            self._estimated = self.delayed
            for watchers in self._watchers.values():
                kept = [operation for operation in watchers if not operation.done]
                self.watched -= len(watchers) - len(kept)
                watchers[:] = kept

    def _expire(self, operation: ModelOperation) -> None:
        if not operation.done:
            self._end(operation, expired=True)

    def _end(self, operation: ModelOperation, expired: bool) -> None:
        operation.done = True
        self.delayed -= 1
        operation.end(expired)


class ModelBroker:
    """A broker with its Fetch and Produce purgatories; `late_ms` draws the delay of the reaper."""

    def __init__(
        self,
        number: int,
        host: ModelHost,
        measurements: Measurements,
        purge: PurgePlan,
        late_ms: Callable[[], float],
    ) -> None:
        self.number = number
        self.host = host
        self.measurements = measurements
        self.fetches, self.produces = ModelPurgatory(host, purge.fetch), ModelPurgatory(host, purge.produce)
        self._late_ms = late_ms
        host.schedule(host.now + REAPER_MS, self._reap, None)

    def deadline_ms(self, wait_ms: float) -> float:
        """Return when a wait of `wait_ms` that starts now expires: at a whole millisecond plus the reaper's delay."""
        return round(self.host.now * 1000) // 1000 + wait_ms + self._late_ms()

    def append(self, batches: Sequence[tuple[ModelPartition, int]]) -> None:
        """Append batches, as pairs of partition and bytes, and then check the waiting operations.

        All batches are appended before the checks, so a waiting fetch of a follower gets the whole request.
        """
        now = self.host.now
        risen = [partition.append(size, now) for partition, size in batches]
        for (partition, _), rose in zip(batches, risen, strict=True):
            if rose:
                self.produces.check_and_complete(partition)
            self.fetches.check_and_complete(partition)

    def follower_reached(self, partition: ModelPartition, replica: int, position: int) -> None:
        if partition.follower_reached(replica, position):
            self.produces.check_and_complete(partition)
            self.fetches.check_and_complete(partition)

    def _reap(self, _: None) -> None:
        host = self.host
        for name, purgatory in (("Fetch", self.fetches), ("Produce", self.produces)):
            purgatory.reap()
            if host.now > 0:
                self.measurements.gauges.append((self.number, name, purgatory.watched, purgatory.delayed))
        host.schedule(host.now + REAPER_MS, self._reap, None)

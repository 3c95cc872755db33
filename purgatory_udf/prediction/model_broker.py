"""The model of a broker: partitions, two purgatories, and the events that check them (Kafka: ReplicaManager).

Errors are not modelled: no leader changes, no deletion, no truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from purgatory_udf.prediction.model_host import Measurements, ModelHost
from purgatory_udf.prediction.simulation_plan import PurgePlan


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

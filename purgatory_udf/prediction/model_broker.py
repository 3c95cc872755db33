"""A broker: two purgatories, and what checks them (Kafka: ReplicaManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from purgatory_udf.prediction.model_host import Measurements, ModelHost
from purgatory_udf.prediction.simulation_plan import PurgePlan

# A partition at its leader, by its batches: how far its log, its followers and its high watermark are.
#
# Positions count batches. `sizes[n]` is what the first n batches come to in bytes, so what lies between two positions
# is a difference.


class ModelPartition:
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
        return len(self.appended_ms)

    def append(self, size: int, now_ms: float) -> bool:
        """Whether the high watermark rose by it: it does where nobody follows."""
        self.sizes.append(self.sizes[-1] + size)
        self.appended_ms.append(now_ms)
        return self._raise_high_watermark()

    def follower_reached(self, replica: int, position: int) -> bool:
        """Whether the high watermark rose by it."""
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


# The purgatory as a broker's: watcher lists by key, a timer, the purge, the gauges (Kafka: DelayedOperationPurgatory).
#
# The rules are the reference's; a test plays a trace of these brokers through the reference, which has to agree. Here,
# operations know nothing of errors: nobody leads anew, nothing is deleted, nothing is truncated.


REAPER_MS = 200


class ModelOperation(Protocol):
    done: bool

    def holds(self) -> bool:
        """Whether its condition is true now."""

    def end(self, expired: bool) -> None:
        """It has ended, now: answer."""


class ModelPurgatory:
    def __init__(self, machine: ModelHost, purge_interval: int) -> None:
        self.watched = 0
        self.delayed = 0
        self._machine = machine
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
        self._machine.at(deadline_ms, self._expire, operation)

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
        """What the reaper does beside the timer: throw away what has ended, when there may be enough of it."""
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
    def __init__(
        self,
        number: int,
        machine: ModelHost,
        diary: Measurements,
        purge: PurgePlan,
        late_ms: Callable[[], float],
    ) -> None:
        self.number = number
        self.machine = machine
        self.diary = diary
        self.fetches, self.produces = ModelPurgatory(machine, purge.fetch), ModelPurgatory(machine, purge.produce)
        self._late_ms = late_ms
        machine.at(machine.now + REAPER_MS, self._reap, None)

    def deadline_ms(self, wait_ms: float) -> float:
        """When a wait that begins now is over: Kafka's timer counts whole milliseconds, and its reaper comes late."""
        return round(self.machine.now * 1000) // 1000 + wait_ms + self._late_ms()

    def append(self, batches: Sequence[tuple[ModelPartition, int]]) -> None:
        """All of a request first, then the checks: a follower's fetch that waits gets all of it."""
        now = self.machine.now
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
        machine = self.machine
        for name, purgatory in (("Fetch", self.fetches), ("Produce", self.produces)):
            purgatory.reap()
            if machine.now > 0:
                self.diary.gauges.append((self.number, name, purgatory.watched, purgatory.delayed))
        machine.at(machine.now + REAPER_MS, self._reap, None)

"""A broker: two purgatories, and what checks them (Kafka: ReplicaManager)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purgatory_udf.fitted.diary import Diary
from purgatory_udf.fitted.machine import Machine
from purgatory_udf.fitted.partition import PlayedPartition
from purgatory_udf.fitted.plan import PurgePlan
from purgatory_udf.fitted.purgatory import REAPER_MS, Purgatory


class PlayedBroker:
    def __init__(
        self,
        number: int,
        machine: Machine,
        diary: Diary,
        purge: PurgePlan,
        late_ms: Callable[[], float],
    ) -> None:
        self.number = number
        self.machine = machine
        self.diary = diary
        self.fetches, self.produces = Purgatory(machine, purge.fetch), Purgatory(machine, purge.produce)
        self._late_ms = late_ms
        machine.at(machine.now + REAPER_MS, self._reap, None)

    def deadline_ms(self, wait_ms: float) -> float:
        """When a wait that begins now is over: Kafka's timer counts whole milliseconds, and its reaper comes late."""
        return round(self.machine.now * 1000) // 1000 + wait_ms + self._late_ms()

    def append(self, batches: Sequence[tuple[PlayedPartition, int]]) -> None:
        """All of a request first, then the checks: a follower's fetch that waits gets all of it."""
        now = self.machine.now
        risen = [partition.append(size, now) for partition, size in batches]
        for (partition, _), rose in zip(batches, risen, strict=True):
            if rose:
                self.produces.check_and_complete(partition)
            self.fetches.check_and_complete(partition)

    def follower_reached(self, partition: PlayedPartition, replica: int, position: int) -> None:
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

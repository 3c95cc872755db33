"""The purgatory as a broker's: watcher lists by key, a timer, the purge, the gauges (Kafka: DelayedOperationPurgatory).

The rules are the reference's; a test plays a trace of these brokers through the reference, which has to agree. Here,
operations know nothing of errors: nobody leads anew, nothing is deleted, nothing is truncated.
"""

from __future__ import annotations

from typing import Protocol

from purgatory_udf.fitted.machine import Machine
from purgatory_udf.fitted.partition import PlayedPartition

REAPER_MS = 200


class PlayedOperation(Protocol):
    done: bool

    def holds(self) -> bool:
        """Whether its condition is true now."""

    def end(self, expired: bool) -> None:
        """It has ended, now: answer."""


class Purgatory:
    def __init__(self, machine: Machine, purge_interval: int) -> None:
        self.watched = 0
        self.delayed = 0
        self._machine = machine
        self._purge_interval = purge_interval
        self._watchers: dict[PlayedPartition, list[PlayedOperation]] = {}
        self._estimated = 0

    def try_complete_else_watch(
        self, operation: PlayedOperation, keys: list[PlayedPartition], deadline_ms: float
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

    def check_and_complete(self, key: PlayedPartition) -> None:
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

    def _expire(self, operation: PlayedOperation) -> None:
        if not operation.done:
            self._end(operation, expired=True)

    def _end(self, operation: PlayedOperation, expired: bool) -> None:
        operation.done = True
        self.delayed -= 1
        operation.end(expired)

"""The purgatory: operations that wait, found again by the keys whose events may complete them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation
from purgatory_udf.rules.purgatory.timing_wheel import Timer

Operation = TypeVar("Operation", bound=DelayedOperation)


class Watchers(Generic[Operation]):
    """The operations watched on one key, in order of insertion; completed ones linger until somebody walks the list."""

    def __init__(self) -> None:
        self._operations: dict[Operation, None] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def watch(self, operation: Operation) -> None:
        self._operations[operation] = None

    def try_complete_watched(self, key: str, now_us: int) -> int:
        """Drop what was completed elsewhere, try the others; how many were completed by this call."""
        completed = 0
        for operation in list(self._operations):
            if operation.completed:
                self._operations.pop(operation, None)
            elif operation.maybe_try_complete(now_us):
                operation.trigger = key
                self._operations.pop(operation, None)
                completed += 1
        return completed

    def cancel(self) -> list[Operation]:
        cancelled = list(self._operations)
        self._operations.clear()
        for operation in cancelled:
            operation.cancel()
        return cancelled

    def waiting_for(self, key: Hashable) -> list[Operation]:
        return [operation for operation in self._operations if not operation.completed and operation.waits_for(key)]

    def drop_abandoned(self) -> None:
        for operation in [operation for operation in self._operations if operation.abandoned]:
            del self._operations[operation]

    def purge_completed(self) -> int:
        finished = [operation for operation in self._operations if operation.completed]
        for operation in finished:
            del self._operations[operation]
        return len(finished)


class DelayedOperationPurgatory(Generic[Operation]):
    """Watcher lists by key, and a timer.

    Two gauges tell of it. `watched` counts list entries: an operation counts once per key, and goes on counting after
    its end until a list is walked or purged. `num_delayed` counts the operations that the timer holds, which an
    operation leaves the moment it ends. The difference is memory held for nothing, hence the purge.

    Kafka shards the lists by 512 locks; with one thread that changes nothing, so here is one dictionary.
    """

    def __init__(self, name: str, timer: Timer, purge_interval: int = 1000) -> None:
        self.name = name
        self.timer = timer
        self.purged = 0
        self.used = False
        self._purge_interval = purge_interval
        self._watchers_by_key: dict[Hashable, Watchers[Operation]] = {}
        self._estimated_total_operations = 0

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable], now_us: int) -> bool:
        """Try; if it has to wait, watch it on all `keys`, try again, start its timer. True if this call completed it.

        The second try is Kafka's guard against an event between the first try and the watching.
        """
        keys = tuple(dict.fromkeys(keys))
        if not keys:
            raise ValueError("The watch key list can't be empty")
        if operation.maybe_try_complete(now_us):
            return True
        for key in keys:
            self._watchers_by_key.setdefault(key, Watchers()).watch(operation)
        operation.watched = self.used = True
        self._estimated_total_operations += 1
        if operation.maybe_try_complete(now_us):
            return True
        if not operation.completed:
            self.timer.add(operation)
        return False

    def check_and_complete(self, key: Hashable, now_us: int) -> int:
        """Something happened to `key`: try its operations, in the order in which they came; how many this completed."""
        watchers = self._watchers_by_key.get(key)
        if watchers is None:
            return 0
        completed = watchers.try_complete_watched(str(key), now_us)
        self._remove_if_empty(key)
        return completed

    def watched(self) -> int:
        """The gauge PurgatorySize."""
        return sum(len(watchers) for watchers in self._watchers_by_key.values())

    def watched_keys(self) -> list[Hashable]:
        """Those that have a list, in no order that says anything."""
        return list(self._watchers_by_key)

    def num_delayed(self) -> int:
        """The gauge NumDelayedOperations."""
        return self.timer.size()

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Forget the key's list and the timers of its operations, which only another key can complete now."""
        watchers = self._watchers_by_key.pop(key, None)
        return watchers.cancel() if watchers is not None else []

    def abandon(self, is_gone: Callable[[Any], bool], now_us: int) -> None:
        """The process that watched these keys is gone. Who waited for them ends without an answer, and is on no list
        any more; with the keys' lists go their dead. What a new process estimates begins with what it holds."""
        for key in filter(is_gone, list(self._watchers_by_key)):
            watchers = self._watchers_by_key[key]
            for operation in watchers.waiting_for(key):
                operation.abandon(now_us)
                operation.trigger = str(key)
            watchers.purge_completed()
        for key in list(self._watchers_by_key):
            self._watchers_by_key[key].drop_abandoned()
            self._remove_if_empty(key)
        self._estimated_total_operations = self.num_delayed()

    def purge_completed(self) -> int:
        """Remove every completed entry from every list; how many there were."""
        purged = 0
        for key in list(self._watchers_by_key):
            purged += self._watchers_by_key[key].purge_completed()
            self._remove_if_empty(key)
        self.purged += purged
        return purged

    def advance_clock(self, now_ms: int) -> None:
        """The reaper's round: expire what is due, then purge if more than `purge_interval` operations may be dead.

        The estimate counts operations watched since the last purge and is not lowered when a walk removes them, so a
        purge may find nothing.
        """
        self.timer.advance_clock(now_ms)
        if self._estimated_total_operations - self.num_delayed() > self._purge_interval:
            self._estimated_total_operations = self.num_delayed()
            self.purge_completed()

    def shutdown(self) -> None:
        """No more expirations. What is open stays unanswered."""
        self.timer.shutdown()

    def _remove_if_empty(self, key: Hashable) -> None:
        watchers = self._watchers_by_key.get(key)
        if watchers is not None and not len(watchers):
            del self._watchers_by_key[key]

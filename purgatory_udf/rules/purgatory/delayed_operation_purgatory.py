"""The purgatory: watcher lists by key, a timer, and the purge of completed operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedOperation
from purgatory_udf.rules.purgatory.timing_wheel import Timer

Operation = TypeVar("Operation", bound=DelayedOperation)


class Watchers(Generic[Operation]):
    """The operations watched on one key, in order of insertion.

    An operation that has ended by its deadline or by a check of another key stays on the list until the next check or
    purge removes it.
    """

    def __init__(self) -> None:
        self._operations: dict[Operation, None] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def watch(self, operation: Operation) -> None:
        self._operations[operation] = None

    def try_complete_watched(self, key: str, now_us: int) -> int:
        """Remove ended operations and try the others. Return how many this call completed.

        `key` is the list's key, which becomes the trigger of the operations that this call completes.
        """
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
        """Cancel every operation's timer, empty the list, and return the operations."""
        cancelled = list(self._operations)
        self._operations.clear()
        for operation in cancelled:
            operation.cancel()
        return cancelled

    def waiting_for(self, key: Hashable) -> list[Operation]:
        """Return the open operations that still wait for this key."""
        return [operation for operation in self._operations if not operation.completed and operation.waits_for(key)]

    def remove_abandoned(self) -> None:
        """Remove operations that ended because their broker stopped."""
        for operation in [operation for operation in self._operations if operation.abandoned]:
            del self._operations[operation]

    def purge_completed(self) -> int:
        """Remove completed operations and return their number."""
        finished = [operation for operation in self._operations if operation.completed]
        for operation in finished:
            del self._operations[operation]
        return len(finished)


class DelayedOperationPurgatory(Generic[Operation]):
    """Watcher lists by key, and a timer that expires what no check completes.

    Two gauges describe a purgatory. `watched` (PurgatorySize) counts list entries: an operation counts once per key,
    and still counts after it completed until a check or a purge removes it. `num_delayed` (NumDelayedOperations) counts
    the tasks in the timer, which an operation leaves as soon as it completes. The difference is memory held by
    completed operations, which the purge reclaims.

    Kafka shards the lists by 512 locks. A replay is single-threaded, so one dictionary has the same effect.
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
        """Try the operation; if it is not complete, watch it on all `keys`, try again, and start its timer.

        The second try is Kafka's guard against an event between the first try and the watch.

        Returns:
            True if this call completed the operation.

        Raises:
            ValueError: `keys` is empty.
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
        """Try the operations watched on `key`, in order of insertion. Return how many this call completed."""
        watchers = self._watchers_by_key.get(key)
        if watchers is None:
            return 0
        completed = watchers.try_complete_watched(str(key), now_us)
        self._remove_if_empty(key)
        return completed

    def watched(self) -> int:
        """Return the gauge PurgatorySize: the number of list entries."""
        return sum(len(watchers) for watchers in self._watchers_by_key.values())

    def watched_keys(self) -> list[Hashable]:
        """Return the keys that have a watcher list, in no particular order."""
        return list(self._watchers_by_key)

    def num_delayed(self) -> int:
        """Return the gauge NumDelayedOperations: the number of tasks in the timer."""
        return self.timer.size()

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Drop the key's list and cancel the timers of its operations. Only checks of other keys can complete them."""
        watchers = self._watchers_by_key.pop(key, None)
        return watchers.cancel() if watchers is not None else []

    def abandon(self, is_gone: Callable[[Any], bool], now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the operations that wait for a key of a stopped process, without an answer.

        Their entries leave all lists, and completed entries leave the lists of the stopped keys. The purge estimate
        restarts from the operations that remain, as in a new process.

        Args:
            is_gone: Whether a key belongs to the stopped process.
            now_us: The time of the stop, in microseconds.
            rule: Why the operations end.
        """
        for key in filter(is_gone, list(self._watchers_by_key)):
            watchers = self._watchers_by_key[key]
            for operation in watchers.waiting_for(key):
                operation.abandon(now_us, rule)
                operation.trigger = str(key)
            watchers.purge_completed()
        for key in list(self._watchers_by_key):
            self._watchers_by_key[key].remove_abandoned()
            self._remove_if_empty(key)
        self._estimated_total_operations = self.num_delayed()

    def purge_completed(self) -> int:
        """Remove completed operations from every list. Return the number of removed entries."""
        purged = 0
        for key in list(self._watchers_by_key):
            purged += self._watchers_by_key[key].purge_completed()
            self._remove_if_empty(key)
        self.purged += purged
        return purged

    def advance_clock(self, now_ms: int) -> None:
        """Expire due operations, then purge if more than `purge_interval` operations may be completed.

        This is one iteration of the reaper thread. The estimate counts the operations watched since the last purge and
        is not lowered when a check removes them, so a purge may find nothing.
        """
        self.timer.advance_clock(now_ms)
        if self._estimated_total_operations - self.num_delayed() > self._purge_interval:
            self._estimated_total_operations = self.num_delayed()
            self.purge_completed()

    def shutdown(self) -> None:
        """Stop expiring operations. Open operations are never answered."""
        self.timer.shutdown()

    def _remove_if_empty(self, key: Hashable) -> None:
        watchers = self._watchers_by_key.get(key)
        if watchers is not None and not len(watchers):
            del self._watchers_by_key[key]

"""Operations that may have to wait, and their purgatory: watcher lists by key, a timer, and the purge of ended ones.

An operation is tried on arrival and at every check of its keys until it ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from purgatory_udf.rules.purgatory.timing_wheel import Timer, TimerTask

TIMEOUT = "timeout"
BROKER_STOPPED = "broker_stopped"


class DelayedOperation(TimerTask):
    """An operation that completes exactly once: when its condition is first found true, or at its deadline.

    Instants are microseconds, as in the trace. The purgatory's own time is whole milliseconds, so the deadline is the
    start, truncated to a millisecond, plus the delay.
    """

    ended_us: int | None = None
    expired = False
    abandoned = False
    watched = False
    # The key of the check that completed the operation.
    trigger: Hashable = None

    def __init__(self, started_us: int, delay_ms: int) -> None:
        super().__init__(started_us // 1000 + max(0, delay_ms))
        self.delay_ms = delay_ms
        self.started_us = started_us

    @property
    def completed(self) -> bool:
        """Whether the operation has ended: its condition came true, it expired, or its broker stopped."""
        return self.ended_us is not None

    @abstractmethod
    def try_complete(self, now_us: int) -> bool:
        """Check the condition and, if it holds, call `force_complete`. Return True only if this call completed it."""

    @abstractmethod
    def on_complete(self, now_us: int) -> None:
        """Answer the request. Called exactly once, by `force_complete`."""

    @abstractmethod
    def on_expiration(self, now_us: int) -> None:
        """Count the expiration. Called after the answer, and only if the deadline ended the operation."""

    def maybe_try_complete(self, now_us: int) -> bool:
        """Try the operation if it is still open. Return True if this call completed it.

        In Kafka, concurrent checks may share one attempt.
        """
        return self.ended_us is None and self.try_complete(now_us)

    def force_complete(self, now_us: int) -> bool:
        """Cancel the timer and complete the operation. Return True only for the first call."""
        if self.ended_us is not None:
            return False
        self.cancel()
        self.ended_us = now_us
        self.on_complete(now_us)
        return True

    def waits_for(self, key: Hashable) -> bool:
        """Return whether the operation still waits for this key. It may have settled some of its keys already."""
        return True

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the operation without an answer or effect, for the reason `rule`, which subclasses record."""
        self.cancel()
        self.abandoned = True
        self.ended_us = now_us

    def run(self, now_ms: int) -> None:
        now_us = now_ms * 1000
        if self.force_complete(now_us):
            self.expired = True
            self.on_expiration(now_us)


@dataclass(slots=True)
class TraceRequest:
    """A request of a trace, as the tables identify it."""

    operation_id: int
    kind: str
    broker: int
    started_us: int
    request_id: str | None = None
    client_id: str | None = None
    key: Hashable = None
    fetcher: str | None = None


class DelayedRequest(DelayedOperation):
    """A delayed operation that answers one request of a trace and yields its row in the tables.

    If `respond` is set, it is called with the operation once the request is answered. The simulation delivers answers
    to its clients in this way.
    """

    completed_by = ""
    respond: Callable[[Any], None] | None = None

    def __init__(self, request: TraceRequest, delay_ms: int) -> None:
        super().__init__(request.started_us, delay_ms)
        self.request = request

    @property
    def operation_id(self) -> int:
        return self.request.operation_id

    @abstractmethod
    def answers(self) -> tuple[PartitionOutcome, ...]:
        """Return error and bytes of each partition in the answer."""

    def readable_bytes(self) -> int | None:
        """Return the bytes that a fetch could read when it ended; None for other requests."""
        return None

    def answered_bytes(self) -> int | None:
        """Return the bytes in the answer of a fetch; None for other requests."""
        return None

    def complete_by(self, rule: str, now_us: int) -> bool:
        """Call `force_complete` and record `rule` as `completed_by`. Return True only if this call completed it."""
        self.completed_by = rule
        return self.force_complete(now_us)

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        self.completed_by = rule
        super().abandon(now_us, rule)

    def on_complete(self, now_us: int) -> None:
        if self.respond is not None:
            self.respond(self)

    def outcome(self) -> Outcome:
        """Return how the operation ended: its row of `completions`, `expirations` or `cancellations`.

        Raises:
            ValueError: the operation is still open.
        """
        if self.ended_us is None:
            raise ValueError(f"operation {self.request.operation_id} is still open")
        request = self.request
        return Outcome(
            operation_id=request.operation_id,
            kind=request.kind,
            broker=request.broker,
            request_id=request.request_id,
            client_id=request.client_id,
            key=None if request.key is None else str(request.key),
            started_us=request.started_us,
            ended_us=self.ended_us,
            deadline_us=self.deadline_ms * 1000,
            expired=self.expired,
            watched=self.watched,
            completed_by=TIMEOUT if self.expired else self.completed_by,
            trigger=None if self.trigger is None else str(self.trigger),
            bytes=None if self.abandoned else self.readable_bytes(),
            partitions=self.answers(),
            fetcher=request.fetcher,
            answered_bytes=None if self.abandoned else self.answered_bytes(),
            cancelled=self.abandoned,
        )


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

    def try_complete_watched(self, key: Hashable, now_us: int) -> int:
        """Remove ended operations and try the others. Return how many this call completed.

        `key` is the list's key. It becomes the trigger of the operations that this call completes.
        """
        completed = 0
        for operation in list(self._operations):
            if operation.ended_us is not None:
                self._operations.pop(operation, None)
            elif operation.try_complete(now_us):
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
        completed = watchers.try_complete_watched(key, now_us)
        if not len(watchers):
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
                operation.trigger = key
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
        if self.needs_purge():
            self._estimated_total_operations = self.num_delayed()
            self.purge_completed()

    def needs_purge(self) -> bool:
        """Return whether the reaper purges when it wakes next."""
        return self._estimated_total_operations - self.num_delayed() > self._purge_interval

    def shutdown(self) -> None:
        """Stop expiring operations. Open operations are never answered."""
        self.timer.shutdown()

    def _remove_if_empty(self, key: Hashable) -> None:
        watchers = self._watchers_by_key.get(key)
        if watchers is not None and not len(watchers):
            del self._watchers_by_key[key]

"""An operation that may have to wait. It is tried on arrival and at every check of its keys until it ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from purgatory_udf.rules.purgatory.timing_wheel import TimerTask

TIMEOUT = "timeout"
BROKER_STOPPED = "broker_stopped"


class DelayedOperation(TimerTask):
    """An operation that completes exactly once: when its condition is first found true, or at its deadline.

    Instants are microseconds, as in the trace. The purgatory's own time is whole milliseconds, so the deadline is the
    start, truncated to a millisecond, plus the delay.
    """

    def __init__(self, started_us: int, delay_ms: int) -> None:
        super().__init__(started_us // 1000 + max(0, delay_ms))
        self.delay_ms = delay_ms
        self.started_us = started_us
        self.ended_us: int | None = None
        self.expired = False
        self.abandoned = False
        self.watched = False
        self.trigger: str | None = None

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
        return not self.completed and self.try_complete(now_us)

    def force_complete(self, now_us: int) -> bool:
        """Cancel the timer and complete the operation. Return True only for the first call."""
        if self.completed:
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
    key: str | None = None
    fetcher: str | None = None


class DelayedRequest(DelayedOperation):
    """A delayed operation that answers one request of a trace and yields its row in the tables.

    If `respond` is set, it is called with the operation once the request is answered. The simulation delivers answers
    to its clients in this way.
    """

    def __init__(self, request: TraceRequest, delay_ms: int) -> None:
        super().__init__(request.started_us, delay_ms)
        self.request = request
        self.completed_by = ""
        self.respond: Callable[[Any], None] | None = None

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
            key=request.key,
            started_us=request.started_us,
            ended_us=self.ended_us,
            deadline_us=self.deadline_ms * 1000,
            expired=self.expired,
            watched=self.watched,
            completed_by=TIMEOUT if self.expired else self.completed_by,
            trigger=self.trigger,
            bytes=None if self.abandoned else self.readable_bytes(),
            partitions=self.answers(),
            fetcher=request.fetcher,
            answered_bytes=None if self.abandoned else self.answered_bytes(),
            cancelled=self.abandoned,
        )

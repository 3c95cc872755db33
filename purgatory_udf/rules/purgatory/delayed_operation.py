"""A request that may have to wait: tried on arrival and at every event of its keys, until it completes or expires."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from purgatory_udf.rules.purgatory.timing_wheel import TimerTask


class DelayedOperation(TimerTask):
    """Completed exactly once: by whoever first finds its condition true, or by the timer at its deadline.

    Instants are microseconds, as in the trace; the purgatory's own time is whole milliseconds, so the deadline is the
    start cut to a millisecond plus the delay.
    """

    def __init__(self, started_us: int, delay_ms: int) -> None:
        super().__init__(started_us // 1000 + max(0, delay_ms))
        self.started_us = started_us
        self.ended_us: int | None = None
        self.expired = False
        self.abandoned = False
        self.watched = False
        self.trigger: str | None = None

    @property
    def completed(self) -> bool:
        """Ended: its condition came true, it expired, or its broker is gone."""
        return self.ended_us is not None

    @abstractmethod
    def try_complete(self, now_us: int) -> bool:
        """Check the condition; if it holds, `force_complete`. True only if this very call completed the operation."""

    @abstractmethod
    def on_complete(self, now_us: int) -> None:
        """Answer the request. Called once, by `force_complete`."""

    @abstractmethod
    def on_expiration(self, now_us: int) -> None:
        """Count the expiration. Called after the answer, and only if it was the deadline that ended the operation."""

    def maybe_try_complete(self, now_us: int) -> bool:
        """A check by an event. Kafka's threads may share one attempt; here every check makes its own."""
        return not self.completed and self.try_complete(now_us)

    def force_complete(self, now_us: int) -> bool:
        """End the operation now. Only the first caller does so, and is told True."""
        if self.completed:
            return False
        self.cancel()
        self.ended_us = now_us
        self.on_complete(now_us)
        return True

    def waits_for(self, key: Hashable) -> bool:
        """Whether it is this key that it waits for; an operation of several may be done with some of them."""
        return True

    def abandon(self, now_us: int) -> None:
        """Its broker is gone: it ends, and nobody is answered."""
        self.cancel()
        self.abandoned = True
        self.ended_us = now_us

    def run(self) -> None:
        now_us = self.deadline_ms * 1000
        if self.force_complete(now_us):
            self.expired = True
            self.on_expiration(now_us)


# A request of a trace: what it is called in the tables, and the delayed operation that stands for it.


TIMEOUT = "timeout"
BROKER_STOPPED = "broker_stopped"


@dataclass(slots=True)
class TraceRequest:
    operation_id: int
    kind: str
    broker: int
    started_us: int
    request_id: str | None = None
    client_id: str | None = None
    key: str | None = None
    fetcher: str | None = None


class DelayedRequest(DelayedOperation):
    """A delayed operation that answers one request, and can say afterwards how it ended.

    `respond` is called with the answered operation: the way back to a simulated client.
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
        """Error and bytes of each partition, as answered."""

    def readable_bytes(self) -> int | None:
        """For a fetch: how many bytes there were to read at its end."""
        return None

    def answered_bytes(self) -> int | None:
        """For a fetch: how many bytes the answer held."""
        return None

    def complete_by(self, rule: str, now_us: int) -> bool:
        """`force_complete`, because of `rule`."""
        self.completed_by = rule
        return self.force_complete(now_us)

    def abandon(self, now_us: int) -> None:
        self.completed_by = BROKER_STOPPED
        super().abandon(now_us)

    def on_complete(self, now_us: int) -> None:
        if self.respond is not None:
            self.respond(self)

    def outcome(self) -> Outcome:
        """The operation's row, once it is completed."""
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

"""A request of a trace: what it is called in the tables, and the delayed operation that stands for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.outcomes import Outcome, PartitionOutcome
from purgatory_udf.purgatory.delayed_operation import DelayedOperation

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

"""DelayedProduce: a producer with acks=-1 waits until all in-sync replicas have what it wrote."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.partition import Partition, ReplicaStatus

# Requests whose parts are settled one by one: produce and delete-records by partition, create-topics by topic.


NONE = "NONE"
REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"


@dataclass(slots=True)
class PartitionStatus:
    """A pending part would be answered REQUEST_TIMED_OUT; settling replaces that error, once and for good."""

    topic: str
    partition: int
    error: str | None = NONE
    bytes: int = 0
    pending: bool = False

    def await_verdict(self) -> None:
        self.pending = True
        self.error = REQUEST_TIMED_OUT


class PartitionResult(NamedTuple):
    """The error that settles a part, and the name of the rule that did."""

    error: str
    rule: str


StatusT = TypeVar("StatusT", bound=PartitionStatus)


class PerPartitionRequest(DelayedRequest, Generic[StatusT]):
    """Complete when no part is pending: one part's error does not release the others."""

    def __init__(self, request: TraceRequest, delay_ms: int, parts: list[StatusT]) -> None:
        super().__init__(request, delay_ms)
        self.parts = parts

    @abstractmethod
    def verdict(self, part: StatusT) -> PartitionResult | None:
        """What settles the part now, if anything does."""

    def try_complete(self, now_us: int) -> bool:
        return self.settle_parts() and self.force_complete(now_us)

    def settle_parts(self) -> bool:
        """Look at every pending part, whichever part's event it was; whether none is pending any more.

        The part that was settled last names the rule that completed the request.
        """
        pending = False
        for part in self.parts:
            if part.pending:
                verdict = self.verdict(part)
                if verdict is None:
                    pending = True
                else:
                    part.pending = False
                    part.error, self.completed_by = verdict
        return not pending

    def waits_for(self, key: Hashable) -> bool:
        return any(part.pending and (part.topic, part.partition) == key for part in self.parts)

    def abandon(self, now_us: int) -> None:
        """Nothing is said of what is still pending."""
        for part in self.parts:
            if part.pending:
                part.pending, part.error = False, None
        super().abandon(now_us)

    def on_expiration(self, now_us: int) -> None:
        """Kafka marks its expiration meter once per pending part; they can be told by their error."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return tuple(PartitionOutcome(part.topic, part.partition, part.error, part.bytes) for part in self.parts)


ALL_IN_SYNC = -1
VALID_ACKS = (0, 1, ALL_IN_SYNC)
INVALID_REQUIRED_ACKS = "INVALID_REQUIRED_ACKS"
NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


@dataclass(slots=True, kw_only=True)
class ProducePartitionStatus(PartitionStatus):
    replica: Partition
    required_offset: int


class DelayedProduce(PerPartitionRequest[ProducePartitionStatus]):
    """A pending partition is settled by the first of

    A) the broker does not lead it (any more), does not know it, or its log directory is offline: that error
    B) the high watermark has reached the required offset: no error, or, if meanwhile the in-sync set has become smaller
       than min.insync.replicas, NOT_ENOUGH_REPLICAS_AFTER_APPEND
    """

    def verdict(self, part: ProducePartitionStatus) -> PartitionResult | None:
        replica = part.replica
        if replica.standing is not ReplicaStatus.ONLINE:  # Case A
            return PartitionResult(replica.standing.error, replica.standing.rule)
        if replica.high_watermark is not None and replica.high_watermark.offset >= part.required_offset:  # Case B
            if replica.under_min_isr:
                return PartitionResult(NOT_ENOUGH_REPLICAS_AFTER_APPEND, "not_enough_replicas")
            return PartitionResult(NONE, "high_watermark")
        return None

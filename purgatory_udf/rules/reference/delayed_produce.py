"""DelayedProduce, DelayedDeleteRecords and DelayedCreateTopics: requests that wait for replicas or for leaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.partition import Partition, ReplicaStatus

NONE = "NONE"
REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"

ALL_IN_SYNC = -1
VALID_ACKS = (0, 1, ALL_IN_SYNC)
INVALID_REQUIRED_ACKS = "INVALID_REQUIRED_ACKS"
NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


@dataclass(slots=True)
class PartitionStatus:
    """One partition of a request, or one topic of a create-topics request.

    While it is pending, its error is REQUEST_TIMED_OUT, which is the answer at the deadline. Settling it replaces that
    error; afterwards the error does not change.
    """

    topic: str
    partition: int
    error: str | None = NONE
    bytes: int = 0
    pending: bool = False

    def set_pending(self) -> None:
        self.pending = True
        self.error = REQUEST_TIMED_OUT


class PartitionResult(NamedTuple):
    """The error that settles a partition, and the name of the rule that settled it."""

    error: str
    rule: str


StatusT = TypeVar("StatusT", bound=PartitionStatus)


class PerPartitionRequest(DelayedRequest, Generic[StatusT]):
    """A request that settles its partitions one by one. It completes when none is pending.

    An error of one partition does not release the others.
    """

    def __init__(self, request: TraceRequest, delay_ms: int, statuses: list[StatusT]) -> None:
        super().__init__(request, delay_ms)
        self.statuses = statuses

    @abstractmethod
    def result(self, status: StatusT) -> PartitionResult | None:
        """Return the result that settles a pending partition now, or None if it has to wait."""

    def try_complete(self, now_us: int) -> bool:
        return self.settle_pending() and self.force_complete(now_us)

    def settle_pending(self) -> bool:
        """Check every pending partition, not only that of the event. Return True if none is pending any more.

        The rule of the partition that was settled last becomes `completed_by`.
        """
        pending = False
        for status in self.statuses:
            if status.pending:
                result = self.result(status)
                if result is None:
                    pending = True
                else:
                    status.pending = False
                    status.error, self.completed_by = result
        return not pending

    def waits_for(self, key: Hashable) -> bool:
        return any(status.pending and (status.topic, status.partition) == key for status in self.statuses)

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the request without an answer: pending partitions get no error."""
        for status in self.statuses:
            if status.pending:
                status.pending, status.error = False, None
        super().abandon(now_us, rule)

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: Kafka marks `ExpiresPerSec` once per pending partition, which the partitions' errors show."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return tuple(
            PartitionOutcome(status.topic, status.partition, status.error, status.bytes) for status in self.statuses
        )


@dataclass(slots=True, kw_only=True)
class ProducePartitionStatus(PartitionStatus):
    """A partition of a produce. `required_offset` is the last appended offset + 1."""

    replica: Partition
    required_offset: int


class DelayedProduce(PerPartitionRequest[ProducePartitionStatus]):
    """A produce with acks=-1 that waits. The first case that holds settles a pending partition.

    Case A: the broker no longer leads the partition or does not know it, or its log directory is offline: that error.
    Case B: the high watermark has reached the required offset: no error, or NOT_ENOUGH_REPLICAS_AFTER_APPEND if the
        in-sync replicas have become fewer than min.insync.replicas.
    """

    def result(self, status: ProducePartitionStatus) -> PartitionResult | None:
        replica = status.replica
        if replica.status is not ReplicaStatus.ONLINE:  # Case A
            return PartitionResult(replica.status.error, replica.status.rule)
        if replica.high_watermark is not None and replica.high_watermark.offset >= status.required_offset:  # Case B
            if replica.is_under_min_isr:
                return PartitionResult(NOT_ENOUGH_REPLICAS_AFTER_APPEND, "not_enough_replicas")
            return PartitionResult(NONE, "high_watermark")
        return None


# As the offset of a delete-records request: up to the high watermark.
HIGH_WATERMARK = -1


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionStatus(PartitionStatus):
    """A partition of a delete-records request. Records below `offset` are to be deleted."""

    replica: Partition
    offset: int


class DelayedDeleteRecords(PerPartitionRequest[DeleteRecordsPartitionStatus]):
    """Waits until every replica has deleted the records. A pending partition is settled by the first case that holds.

    Case A: the broker no longer leads the partition or does not know it, or its log directory is offline: that error.
    Case B: the low watermark, which is the least log start offset of the replicas, has reached the requested offset: no
        error.
    """

    def result(self, status: DeleteRecordsPartitionStatus) -> PartitionResult | None:
        replica = status.replica
        if replica.status is not ReplicaStatus.ONLINE:  # Case A
            return PartitionResult(replica.status.error, replica.status.rule)
        if replica.log.start is not None and replica.log.start >= status.offset:  # Case B
            return PartitionResult(NONE, "low_watermark")
        return None


@dataclass(slots=True, kw_only=True)
class CreateTopicStatus(PartitionStatus):
    """A topic of a create-topics request, with its number of partitions."""

    partitions: int


class DelayedCreateTopics(PerPartitionRequest[CreateTopicStatus]):
    """Waits until every partition of every topic has a leader (`DelayedCreatePartitions`).

    `has_leaders(topic, n)` returns whether the cluster knows a leader for each of the topic's partitions 0 to n-1.
    """

    def __init__(
        self,
        request: TraceRequest,
        delay_ms: int,
        statuses: list[CreateTopicStatus],
        has_leaders: Callable[[str, int], bool],
    ) -> None:
        super().__init__(request, delay_ms, statuses)
        self._has_leaders = has_leaders

    def waits_for(self, key: Hashable) -> bool:
        return any(status.pending and status.topic == key for status in self.statuses)

    def result(self, status: CreateTopicStatus) -> PartitionResult | None:
        return PartitionResult(NONE, "leaders") if self._has_leaders(status.topic, status.partitions) else None

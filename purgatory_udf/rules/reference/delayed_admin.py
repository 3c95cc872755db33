"""DelayedDeleteRecords and DelayedCreateTopics: administrative requests that wait for replicas or for leaders."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from purgatory_udf.rules.purgatory.delayed_operation import TraceRequest
from purgatory_udf.rules.reference.delayed_produce import NONE, PartitionResult, PartitionStatus, PerPartitionRequest
from purgatory_udf.rules.reference.partition import Partition, ReplicaStatus

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

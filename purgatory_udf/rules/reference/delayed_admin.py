"""DelayedDeleteRecords: whoever deletes records waits until every replica has dropped them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from purgatory_udf.rules.purgatory.delayed_operation import TraceRequest
from purgatory_udf.rules.reference.delayed_produce import NONE, PartitionResult, PartitionStatus, PerPartitionRequest
from purgatory_udf.rules.reference.partition import Partition, ReplicaStatus

HIGH_WATERMARK = -1


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionStatus(PartitionStatus):
    replica: Partition
    offset: int


class DelayedDeleteRecords(PerPartitionRequest[DeleteRecordsPartitionStatus]):
    """A pending partition is settled by the first of

    A) the broker does not lead it (any more), does not know it, or its log directory is offline: that error
    B) the low watermark, the least log start over its replicas, has reached the asked offset: no error
    """

    def verdict(self, part: DeleteRecordsPartitionStatus) -> PartitionResult | None:
        replica = part.replica
        if replica.standing is not ReplicaStatus.ONLINE:  # Case A
            return PartitionResult(replica.standing.error, replica.standing.rule)
        if replica.log.start is not None and replica.log.start >= part.offset:  # Case B
            return PartitionResult(NONE, "low_watermark")
        return None


# DelayedCreateTopics: whoever creates topics waits until every partition of every one of them has a leader.


@dataclass(slots=True, kw_only=True)
class CreateTopicStatus(PartitionStatus):
    partitions: int


class DelayedCreateTopics(PerPartitionRequest[CreateTopicStatus]):
    """`has_leaders(topic, n)` says whether the cluster knows a leader for each of the topic's partitions 0 to n-1."""

    def __init__(
        self,
        request: TraceRequest,
        delay_ms: int,
        parts: list[CreateTopicStatus],
        has_leaders: Callable[[str, int], bool],
    ) -> None:
        super().__init__(request, delay_ms, parts)
        self._has_leaders = has_leaders

    def waits_for(self, key: Hashable) -> bool:
        return any(part.pending and part.topic == key for part in self.parts)

    def verdict(self, part: CreateTopicStatus) -> PartitionResult | None:
        return PartitionResult(NONE, "leaders") if self._has_leaders(part.topic, part.partitions) else None

"""DelayedRemoteFetch and DelayedRemoteListOffsets: requests that wait for reads of remote storage (tiered storage)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from purgatory_udf.contract.outcome import PartitionOutcome, TopicPartition
from purgatory_udf.rules.purgatory.delayed_operation import (
    BROKER_STOPPED,
    DelayedOperation,
    DelayedRequest,
    TraceRequest,
)
from purgatory_udf.rules.reference.delayed_fetch import FetchPartitionStatus, Read
from purgatory_udf.rules.reference.delayed_produce import NONE, PartitionResult, PartitionStatus, PerPartitionRequest
from purgatory_udf.rules.reference.partition import Partition

# The error of a read that the pool of readers does not take (RejectedExecutionException).
UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"

# A read is forgotten this many milliseconds after its operation has ended. Recordings do not have the end of every such
# read.
FORGET_READ_MS = 60_000


class ReadState(Enum):
    """The state of the read of one partition of a remote fetch."""

    LOCAL = auto()  # on arrival, from the log
    FAILED = auto()  # on arrival, with an error
    PENDING = auto()
    ENDED = auto()


@dataclass(slots=True)
class RemotePartition:
    """A partition of a remote fetch: its part of the response, and whether it still waits for remote storage."""

    replica: Partition
    state: ReadState
    error: str | None = NONE
    bytes: int = 0


class DelayedRemoteFetch(DelayedRequest):
    """A fetch that waits for reads of remote storage. The first case that holds completes it.

    Case A: the broker has no replica of a partition of the fetch any more, or its log directory is offline. A partition
        that failed on arrival does not count, and a replica that has become a follower is still there.
    Case B: all reads of remote storage have ended, failed ones included.

    Local data are read on arrival. The response has all data that were read before the fetch ended; a partition that
    is still pending is empty and has no error.
    """

    def __init__(
        self, request: TraceRequest, delay_ms: int, statuses: list[FetchPartitionStatus], reads: list[Read]
    ) -> None:
        super().__init__(request, delay_ms)
        self.partitions = [_remote_partition(status, read) for status, read in zip(statuses, reads, strict=True)]
        self.limits = [read.remote_bytes for read in reads]
        request.kind, request.key = "remote_fetch", str(self.keys[0])

    @property
    def keys(self) -> list[TopicPartition]:
        """The remote partitions, on which the fetch is watched."""
        pairs = zip(self.partitions, self.limits, strict=True)
        return list(dict.fromkeys(partition.replica.key for partition, limit in pairs if limit))

    def reject_reads(self) -> None:
        """Fail all reads, because the pool of readers is full."""
        for partition in self.partitions:
            if partition.state is ReadState.PENDING:
                partition.state, partition.error = ReadState.ENDED, UNKNOWN_SERVER_ERROR

    def waits_for(self, key: Hashable) -> bool:
        return any(
            partition.replica.key == key and partition.state is ReadState.PENDING for partition in self.partitions
        )

    def end_read(self, key: TopicPartition, error: str, size: int) -> None:
        """Set the result of the pending read of a partition.

        A completed fetch ignores it. `size` is ignored unless `error` is NONE.
        """
        for partition in () if self.completed else self.partitions:
            if partition.replica.key == key and partition.state is ReadState.PENDING:
                partition.state, partition.error = ReadState.ENDED, error
                partition.bytes = size if error == NONE else 0

    def try_complete(self, now_us: int) -> bool:
        for partition in self.partitions:
            status = partition.replica.status
            if partition.state is not ReadState.FAILED and not status.is_hosted:  # Case A
                return self.complete_by(status.rule, now_us)
        pending = any(partition.state is ReadState.PENDING for partition in self.partitions)
        return not pending and self.complete_by("remote_reads", now_us)  # Case B

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the fetch without a response."""
        for partition in self.partitions:
            partition.error, partition.bytes = None, 0
        super().abandon(now_us, rule)

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: Kafka marks `DelayedRemoteFetchMetrics ExpiresPerSec` once per request."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return tuple(
            PartitionOutcome(*partition.replica.key, partition.error, partition.bytes) for partition in self.partitions
        )

    def readable_bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)

    def answered_bytes(self) -> int:
        return self.readable_bytes()


def _remote_partition(status: FetchPartitionStatus, read: Read) -> RemotePartition:
    if read.remote_bytes:
        return RemotePartition(status.replica, ReadState.PENDING)
    error = status.read_error()
    return RemotePartition(status.replica, ReadState.LOCAL if error == NONE else ReadState.FAILED, error, read.bytes)


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionStatus(PartitionStatus):
    """A partition of a list-offsets request. `found` is the result of its lookup: an error or NONE, None until then."""

    replica: Partition
    found: str | None = None


class DelayedRemoteListOffsets(PerPartitionRequest[ListOffsetsPartitionStatus]):
    """A list-offsets request that waits for lookups in remote storage. The first case that holds settles a partition.

    Case B: its lookup has ended: the lookup's error, or none.
    Case A: the broker has no replica of the partition any more, or its log directory is offline: that error.
    """

    def result(self, status: ListOffsetsPartitionStatus) -> PartitionResult | None:
        replica = status.replica.status
        if status.found is not None:  # Case B
            return PartitionResult(status.found, "remote_lookup")
        return None if replica.is_hosted else PartitionResult(replica.error, replica.rule)  # Case A

    def end_lookup(self, key: TopicPartition, error: str) -> None:
        """Set the result of the pending lookup in a partition: NONE, or the error for the answer."""
        for status in self.statuses:
            if status.replica.key == key and status.pending:
                status.found = error


class RemoteReads:
    """The reads or lookups in progress, by partition and label of the request that waits for them.

    The end of a read checks the partition even if its operation has ended; an end without a started read has no
    effect.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[TopicPartition, str], list[DelayedRequest]] = {}

    def begin(self, operation: DelayedRequest, keys: list[TopicPartition]) -> None:
        for key in keys:
            self._begun.setdefault((key, str(operation.request.request_id)), []).append(operation)

    def end(self, key: TopicPartition, request_id: str, now_us: int) -> Any | None:
        """Remove a read of the partition `key` and return its operation; None if there is no such read.

        If several operations share the request id, the read of an open one ends first.
        """
        operations = self._begun.get((key, request_id), [])
        remembered = [operation for operation in operations if _is_remembered(operation, now_us)]
        if not remembered:
            return None
        ended = min(remembered, key=lambda operation: operation.completed)
        operations.remove(ended)
        return ended

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Forget the reads of the partitions of a stopped process."""
        self._begun = {begun: operations for begun, operations in self._begun.items() if not is_gone(begun[0])}


def _is_remembered(operation: DelayedOperation, now_us: int) -> bool:
    return operation.ended_us is None or now_us - operation.ended_us <= FORGET_READ_MS * 1000

"""DelayedFetch: a fetch of a consumer or follower waits until enough bytes are readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.partition import FetchIsolation, OffsetMetadata, Partition, ReplicaStatus

FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
OFFSET_MOVED_TO_TIERED_STORAGE = "OFFSET_MOVED_TO_TIERED_STORAGE"
_RULES = {
    OFFSET_MOVED_TO_TIERED_STORAGE: "tiered_offset",
    FENCED_LEADER_EPOCH: "fenced_epoch",
    UNKNOWN_LEADER_EPOCH: "unknown_epoch",
    OFFSET_OUT_OF_RANGE: "offset_out_of_range",
}


@dataclass(slots=True)
class FetchPartitionStatus:
    """One partition of a fetch.

    Attributes:
        replica: The replica at the broker that serves the fetch.
        fetch_offset: The first offset to read.
        max_bytes: The partition's own limit, in bytes.
        current_leader_epoch: The leader epoch that the client knows, -1 for none.
        replica_id: The fetching follower, or a negative number for a consumer.
        throttled_in_request: Whether the request marks its follower as throttled by a replication quota.
        preferred_replica: The replica that the consumer is redirected to, in which case nothing is read here.
        start_metadata: Segment and position of the fetch offset on arrival. Not recalculated while the fetch waits.
        is_unread: Whether the offset was remote on arrival and the quota of remote reads was exhausted. A waiting fetch
            ignores the partition.
        is_unplaced: Whether the offset was remote on arrival and other partitions had used up the limit of the request.
            It then adds no bytes.
    """

    replica: Partition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    replica_id: int
    throttled_in_request: bool
    preferred_replica: int | None
    start_metadata: OffsetMetadata
    is_unread: bool = False
    is_unplaced: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether the records at the fetch offset are only in remote storage."""
        log = self.replica.log
        return log.local_start is not None and (log.start or 0) <= self.fetch_offset < log.local_start

    @property
    def is_below_local_log(self) -> bool:
        """Whether the records at the fetch offset are not in the local log: only in remote storage, or deleted."""
        local_start = self.replica.log.local_start
        return local_start is not None and self.fetch_offset < local_start

    @property
    def is_skipped(self) -> bool:
        """Whether nothing is read from the partition and its bytes do not count."""
        return self.is_throttled or self.preferred_replica is not None

    @property
    def is_throttled(self) -> bool:
        """Whether a quota throttles the follower now. The trace takes precedence over the request."""
        return self.replica.throttled_followers.get(self.replica_id, self.throttled_in_request)

    @property
    def is_fenced(self) -> bool:
        """Whether the request names an older leader epoch than the replica's."""
        epoch = self.replica.leader_epoch
        return epoch is not None and 0 <= self.current_leader_epoch < epoch

    def read_error(self) -> str:
        """Return the error of a read of the partition at this moment, or NONE."""
        replica = self.replica
        if replica.status is not ReplicaStatus.ONLINE:
            return replica.status.error
        if self.is_fenced:
            return FENCED_LEADER_EPOCH
        if replica.leader_epoch is not None and self.current_leader_epoch > replica.leader_epoch:
            return UNKNOWN_LEADER_EPOCH
        log = replica.log
        beyond_end = log.end is not None and self.fetch_offset > log.end.offset
        deleted = log.start is not None and self.fetch_offset < log.start
        if beyond_end or deleted:
            return OFFSET_OUT_OF_RANGE
        return OFFSET_MOVED_TO_TIERED_STORAGE if self.replica_id >= 0 and self.is_remote else "NONE"

    def readable_bytes(self, isolation: FetchIsolation) -> int:
        """Return the bytes from the fetch offset to the reader's end, over all segments, at most `self.max_bytes`.

        The result is 0 if the partition cannot be read from the local log now.
        """
        replica = self.replica
        end = isolation.end(replica)
        if (
            replica.status is not ReplicaStatus.ONLINE
            or self.is_skipped
            or end is None
            or self.fetch_offset >= end.offset
            or self.is_below_local_log
        ):
            return 0
        return min(self.max_bytes, max(0, end.position - replica.log.position(self.fetch_offset)))


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The byte limit of a whole fetch. `hard_max_bytes`: up to version 2, no batch may exceed the limits."""

    max_bytes: int
    hard_max_bytes: bool = False


class Read(NamedTuple):
    """The read of one partition: bytes, the offset after them, and the bytes to request from remote storage."""

    bytes: int
    next_offset: int
    remote_bytes: int = 0


def read_from_log(statuses: list[FetchPartitionStatus], isolation: FetchIsolation, limits: ReadLimits) -> list[Read]:
    """Read the partitions in order (`ReplicaManager.readFromLog`).

    The bytes read from a partition reduce the request's limit for those after it. The first partition with data returns
    at least one batch, however large, so that a consumer can make progress. A remote read counts as many bytes as it
    requests (since 4.2, KAFKA-14915).

    Args:
        statuses: The partitions in the order of the request.
        isolation: The end up to which the reader may read.
        limits: The byte limits of the whole fetch.
    """
    limit_bytes, min_one_message, reads_remote = limits.max_bytes, not limits.hard_max_bytes, True
    reads = []
    for status in statuses:
        end, read = isolation.end(status.replica), Read(0, status.fetch_offset)
        max_bytes = min(status.max_bytes, limit_bytes)
        if status.read_error() != "NONE" or status.is_skipped:
            pass
        elif status.is_remote:
            storage = status.replica.remote_storage
            if reads_remote and not storage.quota_exhausted and max_bytes > 0:
                read = Read(0, status.fetch_offset, max_bytes)
                if storage.reads_all:
                    limit_bytes, min_one_message = limit_bytes - max_bytes, False
                else:
                    reads_remote = False
        elif end is not None and status.fetch_offset < end.offset:
            local = status.replica.log.read(status.fetch_offset, end, max_bytes, min_one_message, limits.hard_max_bytes)
            read = Read(*local)
        min_one_message = min_one_message and read.bytes == 0
        limit_bytes = max(0, limit_bytes - read.bytes)
        reads.append(read)
    return reads


def start_offset_metadata(replica: Partition, fetch_offset: int, isolation: FetchIsolation) -> OffsetMetadata:
    """Return the metadata of a fetch offset.

    If the offset equals the end up to which `isolation` allows to read, the metadata of the end, possibly stale, is
    reused as in Kafka.
    """
    end = isolation.end(replica)
    return end if end is not None and fetch_offset == end.offset else replica.log.offset_metadata(fetch_offset)


class DelayedFetch(DelayedRequest):
    """A fetch that waits. The first case that holds, over the partitions in order, completes it.

    The letters of the cases are those of Kafka 2.3. For each partition the cases are evaluated in the order A, B, E, F,
    C; case D follows after the last partition.

    Case A: the broker no longer leads the partition.
    Case B: the broker does not know the partition.
    Case C: the fetch offset is beyond the end (the leader was truncated), or on an older segment than the end, unless
        the replica is throttled. An offset equal to the end adds no bytes, regardless of the segments, so that a
        fresh roll does not look like this case.
    Case D: the bytes between start and end, summed over the partitions with each limited to its own maximum, reach the
        minimum.
    Case E: the log directory is offline.
    Case F: the request names an older leader epoch.

    The difference in case D may be negative: a start taken before a truncation may be beyond the new end in bytes.

    On arrival the log is read first. That read may reach the minimum where case D does not, because a first batch may
    exceed its partition's maximum. If it does not, case D is still evaluated and may hold: it ignores the limit of the
    whole request, and counts batches that do not fit into it.
    """

    def __init__(
        self,
        request: TraceRequest,
        delay_ms: int,
        statuses: list[FetchPartitionStatus],
        isolation: FetchIsolation,
        min_bytes: int,
        limits: ReadLimits,
    ) -> None:
        super().__init__(request, delay_ms)
        self.statuses = statuses
        self.isolation = isolation
        self.min_bytes = min_bytes
        self.limits = limits
        self.reads: list[Read] = []
        self._answers: tuple[PartitionOutcome, ...] = ()

    def try_on_arrival(self, now_us: int) -> bool:
        """Try to answer the fetch with its first read (`ReplicaManager.fetchMessages`). Return True if it was answered.

        The first read also reports offset and epoch errors, which a waiting fetch does not check, and redirects a
        consumer to a preferred replica.
        """
        if self._try(now_us, arriving=True):
            return True
        if any(status.preferred_replica is not None for status in self.statuses):
            return self.complete_by("preferred_replica", now_us)
        read_bytes = sum(read.bytes for read in read_from_log(self.statuses, self.isolation, self.limits))
        return read_bytes >= self.min_bytes and self.complete_by("min_bytes", now_us)

    def try_complete(self, now_us: int) -> bool:
        return self._try(now_us, arriving=False)

    def _try(self, now_us: int, arriving: bool) -> bool:
        accumulated, end_of, online = 0, self.isolation.end, ReplicaStatus.ONLINE
        for status in self.statuses:
            replica = status.replica
            if status.is_unread:
                continue
            if replica.status is not online:  # Cases A, B, E
                return self.complete_by(replica.status.rule, now_us)
            if status.current_leader_epoch >= 0 and status.is_fenced:  # Case F
                return self.complete_by(_RULES[FENCED_LEADER_EPOCH], now_us)
            if arriving and (error := status.read_error()) != "NONE":
                return self.complete_by(_RULES[error], now_us)
            end = end_of(replica)
            if end is None:
                continue
            offset, (end_offset, end_segment, end_position) = status.fetch_offset, end
            if offset == end_offset:
                continue
            if offset > end_offset:  # Case C
                return self.complete_by("truncated", now_us)
            # `is_skipped` is evaluated only where it can be true: a fetch may have 100 partitions and as many attempts.
            if status.is_unplaced:
                continue
            if (
                status.throttled_in_request or status.preferred_replica is not None or replica.throttled_followers
            ) and status.is_skipped:
                continue
            _, segment, position = status.start_metadata
            if segment < end_segment:  # Case C
                return self.complete_by("older_segment", now_us)
            if segment == end_segment:
                gained = end_position - position
                if gained > status.max_bytes:
                    gained = status.max_bytes
                if gained > 0 or not arriving:
                    accumulated += gained
        return accumulated >= self.min_bytes and self.complete_by("min_bytes", now_us)  # Case D

    def on_complete(self, now_us: int) -> None:
        """Read the log again and answer its current data, whether the fetch completed or expired."""
        self._answers = tuple(
            PartitionOutcome(*status.replica.key, status.read_error(), status.readable_bytes(self.isolation))
            for status in self.statuses
        )
        self.reads = read_from_log(self.statuses, self.isolation, self.limits)
        super().on_complete(now_us)

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the fetch without reading anything."""
        self._answers = tuple(PartitionOutcome(*status.replica.key, None, 0) for status in self.statuses)
        super().abandon(now_us, rule)

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: Kafka marks `ExpiresPerSec` once per request by `fetcherType`, which the outcome contains."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return self._answers

    def readable_bytes(self) -> int:
        return sum(answer.bytes for answer in self._answers)

    def answered_bytes(self) -> int:
        return sum(read.bytes for read in self.reads)

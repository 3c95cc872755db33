"""DelayedShareFetch: a fetch of a share group waits until it can acquire records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from purgatory_udf.contract.outcome import PartitionOutcome, TopicPartition
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.delayed_fetch import OFFSET_OUT_OF_RANGE
from purgatory_udf.rules.reference.delayed_produce import NONE
from purgatory_udf.rules.reference.partition import (
    FetchIsolation,
    LogBatch,
    OffsetMetadata,
)
from purgatory_udf.rules.reference.share_delivery import acquire
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_records import (
    AcquiredRange,
    Acquirer,
)


@dataclass(frozen=True)
class ShareFetch:
    """The parameters of a share fetch.

    `is_exact` is whether `max_records` is a strict limit (acquire mode `record_limit`), not only an approximate one.
    """

    group: str
    acquirer: Acquirer
    partitions: tuple[TopicPartition, ...]
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool
    session_epoch: int
    reads_committed: bool

    @property
    def isolation(self) -> FetchIsolation:
        """The end up to which the group reads, as it was set when the fetch arrived."""
        return FetchIsolation.TXN_COMMITTED if self.reads_committed else FetchIsolation.HIGH_WATERMARK

    @property
    def rotated(self) -> tuple[TopicPartition, ...]:
        """The partitions in the order in which they are tried, which differs in each session epoch.

        Kafka: `PartitionRotateStrategy`.
        """
        keys = self.partitions
        at = self.session_epoch % len(keys) if len(keys) > 1 and self.session_epoch > 0 else 0
        return keys[at:] + keys[:at]


class ShareRead(NamedTuple):
    """A read for a share fetch: the error, the number of bytes including incomplete batches, the complete batches.

    `aborted` has the first and last offsets of aborted records in the batches, if the group reads committed records.
    """

    error: str
    metadata: OffsetMetadata | None = None
    bytes: int = 0
    batches: tuple[LogBatch, ...] = ()
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class SharePartitionAnswer:
    """The part of a share fetch's response for one partition: error, bytes of the records, and acquired ranges."""

    error: str = NONE
    bytes: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)


class ShareLog(Protocol):
    """Interface of the broker to a share fetch: reads of partitions' logs, and checks that it schedules.

    Attributes:
        cause: The kind of event that is being handled.
        cuts_reads: Whether a read is cut at its limit, and its bytes reduce the limit of later partitions.
        checks_only_with_data: Whether an answered fetch only checks others of the partitions from which it read data.
    """

    cause: str | None

    @property
    def cuts_reads(self) -> bool: ...

    @property
    def checks_only_with_data(self) -> bool: ...

    def read(
        self, key: TopicPartition, offset: int, max_bytes: int, min_one_message: bool, isolation: FetchIsolation
    ) -> ShareRead:
        """Read from a partition's log, up to the high watermark or the last stable offset.

        Args:
            key: The partition.
            offset: The first offset to read; the result has an error if the log does not have it.
            max_bytes: The limit in bytes.
            min_one_message: Whether the first batch is returned even if it exceeds `max_bytes`.
            isolation: Whether the group reads committed records only.
        """

    def end(self, key: TopicPartition, isolation: FetchIsolation) -> OffsetMetadata | None:
        """Return the end of a partition up to which groups with this isolation read; None while it is unknown."""

    def log_start(self, key: TopicPartition) -> int:
        """Return the log start offset of a partition."""

    def add_release_action(self, group: str, keys: tuple[TopicPartition, ...]) -> None:
        """Schedule a check of the fetches that wait for these partitions, for the end of the broker's next request."""


class DelayedShareFetch(DelayedRequest):
    """A share fetch that waits for records. At each check and on arrival, the cases are evaluated in order.

    Case A: the fetch locks the partitions that no other fetch has locked, and of which it may acquire records. If there
        are none, it continues to wait.
    Case B: the log is read for each offset of which segment and position are not known yet.
    Case D: a read failed, which completes the fetch.
    Case E: the fetch completes, because the offset of a locked partition is beyond its end or on an older segment than
        the end, or because the bytes up to the high watermarks, each within its part of `max_bytes`, reach `min_bytes`.

    If neither D nor E holds, the locks are released. Cases R and C concern remote storage, which share fetches do not
    read in a replay. An expired fetch is answered with the records that it can acquire then.
    """

    def __init__(self, request: TraceRequest, delay_ms: int, fetch: ShareFetch, log: ShareLog) -> None:
        super().__init__(request, delay_ms)
        self.fetch = fetch
        self.share_partitions: dict[TopicPartition, SharePartition] = {}
        self.erroneous: dict[TopicPartition, str] = {}
        self.response: dict[TopicPartition, SharePartitionAnswer] = {}
        # The kind of event that completed the fetch.
        self.woken_by: str | None = None
        self._log = log
        self._locked: dict[TopicPartition, int] = {}
        self._reads: dict[TopicPartition, ShareRead] = {}

    def try_complete(self, now_us: int) -> bool:
        offsets = self._lock_acquirable()  # Case A
        if not offsets:
            return False
        unknown = [key for key, offset in offsets.items() if not self.share_partitions[key].fetch_metadata(offset)]
        reads = self._read(offsets, unknown, len(offsets)) if unknown else {}  # Case B
        for key, read in reads.items():
            if read.error == NONE and read.metadata is not None:
                self.share_partitions[key].set_fetch_metadata(offsets[key], read.metadata)
        rule = self.completion_rule(offsets, reads)
        if rule is None:
            self._release(offsets)
            return False
        self._locked, self._reads = offsets, reads
        self.woken_by = self._log.cause
        return self.complete_by(rule, now_us)

    def on_complete(self, now_us: int) -> None:
        """Acquire the records, answer the fetch, and release the partitions."""
        offsets, self._locked = self._locked or self._lock_acquirable(), {}
        if offsets:
            missing = [key for key in offsets if key not in self._reads]
            # Reads of this call precede those of the check.
            reads = (self._read(offsets, missing, len(offsets)) if missing else {}) | self._reads
            self._acquire(offsets, reads, now_us)
            self._release(offsets)
            if self._log.checks_only_with_data:
                released = tuple(key for key in offsets if key in reads and reads[key].bytes)
            else:
                released = tuple(offsets)
            self._log.add_release_action(self.fetch.group, released)
        self._reads = {}
        for key, error in self.erroneous.items():
            self.response[key] = SharePartitionAnswer(error)
        super().on_complete(now_us)

    def _lock_acquirable(self) -> dict[TopicPartition, int]:
        """Lock the partitions of which records may be acquired, and return the next offset of each."""
        offsets = {}
        for key, partition in self.share_partitions.items():
            if partition.is_active and partition.fetch_lock is None:
                offset = partition.acquirable_offset()
                if offset is not None:
                    partition.fetch_lock = self
                    offsets[key] = offset
        return offsets

    def _release(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self.share_partitions[key].fetch_lock = None

    def _read(
        self, offsets: Mapping[TopicPartition, int], keys: Sequence[TopicPartition], locked: int
    ) -> dict[TopicPartition, ShareRead]:
        """Read partitions in order (`ReplicaManager.readFromLog`). The first with data returns at least one batch.

        Args:
            offsets: The fetch offset of each locked partition.
            keys: The partitions to read.
            locked: Number of locked partitions, among which `max_bytes` is divided.
        """
        reads, limit, min_one_message = {}, self.fetch.max_bytes, True
        for key, max_bytes in _partition_max_bytes(self.fetch.max_bytes, keys, locked).items():
            if key in self.erroneous:
                continue
            read = self._log.read(key, offsets[key], min(max_bytes, limit), min_one_message, self.fetch.isolation)
            if self._log.cuts_reads:
                min_one_message = min_one_message and not read.bytes
                limit = max(0, limit - read.bytes)
            reads[key] = read
        return reads

    def completion_rule(
        self, offsets: Mapping[TopicPartition, int], reads: Mapping[TopicPartition, ShareRead]
    ) -> str | None:
        """Return the rule of case D or E that holds for the locked partitions, or None.

        `offsets` has the fetch offset of each locked partition. `reads` has the partitions that were read because
        their offset had no metadata yet.
        """
        if any(read.error != NONE for read in reads.values()):  # Case D
            return "read_error"
        accumulated = 0
        max_bytes = _partition_max_bytes(self.fetch.max_bytes, list(offsets), len(offsets))
        for key, offset in offsets.items():
            end = self._log.end(key, self.fetch.isolation)
            start = self.share_partitions[key].fetch_metadata(offset)
            if end is None or start is None:
                continue
            if start.offset > end.offset:
                return "truncated"
            if start.offset < end.offset:
                if start.segment < end.segment:
                    return "older_segment"
                accumulated += min(end.position - start.position, max_bytes[key])
        return "min_bytes" if accumulated >= self.fetch.min_bytes else None

    def _acquire(
        self, offsets: Mapping[TopicPartition, int], reads: Mapping[TopicPartition, ShareRead], now_us: int
    ) -> None:
        fetch, acquired_count = self.fetch, 0
        for key, read in reads.items():
            partition, answer = self.share_partitions[key], SharePartitionAnswer(read.error)
            self.response[key] = answer
            if read.error == OFFSET_OUT_OF_RANGE:
                partition.on_log_start(self._log.log_start(key))
                answer.error = NONE
            elif read.error == NONE:
                remaining = fetch.max_records - acquired_count
                answer.acquired, count = acquire(
                    partition,
                    fetch.acquirer,
                    read.batches,
                    offsets[key],
                    remaining,
                    fetch.batch_size,
                    fetch.is_exact,
                    now_us,
                )
                if read.aborted and answer.acquired:
                    answer.acquired = partition.archive_aborted(answer.acquired, read.aborted)
                    count = sum(each.last + 1 - each.first for each in answer.acquired)
                acquired_count += count
                answer.bytes = _sliced_bytes(read, answer.acquired)

    def waits_for(self, key: object) -> bool:
        return True

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the fetch without acquiring anything."""
        self.response = {}
        super().abandon(now_us, rule)

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: Kafka marks `DelayedShareFetchMetrics ExpiresPerSec` once per request, even with records."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return tuple(
            PartitionOutcome(*key, self.response[key].error, self.response[key].bytes)
            for key in self.fetch.partitions
            if key in self.response
        )

    def readable_bytes(self) -> int:
        return sum(answer.bytes for answer in self.response.values())

    def answered_bytes(self) -> int:
        return self.readable_bytes()


def _partition_max_bytes(max_bytes: int, keys: Sequence[TopicPartition], locked: int) -> dict[TopicPartition, int]:
    """Divide the bytes of a request among partitions (`PartitionMaxBytesStrategy`); return the limit of each of `keys`.

    The request is divided by the number of `locked` partitions, although only `keys` may be read. Kafka gives the
    remainder to a random partition, a replay to the first.
    """
    if max_bytes < len(keys):
        return {key: int(index < max_bytes) for index, key in enumerate(keys)}
    parts = locked if max_bytes >= locked else len(keys)
    each, remainder = divmod(max_bytes, parts)
    return {key: each + (remainder if index == 0 else 0) for index, key in enumerate(keys)}


def _sliced_bytes(read: ShareRead, acquired: Sequence[AcquiredRange]) -> int:
    """Return the bytes of the batches that hold acquired records (`ShareFetchUtils.maybeSliceFetchRecords`)."""
    if not acquired:
        return 0
    if len(read.batches) == 1:
        return read.bytes
    first, size = read.batches[0], 0
    for batch in read.batches[1:]:
        if batch.base <= acquired[0].first:
            first = batch
        elif batch.base > acquired[-1].last:
            break
        else:
            size += batch.size
    return first.size + size

"""DelayedShareFetch: a fetch of a share group waits until it can acquire records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from purgatory_udf.contract.outcome import PartitionOutcome, TopicPartition
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.delayed_fetch import OFFSET_OUT_OF_RANGE
from purgatory_udf.rules.reference.delayed_produce import NONE
from purgatory_udf.rules.reference.delayed_remote import UNKNOWN_SERVER_ERROR
from purgatory_udf.rules.reference.partition import (
    FetchIsolation,
    OffsetMetadata,
)
from purgatory_udf.rules.reference.share_delivery import (
    UNKNOWN_OFFSET_METADATA,
    RemoteData,
    ShareRead,
    acquire,
    partition_max_bytes,
    sliced_bytes,
)
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_records import (
    AcquiredRange,
    Acquirer,
)

# The `fetcher` of a share fetch that waited for reads of remote storage when it expired in the purgatory; and if it
# expired again while it waited for them.
AWAITS_REMOTE, EXPIRED_TWICE = "remote", "remote_twice"


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


@dataclass(slots=True)
class SharePartitionAnswer:
    """The part of a share fetch's response for one partition: error, bytes of the records, and acquired ranges."""

    error: str = NONE
    bytes: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)


class ShareLog(Protocol):
    """Interface of the broker to a share fetch: reads of partitions' logs, and checks that it schedules.

    Attributes:
        exhausted: Share partitions of which no records may be acquired, as fetches found that were tried before in the
            same check. The end of a fetch clears it.
        cuts_reads: Whether a read is cut at its limit, and its bytes reduce the limit of later partitions.
        checks_only_with_data: Whether an answered fetch only checks others of the partitions from which it read data.
    """

    exhausted: set[SharePartition]

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

    @property
    def remote_wait_ms(self) -> int | None:
        """The setting `remote.fetch.max.wait.ms`; None if a fetch waits only for its own maximum."""

    @property
    def reads_all_remote(self) -> bool:
        """Whether a fetch reads all of its remote partitions, or only the first (Kafka 4.1)."""

    def begin_remote_reads(self, operation: DelayedShareFetch, keys: Sequence[TopicPartition]) -> bool:
        """Start the reads of these partitions from remote storage. Return False if the pool of readers is full."""

    def remote_data(self, key: TopicPartition, offset: int, data: RemoteData, isolation: FetchIsolation) -> ShareRead:
        """Return the records that a read of remote storage has returned from this offset on."""

    def lost_rule(self, key: TopicPartition) -> str | None:
        """Return the rule by which remote reads of a partition end because the broker has lost it, or None."""

    def await_remote_reads(self, operation: DelayedShareFetch, now_us: int) -> None:
        """Call `operation.expire_remote_reads` after the rest of `remote.fetch.max.wait.ms`."""

    def add_release_action(self, group: str, keys: tuple[TopicPartition, ...]) -> None:
        """Schedule a check of the fetches that wait for these partitions, for the end of the broker's next request."""


class DelayedShareFetch(DelayedRequest):
    """A share fetch that waits for records. At each check and on arrival, the cases are evaluated in order.

    Case R: reads of remote storage are pending: the fetch completes if the broker has lost one of their partitions, or
        if all of them have ended. Otherwise it continues to wait.
    Case A: the fetch locks the partitions that no other fetch has locked, and of which it may acquire records. If there
        are none, it continues to wait.
    Case B: the log is read for each offset of which segment and position are not known yet.
    Case C: some of the records are only in remote storage. The fetch starts to read them, keeps the locks of their
        partitions, releases the others, and continues with case R.
    Case D: a read failed, which completes the fetch.
    Case E: the fetch completes, because the offset of a locked partition is beyond its end or on an older segment than
        the end, or because the bytes up to the high watermarks, each within its part of `max_bytes`, reach `min_bytes`.

    If neither D nor E holds, the locks are released. An expired fetch is answered with the records that it can acquire
    then, which are not read from remote storage.

    A fetch that completes or expires before its remote reads have ended leaves the purgatory, but is answered later:
    when the reads end, or when `remote.fetch.max.wait.ms` has passed, if that is longer than its own maximum wait.

        0 ms          100 ms                    500 ms
        fetch ────────┬ expires ────────────────┬ expires again
                      └ leaves the purgatory    └ is answered with what has been read
    """

    def __init__(self, request: TraceRequest, delay_ms: int, fetch: ShareFetch, log: ShareLog) -> None:
        super().__init__(request, delay_ms)
        self.fetch = fetch
        self.share_partitions: dict[TopicPartition, SharePartition] = {}
        self.erroneous: dict[TopicPartition, str] = {}
        self.response: dict[TopicPartition, SharePartitionAnswer] = {}
        self._log = log
        # Whether the fetch has left the purgatory, and still waits for remote reads.
        self.is_outside = False
        self._expirations = 0
        self._remote: dict[TopicPartition, RemoteData | None] = {}
        self._locked: dict[TopicPartition, int] = {}
        self._reads: dict[TopicPartition, ShareRead] = {}

    @property
    def pending_reads(self) -> list[TopicPartition]:
        """The partitions of which a read of remote storage has not ended."""
        return [key for key, data in self._remote.items() if data is None]

    def try_complete(self, now_us: int) -> bool:
        if self._remote:
            return self._try_remote(now_us)  # Case R
        offsets = self._lock_acquirable(self.share_partitions)  # Case A
        if not offsets:
            return False
        unknown = [key for key, offset in offsets.items() if not self.share_partitions[key].fetch_metadata(offset)]
        reads = self._read(offsets, unknown, len(offsets)) if unknown else {}  # Case B
        if any(read.is_remote for read in reads.values()):
            return self._begin_remote_reads(offsets, reads, now_us)  # Case C
        for key, read in reads.items():
            if read.metadata is not None:
                self.share_partitions[key].set_fetch_metadata(offsets[key], read.metadata)
        rule = self.completion_rule(offsets, reads)
        if rule is None:
            self._release(offsets)
            return False
        self._locked, self._reads = offsets, reads
        return self.complete_by(rule, now_us)

    def _begin_remote_reads(
        self, offsets: Mapping[TopicPartition, int], reads: Mapping[TopicPartition, ShareRead], now_us: int
    ) -> bool:
        """Start reads of remote storage, and release the other partitions. Return True if this completed the fetch."""
        remote = [key for key, read in reads.items() if read.is_remote]
        if not self._log.reads_all_remote:
            del remote[1:]
        local = tuple(key for key in offsets if key not in remote)
        if local:
            self._release(local)
            self._log.add_release_action(self.fetch.group, local)
        self._locked = {key: offsets[key] for key in remote}
        if not self._log.begin_remote_reads(self, remote):
            self._remote = dict.fromkeys(remote, RemoteData(UNKNOWN_SERVER_ERROR))
            return self.complete_by("reader_queue_full", now_us)
        self._remote = dict.fromkeys(remote)
        return False

    def _try_remote(self, now_us: int) -> bool:
        rule = next((rule for key in self._remote if (rule := self._log.lost_rule(key)) is not None), None)
        if rule is None and not self.pending_reads:
            rule = "remote_reads"
        return rule is not None and self.complete_by(rule, now_us)

    def end_remote_read(self, key: TopicPartition, data: RemoteData, now_us: int) -> None:
        """Set the result of the pending read of a partition, and answer a fetch that only waits for it."""
        if key not in self.pending_reads or (self.completed and not self.is_outside):
            return
        self._remote[key] = data
        if self.is_outside and not self.pending_reads:
            if not self._expirations:
                self.completed_by = "remote_reads"
            self._answer_outside(now_us)

    def expire_remote_reads(self, now_us: int) -> None:
        """Answer a fetch that has left the purgatory with what has been read, and count another expiration."""
        if self.is_outside:
            self._expirations += 1
            self._answer_outside(now_us)

    def _answer_outside(self, now_us: int) -> None:
        self.is_outside = False
        self.ended_us = now_us
        self.expired = self._expirations > 0
        if self.expired:
            self.deadline_ms = now_us // 1000
        if self._expirations > 1:
            self.request.fetcher = EXPIRED_TWICE
        self._answer_remote(now_us)

    def on_complete(self, now_us: int) -> None:
        """Acquire the records, answer the fetch, and release the partitions."""
        if self._remote:
            wait_ms = self._log.remote_wait_ms
            if self.pending_reads:
                self.request.fetcher = AWAITS_REMOTE
            if self.pending_reads and wait_ms is not None and self.delay_ms < wait_ms:
                self.is_outside, self.deadline_ms = True, now_us // 1000 + wait_ms - self.delay_ms
                self._log.await_remote_reads(self, now_us)
            else:
                self._answer_remote(now_us)
            return
        offsets, self._locked = self._locked or self._lock_acquirable(self.share_partitions), {}
        if offsets:
            missing = [key for key in offsets if key not in self._reads]
            # Reads of this call precede those of the check.
            reads = (self._read(offsets, missing, len(offsets)) if missing else {}) | self._reads
            self._answer_local(offsets, reads, now_us)
        self._reads = {}
        self._respond(now_us)

    def _answer_local(
        self, offsets: Mapping[TopicPartition, int], reads: Mapping[TopicPartition, ShareRead], now_us: int
    ) -> None:
        """Acquire the records of reads, and release the locked partitions. A remote one is read by the next fetch."""
        for key, read in reads.items():
            if read.is_remote:
                self.share_partitions[key].set_fetch_metadata(offsets[key], None)
        self._acquire(offsets, {key: read for key, read in reads.items() if not read.is_remote}, now_us)
        self._release(offsets)
        if self._log.checks_only_with_data:
            released = tuple(key for key in offsets if key in reads and reads[key].bytes)
        else:
            released = tuple(offsets)
        self._log.add_release_action(self.fetch.group, released)

    def _answer_remote(self, now_us: int) -> None:
        """Answer with what was read from remote storage, and, within `max_bytes`, with local records of the others.

        A pending read has no part in the response.
        """
        fetch, offsets = self.fetch, dict(self._locked)
        reads = {
            key: self._log.remote_data(key, offsets[key], data, fetch.isolation)
            for key, data in self._remote.items()
            if data is not None
        }
        remaining = fetch.max_bytes - sum(read.bytes for read in reads.values())
        if remaining > 0 and self.completed_by != "reader_queue_full":
            others = {key: each for key, each in self.share_partitions.items() if key not in offsets}
            local = self._lock_acquirable(others)
            reads |= self._read(local, list(local), len(local), remaining) if local else {}
            offsets |= local
        self._locked, self._remote = {}, {}
        self._answer_local(offsets, reads, now_us)
        self._respond(now_us)

    def _respond(self, now_us: int) -> None:
        self._log.exhausted.clear()
        for key, error in self.erroneous.items():
            self.response[key] = SharePartitionAnswer(error)
        super().on_complete(now_us)

    def _lock_acquirable(self, partitions: Mapping[TopicPartition, SharePartition]) -> dict[TopicPartition, int]:
        """Lock the partitions of which records may be acquired, and return the next offset of each."""
        offsets, exhausted = {}, self._log.exhausted
        for key, partition in partitions.items():
            if partition.is_active and partition.fetch_lock is None and partition not in exhausted:
                offset = partition.acquirable_offset()
                if offset is None:
                    exhausted.add(partition)
                else:
                    partition.fetch_lock, offsets[key] = self, offset
        return offsets

    def _release(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self.share_partitions[key].fetch_lock = None

    def _read(
        self,
        offsets: Mapping[TopicPartition, int],
        keys: Sequence[TopicPartition],
        locked: int,
        max_bytes: int | None = None,
    ) -> dict[TopicPartition, ShareRead]:
        """Read partitions in order (`ReplicaManager.readFromLog`). The first with data returns at least one batch.

        Args:
            offsets: The fetch offset of each locked partition.
            keys: The partitions to read.
            locked: Number of locked partitions, among which `max_bytes` is divided.
            max_bytes: The limit in bytes, by default that of the request.
        """
        total = self.fetch.max_bytes if max_bytes is None else max_bytes
        reads, limit, min_one_message = {}, total, True
        for key, part in partition_max_bytes(total, keys, locked).items():
            if key in self.erroneous:
                continue
            read = self._log.read(key, offsets[key], min(part, limit), min_one_message, self.fetch.isolation)
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
        max_bytes = partition_max_bytes(self.fetch.max_bytes, list(offsets), len(offsets))
        for key, offset in offsets.items():
            end = self._log.end(key, self.fetch.isolation)
            start = self.share_partitions[key].fetch_metadata(offset)
            if end is None or start is None or start == UNKNOWN_OFFSET_METADATA:
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
                answer.bytes = sliced_bytes(read, answer.acquired)

    def waits_for(self, key: object) -> bool:
        return True

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        """End the fetch without acquiring anything."""
        self._release(self._locked)
        self._locked, self._remote, self.is_outside, self.response = {}, {}, False, {}
        super().abandon(now_us, rule)

    def on_expiration(self, now_us: int) -> None:
        """Count the expiration. Kafka marks `DelayedShareFetchMetrics ExpiresPerSec`, even with records."""
        self._expirations += 1
        self.expired = not self.is_outside

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

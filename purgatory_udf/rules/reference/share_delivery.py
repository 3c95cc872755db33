"""Reads of partitions' logs for share fetches, and acquisition of the records (`SharePartition.acquire`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple, Protocol

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_fetch import OFFSET_OUT_OF_RANGE, start_offset_metadata
from purgatory_udf.rules.reference.delayed_produce import NONE
from purgatory_udf.rules.reference.partition import (
    FetchIsolation,
    LogBatch,
    OffsetMetadata,
    Partition,
    RemoteStorage,
    ReplicaStatus,
)
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_records import (
    MIN_THROTTLE_LIMIT,
    AcquiredRange,
    Acquirer,
    InFlightBatch,
    InFlightState,
    RecordState,
    ShareGroupLimits,
)


class ShareRead(NamedTuple):
    """A read for a share fetch: the error, the number of bytes including incomplete batches, the complete batches.

    `aborted` has the first and last offsets of aborted records in the batches, if the group reads committed records.
    `is_remote` is whether the records are only in remote storage; then nothing was read.
    """

    error: str
    metadata: OffsetMetadata | None = None
    bytes: int = 0
    batches: Sequence[LogBatch] = ()
    aborted: tuple[tuple[int, int], ...] = ()
    is_remote: bool = False


# The metadata of an offset in remote storage while the quota of remote reads is exhausted. It adds no bytes.
UNKNOWN_OFFSET_METADATA = OffsetMetadata(-1, -1, -1)


class RemoteData(NamedTuple):
    """The result of a read of remote storage. `last_offset` is that of the last complete batch, None if unknown."""

    error: str
    bytes: int = 0
    last_offset: int | None = None


class ReplicaHost(Protocol):
    """Interface of the broker to which a `ShareBroker` belongs."""

    @property
    def remote_storage(self) -> RemoteStorage:
        """The limits on the broker's reads of remote storage."""

    def replica(self, key: TopicPartition) -> Partition:
        """Return the broker's replica of the partition."""


class ShareLogReader:
    """Reads partitions' logs for the share fetches of a broker.

    `cuts_reads` is whether a read is cut at its limit, and its bytes reduce the limit of later partitions.
    """

    def __init__(self, host: ReplicaHost, cuts_reads: bool) -> None:
        self._host, self.cuts_reads = host, cuts_reads

    def end(self, key: TopicPartition, isolation: FetchIsolation) -> OffsetMetadata | None:
        """Return the end of a partition up to which share groups read; see `ShareLog.end`."""
        return isolation.end(self._host.replica(key))

    def log_start(self, key: TopicPartition) -> int:
        return self._host.replica(key).log.start or 0

    def read(
        self, key: TopicPartition, offset: int, max_bytes: int, min_one_message: bool, isolation: FetchIsolation
    ) -> ShareRead:
        """Read from a partition's log; see `ShareLog.read`."""
        replica = self._host.replica(key)
        log, end = replica.log, isolation.end(replica)
        if replica.status is not ReplicaStatus.ONLINE:
            return ShareRead(replica.status.error)
        if (log.start is not None and offset < log.start) or (log.end is not None and offset > log.end.offset):
            return ShareRead(OFFSET_OUT_OF_RANGE)
        if log.local_start is not None and offset < log.local_start:
            if self._host.remote_storage.quota_exhausted:
                return ShareRead(NONE, UNKNOWN_OFFSET_METADATA)
            return ShareRead(NONE, is_remote=True)
        metadata = start_offset_metadata(replica, offset, isolation)
        if end is None or offset >= end.offset:
            return ShareRead(NONE, metadata)
        size, _ = log.read(offset, end, max_bytes, min_one_message)
        batches = log.batches_from(offset, size)
        if not self.cuts_reads:
            size = sum(batch.size for batch in batches)
        return self._with_aborted(replica, ShareRead(NONE, metadata, size, batches), isolation)

    def remote_data(self, key: TopicPartition, offset: int, data: RemoteData, isolation: FetchIsolation) -> ShareRead:
        if data.error != NONE:
            return ShareRead(data.error)
        replica = self._host.replica(key)
        batches: Sequence[LogBatch] = replica.log.batches_from(offset, data.bytes)
        if (last := data.last_offset) is not None:
            batches = list(
                takewhile(lambda batch: batch.last <= last, replica.log.batches_from(offset, replica.log.size))
            )
            if not batches or batches[-1].last != last:
                batches = [LogBatch(offset, last, data.bytes)] if last >= offset else []
        return self._with_aborted(replica, ShareRead(NONE, None, data.bytes, batches), isolation)

    @staticmethod
    def _with_aborted(replica: Partition, read: ShareRead, isolation: FetchIsolation) -> ShareRead:
        """Return the read with the ranges of aborted records in it, if the group reads committed records."""
        if isolation is not FetchIsolation.TXN_COMMITTED or not replica.aborted or not read.batches:
            return read
        first, last = read.batches[0].base, read.batches[-1].last
        return read._replace(aborted=tuple(each for each in replica.aborted if each[0] <= last and each[1] >= first))


def partition_max_bytes(max_bytes: int, keys: Sequence[TopicPartition], locked: int) -> dict[TopicPartition, int]:
    """Divide the bytes of a request among partitions (`PartitionMaxBytesStrategy`); return the limit of each of `keys`.

    The request is divided by the number of `locked` partitions, although only `keys` may be read. Kafka gives the
    remainder to a random partition, a replay to the first.
    """
    if max_bytes < len(keys):
        return {key: int(index < max_bytes) for index, key in enumerate(keys)}
    parts = locked if max_bytes >= locked else len(keys)
    each, remainder = divmod(max_bytes, parts)
    return {key: each + (remainder if index == 0 else 0) for index, key in enumerate(keys)}


def sliced_bytes(read: ShareRead, acquired: Sequence[AcquiredRange]) -> int:
    """Return the bytes of the batches that hold acquired records (`ShareFetchUtils.maybeSliceFetchRecords`)."""
    if not acquired:
        return 0
    if len(read.batches) == 1:
        return read.bytes
    first, size = read.batches[0], 0
    for batch in islice(read.batches, 1, None):
        if batch.base <= acquired[0].first:
            first = batch
        elif batch.base > acquired[-1].last:
            break
        else:
            size += batch.size
    return first.size + size


def acquire(
    partition: SharePartition,
    acquirer: Acquirer,
    records: Sequence[LogBatch],
    fetch_offset: int,
    max_records: int,
    batch_size: int,
    is_exact: bool,
    now_us: int,
) -> tuple[list[AcquiredRange], int]:
    """Acquire records that were read for a share fetch.

    Args:
        partition: The share partition.
        acquirer: The share fetch.
        records: The complete batches of the read.
        fetch_offset: The offset of the read.
        max_records: How many records the fetch may still acquire.
        batch_size: The size at which new records are divided into batches, at boundaries of the batches in the log.
        is_exact: Whether `max_records` is exact (`record_limit`). Otherwise the last batch of the log is acquired
            completely.
        now_us: The time.

    Returns:
        The acquired ranges, and the number of records.
    """
    if not partition.is_active or max_records <= 0 or not records or records[-1].last < partition.start_offset:
        return [], 0
    limits = partition.limits
    last = records[-1].last
    limit = min(max_records, limits.partition_max_record_locks - partition.in_flight)
    if limit <= 0 and fetch_offset <= partition.end_offset:
        # Nothing new may be acquired, but records in between may be acquired again.
        limit = min(max_records, partition.end_offset - fetch_offset + 1)
        last = min(last, partition.end_offset)
    if limit <= 0:
        return [], 0
    call = Acquisition(partition, acquirer, records, limits, batch_size, is_exact, now_us)
    base = records[0].base  # at or before `fetch_offset`: the replay knows of no records that compaction has removed
    floor = partition.floor(base)
    if floor is None:
        base = max(base, partition.start_offset)
    elif floor.last >= base:
        base = floor.first
    return call.run(partition.between(min(records[0].base, base), last), base, last, limit)


class Acquisition:
    """The state of one call of `SharePartition.acquire`: what it has acquired so far, and for which fetch."""

    def __init__(
        self,
        partition: SharePartition,
        acquirer: Acquirer,
        records: Sequence[LogBatch],
        limits: ShareGroupLimits,
        batch_size: int,
        is_exact: bool,
        now_us: int,
    ) -> None:
        self._partition, self._acquirer, self._records = partition, acquirer, records
        self._limits, self._batch_size, self._is_exact, self._now_us = limits, batch_size, is_exact, now_us
        self._deadline_ms = now_us // 1000 + limits.record_lock_duration_ms
        self._ranges: list[AcquiredRange] = []
        self._acquired = 0

    def run(
        self, batches: Sequence[InFlightBatch], base: int, last: int, limit: int
    ) -> tuple[list[AcquiredRange], int]:
        """Acquire at most `limit` records from `base` to `last`: available ones of the batches, and new ones.

        If the limit is not exact, a whole batch may be acquired beyond it. Returns the acquired ranges, and the number
        of records.
        """
        partition, read_from = self._partition, self._records[0].base
        if not batches:
            self._acquire_new(base, last, limit)
            return self._ranges, self._acquired
        gap = base
        for batch in batches:
            if self._acquired >= limit:
                break
            if partition.has_gap:
                if gap < batch.first:
                    self._acquire_new(gap, batch.first - 1, limit - self._acquired)
                gap = batch.last + 1
                if self._acquired >= limit:
                    break
            remaining = limit - self._acquired
            throttled = self._is_throttled(batch, read_from, last)
            if throttled and self._acquired > 0:
                return self._done()
            whole = batch.whole
            partly = batch.first < read_from or batch.last > last
            if partly or whole is None or (self._is_exact and batch.size > remaining) or throttled:
                if whole is not None and not whole.is_available:
                    continue
                batch.split(partition.lock)
                if self._acquire_offsets(batch, remaining, read_from, last) and throttled:
                    return self._done()
            elif whole.is_available:
                self._acquire_whole(batch, whole)
        if self._acquired < limit and batches[-1].last < last:
            self._acquire_new(batches[-1].last + 1, last, limit - self._acquired)
        return self._done()

    def _done(self) -> tuple[list[AcquiredRange], int]:
        if self._ranges:
            self._partition.advance_gap(self._ranges[-1].last + 1)
        return self._ranges, self._acquired

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Return whether the available records of the batch have been delivered at least `throttle_limit` times.

        Such a batch is delivered alone and in parts. Only offsets from `first` to `last` count, unless the batch has
        one state for all offsets.
        """
        if not self._partition.limits_failing_deliveries:
            return False
        return any(
            state.delivery_count >= self._limits.throttle_limit
            for begin, _, state in batch.states()
            if state.is_available and (batch.whole is not None or first <= begin <= last)
        )

    def _acquire_whole(self, batch: InFlightBatch, state: InFlightState) -> None:
        state.try_acquire(self._acquirer, self._now_us)
        self._partition.lock(state, batch.first, batch.last, self._deadline_ms)
        self._ranges.append(AcquiredRange(batch.first, batch.last, state.delivery_count))
        self._acquired += batch.size

    def _acquire_offsets(self, batch: InFlightBatch, limit: int, first: int, last: int) -> int:
        """Acquire available offsets of a batch one by one, from `first` to `last` (inclusive). Return their number.

        It stops at `limit` offsets if the limit is exact, and earlier if deliveries of these records have failed often.
        """
        acquired: list[AcquiredRange] = []
        max_count, throttle = self._limits.delivery_count_limit, self._limits.throttle_limit
        part: int | None = None
        if not self._partition.limits_failing_deliveries:
            max_count, throttle = MIN_THROTTLE_LIMIT, INT32_MAX
        for offset, state in batch.by_offset.items():
            if offset < first:
                continue
            if offset > last:
                break
            if not state.is_available:
                continue
            count = state.delivery_count
            if max_count > MIN_THROTTLE_LIMIT and count == max_count - 1 and acquired:
                break  # the last delivery of a record is made alone
            if count >= throttle and part is None:
                part = max(1, len(batch.by_offset) >> (count - throttle + 1))
            state.try_acquire(self._acquirer, self._now_us)
            self._partition.lock(state, offset, offset, self._deadline_ms)
            acquired.append(AcquiredRange(offset, offset, state.delivery_count))
            is_last = state.delivery_count == max_count and max_count > MIN_THROTTLE_LIMIT
            if is_last or (self._is_exact and len(acquired) == limit) or len(acquired) == part:
                break
        self._ranges += _joined(acquired)
        self._acquired += len(acquired)
        return len(acquired)

    def _acquire_new(self, first: int, last: int, limit: int) -> None:
        """Acquire records that are not in flight yet, up to the end of the batch in the log that reaches the limit."""
        partition = self._partition
        if not partition.firsts and partition.end_offset > first:
            first = partition.end_offset
        until = last
        if limit < last - first + 1:
            until = self._end_of_batch(first + limit - 1)
            if partition.has_gap:
                until = min(until, last)
        acquired = self._new_batches(first, until, limit)
        if partition.firsts[0] == first:
            partition.start_offset = first
        partition.end_offset = max(partition.end_offset, until)
        if self._is_exact:
            until = acquired[0].last
        partition.advance_gap(until + 1)
        self._ranges += acquired
        self._acquired += until - first + 1

    def _end_of_batch(self, offset: int) -> int:
        """Return the last offset of the log's batch that holds `offset`."""
        return self._records[bisect_left(self._records, offset, key=attrgetter("last"))].last

    def _new_batches(self, first: int, last: int, limit: int) -> list[AcquiredRange]:
        bounds = [first]
        if not self._is_exact:
            for record_batch in self._records:
                if record_batch.base > last:
                    break
                if record_batch.base - bounds[-1] >= self._batch_size:
                    bounds.append(record_batch.base)
        acquired = []
        for begin, end in zip(bounds, [*(bound - 1 for bound in bounds[1:]), last], strict=True):
            state = InFlightState(RecordState.AVAILABLE, 0)
            state.try_acquire(self._acquirer, self._now_us)
            batch = InFlightBatch(begin, end, state)
            if self._is_exact and batch.size > limit:
                end = begin + limit - 1
                batch.split_at(end, self._partition.lock, self._deadline_ms)
                self._partition.has_gap_or_release = True
            else:
                self._partition.lock(state, begin, end, self._deadline_ms)
            self._partition.put(batch)
            acquired.append(AcquiredRange(begin, end, 1))
        return acquired


def _joined(offsets: Sequence[AcquiredRange]) -> list[AcquiredRange]:
    """Join adjacent ranges with the same delivery count."""
    joined: list[AcquiredRange] = []
    for acquired in offsets:
        before = joined[-1] if joined else None
        if before is not None and before.last + 1 == acquired.first and before[2] == acquired[2]:
            joined[-1] = before._replace(last=acquired.last)
        else:
            joined.append(acquired)
    return joined

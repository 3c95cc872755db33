"""A replica of a partition as its broker sees it: log, leadership, in-sync replicas and watermarks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import Any, NamedTuple

from purgatory_udf.contract.outcome import TopicPartition


class OffsetMetadata(NamedTuple):
    """An offset with its segment and position (LogOffsetMetadata). They are never recalculated, so may be stale."""

    offset: int
    segment: int
    position: int


class LogBatch(NamedTuple):
    """A batch of records in the log: its first and last offset, and its size in bytes."""

    base: int
    last: int
    size: int


class PartitionLog:
    """A replica's log, reduced to what waiting operations depend on: batch positions and segment base offsets.

        append(5, 500)   append(9, 400)   roll(9)   append(12, 300)

        offsets    0 . . . . 5 . . . 9 . . 12
        batches    [  500    )[ 400  )[ 300 )
        positions  0         500     900    1200     an offset has the position at which its batch starts
        segments   0                 9               the greatest base offset at or below the offset

    Positions are in bytes, relative to the first event of the partition, and continue over all segments. The log before
    that event counts as one batch at position 0, which holds all offsets below the first known end.
    """

    def __init__(self) -> None:
        self.end: OffsetMetadata | None = None
        self.start: int | None = None
        # Known for tiered partitions only.
        self.local_start: int | None = None
        self._batch_ends: list[int] = []
        self._batch_positions: list[int] = []
        self._batch_sizes: list[int] = []  # 0 where an append may hold several batches
        self._segment_bases = [0]
        self._end_position = 0

    def append(self, end_offset: int, size: int, one_batch: bool = False) -> bool:
        """Append `size` bytes up to `end_offset`. Return False, without effect, if that does not move the log end.

        Without `one_batch`, the number of batches is unknown. They count as one batch for positions, but a read may end
        anywhere within it.
        """
        if self.end is not None and end_offset <= self.end.offset:
            return False
        self._batch_ends.append(end_offset)
        self._batch_positions.append(self._end_position)
        self._batch_sizes.append(size if one_batch else 0)
        self._end_position += size
        self._set_end(end_offset)
        return True

    def roll(self, base: int) -> None:
        """Start a new segment at `base`. A roll at the log end also moves the log end to the new segment."""
        if not self._segment_bases or base > self._segment_bases[-1]:
            self._segment_bases.append(base)
            if self.end is not None:
                self._set_end(self.end.offset)

    def truncate(self, offset: int) -> bool:
        """Truncate the log to `offset`, dropping the whole batch that holds it.

        Return False, without effect, if the log does not reach beyond the offset.
        """
        if self.end is None or offset >= self.end.offset:
            return False
        self._end_position = self.position(offset)
        retained = bisect_right(self._batch_ends, offset)
        del self._batch_ends[retained:], self._batch_positions[retained:], self._batch_sizes[retained:]
        del self._segment_bases[bisect_right(self._segment_bases, offset) :]
        self._set_end(offset)
        return True

    def advance_start(self, offset: int) -> None:
        """Raise the log start offset: records below `offset` have been deleted."""
        self.start = offset if self.start is None else max(self.start, offset)

    def advance_local_start(self, offset: int) -> None:
        """Raise the local log start offset: records below `offset` are only in remote storage."""
        self.local_start = offset if self.local_start is None else max(self.local_start, offset)

    @property
    def is_empty(self) -> bool:
        """Whether the log is known to hold no records."""
        return self.end is not None and self.end.offset == (self.start or 0)

    def offset_metadata(self, offset: int) -> OffsetMetadata:
        """Return the offset with its current segment and position."""
        return OffsetMetadata(offset, self.segment(offset), self.position(offset))

    def position(self, offset: int) -> int:
        """Return the position of the batch that holds `offset`; at or beyond the log end, that of the log end."""
        batch = bisect_right(self._batch_ends, offset)
        return self._batch_positions[batch] if batch < len(self._batch_positions) else self._end_position

    def segment(self, offset: int) -> int:
        """Return the base offset of the segment that holds `offset`."""
        segment = bisect_right(self._segment_bases, offset)
        return self._segment_bases[segment - 1] if segment else -1

    def read(
        self, offset: int, upper: OffsetMetadata, max_bytes: int, min_one_message: bool, hard_max_bytes: bool = False
    ) -> tuple[int, int]:
        """Read from `offset`, below `upper` and within one segment (`LogSegment.read`).

        Args:
            offset: The first offset to read.
            upper: The end up to which the reader may read.
            max_bytes: The limit in bytes. The read is cut there, within a batch if necessary.
            min_one_message: Whether the first batch is returned even if it exceeds `max_bytes`. Without it, a first
                batch that does not fit returns nothing.
            hard_max_bytes: Whether a first batch that does not fit is cut at `max_bytes`, too.

        Returns:
            The number of bytes, and the offset after the last complete batch.
        """
        begin = self.position(offset)
        first = self._batch_size_at(begin)
        limit = max(max_bytes, first) if min_one_message else max_bytes
        if limit < first and not hard_max_bytes:
            return 0, offset
        size = max(0, min(limit, self._readable_end(offset, upper) - begin))
        complete = bisect_right(self._batch_positions, begin + size) - (begin + size < self._end_position)
        read_to = self._batch_ends[complete - 1] if size and complete else offset
        return size, max(offset, min(read_to, upper.offset))

    @property
    def size(self) -> int:
        """The position of the log end, in bytes since the first event of the partition."""
        return self._end_position

    def __len__(self) -> int:
        """Return the number of batches that are remembered individually."""
        return len(self._batch_ends)

    def merge_oldest(self, count: int, needed: int | None) -> None:
        """Merge the first `count` batches into one, except for those from the offset `needed` on."""
        if needed is not None:
            count = min(count, bisect_right(self._batch_ends, needed))
        if count > 1:
            del self._batch_ends[: count - 1], self._batch_positions[1:count], self._batch_sizes[1:count]
            self._batch_sizes[0] = 0

    def batches_from(self, offset: int, size: int) -> LogBatches:
        """Return the complete batches in the `size` bytes from the batch that holds `offset`."""
        positions = self._batch_positions
        first, until = bisect_right(self._batch_ends, offset), self.position(offset) + size
        stop = bisect_right(positions, until, min(first + 1, len(positions))) - 1
        if stop == len(positions) - 1 and self._end_position <= until:
            stop += 1
        return LogBatches(self, first, max(first, stop))

    def batch(self, index: int) -> LogBatch:
        """Return the batch with this index among those that are remembered individually."""
        ends, positions = self._batch_ends, self._batch_positions
        following = positions[index + 1] if index + 1 < len(positions) else self._end_position
        return LogBatch(ends[index - 1] if index else self.start or 0, ends[index] - 1, following - positions[index])

    def _batch_size_at(self, position: int) -> int:
        """Return the size of the batch that starts at `position`, ignoring empty ones; 0 if it is not one batch."""
        following = bisect_right(self._batch_positions, position)
        return self._batch_sizes[following - 1] if following else 0

    def _readable_end(self, offset: int, upper: OffsetMetadata) -> int:
        """Return the position of `upper`, or of the end of the segment of `offset` if `upper` is on a later one."""
        segment = self.segment(offset)
        if segment == upper.segment:
            return upper.position
        if segment > upper.segment:
            return self.position(offset)
        return self.position(self._segment_bases[bisect_right(self._segment_bases, offset)])

    def _set_end(self, offset: int) -> None:
        self.end = OffsetMetadata(offset, self.segment(offset), self._end_position)


class LogBatches(Sequence[LogBatch]):
    """Consecutive batches of a log, each created when it is read. A reader needs few of many. Valid until an append."""

    def __init__(self, log: PartitionLog, first: int, stop: int) -> None:
        self._log, self._indexes = log, range(first, stop)

    def __len__(self) -> int:
        return len(self._indexes)

    def __getitem__(self, index: Any) -> Any:
        return self._log.batch(self._indexes[index])

    def __iter__(self) -> Iterator[LogBatch]:
        return map(self._log.batch, self._indexes)


class ReplicaStatus(Enum):
    """Whether and how the broker serves the partition.

    Attributes:
        error: The error with which the broker answers requests; `NONE` if it serves them.
        rule: The `completed_by` of waiting requests that this error completes.
        is_hosted: Whether the broker has a replica in a working log directory, as leader or as follower.
    """

    ONLINE = ("NONE", "", True)
    FOLLOWER = ("NOT_LEADER_OR_FOLLOWER", "not_leader", True)
    NOT_LEADER = ("NOT_LEADER_OR_FOLLOWER", "not_leader", False)
    OFFLINE = ("KAFKA_STORAGE_ERROR", "offline", False)
    DELETED = ("UNKNOWN_TOPIC_OR_PARTITION", "unknown_partition", False)

    def __init__(self, error: str, rule: str, is_hosted: bool) -> None:
        self.error = error
        self.rule = rule
        self.is_hosted = is_hosted


class FetchIsolation(Enum):
    """The end up to which a reader may read. `isolation.end(replica)` returns None while that end is unknown."""

    LOG_END = attrgetter("log.end")  # followers
    HIGH_WATERMARK = attrgetter("high_watermark")  # consumers
    TXN_COMMITTED = attrgetter("last_stable_offset")  # read_committed consumers

    def __init__(self, end: Callable[[Partition], OffsetMetadata | None]) -> None:
        self.end = end


class LeaderHwChange(Enum):
    """The effect of an append on the high watermark."""

    INCREASED = auto()  # the log end and the high watermark moved
    SAME = auto()  # only the log end moved
    NONE = auto()  # the append did not move the log end


class RemoteStorage:
    """The limits on a broker's reads of remote storage.

    Attributes:
        reads_all: Whether a fetch reads all of its remote partitions, or only the first (Kafka up to 4.1).
        is_used: Whether the broker has had a tiered partition.
        quota_exhausted: Whether the quota of remote reads (`remote.log.manager.fetch.max.bytes.per.second`) is used up.
        queue_full: Whether the pool of readers takes no further task.
    """

    def __init__(self, reads_all: bool = True) -> None:
        self.reads_all = reads_all
        self.is_used = self.quota_exhausted = self.queue_full = False


class Partition:
    """A replica. Until the trace reports otherwise, this broker leads it and it is online. None means unknown."""

    def __init__(self, key: TopicPartition, broker_id: int, remote_storage: RemoteStorage | None = None) -> None:
        self.key = key
        self.remote_storage = remote_storage or RemoteStorage()
        self.log = PartitionLog()
        self.status = ReplicaStatus.ONLINE
        self.leader_epoch: int | None = None
        self.min_isr: int | None = None
        self.isr: tuple[int, ...] | None = None
        self.follower_ends: dict[int, int] = {}
        # Whether a replication quota throttles a follower, for followers of which the trace reports it.
        self.throttled_followers: dict[int, bool] = {}
        self.high_watermark: OffsetMetadata | None = None
        self._reported_last_stable_offset: OffsetMetadata | None = None
        # First and last offsets of the records of aborted transactions, in order, as the trace reports them.
        self.aborted: list[tuple[int, int]] = []
        self._broker_id = broker_id

    @property
    def last_stable_offset(self) -> OffsetMetadata | None:
        """The high watermark, until the trace first reports a last stable offset for the partition."""
        return self.high_watermark if self._reported_last_stable_offset is None else self._reported_last_stable_offset

    @property
    def is_under_min_isr(self) -> bool:
        return self.isr is not None and self.min_isr is not None and len(self.isr) < self.min_isr

    def append(self, end_offset: int, size: int, one_batch: bool = False) -> LeaderHwChange:
        """Append to the log as the leader, and increment the high watermark if the append allows it.

        For the arguments see `PartitionLog.append`.
        """
        if not self.log.append(end_offset, size, one_batch):
            return LeaderHwChange.NONE
        return LeaderHwChange.INCREASED if self._maybe_increment_leader_hw() else LeaderHwChange.SAME

    def truncate(self, offset: int) -> None:
        """Truncate the log. Watermarks above the new end are lowered to it, with their current metadata."""
        if self.log.truncate(offset):
            if self.high_watermark is not None and self.high_watermark.offset > offset:
                self.high_watermark = self.log.offset_metadata(offset)
            if self._reported_last_stable_offset is not None and self._reported_last_stable_offset.offset > offset:
                self._reported_last_stable_offset = self.log.offset_metadata(offset)

    def set_high_watermark(self, offset: int) -> bool:
        """Apply a reported high watermark, unless it is lower than the current one. Return whether it was applied.

        An equal one refreshes segment and position of the high watermark.
        """
        if self.high_watermark is not None and offset < self.high_watermark.offset:
            return False
        self.high_watermark = self.log.offset_metadata(offset)
        return True

    def set_last_stable_offset(self, offset: int) -> None:
        if self._reported_last_stable_offset is None or offset >= self._reported_last_stable_offset.offset:
            self._reported_last_stable_offset = self.log.offset_metadata(offset)

    def make_leader(self, leader_epoch: int | None, isr: tuple[int, ...] | None, min_isr: int | None) -> None:
        """Make this broker the leader of the partition. An argument of None keeps the known value.

        The high watermark may rise, because a smaller `isr` has fewer replicas to wait for.
        """
        self.status = ReplicaStatus.ONLINE
        self.leader_epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        self.min_isr = self.min_isr if min_isr is None else min_isr
        self.isr = self.isr if isr is None else isr
        self._maybe_increment_leader_hw()

    def stop(self) -> None:
        """Apply the end of the broker's process: the log stays, but the leader's knowledge of its followers is lost.

        After a restart the broker leads nothing until the trace reports it as leader.
        """
        self.status = ReplicaStatus.NOT_LEADER
        self.follower_ends.clear()

    def set_isr(self, isr: tuple[int, ...]) -> bool:
        """Set the in-sync replicas. Return True if that raised the high watermark."""
        self.isr = isr
        return self._maybe_increment_leader_hw()

    def update_follower_fetch_state(self, replica_id: int, offset: int) -> bool:
        """Record that a follower's log ends at `offset` or later. Return True if that raised the high watermark."""
        if self.status is not ReplicaStatus.ONLINE:
            return False
        before, high_watermark = self.follower_ends.get(replica_id), self.high_watermark
        if before is not None and offset <= before:
            return False
        self.follower_ends[replica_id] = offset
        # A follower that was beyond the high watermark did not hold it back.
        is_held_back = before is None or high_watermark is None or before <= high_watermark.offset
        return is_held_back and self._maybe_increment_leader_hw()

    def _maybe_increment_leader_hw(self) -> bool:
        """Raise the high watermark to the lowest log end of the in-sync replicas, if all of these are known.

        Returns True if it rose. Since Kafka 3.7 it does not rise while the in-sync replicas are fewer than
        `min.insync.replicas`.
        """
        end, high_watermark, ends = self.log.end, self.high_watermark, self.follower_ends
        if self.isr is None or end is None or self.is_under_min_isr:
            return False
        least = end.offset
        for replica_id in self.isr:
            if replica_id != self._broker_id:
                follower_end = ends.get(replica_id)
                if follower_end is None or (high_watermark is not None and follower_end <= high_watermark.offset):
                    return False
                if follower_end < least:
                    least = follower_end
        if high_watermark is not None and least <= high_watermark.offset:
            return False
        self.high_watermark = end if least == end.offset else self.log.offset_metadata(least)
        return True

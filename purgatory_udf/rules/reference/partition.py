"""A replica of a partition as its broker sees it: the log, who leads, who is in sync, and how far everybody is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum, auto
from operator import attrgetter
from typing import NamedTuple

from purgatory_udf.contract.topic_partition import TopicPartition

# One replica's log as far as waiting needs it: offsets, the batches' positions in bytes, and the segments' bases.
#
#     append(5, 500)   append(9, 400)   roll(9)   append(12, 300)
#
#     offsets    0 . . . . 5 . . . 9 . . 12
#     batches    [  500    )[ 400  )[ 300 )
#     positions  0         500     900    1200     an offset stands where the batch that holds it starts
#     segments   -1                9               the greatest base at or below the offset, -1 before the first known
#
# Positions count from the first event known, over all segments. What came before is one batch without a beginning:
# offsets below the first known end stand at 0.


class OffsetMetadata(NamedTuple):
    """An offset with the segment and the position that it had when it was taken. Kafka does not recalculate them."""

    offset: int
    segment: int
    position: int


class PartitionLog:
    def __init__(self) -> None:
        self.end: OffsetMetadata | None = None
        self.start: int | None = None
        self._batch_ends: list[int] = []
        self._batch_positions: list[int] = []
        self._batch_sizes: list[int] = []  # 0: not known to be one batch
        self._segment_bases = [0]
        self._end_position = 0

    def append(self, end_offset: int, size: int, one_batch: bool = False) -> bool:
        """From the log end to `end_offset`. False, and nothing happens, if that moves the end nowhere.

        What is not said to be one batch is one for positions all the same, but none that a read must give whole.
        """
        if self.end is not None and end_offset <= self.end.offset:
            return False
        self._batch_ends.append(end_offset)
        self._batch_positions.append(self._end_position)
        self._batch_sizes.append(size if one_batch else 0)
        self._end_position += size
        self._end_at(end_offset)
        return True

    def roll(self, base: int) -> None:
        """A new segment begins; a roll at the log end takes the end along at once."""
        if not self._segment_bases or base > self._segment_bases[-1]:
            self._segment_bases.append(base)
            if self.end is not None:
                self._end_at(self.end.offset)

    def truncate(self, offset: int) -> bool:
        """Cut the log back to `offset`; the batch that holds it goes whole. False if the log ends there or before."""
        if self.end is None or offset >= self.end.offset:
            return False
        self._end_position = self.position(offset)
        kept = bisect_right(self._batch_ends, offset)
        del self._batch_ends[kept:], self._batch_positions[kept:], self._batch_sizes[kept:]
        del self._segment_bases[bisect_right(self._segment_bases, offset) :]
        self._end_at(offset)
        return True

    def advance_start(self, offset: int) -> None:
        """Records below `offset` were deleted."""
        self.start = offset if self.start is None else max(self.start, offset)

    def metadata(self, offset: int) -> OffsetMetadata:
        """The offset as it stands now."""
        return OffsetMetadata(offset, self.segment(offset), self.position(offset))

    def position(self, offset: int) -> int:
        """Where the batch that holds `offset` starts; at or beyond the log end, the end's position."""
        batch = bisect_right(self._batch_ends, offset)
        return self._batch_positions[batch] if batch < len(self._batch_positions) else self._end_position

    def segment(self, offset: int) -> int:
        """The base of the segment that `offset` belongs to."""
        segment = bisect_right(self._segment_bases, offset)
        return self._segment_bases[segment - 1] if segment else -1

    def read(
        self, offset: int, upper: OffsetMetadata, max_bytes: int, at_least_one: bool, hard_limit: bool = False
    ) -> tuple[int, int]:
        """(bytes, next offset) of what lies from `offset` on, below `upper` and within one segment (`LogSegment.read`).

        The bytes are cut at `max_bytes`, within a batch if need be; the next offset is that after the last whole batch.
        With `at_least_one` the first batch is given even if it is larger: otherwise it could never be consumed. Without
        it a first batch that does not fit gives nothing, but under a `hard_limit`, where it is cut like any other.
        """
        begin = self.position(offset)
        first = self._size_at(begin)
        limit = max(max_bytes, first) if at_least_one else max_bytes
        if limit < first and not hard_limit:
            return 0, offset
        size = max(0, min(limit, self._readable_to(offset, upper) - begin))
        whole = bisect_right(self._batch_positions, begin + size) - (begin + size < self._end_position)
        read_to = self._batch_ends[whole - 1] if size and whole else offset
        return size, max(offset, min(read_to, upper.offset))

    def _size_at(self, position: int) -> int:
        """How large the batch is that starts at this position; one without bytes is none."""
        following = bisect_right(self._batch_positions, position)
        return self._batch_sizes[following - 1] if following else 0

    def _readable_to(self, offset: int, upper: OffsetMetadata) -> int:
        """The position where the segment of `offset` ends, or `upper` if that lies on it; of a later one, nothing."""
        segment = self.segment(offset)
        if segment == upper.segment:
            return upper.position
        if segment > upper.segment:
            return self.position(offset)
        return self.position(self._segment_bases[bisect_right(self._segment_bases, offset)])

    def _end_at(self, offset: int) -> None:
        self.end = OffsetMetadata(offset, self.segment(offset), self._end_position)


class ReplicaStatus(Enum):
    """Whether the broker leads the partition and has its log; if not, what it answers, and the rule's name."""

    ONLINE = ("NONE", "")
    NOT_LEADER = ("NOT_LEADER_OR_FOLLOWER", "not_leader")
    OFFLINE = ("KAFKA_STORAGE_ERROR", "offline")
    DELETED = ("UNKNOWN_TOPIC_OR_PARTITION", "unknown_partition")

    def __init__(self, error: str, rule: str) -> None:
        self.error = error
        self.rule = rule


class FetchIsolation(Enum):
    """Up to which end of a replica a reader may read: `isolation.end(replica)`, None where it is unknown."""

    LOG_END = attrgetter("log.end")  # followers
    HIGH_WATERMARK = attrgetter("high_watermark")  # consumers
    TXN_COMMITTED = attrgetter("last_stable")  # read_committed consumers

    def __init__(self, end: Callable[[Partition], OffsetMetadata | None]) -> None:
        self.end = end


class LeaderHwChange(Enum):
    """What an append did."""

    INCREASED = auto()  # it moved the log end, and the high watermark with it
    SAME = auto()  # it moved the log end only
    NONE = auto()  # nothing: the end was there already


class Partition:
    """Led, online and empty of knowledge until a trace says more. `None` is unknown."""

    def __init__(self, key: TopicPartition, broker_id: int) -> None:
        self.key = key
        self.log = PartitionLog()
        self.standing = ReplicaStatus.ONLINE
        self.leader_epoch: int | None = None
        self.min_isr: int | None = None
        self.isr: tuple[int, ...] | None = None
        self.follower_ends: dict[int, int] = {}
        self.throttles: dict[int, bool] = {}  # which followers a replication quota holds back, where that is told
        self.high_watermark: OffsetMetadata | None = None
        self._own_last_stable: OffsetMetadata | None = None
        self._broker_id = broker_id

    @property
    def last_stable(self) -> OffsetMetadata | None:
        """The high watermark, until the partition is first said to have a last stable offset of its own."""
        return self.high_watermark if self._own_last_stable is None else self._own_last_stable

    @property
    def under_min_isr(self) -> bool:
        return self.isr is not None and self.min_isr is not None and len(self.isr) < self.min_isr

    def append(self, end_offset: int, size: int, one_batch: bool = False) -> LeaderHwChange:
        if not self.log.append(end_offset, size, one_batch):
            return LeaderHwChange.NONE
        return LeaderHwChange.INCREASED if self._advance_high_watermark() else LeaderHwChange.SAME

    def truncate(self, offset: int) -> None:
        """The watermarks above the new end come down to it, and are taken anew."""
        if self.log.truncate(offset):
            if self.high_watermark is not None and self.high_watermark.offset > offset:
                self.high_watermark = self.log.metadata(offset)
            if self._own_last_stable is not None and self._own_last_stable.offset > offset:
                self._own_last_stable = self.log.metadata(offset)

    def take_high_watermark(self, offset: int) -> bool:
        """Told from outside. Its metadata are taken anew even if the offset is the same; a lower one is ignored."""
        if self.high_watermark is not None and offset < self.high_watermark.offset:
            return False
        self.high_watermark = self.log.metadata(offset)
        return True

    def take_last_stable(self, offset: int) -> None:
        if self._own_last_stable is None or offset >= self._own_last_stable.offset:
            self._own_last_stable = self.log.metadata(offset)

    def lead(self, leader_epoch: int | None, isr: tuple[int, ...] | None, min_isr: int | None) -> None:
        """This broker leads the partition (again); what is not said stays as it was."""
        self.standing = ReplicaStatus.ONLINE
        self.leader_epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        self.min_isr = self.min_isr if min_isr is None else min_isr
        self.isr = self.isr if isr is None else isr
        self._advance_high_watermark()

    def stop(self) -> None:
        """Its broker's process is gone, and with it what that knew of followers; the log stays. When it is back, it
        leads nothing until it is told so."""
        self.standing = ReplicaStatus.NOT_LEADER
        self.follower_ends.clear()

    def change_isr(self, isr: tuple[int, ...]) -> bool:
        """Whether that raised the high watermark."""
        self.isr = isr
        return self._advance_high_watermark()

    def follower_reached(self, replica_id: int, offset: int) -> bool:
        """A follower's log ends at `offset` at least; whether that raised the high watermark."""
        if self.standing is not ReplicaStatus.ONLINE:
            return False
        self.follower_ends[replica_id] = max(offset, self.follower_ends.get(replica_id, offset))
        return self._advance_high_watermark()

    def _advance_high_watermark(self) -> bool:
        """Up to the least log end over the in-sync replicas, where all of these are known.

        From Kafka 3.7 on it stands still while the in-sync set is smaller than `min.insync.replicas`.
        """
        if self.isr is None or self.log.end is None or self.under_min_isr:
            return False
        least = self.log.end.offset
        for replica_id in self.isr:
            if replica_id != self._broker_id:
                follower_end = self.follower_ends.get(replica_id)
                if follower_end is None:
                    return False
                least = min(least, follower_end)
        if self.high_watermark is not None and least <= self.high_watermark.offset:
            return False
        self.high_watermark = self.log.metadata(least)
        return True

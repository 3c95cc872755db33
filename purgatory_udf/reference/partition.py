"""A replica of a partition as its broker sees it: the log, who leads, who is in sync, and how far everybody is."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from operator import attrgetter

from purgatory_udf.reference.partition_log import OffsetMetadata, PartitionLog
from purgatory_udf.reference.topic_partition import TopicPartition


class Standing(Enum):
    """Whether the broker leads the partition and has its log; if not, what it answers, and the rule's name."""

    ONLINE = ("NONE", "")
    NOT_LEADER = ("NOT_LEADER_OR_FOLLOWER", "not_leader")
    OFFLINE = ("KAFKA_STORAGE_ERROR", "offline")
    DELETED = ("UNKNOWN_TOPIC_OR_PARTITION", "unknown_partition")

    def __init__(self, error: str, rule: str) -> None:
        self.error = error
        self.rule = rule


class Isolation(Enum):
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
        self.standing = Standing.ONLINE
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
        self.standing = Standing.ONLINE
        self.leader_epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        self.min_isr = self.min_isr if min_isr is None else min_isr
        self.isr = self.isr if isr is None else isr
        self._advance_high_watermark()

    def stop(self) -> None:
        """Its broker's process is gone, and with it what that knew of followers; the log stays. When it is back, it
        leads nothing until it is told so."""
        self.standing = Standing.NOT_LEADER
        self.follower_ends.clear()

    def change_isr(self, isr: tuple[int, ...]) -> bool:
        """Whether that raised the high watermark."""
        self.isr = isr
        return self._advance_high_watermark()

    def follower_reached(self, replica_id: int, offset: int) -> bool:
        """A follower's log ends at `offset` at least; whether that raised the high watermark."""
        if self.standing is not Standing.ONLINE:
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

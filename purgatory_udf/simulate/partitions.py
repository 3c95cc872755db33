"""Partitions as the whole cluster knows them: who replicates, who leads, who is in sync, how far each follower is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from purgatory_udf.reference.in_sync import InSyncReplicas
from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.stable import Transactions


@dataclass(slots=True)
class Copy:
    """A follower's log: its end, the high watermark it has heard of, and what it appended that no event has told yet.

    While a broker follows, its log concerns nobody. When it becomes the leader, it is told batch by batch.
    """

    end: int = 0
    told_end: int = 0
    high_watermark: int = 0
    untold: deque[tuple[int, int]] = field(default_factory=deque)

    def append(self, end: int, size: int, high_watermark: int) -> None:
        if end > self.end:
            self.untold.append((end, size))
            self.end = end
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))

    def truncate(self, end: int) -> None:
        """Cut the log back; a batch that goes beyond the new end goes whole, so its place holds no bytes any more."""
        cut = False
        while self.untold and self.untold[-1][0] > end:
            self.untold.pop()
            cut = True
        if cut and end > self.told_end:
            self.untold.append((end, 0))
        self.end = min(self.end, end)
        self.high_watermark = min(self.high_watermark, end)


@dataclass(slots=True)
class PartitionState:
    """`leader` is None between one leader and the next."""

    key: TopicPartition
    replicas: tuple[int, ...]
    min_isr: int
    segment_bytes: int
    leader: int | None
    epoch: int
    in_sync: InSyncReplicas
    copies: dict[int, Copy]
    segment_begins: int = 0
    transactions: Transactions = field(default_factory=Transactions)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.in_sync.isr

    def followed_by(self, broker: int) -> bool:
        return self.leader is not None and self.leader != broker and broker in self.replicas

"""Partitions as the whole cluster knows them: who replicates, who leads, who is in sync, how far each follower is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.rules.reference.partition import Partition

# What transactions hold back of a partition: its last stable offset, up to which readers of committed records read.
#
#     log        │ a a │ b │ a │ b │ A │ c │ B │     a, b: records of two transactions; A, B: the markers that end them
#     unstable    from the first a ……………┤          until A is replicated, then from the first b, until B is
#     last stable: the high watermark, or the first offset of whatever is unstable, if that is less
#
# Kafka: `ProducerStateManager.firstUnstableOffset` (the first of undecided transactions, and of those whose markers
# the high watermark has not passed), `UnifiedLog.fetchLastStableOffsetMetadata`.


@dataclass(slots=True)
class EndedTransaction:
    """A transaction whose marker ends at `marker_end`."""

    name: str
    first: int
    marker_end: int


@dataclass(slots=True)
class PartitionTransactions:
    """Of one partition's log, whoever leads it. `announced`: the last stable offset as its leader was told it last;
    `used`: whether there has been any."""

    used: bool = False
    announced: int | None = None
    _open: dict[str, int] = field(default_factory=dict)
    _ended: list[EndedTransaction] = field(default_factory=list)

    def begin(self, name: str, offset: int) -> None:
        """Records of it lie from this offset on, unless others of it do before."""
        self.used = True
        self._open.setdefault(name, offset)

    def end(self, name: str, marker_end: int) -> None:
        """Its marker has been appended. A second one, for want of an answer, ends nothing."""
        first = self._open.pop(name, None)
        if first is not None:
            self._ended.append(EndedTransaction(name, first, marker_end))

    def last_stable(self, high_watermark: int) -> int:
        self._ended = [transaction for transaction in self._ended if transaction.marker_end > high_watermark]
        return min([high_watermark, *self._open.values(), *(transaction.first for transaction in self._ended)])

    def truncate(self, end: int) -> None:
        """The log ends there now: a transaction whose marker is gone is open again."""
        lost = [transaction for transaction in self._ended if transaction.marker_end > end]
        self._ended = [transaction for transaction in self._ended if transaction.marker_end <= end]
        self._open |= {transaction.name: transaction.first for transaction in lost}
        self._open = {name: first for name, first in self._open.items() if first < end}


def high_watermark_after(
    replica: Partition,
    leader: int,
    *,
    end: int | None = None,
    isr: tuple[int, ...] | None = None,
    follower: tuple[int, int] | None = None,
) -> int | None:
    """Where the high watermark will be when the log ends at `end`, `isr` is in sync, or that follower has reached that
    offset: what `Partition` does by itself as soon as it is told."""
    now = None if replica.high_watermark is None else replica.high_watermark.offset
    log_end = end if end is not None or replica.log.end is None else replica.log.end.offset
    isr = replica.isr if isr is None else isr
    if isr is None or log_end is None or (replica.min_isr is not None and len(isr) < replica.min_isr):
        return now
    ends = dict(replica.follower_ends)
    if follower is not None:
        ends[follower[0]] = max(follower[1], ends.get(follower[0], 0))
    others = [broker for broker in isr if broker != leader]
    if any(broker not in ends for broker in others):
        return now
    return max([min([log_end, *(ends[broker] for broker in others)]), *([now] if now is not None else [])])


# Which followers keep up with their leader: Kafka's `replica.lag.time.max.ms`, for whoever simulates a leader.
#
# A replayed trace says itself who is in sync; this says who would be.


# Since Kafka 2.5; 10 s before. Looked at every half of it.
REPLICA_LAG_TIME_MAX_MS = 30_000


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower has fetched, and when it last had everything that the leader had."""

    log_end: int
    caught_up_ms: int
    fetched_ms: int
    leader_end_when_fetched: int

    def fetched(self, fetch_offset: int, leader_end: int, now_ms: int) -> None:
        """A fetch from `fetch_offset` says that the follower has all before it.

        It need not reach the leader's end, which moves: to have by this fetch what there was at the last one is to have
        been caught up then.
        """
        if fetch_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_when_fetched:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end = fetch_offset
        self.leader_end_when_fetched = leader_end
        self.fetched_ms = now_ms


class InSyncReplicas:
    """The in-sync set of one partition at its leader."""

    def __init__(
        self, leader: int, followers: list[int], now_ms: int, lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        self.isr: tuple[int, ...] = (leader, *followers)
        self._leader = leader
        self._lag_time_max_ms = lag_time_max_ms
        self._followers = {replica_id: FollowerProgress(0, now_ms, now_ms, 0) for replica_id in followers}

    def fetched(self, replica_id: int, fetch_offset: int, leader_end: int, high_watermark: int, now_ms: int) -> bool:
        """A follower fetches; whether that takes it back into the set: once it has reached the high watermark."""
        self._followers[replica_id].fetched(fetch_offset, leader_end, now_ms)
        if replica_id in self.isr or fetch_offset < high_watermark:
            return False
        self.isr = (*self.isr, replica_id)
        return True

    def shrink(self, leader_end: int, now_ms: int) -> bool:
        """Drop the followers that have not been caught up for too long; whether there were any."""
        kept = tuple(
            replica_id
            for replica_id in self.isr
            if replica_id == self._leader or self._keeps_up(replica_id, leader_end, now_ms)
        )
        shrunk = kept != self.isr
        self.isr = kept
        return shrunk

    def _keeps_up(self, replica_id: int, leader_end: int, now_ms: int) -> bool:
        follower = self._followers[replica_id]
        return follower.log_end == leader_end or now_ms - follower.caught_up_ms <= self._lag_time_max_ms


@dataclass(slots=True)
class ReplicaLog:
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
    copies: dict[int, ReplicaLog]
    segment_begins: int = 0
    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.in_sync.isr

    def followed_by(self, broker: int) -> bool:
        return self.leader is not None and self.leader != broker and broker in self.replicas

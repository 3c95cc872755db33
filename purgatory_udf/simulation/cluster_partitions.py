"""The state of each partition across the cluster: replicas, leader, in-sync set, follower logs, transactions.

The last stable offset of a partition, up to which `read_committed` consumers read:

    log        │ a a │ b │ a │ b │ A │ c │ B │     a, b: records of two transactions; A, B: their end markers
    unstable    from the first a ……………┤          until A is replicated, then from the first b until B is
    last stable: the smaller of the high watermark and the first unstable offset

Kafka: `ProducerStateManager.firstUnstableOffset` (the first offset of ongoing transactions and of transactions
with markers beyond the high watermark) and `UnifiedLog.fetchLastStableOffsetMetadata`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.partition import Partition

# First and last offset of the records of a batch.
OffsetRange = tuple[int, int]


@dataclass(slots=True)
class EndedTransaction:
    """An ended transaction: the batches of its records, and the log end after its marker."""

    name: str
    batches: list[OffsetRange]
    marker_end: int
    aborts: bool


@dataclass(slots=True)
class PartitionTransactions:
    """The transactions in one partition's log.

    `recorded_last_stable` is the last stable offset that the trace last recorded for the current leader. `used` is
    whether the partition has had any transaction.
    """

    used: bool = False
    recorded_last_stable: int | None = None
    _open: dict[str, list[OffsetRange]] = field(default_factory=dict)
    _ended: list[EndedTransaction] = field(default_factory=list)
    # Of transactions with replicated markers.
    _aborted: list[OffsetRange] = field(default_factory=list)

    def add(self, name: str, first: int, last: int) -> None:
        """Add a batch to a transaction. Its first batch in the partition opens it."""
        self.used = True
        self._open.setdefault(name, []).append((first, last))

    def end(self, name: str, marker_end: int, aborts: bool = False) -> None:
        """End a transaction by its marker. A second marker, sent after a lost response, has no effect."""
        batches = self._open.pop(name, None)
        if batches is not None:
            self._ended.append(EndedTransaction(name, batches, marker_end, aborts))

    def last_stable(self, high_watermark: int) -> int:
        """Return the last stable offset at this high watermark; forget transactions with replicated markers."""
        replicated = [transaction for transaction in self._ended if transaction.marker_end <= high_watermark]
        self._aborted += [batch for transaction in replicated if transaction.aborts for batch in transaction.batches]
        self._ended = [transaction for transaction in self._ended if transaction.marker_end > high_watermark]
        unstable = [*self._open.values(), *(transaction.batches for transaction in self._ended)]
        return min([high_watermark, *(batches[0][0] for batches in unstable)])

    def take_aborted(self, stable: int) -> list[OffsetRange]:
        """Return the batches of aborted records before `stable`, in order, and forget them."""
        stable_batches = sorted(batch for batch in self._aborted if batch[0] < stable)
        self._aborted = [batch for batch in self._aborted if batch[0] >= stable]
        return stable_batches

    def truncate(self, end: int) -> None:
        """Cut the log at `end`. Cutting off a marker reopens its transaction."""
        reopened = [transaction for transaction in self._ended if transaction.marker_end > end]
        self._ended = [transaction for transaction in self._ended if transaction.marker_end <= end]
        self._open |= {transaction.name: transaction.batches for transaction in reopened}
        left = {name: [batch for batch in batches if batch[0] < end] for name, batches in self._open.items()}
        self._open = {name: batches for name, batches in left.items() if batches}


def high_watermark_after(
    replica: Partition,
    leader: int,
    *,
    end: int | None = None,
    isr: tuple[int, ...] | None = None,
    follower: tuple[int, int] | None = None,
) -> int | None:
    """Return the high watermark that a leader's replica will have after a change; None while it is unknown.

    `Partition` computes the same value when the event is applied. It is needed in advance, because the last stable
    offset is recorded before that event.

    Args:
        replica: The leader's replica.
        leader: Broker id of the leader.
        end: New log end, if the change is an append.
        isr: New in-sync replicas, if the change is one of the in-sync set.
        follower: Broker id of a follower and the offset that it has reached, if the change is its progress.
    """
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


# Kafka's default of `replica.lag.time.max.ms` since 2.5; before, it was 10 s. Leaders check it every half of it.
REPLICA_LAG_TIME_MAX_MS = 30_000


@dataclass(slots=True)
class FollowerProgress:
    """A follower's log end, and the last time at which it had the leader's whole log (Kafka: `lastCaughtUpTimeMs`)."""

    log_end: int
    caught_up_ms: int
    last_fetch_ms: int
    leader_end_at_last_fetch: int

    def record_fetch(self, fetch_offset: int, leader_end: int, now_ms: int) -> None:
        """Record a fetch from `fetch_offset`: the follower has all records before that offset.

        As in Kafka, a follower also counts as caught up at the time of its previous fetch, if this fetch reaches the
        log end that the leader had then. Otherwise a follower of a busy leader would never count as caught up.
        """
        if fetch_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_at_last_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.log_end = fetch_offset
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_ms = now_ms


class InSyncReplicas:
    """The in-sync replicas of one partition as its leader tracks them (Kafka: `replica.lag.time.max.ms`).

    A replayed trace records the in-sync set; a simulation has to decide it.
    """

    def __init__(
        self, leader: int, followers: list[int], now_ms: int, lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        self.isr: tuple[int, ...] = (leader, *followers)
        self._leader = leader
        self._lag_time_max_ms = lag_time_max_ms
        self._followers = {replica_id: FollowerProgress(0, now_ms, now_ms, 0) for replica_id in followers}

    def record_fetch(
        self, replica_id: int, fetch_offset: int, leader_end: int, high_watermark: int, now_ms: int
    ) -> bool:
        """Record a follower's fetch; return whether it rejoins the in-sync set, because it reaches the high watermark.

        Args:
            replica_id: The follower.
            fetch_offset: The offset from which it fetches; it has everything before it.
            leader_end: The leader's log end offset.
            high_watermark: The high watermark.
            now_ms: The time.
        """
        self._followers[replica_id].record_fetch(fetch_offset, leader_end, now_ms)
        if replica_id in self.isr or fetch_offset < high_watermark:
            return False
        self.isr = (*self.isr, replica_id)
        return True

    def shrink(self, leader_end: int, now_ms: int) -> bool:
        """Drop followers that have lagged for too long; return whether there were any."""
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
    """A follower's log, with the batches that the trace has not recorded yet.

    While a broker is a follower, its appends are not recorded, because no request at that broker depends on them. When
    it becomes the leader, its batches are recorded one by one.
    """

    end: int = 0
    recorded_end: int = 0
    high_watermark: int = 0
    unrecorded_batches: deque[tuple[int, int]] = field(default_factory=deque)

    def append(self, end: int, size: int, high_watermark: int) -> None:
        if end > self.end:
            self.unrecorded_batches.append((end, size))
            self.end = end
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))

    def truncate(self, end: int) -> None:
        """Cut the log at `end`.

        A batch that contains the new end is dropped as a whole. An entry of 0 bytes then covers the offsets up to
        `end`.
        """
        cut = False
        while self.unrecorded_batches and self.unrecorded_batches[-1][0] > end:
            self.unrecorded_batches.pop()
            cut = True
        if cut and end > self.recorded_end:
            self.unrecorded_batches.append((end, 0))
        self.end = min(self.end, end)
        self.high_watermark = min(self.high_watermark, end)


@dataclass(slots=True)
class PartitionState:
    """A partition's replicas and leader; without a leader, `leader` is None."""

    key: TopicPartition
    replicas: tuple[int, ...]
    min_isr: int
    segment_bytes: int
    leader: int | None
    epoch: int
    in_sync: InSyncReplicas
    replica_logs: dict[int, ReplicaLog]
    segment_start: int = 0
    # With tiered storage: the local retention, and base offset and position of each segment of the leader's local log.
    local_retention_bytes: int | None = None
    local_segments: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.in_sync.isr

    @property
    def local_log_start(self) -> int:
        """The first offset of the local log; records before it are only in remote storage."""
        return self.local_segments[0][0]

    def roll(self, offset: int, position: int) -> bool:
        """Start a segment at the log end; return whether the local log start offset moves.

        A closed segment is copied to remote storage at once. The oldest segments are then deleted from the local log,
        as long as the others have at least the size of the local retention (Kafka:
        `UnifiedLog.deleteRetentionSizeBreachedSegments`) and every follower has the deleted ones.
        """
        self.segment_start = position
        self.local_segments.append((offset, position))
        before, retention = self.local_log_start, self.local_retention_bytes
        replicated = min(
            (log.end for broker, log in self.replica_logs.items() if broker != self.leader), default=offset
        )
        while retention is not None and len(self.local_segments) > 1:
            next_offset, next_position = self.local_segments[1]
            if position - next_position < retention or next_offset > replicated:
                break
            del self.local_segments[0]
        return self.local_log_start > before

    def followed_by(self, broker: int) -> bool:
        """Return whether this broker fetches the partition from its leader."""
        return self.leader is not None and self.leader != broker and broker in self.replicas

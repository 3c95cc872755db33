"""DelayedFetch: a consumer or follower waits until there are enough bytes to be worth an answer."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.partition import FetchIsolation, OffsetMetadata, Partition, ReplicaStatus

FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
_RULES = {
    FENCED_LEADER_EPOCH: "fenced_epoch",
    UNKNOWN_LEADER_EPOCH: "unknown_epoch",
    OFFSET_OUT_OF_RANGE: "offset_out_of_range",
}


@dataclass(slots=True)
class FetchPartitionStatus:
    """One partition of the request. `flagged`: the request says of its follower that a quota holds it back."""

    replica: Partition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    replica_id: int
    flagged: bool
    preferred: int | None  # the replica that the consumer is sent to: nothing is read here
    start: OffsetMetadata  # the fetch offset's segment and position on arrival: not recalculated while it waits

    @property
    def passed_over(self) -> bool:
        """Nothing of it is read, and nothing counts."""
        return self.throttled or self.preferred is not None

    @property
    def throttled(self) -> bool:
        """As it is now: the request's word counts until the trace has one about that follower."""
        return self.replica.throttles.get(self.replica_id, self.flagged)

    @property
    def fenced(self) -> bool:
        epoch = self.replica.leader_epoch
        return epoch is not None and 0 <= self.current_leader_epoch < epoch

    def error(self) -> str:
        """What reading it now would be answered with."""
        replica = self.replica
        if replica.standing is not ReplicaStatus.ONLINE:
            return replica.standing.error
        if self.fenced:
            return FENCED_LEADER_EPOCH
        if replica.leader_epoch is not None and self.current_leader_epoch > replica.leader_epoch:
            return UNKNOWN_LEADER_EPOCH
        log = replica.log
        beyond = log.end is not None and self.fetch_offset > log.end.offset
        deleted = log.start is not None and self.fetch_offset < log.start
        return OFFSET_OUT_OF_RANGE if beyond or deleted else "NONE"

    def readable(self, isolation: FetchIsolation) -> int:
        """Bytes from the fetch offset to the reader's end, counted over all segments, positions looked up anew."""
        replica = self.replica
        end = isolation.end(replica)
        if (
            replica.standing is not ReplicaStatus.ONLINE
            or self.passed_over
            or end is None
            or self.fetch_offset >= end.offset
        ):
            return 0
        return min(self.max_bytes, max(0, end.position - replica.log.position(self.fetch_offset)))


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much a fetch may carry. `hard`: requests before version 3, which get no batch larger than the limits."""

    max_bytes: int
    hard: bool = False


def read_from_log(
    parts: list[FetchPartitionStatus], isolation: FetchIsolation, limits: ReadLimits
) -> list[tuple[int, int]]:
    """What an answer carries, (bytes, next offset) of each partition in order (`ReplicaManager.readFromLog`).

    What one carries, the request's limit loses for those behind it. The first partition with data gives one batch at
    least, however large, so that large batches can be read at all.
    """
    left, at_least_one = limits.max_bytes, not limits.hard
    reads = []
    for part in parts:
        end, read = isolation.end(part.replica), (0, part.fetch_offset)
        if end is not None and part.fetch_offset < end.offset and part.error() == "NONE" and not part.passed_over:
            limit = min(part.max_bytes, left)
            read = part.replica.log.read(part.fetch_offset, end, limit, at_least_one, limits.hard)
        at_least_one = at_least_one and read[0] == 0
        left = max(0, left - read[0])
        reads.append(read)
    return reads


def start_offset_metadata(replica: Partition, fetch_offset: int, isolation: FetchIsolation) -> OffsetMetadata:
    """Where a fetch begins. One that starts exactly at its end takes over that end's metadata, be they old."""
    end = isolation.end(replica)
    return end if end is not None and fetch_offset == end.offset else replica.log.metadata(fetch_offset)


class DelayedFetch(DelayedRequest):
    """Over the partitions in order, the first that holds completes the fetch (the letters are Kafka 2.3's):

    A) the broker does not lead the partition (any more)
    B) the broker does not know it
    E) its log directory is offline
    F) the request was sent to an older leader epoch
    C) the fetch offset lies beyond the end (the leader was truncated), or on an older segment than the end, unless the
       replica is throttled; an offset equal to the end adds nothing, so that a fresh roll does not look like C
    D) after all: the bytes between start and end, at most the partition's maximum each, reach the minimum

    The difference may be negative: a start taken before a truncation may lie beyond the new end in bytes.

    On arrival the log is read first, and what that read carries may be enough where D) does not hold: a first batch
    larger than its partition's maximum. D) then is asked all the same, and may hold where the read was not enough: it
    knows no limit of the whole request, and no batch that did not fit into what was left of that.
    """

    def __init__(
        self,
        request: TraceRequest,
        delay_ms: int,
        parts: list[FetchPartitionStatus],
        isolation: FetchIsolation,
        min_bytes: int,
        limits: ReadLimits,
    ) -> None:
        super().__init__(request, delay_ms)
        self.parts = parts
        self.isolation = isolation
        self.min_bytes = min_bytes
        self.limits = limits
        self.reads: list[tuple[int, int]] = []
        self._answers: tuple[PartitionOutcome, ...] = ()

    def try_on_arrival(self, now_us: int) -> bool:
        """The first read also meets the errors of offset and epoch, which a waiting fetch does not look for, and finds
        out whether a consumer is better served by another replica: that it is told at once."""
        if self._try(now_us, arriving=True):
            return True
        if any(part.preferred is not None for part in self.parts):
            return self.complete_by("preferred_replica", now_us)
        carried = sum(size for size, _ in read_from_log(self.parts, self.isolation, self.limits))
        return carried >= self.min_bytes and self.complete_by("min_bytes", now_us)

    def try_complete(self, now_us: int) -> bool:
        return self._try(now_us, arriving=False)

    def _try(self, now_us: int, arriving: bool) -> bool:
        accumulated, end_of, online = 0, self.isolation.end, ReplicaStatus.ONLINE
        for part in self.parts:
            replica = part.replica
            if replica.standing is not online:  # Cases A, B, E
                return self.complete_by(replica.standing.rule, now_us)
            if part.current_leader_epoch >= 0 and part.fenced:  # Case F
                return self.complete_by(_RULES[FENCED_LEADER_EPOCH], now_us)
            if arriving and (error := part.error()) != "NONE":
                return self.complete_by(_RULES[error], now_us)
            end = end_of(replica)
            if end is None:
                continue
            offset, (end_offset, end_segment, end_position) = part.fetch_offset, end
            if offset == end_offset:
                continue
            if offset > end_offset:  # Case C
                return self.complete_by("truncated", now_us)
            # Asked in full only where it may be so: there are a hundred partitions to a fetch, and as many attempts.
            if (part.flagged or part.preferred is not None or replica.throttles) and part.passed_over:
                continue
            _, segment, position = part.start
            if segment < end_segment:  # Case C
                return self.complete_by("older_segment", now_us)
            if segment == end_segment:
                gained = end_position - position
                if gained > part.max_bytes:
                    gained = part.max_bytes
                if gained > 0 or not arriving:
                    accumulated += gained
        return accumulated >= self.min_bytes and self.complete_by("min_bytes", now_us)  # Case D

    def on_complete(self, now_us: int) -> None:
        """Whatever ended it, even the deadline: read the log again, and answer what there is."""
        self._answers = tuple(
            PartitionOutcome(*part.replica.key, part.error(), part.readable(self.isolation)) for part in self.parts
        )
        self.reads = read_from_log(self.parts, self.isolation, self.limits)
        super().on_complete(now_us)

    def abandon(self, now_us: int) -> None:
        """Nothing is read any more."""
        self._answers = tuple(PartitionOutcome(*part.replica.key, None, 0) for part in self.parts)
        super().abandon(now_us)

    def on_expiration(self, now_us: int) -> None:
        """Kafka marks a meter once per request, by `fetcher`: the outcome says both."""

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return self._answers

    def readable_bytes(self) -> int:
        return sum(answer.bytes for answer in self._answers)

    def answered_bytes(self) -> int:
        return sum(size for size, _ in self.reads)

"""Records of a partition that are in flight for a share group: their states, batches, locks and persisted form."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol

from purgatory_udf.rules.purgatory.timing_wheel import TimerTask

NO_MEMBER = ""
INVALID_RECORD_STATE = "INVALID_RECORD_STATE"
INVALID_REQUEST = "INVALID_REQUEST"

# Types of acknowledgements, as in the protocol.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

# With at most this many deliveries the last one is not made alone, and none is throttled before it.
MIN_THROTTLE_LIMIT = 2


class RecordState(Enum):
    """The state of a record in flight, with its number in Kafka."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED

    @property
    def is_deliverable(self) -> bool:
        """Whether the records are acquired, or may be acquired again."""
        return self is RecordState.AVAILABLE or self is RecordState.ACQUIRED


STATE_OF_TYPE = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}
END_OF_TYPE = {GAP: "gap", ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected"}


class ShareGroupLimits(NamedTuple):
    """The settings of a share group that a share partition depends on.

    Attributes:
        record_lock_duration_ms: Maximum time for which a record is acquired (`share.record.lock.duration.ms`).
        delivery_count_limit: Maximum number of deliveries of a record (`share.delivery.count.limit`).
        partition_max_record_locks: Maximum number of records in flight (`share.partition.max.record.locks`).
        auto_offset_reset: Where a group without persisted state starts: `earliest` or `latest`.
        isolation: `read_committed` or `read_uncommitted` (`share.isolation.level`).
        dead_letter_queue: Whether the group has a dead-letter queue (`errors.deadletterqueue.topic.name`).
    """

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2000
    auto_offset_reset: str = "latest"
    isolation: str = "read_uncommitted"
    dead_letter_queue: bool = False

    @property
    def undeliverable(self) -> RecordState:
        """The new state of records that a member rejects, or that reach the delivery limit."""
        return RecordState.ARCHIVING if self.dead_letter_queue else RecordState.ARCHIVED

    @property
    def throttle_limit(self) -> int:
        """The delivery count from which on batches are delivered alone and in parts (KAFKA-17541)."""
        return max(MIN_THROTTLE_LIMIT, -(-self.delivery_count_limit // 2))


@dataclass(slots=True)
class ShareGroupConfig:
    """The current settings of a share group. Its share partitions refer to this object, so they see each change."""

    limits: ShareGroupLimits


class Acquirer(NamedTuple):
    """The share fetch that acquires records."""

    operation_id: int
    request_id: str | None
    client_id: str | None
    member_id: str


class AcquiredRange(NamedTuple):
    """Records of a response: first and last offset, and the delivery count."""

    first: int
    last: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """Acknowledged offsets, with one type for the whole range or one per offset.

    Attributes:
        accepted: Whether a recording shows that the member held the offsets.
        is_what_if: Whether settings differ from the recorded ones, so that the member may have lost them since.
    """

    first: int
    last: int
    types: tuple[int, ...]
    accepted: bool = False
    is_what_if: bool = False


class StateBatch(NamedTuple):
    """Offsets with their state and delivery count, as the share coordinator persists them."""

    first: int
    last: int
    state: RecordState
    delivery_count: int


class LockHolder(Protocol):
    """Interface of the holder of an acquisition lock, which is called at the lock's deadline."""

    def on_lock_timeout(self, lock: AcquisitionLock, now_us: int) -> None:
        """Release the records of the lock."""


class AcquisitionLock(TimerTask):
    """The time limit after which acquired records become available again.

    It expires even if the records have been acknowledged, as long as their state is not written.
    """

    def __init__(self, deadline_ms: int, holder: LockHolder, first: int, last: int) -> None:
        super().__init__(deadline_ms)
        self.first, self.last = first, last
        self.expired_us: int | None = None
        self._holder = holder

    def run(self, now_ms: int) -> None:
        self.expired_us = now_ms * 1000
        self._holder.on_lock_timeout(self, self.expired_us)


@dataclass(slots=True)
class InFlightState:
    """The state of a batch or of one offset.

    Attributes:
        state: The state; during a transition already the new one.
        delivery_count: How often the records have been acquired.
        member_id: The member that holds the records, or `NO_MEMBER`.
        acquirer: The share fetch that acquired the records last, while they are acquired.
        acquired_us: When that fetch acquired the records, in epoch microseconds.
        lock: Their acquisition lock.
        former: The state before the transition that waits for its state write; None without a transition.
        is_final: Whether the records were archived for good.
        lost_by: Members that held the records until their lock expired, and have not acquired them again.
    """

    state: RecordState
    delivery_count: int
    member_id: str = NO_MEMBER
    acquirer: Acquirer | None = None
    acquired_us: int = 0
    lock: AcquisitionLock | None = None
    former: InFlightState | None = None
    is_final: bool = False
    lost_by: tuple[str, ...] = ()

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.former is None

    @property
    def is_archiving(self) -> bool:
        """Whether the records are to be written to the dead-letter queue, once this state is written."""
        return self.state is RecordState.ARCHIVING and self.former is None

    def try_acquire(self, acquirer: Acquirer, now_us: int) -> None:
        """Deliver the records to the share fetch `acquirer`. The caller has checked that they are available."""
        self.state, self.member_id = RecordState.ACQUIRED, acquirer.member_id
        self.delivery_count += 1
        self.acquirer, self.acquired_us = acquirer, now_us
        if self.lost_by:
            self.lost_by = tuple(member for member in self.lost_by if member != acquirer.member_id)

    def give_up(self, state: RecordState, limits: ShareGroupLimits) -> bool:
        """End the acquisition with this state, or ARCHIVED (or ARCHIVING) if it is AVAILABLE at the delivery limit.

        Return False, without effect, during a transition.
        """
        if self.former is not None:
            return False
        exhausted = state is RecordState.AVAILABLE and self.delivery_count >= limits.delivery_count_limit
        self.state, self.member_id = limits.undeliverable if exhausted else state, NO_MEMBER
        return True

    def start_transition(self, state: RecordState, limits: ShareGroupLimits) -> bool:
        """End the acquisition as soon as a state write succeeds. Return False if another transition has not ended."""
        former = InFlightState(self.state, self.delivery_count, self.member_id)
        if not self.give_up(state, limits):
            return False
        self.former = former
        return True

    def complete_transition(self, commit: bool, limit: int) -> None:
        """End a transition: keep the new state if `commit`, otherwise return to the former one.

        If the write failed and the lock has expired, records with `limit` deliveries are archived, without a copy in a
        dead-letter queue, and others become available.
        """
        former, self.former = self.former, None
        if commit or self.is_final or former is None:
            self.clear_lock()
        elif self.lock is not None and self.lock.expired_us is not None:
            exhausted = former.delivery_count >= limit
            self.state, self.member_id = RecordState.ARCHIVED if exhausted else RecordState.AVAILABLE, NO_MEMBER
            self.clear_lock()
        else:
            self.state, self.member_id = former.state, former.member_id

    def archive(self) -> None:
        self.is_final, self.state, self.member_id = True, RecordState.ARCHIVED, NO_MEMBER
        self.clear_lock()

    def clear_lock(self) -> None:
        if self.lock is not None:
            self.lock.cancel()
            self.lock = None


# Starts the acquisition lock of a state, for a first and last offset, with a deadline in milliseconds.
Lock = Callable[[InFlightState, int, int, int], None]


class InFlightBatch:
    """A batch of records in flight: one state for the whole batch, or one per offset."""

    def __init__(self, first: int, last: int, state: InFlightState) -> None:
        self.first, self.last = first, last
        self.whole: InFlightState | None = state
        self.by_offset: dict[int, InFlightState] = {}

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def states(self) -> Iterator[tuple[int, int, InFlightState]]:
        """Yield the first and last offset and the state of each part, in order."""
        if self.whole is not None:
            yield self.first, self.last, self.whole
        else:
            for offset, state in self.by_offset.items():
                yield offset, offset, state

    def split(self, lock: Lock) -> None:
        """Replace the state of the batch by one state per offset. No effect if there is one per offset already.

        If the batch has a lock, `lock` is called for each offset, to start one with the same deadline.
        """
        state = self.whole
        if state is None:
            return
        for offset in range(self.first, self.last + 1):
            own = self.by_offset[offset] = InFlightState(state.state, state.delivery_count, state.member_id)
            own.lost_by = state.lost_by
            if state.state is RecordState.ACQUIRED:
                own.acquirer, own.acquired_us = state.acquirer, state.acquired_us
            if state.lock is not None:
                lock(own, offset, offset, state.lock.deadline_ms)
        state.clear_lock()
        self.whole = None

    def split_at(self, last_acquired: int, lock: Lock, deadline_ms: int) -> None:
        """Replace the state of the batch by one per offset; offsets after `last_acquired` become available.

        `lock` is called for each offset up to `last_acquired`, to start a separate lock until `deadline_ms`.
        """
        state = self.whole
        assert state is not None
        for offset in range(self.first, self.last + 1):
            if offset <= last_acquired:
                own = self.by_offset[offset] = replace(state)
                lock(own, offset, offset, deadline_ms)
            else:
                self.by_offset[offset] = InFlightState(RecordState.AVAILABLE, state.delivery_count - 1)
        self.whole = None


class StateTransition(NamedTuple):
    """A part of a batch with a new state that is being written; `end` is how the delivery ended, at `at_us`."""

    state: InFlightState
    first: int
    last: int
    end: str
    at_us: int

    @property
    def batch(self) -> StateBatch:
        """The state to write. Later changes of the records do not affect it."""
        return StateBatch(self.first, self.last, self.state.state, self.state.delivery_count)


class InFlightRecords:
    """The records of a share partition that are in flight, in batches, and its start and end offset.

    Attributes:
        start_offset: The first offset that is not done.
        end_offset: The last offset that was acquired, or the start offset while none is in flight.
        has_gap_or_release: Whether records before the end offset may be available.
        firsts: The first offsets of the batches, in order.
    """

    def __init__(self) -> None:
        self.start_offset = self.end_offset = 0
        self.has_gap_or_release = False
        self.firsts: list[int] = []
        self._batches: dict[int, InFlightBatch] = {}
        # Offsets that the persisted state does not cover: the first one, and the end offset at that time.
        self._gap_start = 0
        self._gap_end: int | None = None

    @property
    def batches(self) -> list[InFlightBatch]:
        return [self._batches[first] for first in self.firsts]

    def put(self, batch: InFlightBatch) -> None:
        if batch.first not in self._batches:
            self.firsts.insert(bisect_left(self.firsts, batch.first), batch.first)
        self._batches[batch.first] = batch

    def floor(self, offset: int) -> InFlightBatch | None:
        index = bisect_right(self.firsts, offset)
        return self._batches[self.firsts[index - 1]] if index else None

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches with a first offset from `first` to `last`, inclusive."""
        low, high = bisect_left(self.firsts, first), bisect_right(self.firsts, last)
        return [self._batches[key] for key in self.firsts[low:high]]

    @property
    def has_gap(self) -> bool:
        return self._gap_end == self.end_offset

    def advance_gap(self, offset: int) -> None:
        if self.has_gap and offset <= self.end_offset:
            self._gap_start = offset
        else:
            self._gap_end = None

    def next_fetch_offset(self) -> int:
        """Return the first offset that may be acquired next."""
        empty = not self.firsts or self.start_offset > self._batches[self.firsts[-1]].last
        if empty or not self.has_gap_or_release:
            return self.end_offset if empty else self.end_offset + 1
        gap, has_gap, available = self._gap_start, self.has_gap, RecordState.AVAILABLE
        for key in self.firsts:
            batch = self._batches[key]
            if has_gap:
                if key > gap:
                    return gap
                gap = max(batch.last + 1, gap)
            whole = batch.whole
            if whole is not None:
                if whole.state is available and whole.former is None:
                    return key
                continue
            for offset, state in batch.by_offset.items():
                if state.state is available and state.former is None:
                    return offset
        self.has_gap_or_release = False
        return self.end_offset + 1

    @property
    def in_flight(self) -> int:
        return self.end_offset - self.start_offset + 1 if self.firsts else 0

    def extend(self, first: int, last: int) -> None:
        """Add all records up to offset `last` that are not in flight yet, as available records.

        Those from `first` on form a separate batch, apart from the ones before `first`.
        """
        following = self.end_offset + 1 if self.firsts else self.end_offset
        if last < following:
            return
        if first > following:
            self.put(InFlightBatch(following, first - 1, InFlightState(RecordState.AVAILABLE, 0)))
            self.has_gap_or_release = True
        begin = max(first, following)
        self.put(InFlightBatch(begin, last, InFlightState(RecordState.AVAILABLE, 0)))
        self.end_offset = last

    def move_start(self) -> bool:
        """Move the start offset past the records that are done. Return True if it moved."""
        if not self._canmove_start():
            return False
        done = self._last_done_offset()
        if done == -1:
            return False
        last = self._batches[self.firsts[-1]].last
        if done == last:
            self.start_offset = self.end_offset = last + 1
            self.firsts.clear()
            self._batches.clear()
            return True
        floor = self.floor(done)
        assert floor is not None
        if done == floor.last:
            self.start_offset = max(self.start_offset, self.firsts[bisect_right(self.firsts, done)])
            if self.has_gap:
                self.start_offset = min(self._gap_start, self.start_offset)
            removed = bisect_right(self.firsts, floor.first)
        else:
            self.start_offset = max(self.start_offset, done + 1)
            removed = bisect_left(self.firsts, floor.first)
        for first in self.firsts[:removed]:
            del self._batches[first]
        del self.firsts[:removed]
        return True

    def _canmove_start(self) -> bool:
        floor = self.floor(self.start_offset)
        if floor is None:
            return False
        state = floor.whole or floor.by_offset.get(self.start_offset)
        return state is not None and state.former is None and state.state.is_terminal

    def _last_done_offset(self) -> int:
        """Return the last offset before the first record that is not done, or -1."""
        done = -1
        for batch in self.batches:
            if self.has_gap and batch.last >= self._gap_start:
                return done
            for _, last, state in batch.states():
                if state.former is not None or not state.state.is_terminal:
                    return done
                done = last
        return done

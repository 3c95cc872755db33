"""A share partition: the progress of a share group in a partition, and the records in flight (KIP-932).

Records in flight are kept in batches. A batch has one state until an event affects only a part of it; from then on each
of its offsets has a separate state. Rules and order of evaluation are those of Kafka 4.3 (`SharePartition`,
`InFlightBatch`, `InFlightState`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import NamedTuple, Protocol

from purgatory_udf.contract.outcome import ShareDelivery, TopicPartition
from purgatory_udf.rules.purgatory.timing_wheel import Timer
from purgatory_udf.rules.reference.partition import OffsetMetadata
from purgatory_udf.rules.reference.share_records import (
    END_OF_TYPE,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    NO_MEMBER,
    REJECT,
    RENEW,
    STATE_OF_TYPE,
    Acknowledgement,
    AcquiredRange,
    Acquirer,
    AcquisitionLock,
    InFlightBatch,
    InFlightRecords,
    InFlightState,
    RecordState,
    ShareGroupConfig,
    ShareGroupLimits,
    StateBatch,
    StateTransition,
)
from purgatory_udf.rules.reference.share_state import DeadLetters, PersistedState

# Returns the fields of a delivery other than its offsets.
_but_offsets = attrgetter(*(each.name for each in fields(ShareDelivery) if not each.name.endswith("_offset")))


class StateWrite(NamedTuple):
    """A write of a share partition's state that the share coordinator has not answered yet.

    `dead_letters` are to be written to the dead-letter queue after it, in addition to ARCHIVING records of its
    transitions. `after_timeout` is whether an acquisition lock has expired.
    """

    partition: SharePartition
    start: int
    batches: tuple[StateBatch, ...]
    transitions: tuple[StateTransition, ...] = ()
    request: object = None
    dead_letters: tuple[DeadLetters, ...] = ()
    after_timeout: bool = False


class ShareServer(Protocol):
    """Interface of the broker to a share partition: settings, timers, state writes, and checks of waiting fetches."""

    lock_timer: Timer
    deliveries: list[ShareDelivery]
    expired_locks: dict[tuple[str, TopicPartition], int]

    @property
    def limits_failing_deliveries(self) -> bool:
        """Whether deliveries that failed are repeated in parts."""

    def group_settings(self, group: str) -> ShareGroupConfig:
        """Return the current settings of a group."""

    def write_state(self, write: StateWrite, now_us: int) -> None:
        """Send a write to the share coordinator; its answer comes by `SharePartition.on_written`."""

    def write_dead_letters(self, partition: SharePartition, letters: DeadLetters, now_us: int) -> None:
        """Start to write records to the dead-letter queue; the end comes by `SharePartition.archive_letters`."""

    def check_group_key(self, partition: SharePartition, now_us: int) -> None:
        """Check the share fetches of the group that wait for the partition."""


class SharePartition(InFlightRecords):
    """The records of a partition that are in flight for a share group.

    Attributes:
        is_active: Whether the state was read and the broker still leads the partition.
        fetch_lock: The share fetch that is reading now; others skip the partition.
    """

    def __init__(self, group: str, key: TopicPartition, server: ShareServer) -> None:
        self.group, self.key, self._server = group, key, server
        self._settings = server.group_settings(group)
        super().__init__()
        self.is_active = self.is_fenced = False
        self.fetch_lock: object = None
        # Segment and position of the offset that is fetched next, taken once for it.
        self._fetch_metadata: OffsetMetadata | None = None
        self._metadata_offset = -1
        # Records on their way to the dead-letter queue, and offsets that the trace reported before.
        self.dead_letters: list[DeadLetters] = []
        self._reported: set[int] = set()

    # Initialization

    def initialize(self, state: PersistedState, default_start: int) -> None:
        """Start with the persisted state, or at `default_start` without one."""
        self.start_offset = default_start if state.start is None else state.start
        gap: int | None = None
        before = self.start_offset - 1
        for first, last, record_state, count in state.batches:
            if gap is None and first > before + 1:
                gap = before + 1
            before = last
            self.put(InFlightBatch(first, last, InFlightState(record_state, count)))
        self.end_offset = self.start_offset
        if self.firsts:
            self.has_gap_or_release = True
            self.end_offset = self._batches[self.firsts[-1]].last
            if gap is not None:
                self._gap_end, self._gap_start = self.end_offset, gap
            self.move_start()
        self.is_active = True

    # Fetching

    @property
    def limits(self) -> ShareGroupLimits:
        """The settings of the group."""
        return self._settings.limits

    @property
    def limits_failing_deliveries(self) -> bool:
        """Whether deliveries that failed are repeated in parts (Kafka 4.2)."""
        return self._server.limits_failing_deliveries

    def acquirable_offset(self) -> int | None:
        """Return the next fetch offset, or None if no records may be acquired because too many are in flight."""
        offset = self.next_fetch_offset()
        if offset != self.end_offset + 1 or not self.firsts:
            return offset
        return offset if offset - self.start_offset < self._settings.limits.partition_max_record_locks else None

    def fetch_metadata(self, offset: int) -> OffsetMetadata | None:
        """Return the cached segment and position of the fetch offset, or None if they are those of another offset."""
        metadata = self._fetch_metadata
        return metadata if metadata is not None and self._metadata_offset == offset else None

    def set_fetch_metadata(self, offset: int, metadata: OffsetMetadata | None) -> None:
        self._metadata_offset, self._fetch_metadata = offset, metadata

    def archive_aborted(
        self, acquired: Sequence[AcquiredRange], aborted: Sequence[tuple[int, int]]
    ) -> list[AcquiredRange]:
        """Archive acquired records of aborted transactions, and return the other acquired records.

        `aborted` has their first and last offsets, in order. No state is written.
        """
        remaining = list(acquired)
        for first, last in aborted:
            floor = self.floor(first)
            begin = first if floor is None else floor.first
            self._archive(first, last + 1, self.between(begin, last), RecordState.ACQUIRED)
            remaining = [
                part
                for each in remaining
                for part in (
                    each._replace(last=min(each.last, first - 1)),
                    each._replace(first=max(each.first, last + 1)),
                )
                if part.first <= part.last
            ]
        return remaining

    def _archive(self, first: int, end: int, batches: Sequence[InFlightBatch], former: RecordState) -> None:
        """Archive the records in the state `former` of these batches from `first` to before `end`."""
        for batch in batches:
            if batch.first >= end:
                break
            if batch.whole is not None and batch.whole.state is not former:
                continue
            if batch.first < first or batch.last >= end:
                batch.split(self.lock)
            for begin, _, state in batch.states():
                in_range = batch.whole is not None or first <= begin < end
                if in_range and state.state is former:
                    state.archive()

    def on_log_start(self, log_start: int) -> None:
        """Move the start offset up to the log start offset, because a read was out of range."""
        if log_start <= self.start_offset:
            return
        if not self.firsts:
            self.start_offset = self.end_offset = log_start
            return
        self._archive(self.start_offset, log_start, self.batches, RecordState.AVAILABLE)
        self.start_offset = log_start
        self.end_offset = max(self.end_offset, log_start)

    def lock(self, state: InFlightState, first: int, last: int, deadline_ms: int) -> None:
        """Start the acquisition lock of the batch or offset with this state: offsets `first` to `last`, inclusive.

        `deadline_ms` is in epoch milliseconds.
        """
        state.lock = AcquisitionLock(deadline_ms, self, first, last)
        self._server.lock_timer.add(state.lock)

    # End of deliveries

    def acknowledge(
        self, acquirer: Acquirer, acknowledgements: Sequence[Acknowledgement], now_us: int, request: object = None
    ) -> str:
        """Process a member's acknowledgements; the records are in transition until the state is written.

        Args:
            acquirer: The request of the member.
            acknowledgements: Acknowledged ranges, in the order of the request.
            now_us: The time.
            request: Passed on to the state write, so that its answer can be matched to the request.

        Returns:
            The error, or NONE. With an error, no acknowledgement takes effect.
        """
        transitions: list[StateTransition] = []
        for acknowledgement in acknowledgements:
            if acknowledgement.last < self.start_offset:
                continue
            held = self._claim(acquirer, acknowledgement, now_us) if acknowledgement.accepted else [acknowledgement]
            for each in held:
                error = self._acknowledge(acquirer.member_id, each, transitions, now_us)
                if error is not None:
                    self._complete(transitions, commit=False)
                    return error
        self._write(transitions, now_us, request)
        return "NONE"

    def _claim(self, acquirer: Acquirer, acknowledged: Acknowledgement, now_us: int) -> list[Acknowledgement]:
        """Give a member the records that it held in the recording, and return the ranges that it holds.

        In the replay, the records may be available, or another member may hold them. Records that are done, ARCHIVING
        or in transition stay as they are; with settings that differ from the recorded ones also those whose acquisition
        lock expired while the member held them.
        """
        first, last, types, _, is_what_if = acknowledged
        begin = max(first, self.start_offset)
        if not self.is_active:
            return []
        self.extend(begin, last)
        floor = self.floor(begin)
        held = []
        for batch in self.between(floor.first if floor is not None else begin, last):
            whole = batch.whole
            if whole is not None and batch.last >= begin and (batch.first < begin or batch.last > last):
                if whole.former is not None or not whole.state.is_deliverable:
                    continue
                batch.split(self.lock)
            for start, end, state in batch.states():
                if end < begin or start > last or state.former is not None or not state.state.is_deliverable:
                    continue
                if is_what_if and acquirer.member_id in state.lost_by:
                    continue
                if state.state is RecordState.AVAILABLE:
                    state.try_acquire(acquirer, now_us)
                    self.lock(state, start, end, now_us // 1000 + self.limits.record_lock_duration_ms)
                state.member_id = acquirer.member_id
                of_range = types if len(types) == 1 else types[start - first : end + 1 - first]
                held.append(Acknowledgement(start, end, of_range))
        return held

    def _acknowledge(
        self, member_id: str, acknowledgement: Acknowledgement, transitions: list[StateTransition], now_us: int
    ) -> str | None:
        first, last, types, *_ = acknowledgement
        floor = self.floor(max(first, self.start_offset))
        if floor is None:
            return INVALID_RECORD_STATE
        batches = self.between(floor.first, last)
        if batches[-1].last < first or last > batches[-1].last:
            return INVALID_REQUEST
        for batch in batches:
            if batch.last < self.start_offset:
                continue
            whole = batch.whole
            if whole is not None:
                if whole.member_id != member_id or whole.former is not None:
                    return INVALID_RECORD_STATE
                partly = batch.first < first or batch.last > last or batch.first < self.start_offset
                if partly or len(types) > 1:
                    if whole.state is not RecordState.ACQUIRED:
                        return INVALID_RECORD_STATE
                    batch.split(self.lock)
            for begin, end, state in batch.states():
                if batch.whole is None and (begin < first or begin < self.start_offset):
                    continue
                if batch.whole is None and begin > last:
                    break
                is_held = state.state is RecordState.ACQUIRED and state.former is None and state.member_id == member_id
                if not is_held:
                    return INVALID_RECORD_STATE
                # One type for all offsets, or one per offset.
                self._end_acquisition(state, begin, end, types[(begin - first) % len(types)], transitions, now_us)
        return None

    def _end_acquisition(
        self, state: InFlightState, first: int, last: int, kind: int, transitions: list[StateTransition], now_us: int
    ) -> None:
        limits = self.limits
        if kind == RENEW:
            state.clear_lock()
            self.lock(state, first, last, now_us // 1000 + limits.record_lock_duration_ms)
        else:
            state.start_transition(limits.undeliverable if kind == REJECT else STATE_OF_TYPE[kind], limits)
            transitions.append(StateTransition(state, first, last, END_OF_TYPE[kind], now_us))

    def release(self, member_id: str, now_us: int, request: object = None) -> None:
        """Release all records of a member, because its session has ended. `request` is passed on to the state write."""
        limits, transitions = self.limits, list[StateTransition]()
        for batch in self.batches:
            whole = batch.whole
            is_held = whole is not None and whole.state is RecordState.ACQUIRED and whole.member_id == member_id
            if is_held and batch.first < self.start_offset <= batch.last:
                batch.split(self.lock)
            for first, last, state in batch.states():
                if state.state is RecordState.ACQUIRED and state.member_id in (member_id, NO_MEMBER):
                    below = last < self.start_offset
                    new = RecordState.ARCHIVED if below else RecordState.AVAILABLE
                    if not state.start_transition(new, limits):
                        self._complete(transitions, commit=False)
                        return
                    transitions.append(StateTransition(state, first, last, "session_ended", now_us))
        self._write(transitions, now_us, request)

    def on_lock_timeout(self, lock: AcquisitionLock, now_us: int) -> None:
        """Release the records of a lock that has expired. Waiting fetches are checked before the state is written."""
        expired = self._server.expired_locks
        expired[self.group, self.key] = expired.get((self.group, self.key), 0) + lock.last - lock.first + 1
        limits, written, letters = self.limits, list[StateBatch](), list[DeadLetters]()
        floor = self.floor(lock.first)
        for batch in self.between(floor.first, lock.last) if floor is not None else ():
            whole = batch.whole
            is_held = whole is not None and whole.state is RecordState.ACQUIRED
            if is_held and batch.first < self.start_offset <= batch.last:
                batch.split(self.lock)
            for first, last, state in batch.states():
                if batch.whole is None and not lock.first <= first <= lock.last:
                    continue
                if state.state is not RecordState.ACQUIRED:
                    continue
                below, member_id = last < self.start_offset, state.member_id
                if not state.give_up(RecordState.ARCHIVED if below else RecordState.AVAILABLE, limits):
                    continue
                if member_id not in state.lost_by:
                    state.lost_by += (member_id,)
                written.append(StateBatch(first, last, state.state, state.delivery_count))
                state.clear_lock()
                self._record(state, first, last, "lock_expired", now_us)
                if state.is_available:
                    self.has_gap_or_release = True
                elif state.is_archiving:
                    letters.append(DeadLetters(state, first, last))
        if written:
            write = StateWrite(self, self.start_offset, tuple(written), dead_letters=tuple(letters), after_timeout=True)
            self._server.write_state(write, now_us)
            self._server.check_group_key(self, now_us)

    def fence(self, now_us: int) -> None:
        """End all deliveries, because the broker no longer leads the partition. Acquisition locks continue to run."""
        self.is_active, self.is_fenced = False, True
        self._record_fenced(now_us)

    def _record_fenced(self, now_us: int) -> None:
        for batch in self.batches:
            for first, last, state in batch.states():
                if state.state is RecordState.ACQUIRED and state.former is None:
                    self._record(state, first, last, "fenced", now_us)

    def _write(self, transitions: list[StateTransition], now_us: int, request: object) -> None:
        if transitions:
            batches = tuple(transition.batch for transition in transitions)
            self._server.write_state(StateWrite(self, self.start_offset, batches, tuple(transitions), request), now_us)

    def on_written(self, write: StateWrite, now_us: int) -> None:
        """Handle the answer to a state write. Waiting fetches are checked only if the start offset moves (KAFKA-19227).

        After an acquisition lock has expired, the start offset moves too, but no fetch is checked. Records that are
        ARCHIVING now are written to the dead-letter queue.
        """
        self._complete(write.transitions, commit=True)
        moved = self.move_start()
        if moved and not write.after_timeout:
            self._server.check_group_key(self, now_us)
        undeliverable = (each for each in write.transitions if each.state.state is RecordState.ARCHIVING)
        for letters in (*(DeadLetters(*transition[:3]) for transition in undeliverable), *write.dead_letters):
            if letters.state.is_archiving and not self.is_fenced:
                self._start_letters(letters, now_us)

    def roll_back(self, write: StateWrite, now_us: int) -> None:
        """Handle the failure of a state write: the member holds the records again, unless their lock has expired.

        No fetch is checked. Records with an expired lock are available from now on.
        """
        self._complete(write.transitions, commit=False)
        if self.is_fenced:
            self._record_fenced(now_us)

    # Dead-letter queue

    def resume_letters(self, now_us: int) -> None:
        """Write the records again that were ARCHIVING in the persisted state."""
        for batch in self.batches:
            for first, last, state in batch.states():
                if state.is_archiving:
                    self._start_letters(DeadLetters(state, first, last), now_us)

    def _start_letters(self, letters: DeadLetters, now_us: int) -> None:
        self.dead_letters.append(letters)
        if self._reported.issuperset(range(letters.first, letters.last + 1)):
            self.archive_letters(letters, now_us)
        else:
            self._server.write_dead_letters(self, letters, now_us)

    def report_letters(self, first: int, last: int, now_us: int) -> None:
        """Handle the event that the dead-letter queue has the offsets `first` to `last`, or will not get them.

        The records may not be ARCHIVING yet, if their state is written later in the replay than in the recording.
        """
        self._reported = {offset for offset in self._reported if offset >= self.start_offset}
        self._reported.update(range(max(first, self.start_offset), min(last, self.end_offset) + 1))
        for letters in list(self.dead_letters):
            if self._reported.issuperset(range(letters.first, letters.last + 1)):
                self.archive_letters(letters, now_us)

    def archive_letters(self, letters: DeadLetters, now_us: int) -> None:
        """Archive records of which the write to the dead-letter queue has ended, even if it failed.

        If the start offset moves when this state is written, waiting fetches are checked. A share partition that is
        fenced leaves the records to the next one, which finds them in the persisted state.
        """
        if letters not in self.dead_letters or self.is_fenced:
            return
        self.dead_letters.remove(letters)
        self._reported.difference_update(range(letters.first, letters.last + 1))
        letters.state.archive()
        batch = StateBatch(letters.first, letters.last, RecordState.ARCHIVED, letters.state.delivery_count)
        self._server.write_state(StateWrite(self, self.start_offset, (batch,)), now_us)

    def _complete(self, transitions: Sequence[StateTransition], commit: bool) -> None:
        limit = self.limits.delivery_count_limit
        for state, first, last, end, at_us in transitions:
            expired_us = state.lock.expired_us if state.lock is not None else None
            state.complete_transition(commit, limit)
            if commit:
                self._record(state, first, last, end, at_us)
            elif expired_us is not None:
                self._record(state, first, last, "lock_expired", expired_us)
            if state.state is RecordState.AVAILABLE:
                self.has_gap_or_release = True

    def _record(self, state: InFlightState, first: int, last: int, end: str, now_us: int) -> None:
        """Record that the delivery of offsets `first` to `last` has ended by `end` (`ended_by` in the tables).

        It is merged with the previous delivery if they are adjacent and differ in nothing but their offsets.
        """
        acquirer, state.acquirer = state.acquirer, None
        if acquirer is None:
            return
        delivery = ShareDelivery(
            group=self.group,
            topic=self.key.topic,
            partition=self.key.partition,
            first_offset=first,
            last_offset=last,
            delivery_count=state.delivery_count,
            operation_id=acquirer.operation_id,
            request_id=acquirer.request_id,
            client_id=acquirer.client_id,
            member_id=acquirer.member_id,
            acquired_us=state.acquired_us,
            ended_us=now_us,
            ended_by=end,
            state=state.state.name,
        )
        deliveries = self._server.deliveries
        before = deliveries[-1] if deliveries else None
        if before is not None and before.last_offset + 1 == first and _but_offsets(before) == _but_offsets(delivery):
            deliveries[-1] = replace(before, last_offset=last)
        else:
            deliveries.append(delivery)

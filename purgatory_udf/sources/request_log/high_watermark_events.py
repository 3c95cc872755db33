"""Writes the events of a partition: processes its appends, positions and leadership changes in time order.

It tracks the partition's log in the same way as the replay, and leaves out every event that the replay derives itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from purgatory_udf.sources.request_log import partition_status
from purgatory_udf.sources.request_log.append_offsets import SelectedAppends
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.fact_columns import INTERVAL, MAX_INTERVALS, FactColumns, order_by
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    Booleans,
    FollowerCopy,
    Integers,
    ReaderPosition,
    RecordDeletion,
)
from purgatory_udf.sources.request_log.logged_request import Place
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import ALL_TIME, LeadershipState, TimeRange, TrackedReplica

# Order of simultaneous events of a broker: state before the progress that it makes possible, and requests last.
STATE_RANK, APPEND_RANK, STABLE_RANK, PROGRESS_RANK, REQUEST_RANK = range(5)


class TimedEvent(NamedTuple):
    """An event with its time, its rank among simultaneous events, and the request that caused it, or None."""

    at_us: int
    rank: int
    event: dict[str, Any]
    cause: Place | None = None


class OffsetChanges(NamedTuple):
    """Changes of a partition that move an offset, as columns, those of equal rank in order.

    Attributes:
        at_us: Their times.
        kind: Their indices in `KINDS_OF_OFFSETS`.
        offset: The new offsets.
        bytes: Size of appended records; -1: no append.
        batches: Number of appended batches; -1: unknown.
        replica: Broker id of a follower; -1: none.
    """

    at_us: Integers
    kind: Integers
    offset: Integers
    bytes: Integers
    batches: Integers
    replica: Integers


# Value of `change` for each kind of `OffsetChanges`, and the ranks.
KINDS_OF_OFFSETS = ("log_end", "replica_end", "high_watermark")
RANKS_OF_OFFSETS = (APPEND_RANK, PROGRESS_RANK, PROGRESS_RANK)

# Rows that are read at once, and entries of a sweep.
_CHUNK, _ENTRIES = 4096, 1 << 16
# Below all offsets: an unknown one.
_UNKNOWN = -(2**63)


class EventSweep:
    """Writes the events of one partition within a time range.

    A followed log is processed one time range after the other; each sweep is `resumed` from the `snapshot` of the
    previous one. No event is written twice. A change that is found only after its time range gets the start of the
    current range.
    """

    def __init__(self, facts: PartitionFacts, report: Report, time_range: TimeRange = ALL_TIME) -> None:
        self._facts = facts
        self._report = report
        self._range = time_range
        self._replica = TrackedReplica(facts.broker)
        self._status = partition_status.UNKNOWN_STATUS
        # True while the broker is a follower from which consumers read.
        self._follows = False
        self._log_starts: dict[int, int] = {}
        self._low_offset = 0
        self._transactional = False
        self._stable: int | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values, from which `resumed` restores it."""
        return {
            "replica": self._replica.snapshot(),
            "standing": self._status,
            "follows": self._follows,
            "log_starts": list(map(list, self._log_starts.items())),
            "low": self._low_offset,
            "transactional": self._transactional,
            "stable": self._stable,
        }

    @classmethod
    def resumed(cls, facts: PartitionFacts, report: Report, time_range: TimeRange, state: dict[str, Any]) -> EventSweep:
        """Restore the state from a `snapshot`, to continue with the events in `time_range`."""
        sweep = cls(facts, report, time_range)
        sweep._replica = TrackedReplica.resumed(facts.broker, state["replica"])
        sweep._status = state["standing"]
        sweep._follows = state["follows"]
        sweep._log_starts = dict(map(tuple, state["log_starts"]))
        sweep._low_offset = state["low"]
        sweep._transactional = state["transactional"]
        sweep._stable = state["stable"]
        return sweep

    def run(
        self, leadership: Sequence[LeadershipState], appends: SelectedAppends, start_us: int
    ) -> Iterator[TimedEvent | OffsetChanges]:
        """Yield the events of the time range, those of equal rank in time order.

        Most partitions only move offsets; their events are found as columns.

        Args:
            leadership: Leadership changes in time order.
            appends: Appends in offset order.
            start_us: A time before all facts of the partition; the initial log end offset is written there.
        """
        yield from self._begin(appends, start_us)
        changes = self._changes_to_write(leadership)
        yield from (
            self._offset_changes(changes, appends)
            if self._only_moves_offsets(appends)
            else self._one_by_one(changes, appends)
        )

    def _begin(self, appends: SelectedAppends, start_us: int) -> Iterator[TimedEvent]:
        self._transactional |= appends.has_any("transaction") or appends.has_any("ends_transaction")
        if self._replica.end is None and start_us < self._range.until_us:
            yield from self._initial_end(appends, start_us)

    def _one_by_one(
        self, changes: Sequence[LeadershipState], appends: SelectedAppends
    ) -> Iterator[TimedEvent | OffsetChanges]:
        """Yield the events of the entries, each of which may cause events of any kind."""
        for time, *_, what in self._in_order(changes, appends):
            if time >= self._range.until_us:
                break
            at = self._range.clamp(time)
            match what:
                case LeadershipState():
                    yield from self._state(at, what.fields)
                case Append():
                    yield from self._append(at, what)
                case ReaderPosition():
                    yield from self._position(at, what)
                case RecordDeletion():
                    yield from self._deletion(at, what.offset)
                case FollowerCopy():
                    yield from self._follower_copy(at, what)

    def _only_moves_offsets(self, appends: SelectedAppends) -> bool:
        """Return whether `_offset_changes` knows all kinds of events that the entries may cause."""
        facts, broker = self._facts, self._facts.broker
        if self._transactional or self._follows or facts.deletions or facts.copies or self._log_starts.get(broker):
            return False
        offset, replica, log_start = (facts.positions.integers(name) for name in ("offset", "replica", "log_start"))
        has_other = _has_below_0(offset) or bool(np.any((replica == broker) & (log_start > 0)))
        has_other = has_other or bool(np.any(appends.integers("wait_ms") >= 0))
        return not (has_other or _has_below_0(appends.integers("end")) or _has_below_0(appends.integers("bytes")))

    def _offset_changes(
        self, changes: Sequence[LeadershipState], appends: SelectedAppends
    ) -> Iterator[TimedEvent | OffsetChanges]:
        """Do the same as for entries one by one, with columns of appends and positions."""
        for (events,) in _rounds([_OffsetMoves(self, changes, appends)], self._range.until_us):
            yield from events

    def _write_change(self, at: int, fields: dict[str, Any]) -> TimedEvent:
        """Apply a leadership change of `_offset_changes`, and return its event."""
        if "isr" in fields:
            known = self._replica
            known.isr, known.min_isr = tuple(fields["isr"]), fields.get("min_isr", known.min_isr)
        self._status = partition_status.status_after(self._status, fields)
        return self._event(at, STATE_RANK, **fields)

    def _keep_log_starts(self, replica: Integers, log_start: Integers) -> None:
        """Update the log start offsets of followers. They move no low watermark while that of the leader is 0."""
        raised = (replica >= 0) & (log_start > 0)
        for follower in _distinct(replica[raised]):
            highest = int(log_start[raised & (replica == follower)].max())
            self._log_starts[follower] = max(highest, self._log_starts.get(follower, 0))

    def _in_order(
        self, to_write: Sequence[LeadershipState], appends: SelectedAppends
    ) -> Iterator[tuple[int, int, int, int, Any]]:
        """Yield (time, rank, number, kind, entry) for each entry in order; the kinds are only for equal numbers."""
        facts = self._facts
        positions, copies = facts.positions, facts.copies
        woken = np.argsort(positions.integers("wake_us"), kind="stable")
        copied = np.argsort(copies.integers("at_us"), kind="stable")
        changes = [(state.at_us, STATE_RANK, number, 0, state) for number, state in enumerate(to_write)]
        deletions = [
            (deletion.at_us, PROGRESS_RANK, len(positions) + number, 3, deletion)
            for number, deletion in enumerate(facts.deletions)
        ]
        return merge(
            sorted(changes, key=lambda entry: entry[:3]),
            ((append.check_us, APPEND_RANK, number, 1, append) for number, append in enumerate(appends)),
            (
                (position.wake_us, PROGRESS_RANK, number, 2, position)
                for number, position in zip(_numbers(woken), positions.in_order(woken), strict=True)
            ),
            deletions,
            (
                (copy.at_us, PROGRESS_RANK, number, 4, copy)
                for number, copy in zip(_numbers(copied), copies.in_order(copied), strict=True)
            ),
        )

    def _event(self, at: int, rank: int, **fields: Any) -> TimedEvent:
        at = self._range.clamp(at)
        key = {"broker": self._facts.broker, "topic": self._facts.topic, "partition": self._facts.partition}
        return TimedEvent(at, rank, {"time_us": at, "type": "partition", **key, **fields})

    def _changes_to_write(self, leadership: Sequence[LeadershipState]) -> list[LeadershipState]:
        """Return the leadership changes to write.

        Changes before the time range are merged into one at its start, and left out if they are written already.
        """
        past = [state for state in leadership if state.at_us < self._range.from_us]
        upcoming = list(leadership[len(past) :])
        now = partition_status.UNKNOWN_STATUS
        for state in past:
            now = partition_status.status_after(now, state.fields)
        if past and partition_status.status_after(self._status, partition_status.status_fields(now)) != self._status:
            upcoming.insert(0, LeadershipState(self._range.from_us, partition_status.status_fields(now)))
        return upcoming

    def _initial_end(self, appends: SelectedAppends, start_us: int) -> Iterator[TimedEvent]:
        """Yield the initial log end offset.

        It is the base offset of the first append; without appends, the highest offset that a reader fetched from or
        that the first response had as its high watermark.
        """
        positions, readings = self._facts.positions, self._facts.high_watermarks
        if not len(appends) and not positions and not readings:
            return
        if len(appends):
            end = appends[0].base
        else:
            offsets = [int(positions.integers("offset").max())] if positions else []
            end = max([*offsets, *([readings[0].offset] if readings else [])])
        self._replica.append(end)
        yield self._event(start_us, APPEND_RANK, change="log_end", offset=end, bytes=0)

    def _state(self, at: int, fields: dict[str, Any]) -> Iterator[TimedEvent]:
        if fields["change"] == partition_status.STOPPED:
            self._replica.ends.clear()
        if "isr" in fields:
            self._replica.isr = tuple(fields["isr"])
            self._replica.min_isr = fields.get("min_isr", self._replica.min_isr)
            self._replica.derive_high_watermark()
            yield from self._last_stable(at)
        self._status = partition_status.status_after(self._status, fields)
        self._follows = fields["change"] == "online" and bool(self._facts.copies)
        yield self._event(at, STATE_RANK, **fields)

    def _append(self, at: int, append: Append) -> Iterator[TimedEvent]:
        if not self._replica.append(append.end):
            return
        if append.transaction:
            self._replica.append_to_transaction(append.transaction, append.base, append.end)
        ended = append.ends_transaction
        if ended and not self._replica.end_transaction(ended, append.end, append.aborts):
            self._report.count("transaction_unknown")
        yield from self._last_stable(at)
        # If the produce's own event has the same time, that event is the append.
        if append.wait_ms >= 0 and self._leads:
            yield self._coordinator_produce(at, append)
        elif at != append.event_us:
            # Since Kafka 0.11 a produce has one batch for a partition.
            batches = 1 if append.file >= 0 else None
            yield self._event(at, APPEND_RANK, change="log_end", offset=append.end, bytes=append.bytes, batches=batches)

    @property
    def _leads(self) -> bool:
        """Whether the broker is the leader; a follower only copies appends."""
        return self._status.get("status") == "online" and not self._follows

    def _coordinator_produce(self, at: int, append: Append) -> TimedEvent:
        """Return the produce event for an append of a coordinator that waits for replicas."""
        at, facts, caused = self._range.clamp(at), self._facts, append.writer_line >= 0
        partition = {"topic": facts.topic, "partition": facts.partition, "bytes": append.bytes, "error": "NONE"}
        event = {
            "time_us": at,
            "type": "produce",
            "broker": facts.broker,
            "request_id": f"{facts.topic}-{facts.partition}@{append.base}",
            "acks": -1,
            "timeout_ms": append.wait_ms,
            "partitions": [{**partition, "base_offset": append.base, "last_offset": append.end - 1}],
        }
        if caused and append.client is not None:
            event["client_id"] = append.client
        self._report.count("coordinator_writes")
        return TimedEvent(at, APPEND_RANK, event, Place(append.writer_file, append.writer_line) if caused else None)

    def _follower_copy(self, at: int, copied: FollowerCopy) -> Iterator[TimedEvent]:
        """Yield the follower's own high watermark, if it has risen."""
        if self._follows and self._replica.raise_high_watermark(copied.high_watermark):
            yield from self._last_stable(at)
            yield self._event(at, PROGRESS_RANK, change="high_watermark", offset=copied.high_watermark)

    def _position(self, at: int, position: ReaderPosition) -> Iterator[TimedEvent]:
        if position.replica < 0:
            # A consumer at a follower may have read the records below from another replica.
            if not self._follows and self._replica.raise_high_watermark(position.offset):
                self._report.count("high_watermark_proven")
                yield from self._last_stable(at)
                yield self._event(at, PROGRESS_RANK, change="high_watermark", offset=position.offset)
            return
        if self._replica.advance_follower(position.replica, position.offset):
            yield from self._last_stable(at)
            yield self._event(
                at, PROGRESS_RANK, change="replica_end", replica_id=position.replica, offset=position.offset
            )
        if position.log_start > self._log_starts.get(position.replica, 0):
            self._log_starts[position.replica] = position.log_start
            yield from self._low_watermark(at)

    def _deletion(self, at: int, offset: int) -> Iterator[TimedEvent]:
        log_start = offset if offset >= 0 else (self._replica.high_watermark or 0)
        if log_start > self._log_starts.get(self._facts.broker, 0):
            self._log_starts[self._facts.broker] = log_start
            yield from self._low_watermark(at)

    def _low_watermark(self, at: int) -> Iterator[TimedEvent]:
        """Yield the low watermark, the lowest log start offset of the replicas, if it has risen."""
        members = {self._facts.broker, *(self._replica.isr or ()), *self._replica.ends}
        low = min(self._log_starts.get(member, 0) for member in members)
        if low > self._low_offset:
            self._low_offset = low
            yield self._event(at, PROGRESS_RANK, change="log_start", offset=low)

    def _last_stable(self, at: int) -> Iterator[TimedEvent]:
        """Yield the last stable offset, if it has risen and the partition has transactions.

        It comes before the event that makes it visible to consumers.
        """
        stable = self._replica.last_stable() if self._transactional else None
        if stable is not None and (self._stable is None or stable > self._stable):
            self._stable = stable
            aborted = [
                {"first_offset": first, "last_offset": last} for first, last in self._replica.take_aborted(stable)
            ]
            fields = {"aborted": aborted} if aborted else {}
            yield self._event(at, STABLE_RANK, change="last_stable", offset=stable, **fields)


def run_together(
    given: Sequence[tuple[EventSweep, Sequence[LeadershipState], SelectedAppends, int]],
) -> list[Iterator[TimedEvent | OffsetChanges]]:
    """Return what `EventSweep.run` yields for each of several partitions, given its arguments.

    The partitions have the same time range. Partitions that only move offsets are processed together.
    """
    if len(given) == 1:
        return [sweep.run(leadership, appends, start_us) for sweep, leadership, appends, start_us in given]
    events: list[Iterator[TimedEvent | OffsetChanges]] = []
    together: list[_OffsetMoves] = []
    places: list[int] = []
    for sweep, leadership, appends, start_us in given:
        first, changes = list(sweep._begin(appends, start_us)), sweep._changes_to_write(leadership)
        if not sweep._only_moves_offsets(appends):
            events.append(chain(first, sweep._one_by_one(changes, appends)))
            continue
        part = _OffsetMoves(sweep, changes, appends)
        if part.highest_offset() >= _MOST_OFFSET:
            events.append(chain(first, sweep._offset_changes(changes, appends)))
            continue
        places.append(len(events))
        together.append(part)
        events.append(iter(first))
    for start in range(0, len(together), MAX_INTERVALS):
        parts = together[start : start + MAX_INTERVALS]
        rounds = list(_rounds(parts, parts[0].sweep._range.until_us))
        for number, place in enumerate(places[start : start + MAX_INTERVALS]):
            events[place] = chain(events[place], *(of_parts[number] for of_parts in rounds))
    return events


class _OffsetMoves(NamedTuple):
    """Entries of a partition that only move offsets: leadership changes to write, appends, and readers' positions."""

    sweep: EventSweep
    changes: Sequence[LeadershipState]
    appends: SelectedAppends

    @property
    def positions(self) -> FactColumns[ReaderPosition]:
        """The positions of readers."""
        return self.sweep._facts.positions

    @property
    def known(self) -> TrackedReplica:
        """The log and its high watermark before the entries."""
        return self.sweep._replica

    def highest_offset(self) -> int:
        """Return the highest offset before or in the entries."""
        known = self.known
        columns = self.appends.integers("end"), self.positions.integers("offset")
        highest = [int(column.max()) for column in columns if len(column)]
        return max([*highest, known.end or 0, known.high_watermark or 0, *known.ends.values()])


# Offsets from here on do not fit into the interval of a partition, below which there is one for an unknown offset.
_MOST_OFFSET = INTERVAL - 3


def _rounds(parts: Sequence[_OffsetMoves], until_us: int) -> Iterator[list[list[TimedEvent | OffsetChanges]]]:
    """Yield the events of partitions before a time, in rounds; each round has events of each partition.

    A round starts with a stop of the broker, or after many entries.
    """
    entries, times, numbers = _in_time_order(parts, until_us)
    if not len(entries):
        return
    changes = [state for part in parts for state in part.changes]
    stops = [number for number, state in enumerate(changes) if _is_stop(state)]
    first_of_parts = np.searchsorted(numbers, np.arange(len(parts)))[numbers]
    is_first = (np.arange(len(entries)) - first_of_parts) % _ENTRIES == 0
    if stops:
        is_first |= np.isin(entries, stops)
    begun = np.cumsum(is_first)
    rounds = begun - begun[first_of_parts]
    for number in range(int(rounds.max()) + 1):
        some = np.flatnonzero(rounds == number)
        yield _OffsetRound(parts, entries[some], times[some], numbers[some]).events()


def _in_time_order(parts: Sequence[_OffsetMoves], until_us: int) -> tuple[Integers, Integers, Integers]:
    """Return the entries of partitions before a time, with their times and the numbers of their partitions.

    They are in the order of partitions and times. Entries are numbered: first the leadership changes of all partitions,
    then their appends, and then their positions; this is also the order of simultaneous entries.
    """
    columns = [
        *(np.array([state.at_us for state in part.changes], np.int64) for part in parts),
        *(part.appends.integers("check_us") for part in parts),
        *(part.positions.integers("wake_us") for part in parts),
    ]
    times = np.concatenate(columns)
    numbers = np.tile(np.arange(len(parts)), 3).repeat(list(map(len, columns)))
    entries = np.flatnonzero(times < until_us)
    order = entries[order_by(*([numbers[entries]] if len(parts) > 1 else []), times[entries])]
    return order, times[order], numbers[order]


class _RunningMaximum:
    """The highest offset until each of some entries, which are in the order of partitions.

    Attributes:
        starts: The value that is added to the offsets of each partition.
    """

    def __init__(self, numbers: Integers, count: int) -> None:
        self._numbers = numbers
        self.bounds = np.searchsorted(numbers, np.arange(count + 1))
        self.starts = np.arange(count) * INTERVAL
        self.unknown = self.starts - 2 if count > 1 else np.array([_UNKNOWN])
        # Each partition has another place, for the offset before its entries.
        self._places = np.arange(len(numbers)) + numbers + 1
        self._first_places = self.bounds[:-1] + np.arange(count)
        self._last_places = self.bounds[1:] + np.arange(count)

    def of(self, offsets: Integers, before: Sequence[int | None]) -> tuple[Integers, Booleans, list[int | None]]:
        """Return the highest offset until each entry, whether the entry has raised it, and the last one by partition.

        Args:
            offsets: The offset of each entry, moved by `starts`, or `unknown`.
            before: The highest offset of each partition before its entries.
        """
        highest = np.empty(len(offsets) + len(before), np.int64)
        highest[self._places] = offsets
        highest[self._first_places] = [
            unknown if known is None else start + known
            for known, start, unknown in zip(before, self.starts.tolist(), self.unknown.tolist(), strict=True)
        ]
        highest = np.maximum.accumulate(highest)
        reached, last = highest[self._places], highest[self._last_places]
        known: list[int | None] = (last - self.starts).tolist()
        for number in np.flatnonzero(last == self.unknown).tolist():
            known[number] = None
        return reached, reached > highest[self._places - 1], known


class _OffsetRound:
    """Consecutive entries of each partition; see `_in_time_order` for the arguments.

    Only the first entry of a partition may be a stop of the broker.
    """

    def __init__(self, parts: Sequence[_OffsetMoves], entries: Integers, times: Integers, numbers: Integers) -> None:
        self._parts, self._entries, self._numbers = parts, entries, numbers
        self._at = np.maximum(times, parts[0].sweep._range.from_us)
        self._maximum = _RunningMaximum(numbers, len(parts))
        self._bounds: list[int] = self._maximum.bounds.tolist()
        self._changes = [state for part in parts for state in part.changes]
        first = len(self._changes)
        positions_from = first + sum(len(part.appends) for part in parts)
        self._is_change, self._is_position = entries < first, entries >= positions_from
        self._is_append = ~(self._is_change | self._is_position)
        self._rows, self._places = entries[self._is_append] - first, entries[self._is_position] - positions_from
        self._offset, self._replica = np.full(len(entries), -1), np.full(len(entries), _UNKNOWN)
        self._offset[self._is_append] = self._of_appends("end")
        self._offset[self._is_position] = self._of_positions("offset")
        self._replica[self._is_position] = self._of_positions("replica")
        self._is_consumer = self._is_position & (self._replica < 0)
        # The offsets in the intervals of their partitions, and a value below the offsets of each interval.
        self._moved = self._offset + self._maximum.starts[numbers]
        self._unknown = self._maximum.unknown[numbers]

    def events(self) -> list[list[TimedEvent | OffsetChanges]]:
        """Return the events of each partition: leadership changes, and after these offset changes.

        Updates the partitions' logs.
        """
        self._forget_followers_at_stops()
        log_end, is_moved, last_ends = self._highest(self._is_append, [part.known.end for part in self._parts])
        by_follower, is_raised = self._advance_followers()
        events, derived = self._write_changes(log_end, by_follower)
        is_proven = self._raise_high_watermarks(derived)
        for part, end in zip(self._parts, last_ends, strict=True):
            part.known.end = end
        self._keep_log_starts()
        for of_part, changes in zip(events, self._offset_changes(is_moved | is_raised, is_proven), strict=True):
            of_part += changes
        return events

    def _of_appends(self, name: str) -> Integers:
        return _concatenated([part.appends.integers(name) for part in self._parts])[self._rows]

    def _of_positions(self, name: str) -> Integers:
        return _concatenated([part.positions.integers(name) for part in self._parts])[self._places]

    def _highest(self, wanted: Booleans, before: Sequence[int | None]) -> tuple[Integers, Booleans, list[int | None]]:
        """Return the highest offset of the wanted entries until each entry; see `_RunningMaximum.of`."""
        return self._maximum.of(np.where(wanted, self._moved, self._unknown), before)

    def _forget_followers_at_stops(self) -> None:
        for part, begin, end in zip(self._parts, self._bounds, self._bounds[1:], strict=False):
            if begin < end and self._is_change[begin] and _is_stop(self._changes[int(self._entries[begin])]):
                part.known.ends.clear()

    def _advance_followers(self) -> tuple[dict[int, Integers], Booleans]:
        """Return the log end offset of each follower at each entry, and whether the entry has raised one."""
        numbers, has_raised = self._numbers, np.zeros(len(self._entries), bool)
        by_follower: dict[int, Integers] = {}
        followed: list[tuple[int, int, int]] = []
        for follower in np.unique(self._replica[self._is_position & ~self._is_consumer]).tolist():
            is_its = self._replica == follower
            its_entries = np.flatnonzero(is_its)
            before = [part.known.ends.get(follower) for part in self._parts]
            by_follower[follower], is_raised, last = self._highest(is_its, before)
            has_raised |= is_raised
            its_parts, places_of_first = np.unique(numbers[its_entries], return_index=True)
            for number, entry in zip(its_parts.tolist(), its_entries[places_of_first].tolist(), strict=True):
                reached = last[number]
                if reached is not None:
                    followed.append((entry, follower, reached))
        # The followers of a partition are known in the order in which they are first found.
        for entry, follower, reached in sorted(followed):
            self._parts[int(numbers[entry])].known.ends[follower] = reached
        return by_follower, has_raised

    def _write_changes(
        self, log_end: Integers, by_follower: Mapping[int, Integers]
    ) -> tuple[list[list[TimedEvent | OffsetChanges]], Integers]:
        """Return the leadership changes of each partition, and the high watermark that the replay derives.

        It is derived at each entry, from the log end offsets of leader and followers.
        """
        events: list[list[TimedEvent | OffsetChanges]] = [[] for _ in self._parts]
        derived = self._unknown.copy()
        cuts = np.unique([*self._bounds, *np.flatnonzero(self._is_change).tolist()]).tolist()
        for begin, end in pairwise(cuts):
            number = int(self._numbers[begin])
            part, known = self._parts[number], self._parts[number].known
            if self._is_change[begin]:
                change = self._changes[int(self._entries[begin])]
                events[number].append(part.sweep._write_change(int(self._at[begin]), change.fields))
            if known.isr is None or (known.min_isr is not None and len(known.isr) < known.min_isr):
                continue
            least = log_end[begin:end]
            for member in known.isr:
                if member != known.broker:
                    offsets = by_follower[member][begin:end] if member in by_follower else self._end_of(number, member)
                    least = np.minimum(least, offsets)
            derived[begin:end] = least
        return events, derived

    def _end_of(self, number: int, follower: int) -> Integers:
        """Return the log end offset of a follower without entries."""
        known = self._parts[number].known.ends.get(follower)
        end: Integers = self._maximum.unknown[number] if known is None else known + self._maximum.starts[number]
        return end

    def _raise_high_watermarks(self, derived: Integers) -> Booleans:
        """Raise the high watermarks; return whether an entry of a consumer proves a higher one than the derived one."""
        shown = np.maximum(derived, np.where(self._is_consumer, self._moved, self._unknown))
        before = [part.known.high_watermark for part in self._parts]
        _, is_raised, last = self._maximum.of(shown, before)
        is_proven = self._is_consumer & is_raised
        proven = np.bincount(self._numbers[is_proven], minlength=len(self._parts)).tolist()
        for part, high_watermark, count in zip(self._parts, last, proven, strict=True):
            part.known.high_watermark = high_watermark
            if count:
                part.sweep._report.count("high_watermark_proven", count)
        return is_proven

    def _keep_log_starts(self) -> None:
        log_start = self._of_positions("log_start")
        if not np.any(log_start > 0):
            return
        numbers, replica = self._numbers[self._is_position], self._replica[self._is_position]
        for number, part in enumerate(self._parts):
            is_its = numbers == number
            part.sweep._keep_log_starts(replica[is_its], log_start[is_its])

    def _offset_changes(self, is_moved: Booleans, is_proven: Booleans) -> Iterator[list[OffsetChanges]]:
        """Yield the offset changes of each partition.

        Args:
            is_moved: Whether an entry moves a log end offset.
            is_proven: Whether an entry raises the high watermark.
        """
        size, batches, event_us = np.full((3, len(self._entries)), -1)
        size[self._is_append] = self._of_appends("bytes")
        batches[self._is_append] = np.where(self._of_appends("file") >= 0, 1, -1)
        event_us[self._is_append] = self._of_appends("event_us")
        # If the produce's own event has the same time, that event is the append.
        written = np.flatnonzero((is_moved & ~(self._is_append & (event_us == self._at))) | is_proven)
        kind = np.where(self._is_append, 0, np.where(self._is_consumer, 2, 1))
        values = [each[written] for each in (self._at, kind, self._offset, size, batches, self._replica)]
        for begin, end in pairwise(np.searchsorted(written, self._bounds).tolist()):
            yield [OffsetChanges(*(each[begin:end] for each in values))] if begin < end else []


def _concatenated(columns: Sequence[Integers]) -> Integers:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _has_below_0(values: Integers) -> bool:
    return bool(len(values)) and bool(values.min() < 0)


def _numbers(rows: Integers) -> Iterator[int]:
    """Yield integers of Python."""
    return chain.from_iterable(rows[start : start + _CHUNK].tolist() for start in range(0, len(rows), _CHUNK))


def _is_stop(state: LeadershipState) -> bool:
    return bool(state.fields["change"] == partition_status.STOPPED)


def _distinct(values: Integers) -> list[int]:
    """Return the distinct values, in the order in which they are first found."""
    _, first = np.unique(values, return_index=True)
    found: list[int] = values[np.sort(first)].tolist()
    return found

"""The timeline of one partition at one broker: from facts to events, and the offsets of produces.

Groups move with their partition of `__consumer_offsets`: a broker that becomes its leader loads them, and a broker that
is no longer its leader unloads them. When a broker's process exits, its waiting operations of these groups are lost.
This includes groups that it has just handed over, because a controlled shutdown moves the leadership first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.append_offsets import (
    OffsetInput,
    SelectedAppends,
    appends_from_batches,
    appends_from_offsets,
)
from purgatory_udf.sources.request_log.assumptions import MAX_LATE_MOVE_US, Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_columns import FactColumns
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    ConsumerRead,
    CoordinatorAnswer,
    FollowerCopy,
    HighWatermarkReading,
    Integers,
)
from purgatory_udf.sources.request_log.high_watermark_events import (
    PROGRESS_RANK,
    STATE_RANK,
    EventSweep,
    OffsetChanges,
    TimedEvent,
    run_together,
)
from purgatory_udf.sources.request_log.internal_topics import OFFSETS_TOPIC, BatchIndex, StoredBatch, TransactionFacts
from purgatory_udf.sources.request_log.leadership_changes import leadership_states
from purgatory_udf.sources.request_log.logged_request import Place
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import (
    ALL_TIME,
    STOPPED,
    LeadershipState,
    TimeRange,
    with_broker_stops,
)
from purgatory_udf.sources.request_log.tiered_reads import TieredReads, tiered_reads
from purgatory_udf.sources.request_log.time_correction import correct_times

NEVER = 2**62
# Rows of offsets that are made at once.
_CHUNK = 4096

# Moves of a coordinator: it loads the groups of a partition, unloads them, or its process ends.
LOADS, UNLOADS, STOPS = "loads", "unloads", "stops"
_MOVE_OF_CHANGE = {"leader": LOADS, "not_leader": UNLOADS, "deleted": UNLOADS, STOPPED: STOPS}


def coordinator_moves(
    leadership: Sequence[LeadershipState], answers: Sequence[CoordinatorAnswer]
) -> Iterator[tuple[int, str]]:
    """Yield (time in µs, LOADS, UNLOADS or STOPS) for the moves of a partition's groups at one broker, in time order.

    The coordinator follows the leadership of the partition with some delay. Answers to requests of groups bound the
    times. They also show moves that leadership changes do not show: a broker that serves a group coordinates it.

    Args:
        leadership: Leadership changes of the partition at the broker, in time order.
        answers: The broker's answers to requests of the partition's groups, in time order.
    """
    moves = [(at_us, 0, move) for at_us, move in _moves_by_leadership(leadership, answers)]
    for answer in answers:
        if answer.error == errors.NONE:
            moves.append((answer.at_us - 1, 1, LOADS))
        elif answer.error == errors.NOT_COORDINATOR:
            moves.append((answer.at_us - 1, 1, UNLOADS))
    coordinates = has_coordinated = False
    for at_us, _, move in sorted(moves):
        if has_coordinated if move == STOPS else coordinates != (move == LOADS):
            yield at_us, move
        coordinates = move == LOADS
        has_coordinated |= coordinates


def _moves_by_leadership(
    leadership: Sequence[LeadershipState], answers: Sequence[CoordinatorAnswer]
) -> Iterator[tuple[int, str]]:
    """Yield (time in µs, LOADS, UNLOADS or STOPS) for each leadership change that moves groups.

    A move has the time of the change, or follows the last answer that still shows the state before the move.
    """
    changes = [
        (state.at_us, _MOVE_OF_CHANGE[state.fields["change"]])
        for state in leadership
        if state.fields["change"] in _MOVE_OF_CHANGE
    ]
    times = [answer.at_us for answer in answers]
    for (at_us, move), (until_us, _) in pairwise([*changes, (NEVER, "")]):
        moved_us = at_us
        for answer in answers[bisect_left(times, at_us) : bisect_left(times, until_us)]:
            late_us = answer.at_us - at_us
            still_as_before = answer.error == errors.NONE if move == UNLOADS else answer.error != errors.NONE
            if move == STOPS or not still_as_before or late_us > MAX_LATE_MOVE_US:
                break
            moved_us = answer.at_us + 1
        yield moved_us, move


def group_moves(
    facts: PartitionFacts, context: Context, leadership: Sequence[LeadershipState], time_range: TimeRange
) -> Iterator[TimedEvent]:
    """Yield the events by which groups are loaded, unloaded, or lost because the broker stopped.

    Only groups with a stored record are known; a broker that leads from the start of the log has none to load.

    Args:
        facts: Facts of a partition of the offsets topic; any other has no groups.
        context: The groups of the log, and the partition of each.
        leadership: Leadership of the partition at the broker, in the order of time.
        time_range: The events to yield.
    """
    if facts.topic != OFFSETS_TOPIC or not context.groups.stored:
        return
    groups = sorted(group for group in context.groups.stored if context.group_partition(group) == facts.partition)
    for at_us, move in coordinator_moves(leadership, facts.coordinator_answers):
        if not time_range.from_us <= at_us < time_range.until_us:
            continue
        for group in groups:
            if move == STOPS:
                event = {"time_us": at_us, "broker": facts.broker, "group": group, "type": "group_stopped"}
                yield TimedEvent(at_us, STATE_RANK, event)
            else:
                yield from _group_move(facts.broker, group, at_us, context, loads=move == LOADS)


def _group_move(broker: int, group: str, at_us: int, context: Context, *, loads: bool) -> Iterator[TimedEvent]:
    """Yield the event of a group that is unloaded, or an event for each member of a group that is loaded."""
    stored = context.groups.at(group, at_us)
    if stored is None:
        return
    event: dict[str, Any] = {"time_us": at_us, "broker": broker, "group": group}
    if not loads:
        yield TimedEvent(at_us, STATE_RANK, {**event, "type": "group_unloaded"})
        return
    event |= {"type": "group_loaded", "generation": stored.generation}
    if not stored.members:
        no_member = {"member_id": "", "session_timeout_ms": 0, "rebalance_timeout_ms": 0, "protocols": []}
        yield TimedEvent(at_us, STATE_RANK, {**event, **no_member})
    for member in stored.members:
        yield TimedEvent(at_us, STATE_RANK, {**event, "leader_member_id": stored.leader, **member})


def with_follower_reads(facts: PartitionFacts, states: Iterable[LeadershipState]) -> list[LeadershipState]:
    """Replace `not_leader` by `online` where responses show that the broker served consumers as a follower."""
    leadership = list(states)
    for place, state in enumerate(leadership):
        until = leadership[place + 1].at_us if place + 1 < len(leadership) else NEVER
        if state.fields["change"] == "not_leader" and facts.copies:
            read_us = facts.high_watermarks.integers("until_us")
            if np.any((read_us >= state.at_us) & (read_us < until)):
                leadership[place] = LeadershipState(state.at_us, {"change": "online"})
    return leadership


def correct_copy_times(copies: FactColumns[FollowerCopy], high_watermarks: FactColumns[HighWatermarkReading]) -> None:
    """Correct the times of copies, which are in time order.

    A copy is not later than the first response of this broker with its high watermark, nor than the next copy.
    """
    if not copies:
        return
    since, offset = high_watermarks.integers("since_us"), high_watermarks.integers("offset")
    order = np.lexsort((offset, since))
    # The highest offset shown until each response, and the time of that response.
    highest, since = np.maximum.accumulate(offset[order]), np.append(since[order], NEVER)
    bound = since[np.searchsorted(highest, copies.integers("high_watermark"))]
    latest = np.minimum(np.minimum(copies.integers("at_us"), bound), NEVER)
    copies.replace("at_us", np.minimum.accumulate(latest[::-1])[::-1])


def follower_appends(
    facts: PartitionFacts, batches: Collection[StoredBatch], transactions: TransactionFacts
) -> Iterator[Append]:
    """Yield the appends of a broker that never leads, as single batches if `--batches` has them.

    `batches` may be empty. `transactions` names the transaction of a producer's batch.
    """
    index = BatchIndex(batches)
    for copied in facts.copies:
        at = copied.at_us
        run = index.between(copied.base, copied.end)
        for batch in run:
            append = Append(at, at, at, at, base=batch.base, end=batch.last + 1, bytes=batch.bytes)
            if batch.control:
                append.ends_transaction = transactions.transaction_of(batch.producer_id)
            elif batch.transactional:
                append.transaction = transactions.transaction_of(batch.producer_id)
            yield append
        if not run and copied.end > copied.base:
            yield Append(at, at, at, at, base=copied.base, end=copied.end, bytes=copied.bytes)


class ProducedOffsets(NamedTuple):
    """Offsets [base, end) of one partition of each of several produces, as columns.

    `time_us` are the times of the appends' events; `file`, `line` and `slot` identify the partitions of the produces.
    """

    file: Integers
    line: Integers
    slot: Integers
    base: Integers
    end: Integers
    time_us: Integers


@dataclass(slots=True)
class PartitionTimeline:
    """Events of a partition, offsets of produces, and the state for the next time range.

    Events and offsets are made when they are read, once. Events of equal rank are in order. `unlogged` are the appends
    that no fact is about, in offset order; `remote_reads` are the fetches that waited for remote storage.
    """

    snapshot: Callable[[], dict[str, Any]]
    events: Iterable[TimedEvent | OffsetChanges] = ()
    produced: Iterable[ProducedOffsets] = ()
    unlogged: SelectedAppends = field(default_factory=SelectedAppends.none)
    remote_reads: Sequence[ConsumerRead] = ()

    @property
    def sweep(self) -> dict[str, Any]:
        """The state after all events have been read."""
        return self.snapshot()


class PartitionInput(NamedTuple):
    """The input of a partition's timeline.

    Attributes:
        facts: All facts of the partition at the broker.
        report: Counts what could not be derived.
        before: For a followed log: the attribute `sweep` of the timeline of the previous range.
    """

    facts: PartitionFacts
    report: Report
    before: dict[str, Any] | None = None


def build_timeline(
    facts: PartitionFacts,
    context: Context,
    report: Report,
    time_range: TimeRange = ALL_TIME,
    before: dict[str, Any] | None = None,
) -> PartitionTimeline:
    """Build the timeline of one partition; see `build_timelines`."""
    return build_timelines([PartitionInput(facts, report, before)], context, time_range)[0]


def build_timelines(
    partitions: Iterable[PartitionInput], context: Context, time_range: TimeRange = ALL_TIME
) -> list[PartitionTimeline]:
    """Build the timelines of partitions from their facts. Corrects the times of the facts in place.

    Args:
        partitions: The partitions. Few facts of many partitions take less time together.
        context: Cluster facts.
        time_range: Range of the events to write.
    """
    builders = [_TimelineBuilder(partition, context, time_range) for partition in partitions]
    built = [builder for builder in builders if builder.has_events]
    inputs = [(builder, builder.offset_input) for builder in built if builder.offset_input is not None]
    found = appends_from_offsets([offset_input for _, offset_input in inputs])
    for (builder, _), appends in zip(inputs, found, strict=True):
        builder.appends = appends
    correct_times([(builder.appends, builder.facts) for builder in built])
    events = iter(run_together([builder.sweep_arguments() for builder in built]))
    return [builder.timeline(next(events)) if builder.has_events else builder.without_events() for builder in builders]


class _TimelineBuilder:
    """Builds the timeline of a partition: first its leadership and appends, then, with corrected times, its events."""

    def __init__(self, partition: PartitionInput, context: Context, time_range: TimeRange) -> None:
        facts, report, before = partition
        self.facts, self._context, self._range = facts, context, time_range
        new, resumed = EventSweep, EventSweep.resumed
        self._sweep = resumed(facts, report, time_range, before) if before else new(facts, report, time_range)
        self.offset_input: OffsetInput | None = None
        self.has_events = not facts.has_only_copies
        if not self.has_events:
            return
        self._first_us = first_us = facts.first_us
        known_start = (before or {}).get("local_start")
        self._tiered = tiered = TieredReads()
        if facts.topic in context.tiered:
            self._tiered = tiered = tiered_reads(facts, known_start or 0, report)
            facts.high_watermarks.extend(FactColumns.of(HighWatermarkReading, tiered.high_watermarks))
            facts.high_watermarks.sort("until_us", "offset")
            if known_start is None:
                tiered.starts.insert(0, (min(first_us, time_range.clamp(first_us)) - 2, 0))
        changes = context.changes.get((facts.topic, facts.partition), ())
        led = leadership_states(facts, changes, context.cluster, first_us - 2, report, time_range is ALL_TIME)
        self._leadership = with_broker_stops(with_follower_reads(facts, led), context.stops, facts.broker)
        correct_copy_times(facts.copies, facts.high_watermarks)
        self._logged = len(facts.appends)
        given = _given_appends(facts, context, self._leadership, report)
        self.appends = SelectedAppends.none() if given is None else given
        # `appends_from_offsets` finds the appends of most partitions.
        if given is None:
            self.offset_input = OffsetInput(facts, context.has_classic_coordinator(facts.broker), report)

    def sweep_arguments(self) -> tuple[EventSweep, Sequence[LeadershipState], SelectedAppends, int]:
        """Return what `run_together` needs, after the times of the facts have been corrected."""
        start_us = min([self._first_us, *self.appends.integers("check_us")[:1].tolist()]) - 1
        return self._sweep, self._leadership, self.appends, start_us

    def timeline(self, swept: Iterator[TimedEvent | OffsetChanges]) -> PartitionTimeline:
        """Return the timeline, given the events of the sweep."""
        facts, appends, tiered = self.facts, self.appends, self._tiered
        moves = group_moves(facts, self._context, self._leadership, self._range)
        events = chain(swept, moves, _tiered_events(facts, tiered.starts, self._range))
        produced = _produced(facts, self._logged, appends)
        return PartitionTimeline(self._snapshot, events, produced, appends.since_row(self._logged), tiered.remote)

    def without_events(self) -> PartitionTimeline:
        """Return the timeline of a partition without events."""
        return PartitionTimeline(self._snapshot)

    def _snapshot(self) -> dict[str, Any]:
        has_start = self.has_events and self.facts.topic in self._context.tiered
        start = {"local_start": self._tiered.local_start} if has_start else {}
        return self._sweep.snapshot() | start


def _tiered_events(
    facts: PartitionFacts, starts: Iterable[tuple[int, int]], time_range: TimeRange
) -> Iterator[TimedEvent]:
    """Yield the changes of the local log start, and the ends of lookups in remote storage."""
    place = {"broker": facts.broker, "topic": facts.topic, "partition": facts.partition}
    for at_us, offset in starts:
        at = time_range.clamp(at_us)
        if at < time_range.until_us:
            change = {"time_us": at, "type": "partition", **place, "change": "local_log_start", "offset": offset}
            yield TimedEvent(at, STATE_RANK, change)
    for lookup in facts.lookups:
        if time_range.from_us <= lookup.at_us < time_range.until_us:
            end = {"time_us": lookup.at_us, "type": "remote_lookup", **place, "error": errors.name_of(lookup.error)}
            found = {"offset": lookup.offset} if lookup.offset >= 0 else {}
            yield TimedEvent(lookup.at_us, PROGRESS_RANK, {**end, **found}, Place(lookup.file, lookup.line))


def _given_appends(
    facts: PartitionFacts, context: Context, leadership: Sequence[LeadershipState], report: Report
) -> SelectedAppends | None:
    """Return the appends that batches show, in offset order, or None without batches. Adds unlogged ones to the facts.

    For a broker that never leads, these are the records that it copied, and only if consumers read from it.
    """
    leads = any(state.fields["change"] == "leader" for state in leadership)
    batches = context.batches.get((facts.topic, facts.partition))
    if not leads and not np.any(facts.appends.integers("base") >= 0):
        served = any(state.fields["change"] == "online" for state in leadership)
        copied = follower_appends(facts, batches or (), context.transactions) if served else ()
        logged = len(facts.appends)
        facts.appends.extend(FactColumns.of(Append, copied))
        return SelectedAppends(facts.appends, np.arange(logged, len(facts.appends)))
    if batches is None and not context.batches:
        return None
    classic = context.has_classic_coordinator(facts.broker)
    return appends_from_batches(facts, batches or (), context.span_us, classic, context.transactions, report)


def _produced(facts: PartitionFacts, logged: int, appends: SelectedAppends) -> Iterator[ProducedOffsets]:
    """Yield the offsets of produces: a retry has those of the first attempt, a marker those of its append.

    Args:
        facts: Facts of the partition.
        logged: Number of appends that are in the log; the facts have others after these.
        appends: The appends with their offsets.
    """
    columns = facts.appends
    base, bases = columns.integers("base")[:logged], appends.integers("base")
    place = np.searchsorted(bases, base, side="right") - 1
    is_produce = (place >= 0) & (columns.integers("line")[:logged] >= 0)
    is_produce[is_produce] = bases[place[is_produce]] == base[is_produce]
    rows = np.flatnonzero(is_produce)
    ends = appends.integers("end")[place[rows]]
    for start in range(0, len(rows), _CHUNK):
        some = slice(start, start + _CHUNK)
        names = ("file", "line", "slot", "base", "check_us")
        file, line, slot, base_, check = (columns.integers(name)[rows[some]] for name in names)
        yield ProducedOffsets(file, line, slot, base_, ends[some], check)
    is_marker = (appends.integers("slot") >= 0) & (appends.integers("line") < 0)
    if is_marker.any():
        markers = appends.rows[is_marker]
        of_writer = ("writer_file", "writer_line", "slot", "base", "end", "check_us")
        yield ProducedOffsets(*(columns.integers(name)[markers] for name in of_writer))

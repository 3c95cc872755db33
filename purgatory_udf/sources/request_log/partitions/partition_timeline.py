"""One partition at one broker, from facts to events: what its log, high watermark and leadership did, and when."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster.cluster_context import Context
from purgatory_udf.sources.request_log.cluster.internal_topics import (
    DEFAULT_PARTITIONS,
    OFFSETS_TOPIC,
    TransactionFacts,
    partition_for,
)
from purgatory_udf.sources.request_log.cluster.record_batches import BatchIndex, StoredBatch
from purgatory_udf.sources.request_log.partitions.append_offsets import appends_from_batches, appends_from_offsets
from purgatory_udf.sources.request_log.partitions.event_sweep import STATE_RANK, EventSweep, TimedEvent
from purgatory_udf.sources.request_log.partitions.leadership_changes import leadership_states
from purgatory_udf.sources.request_log.partitions.partition_status import (
    ALL_TIME,
    STOPPED,
    LeadershipState,
    TimeRange,
    with_broker_stops,
)
from purgatory_udf.sources.request_log.partitions.time_correction import (
    apply_high_watermark_readings,
    correct_append_times,
    correct_position_times,
)
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Append,
    FollowerCopy,
    HighWatermarkReading,
    PartitionFacts,
)

# Groups move with their partition of `__consumer_offsets`: who begins to lead it loads them, who leads it no more
# unloads them. Where a broker's process ends, what it had parked for them is gone, of those that it gave away before
# as well: a broker that is told to stop hands over first.


def group_moves(
    facts: PartitionFacts, context: Context, leadership: Sequence[LeadershipState], stretch: TimeRange
) -> Iterator[TimedEvent]:
    """Of groups that are known by what was stored of them; who led from the beginning has nothing to load."""
    if facts.topic != OFFSETS_TOPIC or not context.groups.stored:
        return
    count = context.partition_counts.get(OFFSETS_TOPIC, DEFAULT_PARTITIONS[OFFSETS_TOPIC])
    groups = sorted(group for group in context.groups.stored if partition_for(group, count) == facts.partition)
    leads = has_led = False
    for state in leadership:
        change = state.fields["change"]
        begins, ends = change == "leader" and not leads, change in ("not_leader", "deleted") and leads
        stops = change == STOPPED and has_led
        leads = (leads or begins) and not (ends or stops)
        has_led |= leads
        if not (begins or ends or stops) or not stretch.from_us <= state.at_us < stretch.until_us:
            continue
        for group in groups:
            if stops:
                event = {"time_us": state.at_us, "broker": facts.broker, "group": group, "type": "group_stopped"}
                yield TimedEvent(state.at_us, STATE_RANK, event)
            else:
                yield from _group_move(facts.broker, group, state.at_us, context, loads=begins)


def _group_move(broker: int, group: str, at_us: int, context: Context, *, loads: bool) -> Iterator[TimedEvent]:
    stored = context.groups.at(group, at_us)
    if stored is None:
        return
    event: dict[str, Any] = {"time_us": at_us, "broker": broker, "group": group}
    if not loads:
        yield TimedEvent(at_us, STATE_RANK, {**event, "type": "group_unloaded"})
        return
    event |= {"type": "group_loaded", "generation": stored.generation}
    if not stored.members:
        nobody = {"member_id": "", "session_timeout_ms": 0, "rebalance_timeout_ms": 0, "protocols": []}
        yield TimedEvent(at_us, STATE_RANK, {**event, **nobody})
    for member in stored.members:
        yield TimedEvent(at_us, STATE_RANK, {**event, "leader_member_id": stored.leader, **member})


# A replica that follows, and is read from: when its copies were there, what they appended, when it served readers.


NEVER = 2**62


def with_follower_reads(facts: PartitionFacts, states: Iterable[LeadershipState]) -> list[LeadershipState]:
    """The same leadership, but that a broker serves consumers while it follows, where answers show that it did."""
    leadership = list(states)
    for place, state in enumerate(leadership):
        until = leadership[place + 1].at_us if place + 1 < len(leadership) else NEVER
        served = any(state.at_us <= sight.until_us < until for sight in facts.high_watermarks)
        if state.fields["change"] == "not_leader" and facts.copies and served:
            leadership[place] = LeadershipState(state.at_us, {"change": "online"})
    return leadership


def correct_copy_times(copies: Sequence[FollowerCopy], sights: Sequence[HighWatermarkReading]) -> None:
    """Sets `at_us` of copies that are in time order: no later than the first answer here that shows what was learnt."""
    shown: list[tuple[int, int]] = []  # (offset, the first moment at which it or more was shown), offsets rising
    for sight in sorted(sights, key=lambda sight: (sight.since_us, sight.offset)):
        if not shown or sight.offset > shown[-1][0]:
            shown.append((sight.offset, sight.since_us))
    offsets = [offset for offset, _ in shown]
    latest = NEVER
    for copied in reversed(copies):
        place = bisect_left(offsets, copied.high_watermark)
        bound = shown[place][1] if place < len(shown) else NEVER
        copied.at_us = latest = min(copied.at_us, bound, latest)


def follower_appends(
    facts: PartitionFacts, batches: Collection[StoredBatch], transactions: TransactionFacts
) -> Iterator[Append]:
    """The appends of a replica that never leads, batch by batch where the batches are known."""
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
    """The offsets [base, end) that one partition of one produce was given; its append is known by `time_us`."""

    file: int
    line: int
    slot: int
    base: int
    end: int
    time_us: int


@dataclass(slots=True)
class PartitionTimeline:
    events: list[TimedEvent] = field(default_factory=list)
    produced: list[ProducedOffsets] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    sweep: dict[str, Any] = field(default_factory=dict)


def build_timeline(
    facts: PartitionFacts,
    context: Context,
    report: Report,
    stretch: TimeRange = ALL_TIME,
    before: dict[str, Any] | None = None,
) -> PartitionTimeline:
    """The events of the stretch. `before` is the `sweep` of the timeline of the stretch before."""
    key = (facts.topic, facts.partition)
    sweep = EventSweep.resumed(facts, report, stretch, before) if before else EventSweep(facts, report, stretch)
    if facts.has_only_copies:
        return PartitionTimeline(sweep=sweep.snapshot())
    first_us = facts.first_us
    led = leadership_states(
        facts, context.changes.get(key, ()), context.cluster, first_us - 2, report, stretch is ALL_TIME
    )
    leadership = with_broker_stops(with_follower_reads(facts, led), context.stops, facts.broker)
    correct_copy_times(facts.copies, facts.high_watermarks)
    appends = _appends(facts, context, leadership, report)
    correct_append_times(appends, facts.positions, facts.follower_attempts)
    correct_position_times(facts.positions, facts.high_watermarks, facts.consumer_attempts)
    apply_high_watermark_readings(facts.positions, facts.high_watermarks)
    start_us = min([first_us, *(append.check_us for append in appends[:1])]) - 1
    events = [*sweep.run(leadership, appends, start_us), *group_moves(facts, context, leadership, stretch)]
    return PartitionTimeline(events, list(_produced(facts, appends)), appends, sweep.snapshot())


def _appends(
    facts: PartitionFacts, context: Context, leadership: Sequence[LeadershipState], report: Report
) -> list[Append]:
    """At a broker that never leads, what it has copied, if consumers read there; else none: requests are turned away,
    whatever its log holds."""
    leads = any(state.fields["change"] == "leader" for state in leadership)
    batches = context.batches.get((facts.topic, facts.partition))
    if not leads and not any(append.base >= 0 for append in facts.appends):
        served = any(state.fields["change"] == "online" for state in leadership)
        return list(follower_appends(facts, batches or (), context.transactions)) if served else []
    classic = context.has_classic_coordinator(facts.broker)
    if batches is None and not context.batches:
        return appends_from_offsets(facts, classic, report)
    return appends_from_batches(facts, batches or (), context.span_us, classic, context.transactions, report)


def _produced(facts: PartitionFacts, appends: Sequence[Append]) -> Iterator[ProducedOffsets]:
    """A retry has the offsets of the append that it repeats. The end of a transaction is a produce, too, of which only
    the append says the offsets."""
    ends: dict[int, Any] = {append.base: append.end for append in appends}
    for append in facts.appends:
        if append.is_operation and append.base in ends:
            yield ProducedOffsets(
                append.file, append.line, append.slot, append.base, ends[append.base], append.check_us
            )
    for append in appends:
        if append.slot >= 0 and not append.is_operation:
            yield ProducedOffsets(
                append.writer_file, append.writer_line, append.slot, append.base, append.end, append.check_us
            )

"""One partition at one broker, from facts to events: what its log, high watermark and leadership did, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.partitions.copied import copied_appends, place_copies, served_as_follower
from purgatory_udf.requestlog.partitions.leadership import states
from purgatory_udf.requestlog.partitions.moves import moves
from purgatory_udf.requestlog.partitions.offsets import appends_from_batches, appends_from_offsets
from purgatory_udf.requestlog.partitions.placing import place_appends, place_by_sight, place_positions
from purgatory_udf.requestlog.partitions.returning import LeadershipState
from purgatory_udf.requestlog.partitions.stopping import with_stops
from purgatory_udf.requestlog.partitions.stretch import ALL, Stretch
from purgatory_udf.requestlog.partitions.sweep import Sweep, Timed
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Append, PartitionFacts


class ProducedAt(NamedTuple):
    """The offsets [base, end) that one partition of one produce was given; its append is known by `time_us`."""

    file: int
    line: int
    slot: int
    base: int
    end: int
    time_us: int


@dataclass(slots=True)
class PartitionTimeline:
    events: list[Timed] = field(default_factory=list)
    produced: list[ProducedAt] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    sweep: dict[str, Any] = field(default_factory=dict)


def build_timeline(
    facts: PartitionFacts,
    context: Context,
    report: Report,
    stretch: Stretch = ALL,
    before: dict[str, Any] | None = None,
) -> PartitionTimeline:
    """The events of the stretch. `before` is the `sweep` of the timeline of the stretch before."""
    key = (facts.topic, facts.partition)
    sweep = Sweep.resumed(facts, report, stretch, before) if before else Sweep(facts, report, stretch)
    if facts.only_copied:
        return PartitionTimeline(sweep=sweep.snapshot())
    first_us = facts.first_us
    led = states(facts, context.changes.get(key, ()), context.cluster, first_us - 2, report, stretch is ALL)
    leadership = with_stops(served_as_follower(facts, led), context.stops, facts.broker)
    place_copies(facts.copies, facts.sights)
    appends = _appends(facts, context, leadership, report)
    place_appends(appends, facts.positions, facts.follower_tries)
    place_positions(facts.positions, facts.sights, facts.consumer_tries)
    place_by_sight(facts.positions, facts.sights)
    start_us = min([first_us, *(append.check_us for append in appends[:1])]) - 1
    events = [*sweep.run(leadership, appends, start_us), *moves(facts, context, leadership, stretch)]
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
        return list(copied_appends(facts, batches or (), context.transactions)) if served else []
    classic = context.is_classic(facts.broker)
    if batches is None and not context.batches:
        return appends_from_offsets(facts, classic, report)
    return appends_from_batches(facts, batches or (), context.span_us, classic, context.transactions, report)


def _produced(facts: PartitionFacts, appends: Sequence[Append]) -> Iterator[ProducedAt]:
    """A retry has the offsets of the append that it repeats. The end of a transaction is a produce, too, of which only
    the append says the offsets."""
    ends: dict[int, Any] = {append.base: append.end for append in appends}
    for append in facts.appends:
        if append.is_operation and append.base in ends:
            yield ProducedAt(append.file, append.line, append.slot, append.base, ends[append.base], append.check_us)
    for append in appends:
        if append.slot >= 0 and not append.is_operation:
            yield ProducedAt(
                append.writer_file, append.writer_line, append.slot, append.base, append.end, append.check_us
            )

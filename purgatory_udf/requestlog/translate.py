"""All brokers' requests → events of the contract, in their total order, with what was recorded of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.requestlog.bodies import fetch_answer_of, fetch_of
from purgatory_udf.requestlog.context import TELLING, Context, Given, build_context
from purgatory_udf.requestlog.controller import is_controllers
from purgatory_udf.requestlog.facts import Fact, Key, PartitionFacts
from purgatory_udf.requestlog.fetches import SessionReader
from purgatory_udf.requestlog.operation import Operation, Recorded
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.request import Place, Request
from purgatory_udf.requestlog.sessions import session_key
from purgatory_udf.requestlog.sweep import REQUEST
from purgatory_udf.requestlog.take_apart import take_apart
from purgatory_udf.requestlog.timeline import ProducedAt, build_timeline

Event = dict[str, Any]
# Time, rank among simultaneous events, broker, and then: which line, or which partition; the order within that.
Order = tuple[int, int, int, int, int, int]


@dataclass(slots=True)
class Translation:
    """`events` have their `seq`; `recorded` and `places` are keyed by it."""

    events: list[Event] = field(default_factory=list)
    recorded: dict[int, Recorded] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    report: Report = field(default_factory=Report)


def translate(requests: Iterable[Request], given: Given | None = None) -> Translation:
    """The whole log at once, in memory: `spark_import` does the same in parts."""
    log = sorted(requests, key=lambda one: (one.start_us, one.place))
    context = context_of(log, given or Given())
    translation = Translation()
    operations: list[Operation] = []
    facts: dict[tuple[int, Key], list[Fact]] = {}
    for broker, found, shown in _take_apart(log, context, translation.report):
        operations.extend(found)
        for key, fact in shown:
            facts.setdefault((broker, key), []).append(fact)
    ordered: list[tuple[Order, Event, Operation | None]] = []
    produced: list[ProducedAt] = []
    for number, ((broker, key), own) in enumerate(sorted(facts.items(), key=lambda one: one[0])):
        timeline = build_timeline(PartitionFacts.of(broker, key, own), context, translation.report)
        produced.extend(timeline.produced)
        for sub, (at, rank, event) in enumerate(timeline.events):
            ordered.append(((at, rank, broker, number, sub, 0), event, None))
    fill_offsets(operations, produced)
    for one in operations:
        ordered.append(((one.event["time_us"], REQUEST, one.broker, *one.place, one.sub), one.event, one))
    translation.report.count("operations", len(operations))
    for seq, (_, event, operation) in enumerate(sorted(ordered, key=lambda one: one[0])):
        event["seq"] = seq
        translation.events.append(event)
        if operation is not None:
            translation.recorded[seq] = operation.recorded
            translation.places[seq] = operation.place
    return translation


def context_of(log: Sequence[Request], given: Given) -> Context:
    """`log` in the order of time."""
    span = (min((one.arrival_us for one in log), default=0), max((one.answered_us for one in log), default=0))
    return build_context((one for one in log if one.api in TELLING), given, span, classic_brokers(log))


def classic_brokers(log: Iterable[Request]) -> set[int]:
    """Brokers that answer heartbeats in the thread that handles them: other threads' answers look like waits."""
    votes: Counter[int] = Counter()
    for one in log:
        if one.api == "HEARTBEAT":
            votes[one.broker] += -1 if one.remote_us else 1
    return {broker for broker, vote in votes.items() if vote > 0}


def _take_apart(
    log: Sequence[Request], context: Context, report: Report
) -> Iterable[tuple[int, Sequence[Operation], Iterable[tuple[Key, Fact]]]]:
    readers: dict[tuple[int, str], SessionReader] = {}
    for request in log:
        if request.api != "FETCH" or is_controllers(request):
            yield request.broker, *take_apart(request, context, report)
            continue
        key = session_key(fetch_of(request.body), fetch_answer_of(request.answer), request.connection)
        reader = readers.setdefault((request.broker, key), SessionReader(context, report))
        operation, facts = reader.read(request)
        yield request.broker, [operation] if operation else [], facts
    for (broker, _), reader in readers.items():
        yield broker, [], reader.finish()


def fill_offsets(operations: Iterable[Operation], produced: Iterable[ProducedAt]) -> None:
    """A produce's partitions get the offsets that their partitions' timelines found for them."""
    found: Mapping[tuple[Place, int], ProducedAt] = {(Place(one.file, one.line), one.slot): one for one in produced}
    for operation in operations:
        if operation.event["type"] == "produce":
            for slot, partition in enumerate(operation.event["partitions"]):
                if one := found.get((operation.place, slot)):
                    partition["base_offset"], partition["last_offset"] = one.base, one.end - 1

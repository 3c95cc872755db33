"""All brokers' requests → events of the contract, in their total order, with what was recorded of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.requestlog.cluster.context import TELLING, Context, Given, build_context, nameless
from purgatory_udf.requestlog.importing.order import Order, order_of_change, order_of_operation
from purgatory_udf.requestlog.importing.reading import Tally
from purgatory_udf.requestlog.lines.bodies import fetch_answer_of, fetch_of
from purgatory_udf.requestlog.lines.controller import is_controllers
from purgatory_udf.requestlog.lines.line import MALFORMED, BadLine, malformed
from purgatory_udf.requestlog.lines.request import Place, Request
from purgatory_udf.requestlog.partitions.timeline import ProducedAt, build_timeline
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.apart import Parts, parts_of, parts_of_sessions
from purgatory_udf.requestlog.requests.facts import Fact, Key, PartitionFacts
from purgatory_udf.requestlog.requests.groups import MODERN
from purgatory_udf.requestlog.requests.operation import LoggedOperation, Recorded, first_slot
from purgatory_udf.requestlog.requests.sessions import session_key

Event = dict[str, Any]

NO_SOURCES: Mapping[int, str] = {}


@dataclass(slots=True)
class Translation:
    """`events` have their `seq`, by which `recorded` is keyed."""

    events: list[Event] = field(default_factory=list)
    recorded: dict[int, Recorded] = field(default_factory=dict)
    bad: list[BadLine] = field(default_factory=list)
    report: Report = field(default_factory=Report)


def translate(
    requests: Iterable[Request], given: Given | None = None, sources: Mapping[int, str] = NO_SOURCES
) -> Translation:
    """The whole log at once, in memory: `spark_import` does the same in parts. `sources` are the names of the files."""
    log = sorted(requests, key=lambda one: (one.start_us, one.place))
    context = context_of(log, given or Given())
    translation = Translation()
    operations: list[LoggedOperation] = []
    facts: dict[tuple[int, Key], list[Fact]] = {}
    for parts in _parts(log, context, translation):
        operations.extend(parts.operations)
        for key, fact in parts.facts:
            facts.setdefault((parts.broker, key), []).append(fact)
        if parts.bad:
            translation.bad.append(parts.bad)
    ordered: list[tuple[Order, Event, LoggedOperation | None]] = []
    produced: list[ProducedAt] = []
    for (broker, key), own in facts.items():
        timeline = build_timeline(PartitionFacts.of(broker, key, own), context, translation.report)
        produced.extend(timeline.produced)
        for number, timed in enumerate(timeline.events):
            if timed.cause is not None:
                timed.event["request_id"] = request_id(sources, timed.cause)
            ordered.append((order_of_change(broker, *key, number, timed), timed.event, None))
    fill_offsets(operations, produced)
    ordered.extend((order_of_operation(one), one.event, one) for one in operations)
    translation.report.count("requests", len(log))
    translation.report.count("bad_lines", len(translation.bad))
    translation.report.count("operations", len(operations))
    translation.report.count("unnamed_topic", len(nameless((key[0] for _, key in facts), context)))
    for seq, (_, event, operation) in enumerate(sorted(ordered, key=lambda one: one[0])):
        event["seq"] = seq
        translation.events.append(event)
        if operation is not None:
            event["request_id"] = request_id(sources, operation.place)
            translation.recorded[seq] = operation.recorded
    return translation


def request_id(sources: Mapping[int, str], place: Place) -> str:
    """For people: what finds the line again."""
    return f"{sources.get(place.file, place.file)}:{place.line}"


def context_of(log: Sequence[Request], given: Given) -> Context:
    """`log` in the order of time."""
    span = (min((one.arrival_us for one in log), default=0), max((one.answered_us for one in log), default=0))
    tally = Tally()
    for one in log:
        if one.api in MODERN:
            tally.not_kept(one)
        if one.api == "FETCH" and not is_controllers(one):
            with suppress(*MALFORMED):
                tally.asked(fetch_of(one.body))
    telling = (one for one in log if one.api in TELLING)
    racked = bool(tally.counts["racked"])
    return build_context(telling, given, span, classic_brokers(log), tally.partitions, racked, tally.modern)


def classic_brokers(log: Iterable[Request]) -> set[int]:
    """Brokers that answer heartbeats in the thread that handles them: other threads' answers look like waits."""
    votes: Counter[int] = Counter()
    for one in log:
        if one.api == "HEARTBEAT":
            votes[one.broker] += -1 if one.remote_us else 1
    return {broker for broker, vote in votes.items() if vote > 0}


def _parts(log: Sequence[Request], context: Context, translation: Translation) -> Iterator[Parts]:
    fetches: list[tuple[str, Request]] = []
    others: list[Request] = []
    for request in log:
        if request.api != "FETCH" or is_controllers(request):
            others.append(request)
            continue
        try:
            key = session_key(fetch_of(request.body), fetch_answer_of(request.answer), request.connection)
        except MALFORMED as error:
            translation.bad.append(malformed(request, error))
        else:
            fetches.append((key, request))
    yield from parts_of(others, context, translation.report)
    fetches.sort(key=lambda one: (one[1].broker, one[0]))
    yield from parts_of_sessions(fetches, context, translation.report)


def fill_offsets(operations: Iterable[LoggedOperation], produced: Iterable[ProducedAt]) -> None:
    """A produce's partitions get the offsets that their partitions' timelines found for them; it is tried when all of
    them have been appended."""
    found: Mapping[tuple[Place, int], ProducedAt] = {(Place(one.file, one.line), one.slot): one for one in produced}
    for operation in operations:
        if operation.event["type"] == "produce":
            for slot, partition in enumerate(operation.event["partitions"]):
                if one := found.get((operation.place, first_slot(operation.sub) + slot)):
                    partition["base_offset"], partition["last_offset"] = one.base, one.end - 1
                    if one.time_us > operation.event["time_us"]:
                        waited = operation.recorded.remote_ms - (one.time_us - operation.event["time_us"]) / 1000
                        operation.recorded.remote_ms = max(0, waited)
                        operation.event["time_us"] = one.time_us

"""One step of following a request log: convert new lines, write settled events, keep the rest for the next step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.sources.request_log.assumptions import SESSION_IDLE_US, Report
from purgatory_udf.sources.request_log.cluster_context import Context, GivenMetadata
from purgatory_udf.sources.request_log.cluster_facts import CLUSTER_APIS
from purgatory_udf.sources.request_log.cluster_metadata import NEVER
from purgatory_udf.sources.request_log.fact_kinds import Append, Fact, FactBlock, FactsOfPartitions, Key
from purgatory_udf.sources.request_log.fetch_conversion import FetchConverter, SessionName
from purgatory_udf.sources.request_log.importing import import_rows, log_reader
from purgatory_udf.sources.request_log.importing.broker_pauses import silences
from purgatory_udf.sources.request_log.importing.carried_state import (
    CARRIED_ROWS,
    CONVERTED,
    LOOK_BACK_US,
    SESSION,
    SHARE_GROUP,
    SWEEP,
    TIMELINES,
    HeartbeatCounts,
    StepState,
    are_settled,
    facts_to_carry,
)
from purgatory_udf.sources.request_log.importing.import_passes import (
    Keep,
    PreviousStep,
    SourceName,
    Steps,
    count_reads,
    counts,
    in_order,
    overdue_operations,
    rejected_requests,
    run_passes,
    unordered_events,
)
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    Facts,
    RequestRow,
    batch_of_rows,
    count_rows,
    facts_in,
    fetches_in,
    request_of,
    request_rows_in,
)
from purgatory_udf.sources.request_log.importing.import_tables import FinishedEvents
from purgatory_udf.sources.request_log.importing.import_tasks import (
    Batches,
    RequestFacts,
    Row,
    SettledOperation,
    TimelineRows,
    Work,
    add_facts,
    batch_of_facts,
    batches_of,
    batches_of_operations,
    batches_of_overdue,
    joined_by_kind,
    partitions_together,
    requests_of_batch,
    rows_of_parts,
)
from purgatory_udf.sources.request_log.logged_request import ConvertedColumns, Request
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import TimeRange
from purgatory_udf.sources.request_log.partition_timeline import PartitionInput, PartitionTimeline, build_timelines
from purgatory_udf.sources.request_log.request_conversion import (
    ConvertedRequest,
    convert_share_request,
)
from purgatory_udf.sources.request_log.share_conversion import ShareGroupConverter

# The tasks of a step do the same as `importing.import_tasks`, but start from the state of the previous step.

# Heartbeats of a broker: the number that the request handler thread answered itself, and the total.
HEARTBEATS = pa.schema(
    [("broker", pa.int32()), ("settled", pa.bool_()), ("own_thread", pa.int64()), ("heartbeats", pa.int64())]
)

LOCAL_START_CAUSES = ("local_start_reported", "local_start_supposed")
IN_SYNC_CAUSES = ("isr_given", "isr_reported", "isr_supposed")


def request_step(context: Callable[[], Context], until_us: int) -> Work:
    """Return the step that converts requests other than fetches, in any order, to CONVERTED.

    Requests that started before `until_us` are settled. Others are counted when a later step converts them again.
    """

    def work(batches: Batches) -> Batches:
        yield from batches_of(converted_requests(batches, context(), until_us), CONVERTED)

    return work


def session_step(context: Callable[[], Context], until_us: int) -> Work:
    """Return the step that converts fetches to CONVERTED, with the new state of each session.

    Rows are in the order of broker, session and start. The carried state of a session comes before its fetches.
    """

    def work(batches: Batches) -> Batches:
        yield from converted_fetches(batches, context(), until_us)

    return work


def share_step(context: Callable[[], Context], until_us: int) -> Work:
    """Return the step that converts requests of share groups to CONVERTED, with the new state of each group.

    Rows are in the order of group and start; the kept state of a group comes before its requests.
    """

    def work(batches: Batches) -> Batches:
        yield from batches_of(converted_shares(request_rows_in(batches), context(), until_us), CONVERTED)

    return work


def timeline_step(context: Callable[[], Context], time_range: TimeRange) -> Work:
    """Return the step that converts facts and carried states, by broker, topic and partition, to TIMELINES."""

    def work(batches: Batches) -> Batches:
        yield from batches_of(timeline_rows(batches, context(), time_range), TIMELINES)

    return work


def converted_requests(
    batches: Batches, context: Context, until_us: int
) -> Iterator[RequestFacts | SettledOperation | Row | pa.RecordBatch]:
    """Yield the rows and facts of requests other than fetches. Only settled requests are counted.

    A request is settled if it started before `until_us`.
    """
    report = Report()
    for batch in joined_by_kind(batches):
        is_settled = pc.less(batch.column("start_us"), until_us)
        for settled, mask in ((True, is_settled), (False, pc.invert(is_settled))):
            counted = report if settled else Report()
            for parts in requests_of_batch(batch.filter(mask), context, counted):
                if isinstance(parts, ConvertedColumns):
                    yield from batches_of_operations(parts, CONVERTED, settled=settled)
                    facts: FactsOfPartitions = {}
                    add_facts(facts, parts.facts)
                    yield batch_of_facts(facts, settled, CONVERTED)
                else:
                    yield from _settled(parts, settled, counted, until_us)
    yield from count_rows(report.counts)


def converted_fetches(batches: Batches, context: Context, until_us: int) -> Batches:
    """Yield the rows and facts of fetches by session, and the state of each session at `until_us`.

    Fetches from there on are converted again by the next step, which counts them.
    """
    report, converter = Report(), FetchConverter(context)
    facts: dict[bool, FactsOfPartitions] = {True: {}, False: {}}
    seen_us: dict[SessionName, int] = {}
    states: dict[SessionName, Row | None] = {}

    def settle(name: SessionName) -> None:
        if name not in states:
            add_facts(facts[True], converter.take_empty_attempts(name))
            state = {**converter.snapshot(name), "seen_us": seen_us.get(name, 0)}
            states[name] = {"part": SESSION, "broker": name[0], "kind": name[1], "event": json.dumps(state)}

    def end(name: SessionName) -> None:
        if name not in states and seen_us.get(name, 0) < until_us - SESSION_IDLE_US:
            states[name] = None
            add_facts(facts[True], converter.take_empty_attempts(name))
        settle(name)
        add_facts(facts[False], converter.finish(name))

    last = None
    for batch in batches:
        is_state = pc.equal(batch.column("api"), SESSION)
        for row in request_rows_in([batch.filter(is_state)]):
            state = json.loads(row.body)
            name = row.broker, row.session or ""
            seen_us[name] = state["seen_us"]
            converter.resume(name, state)
        fetches = batch.filter(pc.invert(is_state))
        is_settled = pc.less(fetches.column("start_us"), until_us)
        for settled, mask in ((True, is_settled), (False, pc.invert(is_settled))):
            part = fetches_in(fetches.filter(mask))
            if settled:
                last_us = part.start_us[part.session_bounds[1:] - 1].tolist()
                seen_us.update(zip(part.sessions, last_us, strict=True))
            else:
                for name in part.sessions:
                    settle(name)
            # A later step converts unsettled fetches again, and then writes their operations.
            is_needed = settled or bool(np.any(part.local_us < until_us))
            converted = converter.convert(part, report if settled else Report(), needs_operations=is_needed)
            make = batches_of_operations if is_needed else batches_of_overdue
            yield from make(converted, CONVERTED, settled=settled)
            add_facts(facts[settled], converted.facts)
        sessions = zip(batch.column("broker").to_pylist(), batch.column("session").to_pylist(), strict=True)
        names = list(dict.fromkeys([last, *((broker, session or "") for broker, session in sessions)]))
        # The last session of the batch may continue in the next one.
        last = names.pop()
        for name in filter(None, names):
            end(name)
    if last is not None:
        end(last)
    for settled, its_facts in facts.items():
        yield batch_of_facts(its_facts, settled, CONVERTED)
    rows = [*filter(None, states.values()), *count_rows(report.counts)]
    yield batch_of_rows(rows, CONVERTED)


def converted_shares(
    rows: Iterable[RequestRow], context: Context, until_us: int
) -> Iterator[RequestFacts | SettledOperation | Row]:
    """Yield the rows and facts of share groups, and the state of each group at `until_us`."""
    report = Report()
    for session, of_group in groupby(rows, key=lambda row: row.session):
        converter, seen_us, requests = ShareGroupConverter(context, report), -NEVER, list[Request]()
        for row in of_group:
            if row.api == SHARE_GROUP:
                state = json.loads(row.body)
                converter, seen_us = ShareGroupConverter.resumed(context, report, state), state["seen_us"]
            else:
                requests.append(request_of(row))
        converter.look_ahead(requests)
        settled = [request for request in requests if request.start_us < until_us]
        for request in settled:
            yield from _settled(convert_share_request(converter, request), True, report, until_us)
        seen_us = max([seen_us, *(request.start_us for request in settled[-1:])])
        if seen_us >= until_us - SESSION_IDLE_US:
            state = {**converter.snapshot(), "seen_us": seen_us}
            yield {"part": SHARE_GROUP, "kind": session, "event": json.dumps(state)}
        # Requests from here on are converted again by the next step, which counts them.
        converter.report = Report()
        for request in requests[len(settled) :]:
            yield from _settled(convert_share_request(converter, request), False, converter.report, until_us)
    yield from count_rows(report.counts)


def _settled(
    parts: ConvertedRequest, settled: bool, report: Report, until_us: int
) -> Iterator[RequestFacts | SettledOperation | Row]:
    """Yield the rows and facts of a request, without operations that only a later step needs, which converts it again.

    A step writes operations before `until_us`.
    """
    for operation in parts.operations:
        if settled or operation.event["time_us"] < until_us:
            yield SettledOperation(operation, settled)
    for row in rows_of_parts(parts, report):
        row["settled"] = settled
        yield row
    if parts.facts:
        yield RequestFacts(parts.broker, settled, parts.facts)


def timeline_rows(batches: Batches, context: Context, time_range: TimeRange) -> Iterator[Facts | Row | pa.RecordBatch]:
    """Yield the timelines of partitions, as batches, the facts to carry, and the state of each partition."""
    report, made = Report(), TimelineRows(TIMELINES)
    for partitions in partitions_together(batches):
        known = [_KnownPartition.of(*place, rows) for place, rows in partitions]
        with_timeline = [each for each in known if each.has_timeline]
        all_facts = PartitionFacts.of_each((each.broker, each.key, each.facts) for each in with_timeline)
        inputs = [
            PartitionInput(facts, Report(), each.before) for facts, each in zip(all_facts, with_timeline, strict=True)
        ]
        timelines = build_timelines(inputs, context, time_range)
        fixed = [
            [*each.settled, *_fixed_appends(facts, each.facts, timeline, time_range)]
            for each, facts, timeline in zip(with_timeline, all_facts, timelines, strict=True)
        ]
        built = zip(inputs, timelines, facts_to_carry(fixed, time_range.until_us), strict=True)
        for each in known:
            if each.has_timeline:
                yield from _rows_of_timeline(each, *next(built), report, made)
            elif each.before is not None:
                yield each.state(each.before)
            else:
                # It is unknown whether possible appends of a coordinator were at this broker.
                since_us = time_range.until_us - LOOK_BACK_US
                recent: list[Fact] = [
                    fact for fact in each.settled if isinstance(fact, Append) and fact.start_us >= since_us
                ]
                yield each.to_carry(recent)
    yield from made.rest()
    yield from count_rows(report.counts)


class _KnownPartition(NamedTuple):
    """The facts of a partition, those of them that are settled, and its state after the previous step."""

    broker: int
    key: Key
    facts: list[Fact]
    settled: list[Fact]
    before: dict[str, Any] | None
    # Without any request for the partition, there are only possible appends of a coordinator.
    has_timeline: bool

    @classmethod
    def of(cls, broker: int, topic: str, partition: int, rows: Iterable[Row]) -> _KnownPartition:
        """Read the rows of a partition."""
        facts: list[Fact] = []
        settled: list[Fact] = []
        before: dict[str, Any] | None = None
        for row in rows:
            if row["part"] == SWEEP:
                before = json.loads(row["event"])
                continue
            of_row = facts_in(row["packed"])
            facts += of_row
            if row["settled"]:
                settled += of_row
        is_known = before is not None or not all(isinstance(fact, Append) and not fact.is_operation for fact in facts)
        return cls(broker, (topic, partition), facts, settled, before, is_known and bool(facts))

    def to_carry(self, facts: list[Fact]) -> Facts:
        """Return a row with facts that the next step needs."""
        return Facts(self.broker, *self.key, None, facts)

    def state(self, sweep: dict[str, Any]) -> Row:
        """Return a row with the state of the partition's timeline."""
        place = {"broker": self.broker, "topic": self.key[0], "partition": self.key[1]}
        return {"part": SWEEP, **place, "event": json.dumps(sweep)}


def _rows_of_timeline(
    known: _KnownPartition,
    given: PartitionInput,
    timeline: PartitionTimeline,
    to_carry: list[Fact],
    report: Report,
    made: TimelineRows,
) -> Iterator[Facts | Row | pa.RecordBatch]:
    # The source of the in-sync set is counted once, by the first step of a partition.
    for cause in (*(IN_SYNC_CAUSES if known.before is None else ()), *LOCAL_START_CAUSES):
        report.count(cause, given.report.counts[cause])
    yield from made.add(timeline, given.facts)
    yield known.to_carry(to_carry)
    yield known.state(timeline.sweep)


def _fixed_appends(
    facts: PartitionFacts, known: Iterable[Fact], timeline: PartitionTimeline, time_range: TimeRange
) -> Iterator[Append]:
    """Give each append of `known` whose event is settled the offsets of its event, and yield settled unlogged appends.

    Args:
        facts: The facts after the timeline was built.
        known: The facts from which the timeline was built, which it has not changed.
        timeline: The timeline.
        time_range: The range of the settled events.
    """
    base, end, check = (facts.appends.integers(name) for name in ("base", "end", "check_us"))
    is_settled, unlogged = are_settled(base, end, check, time_range), timeline.unlogged.rows
    if facts.given is not None:
        # The numbers of the appends among the known facts, in the order of these.
        numbers = np.argsort(facts.given)
        base, end, are_fixed = base[numbers], end[numbers], is_settled[numbers]
    else:
        are_fixed = is_settled
    count = 0
    for fact in known:
        if isinstance(fact, Append):
            if are_fixed[count]:
                fact.base, fact.end = int(base[count]), int(end[count])
            count += 1
        elif isinstance(fact, FactBlock) and fact.is_of(Append):
            some = slice(count, count + len(fact))
            fact.set_offsets(are_fixed[some], base[some], end[some])
            count += len(fact)
    yield from facts.appends.in_order(unlogged[is_settled[unlogged]])


@dataclass(frozen=True)
class FollowedStep:
    """The rows that a step writes, and its result for the next step.

    An event that the contract rejects has a `rule` in `finished` and is not written, but keeps its number.
    """

    finished: FinishedEvents
    state: StepState


@dataclass(frozen=True)
class FollowStep:
    """One step of following a log.

    Attributes:
        backend: Backend that executes the step.
        given: Metadata given along with the log.
        hold_us: Time for which requests are held back, until later lines complete the facts.
        run_id: Name of the import.
        source: Returns the name of a row's `file`, which is a partition of the topic.
        keep: Computes rows once, for several uses.
    """

    backend: Backend
    given: GivenMetadata
    hold_us: int
    run_id: str
    source: SourceName
    keep: Keep

    def run(self, state: StepState, read: Dataset) -> FollowedStep:
        """Convert the READ rows of new lines and the rows held back by earlier steps. Updates `state.carried`."""
        carried = state.carried
        ends = read.where_in("row", [log_reader.END]).select("counts", "body").collect().to_pylist()
        tally = log_reader.Tally.of((row["counts"], row["body"]) for row in ends)
        carried.fetched_counts = log_reader.most_partitions([carried.fetched_counts, tally.partitions])
        carried.modern_groups = sorted({*carried.modern_groups, *tally.modern_groups})
        carried.remote_waits |= tally.remote_waits
        carried.new_brokers = sorted({*carried.new_brokers, *tally.new_brokers})
        carried.has_consumer_groups |= bool(tally.consumer_brokers)
        report = Report(dict(tally.counts))
        fresh = read.where_in("row", [log_reader.REQUEST]).select(*REQUESTS.names)
        requests = self.keep("requests", state.requests.union(fresh))
        if tally.span_us is not None:
            first_us, last_us = tally.span_us
            carried.first_us, carried.last_us = min(carried.first_us, first_us), max(carried.last_us, last_us)
        span = carried.time_range(carried.last_us, self.hold_us)
        all_heartbeats = requests.where_in("api", ["HEARTBEAT"]).select("broker", "remote_us", "start_us")
        metadata_requests = _cluster_requests(requests)
        heartbeats, settled_heartbeats = _heartbeats(all_heartbeats, span.until_us)
        follower_reads = bool(carried.counts.get("racked", 0) + report.counts["racked"])
        context = carried.context(metadata_requests, self.given, heartbeats, follower_reads)
        passed = run_passes(requests, _steps(self.backend, context, span), self.keep, span, _previous_step(state.rows))
        reads = None if passed.reads is None else _within(passed.reads, span)
        parts, timelines, operations = passed.parts, passed.timelines, self.keep("operations", passed.operations)
        due = operations.where_below("at_us", span.until_us)
        overdue = overdue_operations(passed)
        pauses = carried.pauses.due(overdue, silences(requests, overdue), span)
        report.count("broker_pauses", sum(span.has(pause.paused_us) for pause in pauses))
        carried.settings.fetches.update(tally.follower_fetches)
        carried.settings.read(
            requests, metadata_requests, reads, context, span, has_consumer_groups=carried.has_consumer_groups
        )
        sizes = carried.new_sizes(context, span)
        of_cluster = self.backend.dataset_of(import_rows.cluster_rows(sizes, context.topic_ids(), pauses, span))
        events = self.keep("events", in_order(unordered_events(due, timelines, reads, of_cluster), self.source))
        settled_parts = parts.where_in("part", [import_rows.BAD]).where_in("settled", [True])
        rejected = rejected_requests(read, settled_parts, events, self.run_id, self.source, {}, anonymised=False)
        topics = set(timelines.where_in("part", [SWEEP]).select("topic").collect().column("topic").to_pylist())
        settled = (request for request in metadata_requests if request.start_us < span.until_us)
        carried.settle(span.until_us, settled, settled_heartbeats, topics, context)
        count_reads(reads, report)
        carried.count(_counted(report, parts, timelines, events))
        waiting = operations.where_in("settled", [True]).where_below("at_us", span.until_us, below=False)
        remaining = _remaining(parts, timelines, waiting)
        later = requests.where_below("start_us", span.until_us, below=False)
        return FollowedStep(FinishedEvents(events, rejected), StepState(carried, later, remaining))


def _counted(report: Report, parts: Dataset, timelines: Dataset, events: Dataset) -> Report:
    for cause, number in counts(parts, timelines).items():
        report.count(cause, number)
    accepted = events.select("recorded", "rule").where_null("recorded", null=False).where_null("rule")
    report.count("operations", accepted.count())
    return report


def _cluster_requests(requests: Dataset) -> list[Request]:
    found = requests.where_in("api", CLUSTER_APIS).select(*REQUESTS.names).collect()
    rows = sorted(request_rows_in(found.to_batches()), key=lambda row: (row.start_us, row.file, row.line))
    return list(map(request_of, rows))


def _heartbeats(requests: Dataset, until_us: int) -> tuple[HeartbeatCounts, HeartbeatCounts]:
    """Return by broker the numbers of (heartbeats that the request handler thread answered itself, all heartbeats).

    The second result counts only heartbeats that started before `until_us`. `requests` has only heartbeats.
    """
    counted: list[dict[int, tuple[int, int]]] = [{}, {}]
    rows = requests.map_columns(partial(_count_heartbeats, until_us), HEARTBEATS).collect()
    for broker, settled, own_thread, count in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        before = counted[settled].get(broker, (0, 0))
        counted[settled][broker] = before[0] + own_thread, before[1] + count
    return dict(sorted(counted[False].items())), dict(sorted(counted[True].items()))


def _count_heartbeats(until_us: int, batches: Batches) -> Batches:
    """Yield rows of HEARTBEATS for each batch."""
    for batch in batches:
        brokers, remote_us, start_us = (batch.column(name).to_numpy() for name in ("broker", "remote_us", "start_us"))
        rows = []
        for settled in (False, True):
            counted = start_us < until_us if settled else np.ones(len(start_us), bool)
            for broker in np.unique(brokers[counted]).tolist():
                own_thread = counted & (brokers == broker) & (remote_us == 0)
                count = counted & (brokers == broker)
                rows.append((broker, settled, int(own_thread.sum()), int(count.sum())))
        yield pa.RecordBatch.from_pylist([dict(zip(HEARTBEATS.names, row, strict=True)) for row in rows], HEARTBEATS)


def _steps(backend: Backend, context: Context, span: TimeRange) -> Steps:
    shared, until_us = backend.broadcast(context), span.until_us
    apart = session_step(shared, until_us), share_step(shared, until_us), request_step(shared, until_us)
    return Steps(*apart, timeline_step(shared, span), CONVERTED, TIMELINES, bool(context.tiered))


def _within(reads: Dataset, span: TimeRange) -> Dataset:
    return reads.where_below("time_us", span.until_us).where_below("time_us", span.from_us, below=False)


def _previous_step(rows: Dataset) -> PreviousStep:
    def settled(*parts: str) -> Dataset:
        return rows.where_in("part", parts).map_columns(_settled_rows, CONVERTED)

    return PreviousStep(
        rows.where_in("part", [SESSION]).map_columns(_states_of(SESSION), REQUESTS),
        rows.where_in("part", [SHARE_GROUP]).map_columns(_states_of(SHARE_GROUP), REQUESTS),
        settled(import_rows.FACT, SWEEP),
        settled(import_rows.OPERATION),
    )


def _settled_rows(batches: Batches) -> Batches:
    for batch in batches:
        columns = [*batch.columns, pa.repeat(pa.scalar(True), batch.num_rows)]
        yield pa.RecordBatch.from_arrays(columns, schema=CONVERTED)


def _states_of(part: str) -> Work:
    """Return the step that converts carried states to rows of REQUESTS, with `part` as their API.

    These rows have no time, so they sort before the requests of their session.
    """

    def work(batches: Batches) -> Batches:
        for batch in batches:
            given = {
                "broker": batch.column("broker"),
                "session": batch.column("kind"),
                "api": pa.repeat(pa.scalar(part), batch.num_rows),
                "body": batch.column("event"),
            }
            columns = [given.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in REQUESTS]
            yield pa.RecordBatch.from_arrays(columns, schema=REQUESTS)

    return work


def _remaining(parts: Dataset, timelines: Dataset, waiting: Dataset) -> Dataset:
    sessions = parts.where_in("part", [SESSION, SHARE_GROUP]).select(*CARRIED_ROWS.names)
    names = [name for name in CARRIED_ROWS.names if name in TIMELINES.names]
    partitions = timelines.where_in("part", [import_rows.FACT, SWEEP]).select(*names)
    operations = waiting.select(*(name for name in CARRIED_ROWS.names if name in waiting.schema.names))
    return sessions.union(operations, partitions).select(*CARRIED_ROWS.names)

"""One step of following a log: what Spark reads, takes apart, dates and puts in order, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.sources.request_log.assumptions import SESSION_IDLE_US, Report
from purgatory_udf.sources.request_log.cluster.cluster_context import Context, GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_facts import CLUSTER_APIS
from purgatory_udf.sources.request_log.following.carried_state import (
    KEPT,
    LOOK_BACK_US,
    SAID,
    SESSION,
    SWEEP,
    TAKEN_APART,
    Left,
    Votes,
    is_said,
    kept,
)
from purgatory_udf.sources.request_log.importing import import_rows, log_reader
from purgatory_udf.sources.request_log.importing.import_passes import (
    Keep,
    Leavings,
    Tasks,
    counted,
    held,
    in_order,
    own_thread,
    rejected,
    work,
)
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    Facts,
    RequestRow,
    copied,
    count_rows,
    request_of,
    request_rows_in,
)
from purgatory_udf.sources.request_log.importing.import_tables import Finished
from purgatory_udf.sources.request_log.importing.import_tasks import (
    Batches,
    Row,
    Shown,
    Work,
    batches_of,
    facts_and_rows_in,
    rows_of_parts,
    rows_of_timeline,
)
from purgatory_udf.sources.request_log.lines.log_line import MALFORMED, malformed_line
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.partitions.partition_status import TimeRange
from purgatory_udf.sources.request_log.partitions.partition_timeline import build_timeline
from purgatory_udf.sources.request_log.requests.fetch_conversion import SessionConverter
from purgatory_udf.sources.request_log.requests.partition_facts import Append, Fact, PartitionFacts
from purgatory_udf.sources.request_log.requests.request_conversion import (
    ConvertedRequest,
    convert_requests,
    follower_facts,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# What the tasks of a step do: as `importing.tasks`, but each goes on where the step before has stopped.


IN_SYNC_CAUSES = ("isr_given", "isr_reported", "isr_supposed")


def take_requests_apart(context: Callable[[], Context], until_us: int) -> Work:
    """Requests other than fetches, in any order → TAKEN_APART."""

    def work(batches: Batches) -> Batches:
        yield from batches_of(requests_apart(request_rows_in(batches), context(), until_us), TAKEN_APART)

    return work


def take_sessions_apart(context: Callable[[], Context], until_us: int) -> Work:
    """Fetches in the order of broker, session and handling, after the state that was kept of the session →
    TAKEN_APART, each session's new state among them."""

    def work(batches: Batches) -> Batches:
        yield from batches_of(sessions_apart(request_rows_in(batches), context(), until_us), TAKEN_APART)

    return work


def say_timelines(context: Callable[[], Context], stretch: TimeRange) -> Work:
    """Facts, and what was kept of each partition, in the order of broker, topic and partition → SAID."""

    def work(batches: Batches) -> Batches:
        yield from batches_of(timelines(facts_and_rows_in(batches), context(), stretch), SAID)

    return work


def requests_apart(rows: Iterable[RequestRow], context: Context, until_us: int) -> Iterator[Shown | Row]:
    report = Report()
    for row in rows:
        request = request_of(row)
        settled = request.start_us < until_us
        counted = report if settled else Report()
        for parts in convert_requests([request], context, counted):
            yield from _settled(parts, settled, counted)
    yield from count_rows(report.counts)


def sessions_apart(rows: Iterable[RequestRow], context: Context, until_us: int) -> Iterator[Shown | Row]:
    report = Report()
    for (broker, session), of_session in groupby(rows, key=lambda row: (row.broker, row.session)):
        yield from _session(broker, session or "", of_session, SessionConverter(context, report), context, until_us)
    yield from count_rows(report.counts)


def _session(
    broker: int, session: str, rows: Iterable[RequestRow], reader: SessionConverter, context: Context, until_us: int
) -> Iterator[Shown | Row]:
    report, seen_us = reader.report, 0
    settled = True
    for row in rows:
        if row.api == SESSION:
            state = json.loads(row.body)
            reader, seen_us = SessionConverter.resumed(context, report, state), state["seen_us"]
            continue
        request = request_of(row)
        if settled and request.start_us >= until_us:
            settled = False
            yield from _settled(ConvertedRequest(broker, [], reader.take_empty_attempts()), True, report)
            yield _state(broker, session, reader, seen_us)
            # What is read from here on is read again, and counted then.
            reader.report = Report()
        seen_us = request.start_us
        for parts in [_read(reader, request), *follower_facts(reader)]:
            yield from _settled(parts, settled, reader.report)
    if settled:
        yield from _settled(ConvertedRequest(broker, [], reader.take_empty_attempts()), True, report)
        if seen_us >= until_us - SESSION_IDLE_US:
            yield _state(broker, session, reader, seen_us)
    yield from _settled(ConvertedRequest(broker, [], reader.finish()), False, reader.report)


def _state(broker: int, session: str, reader: SessionConverter, seen_us: int) -> Row:
    state = {**reader.snapshot(), "seen_us": seen_us}
    return {"part": SESSION, "broker": broker, "kind": session, "event": json.dumps(state)}


def _read(reader: SessionConverter, request: Request) -> ConvertedRequest:
    try:
        operation, facts = reader.convert(request)
    except MALFORMED as error:
        return ConvertedRequest(request.broker, [], [], malformed_line(request, error))
    return ConvertedRequest(request.broker, [operation] if operation else [], facts)


def _settled(parts: ConvertedRequest, settled: bool, report: Report) -> Iterator[Shown | Row]:
    for row in rows_of_parts(parts, report):
        row["settled"] = settled
        yield row
    if parts.facts:
        yield Shown(parts.broker, settled, parts.facts)


def timelines(rows: Iterable[Facts | Row], context: Context, stretch: TimeRange) -> Iterator[Facts | Row]:
    report = Report()
    for (broker, topic, partition), of_partition in groupby(rows, key=partition_of):
        yield from _partition(PartitionFacts(broker, topic, partition), of_partition, context, stretch, report)
    yield from count_rows(report.counts)


def partition_of(row: Facts | Row) -> tuple[int, str, int]:
    """Whose facts or state it is: (broker, topic, partition)."""
    return row[:3] if isinstance(row, Facts) else (row["broker"], row["topic"], row["partition"])


def _partition(
    empty: PartitionFacts, rows: Iterable[Facts | Row], context: Context, stretch: TimeRange, report: Report
) -> Iterator[Facts | Row]:
    broker, key = empty.broker, (empty.topic, empty.partition)

    def of_now(facts: list[Fact]) -> Facts:
        return Facts(broker, *key, None, facts)

    before: dict[str, Any] | None = None
    counted = Report()
    known: list[Fact] = []
    settled: list[tuple[Fact, Fact]] = []
    for row in rows:
        if not isinstance(row, Facts):
            before = json.loads(row["event"])
            continue
        known += row.facts
        if row.settled:
            # A timeline moves its facts about: the next one is to begin with them as they were.
            settled += [(copied(fact), fact) for fact in row.facts]
    if before is None and all(isinstance(fact, Append) and not fact.is_operation for fact in known):
        # A coordinator may have written here, or to another partition: as long as nobody asks for it, none is known.
        since_us = stretch.until_us - LOOK_BACK_US
        yield of_now([fact for fact, _ in settled if isinstance(fact, Append) and fact.start_us >= since_us])
        return
    if not known:
        state = before
    else:
        facts = PartitionFacts.of(broker, key, known)
        timeline = build_timeline(facts, context, counted, stretch, before)
        if before is None:
            # Whence the in-sync set is known is counted once; all else would be counted with every step.
            for cause in IN_SYNC_CAUSES:
                report.count(cause, counted.counts[cause])
        yield from rows_of_timeline(timeline, facts)
        yield of_now(list(kept(_fixed(settled, known, timeline.appends, stretch), stretch.until_us)))
        state = timeline.sweep
    if state is not None:
        place = {"broker": broker, "topic": key[0], "partition": key[1]}
        yield {"part": SWEEP, **place, "event": json.dumps(state)}


def _fixed(
    settled: Iterable[tuple[Fact, Fact]], given: Iterable[Fact], appends: Iterable[Append], stretch: TimeRange
) -> Iterator[Fact]:
    """Facts as they were, but appends that have been said with the offsets that they were said to have."""
    for fact, used in settled:
        if isinstance(fact, Append) and isinstance(used, Append) and is_said(used, stretch):
            fact.base, fact.end = used.base, used.end
        yield fact
    known = set(map(id, given))
    for append in appends:
        if id(append) not in known and is_said(append, stretch):
            yield append


@dataclass(frozen=True)
class TakenStep:
    """`finished` is to be written, but for events that the contract refuses (they have a `rule`): these only keep their
    numbers. `left` is for the next step."""

    finished: Finished
    left: Left


@dataclass(frozen=True)
class Step:
    """`source` names a row's `file`, which is the topic's partition; `keep` keeps what is used more than once."""

    spark: SparkSession
    given: GivenMetadata
    hold_us: int
    source: Column
    keep: Keep

    def take(self, left: Left, read: DataFrame) -> TakenStep:
        """`read` are READ rows of the new lines."""
        carried = left.carried
        ends = read.where(sf.col("row") == log_reader.END).select("counts", "body").collect()
        tally = log_reader.Tally.of(map(tuple, ends))
        carried.asked = log_reader.most_partitions([carried.asked, tally.partitions])
        carried.modern = sorted({*carried.modern, *tally.modern})
        report = Report(dict(tally.counts))
        fresh = read.where(sf.col("row") == log_reader.REQUEST).select(*REQUESTS.names)
        requests = left.requests.unionByName(fresh)
        span = requests.agg(sf.min("arrival_us"), sf.max("answered_us")).first()
        if span is not None and span[0] is not None:
            carried.first_us, carried.last_us = min(carried.first_us, span[0]), max(carried.last_us, span[1])
        stretch = carried.stretch(carried.last_us, self.hold_us)
        telling, votes, settled_votes = _telling(requests), _votes(requests), _votes(requests, stretch.until_us)
        racked = bool(carried.counts.get("racked", 0) + report.counts["racked"])
        context = carried.context(telling, self.given, votes, racked)
        passed = work(requests, _tasks(self.spark, context, stretch), self.keep, stretch, _leavings(left.rows))
        parts, said, operations = passed.parts, passed.said, passed.operations
        due = operations.where(sf.col("at_us") < stretch.until_us)
        events = self.keep("events", in_order(due, said, self.source))
        finished = Finished(events, rejected(read, parts.where("settled"), events), self.source)
        topics = said.where(sf.col("part") == SWEEP).select("topic").distinct().collect()
        settled = (request for request in telling if request.start_us < stretch.until_us)
        carried.settle(stretch.until_us, settled, settled_votes, (row.topic for row in topics), context)
        carried.count(_counted(report, parts, said, events))
        waiting = operations.where("settled").where(sf.col("at_us") >= stretch.until_us)
        remaining = _remaining(parts, said, waiting)
        return TakenStep(finished, Left(carried, requests.where(sf.col("start_us") >= stretch.until_us), remaining))


def _counted(report: Report, parts: DataFrame, said: DataFrame, events: DataFrame) -> Report:
    for part in (parts, said):
        for cause, number in counted(part).items():
            report.count(cause, number)
    report.count("operations", events.where("recorded IS NOT NULL AND rule IS NULL").count())
    return report


def _telling(requests: DataFrame) -> list[Request]:
    telling = requests.where(sf.col("api").isin(*CLUSTER_APIS)).orderBy("start_us", "file", "line")
    return [request_of(RequestRow(*row)) for row in telling.select(*REQUESTS.names).collect()]


def _votes(requests: DataFrame, until_us: int | None = None) -> Votes:
    if until_us is not None:
        requests = requests.where(sf.col("start_us") < until_us)
    at_once = sf.sum(own_thread(sf.col("remote_us"))).alias("at_once")
    votes = requests.where(sf.col("api") == "HEARTBEAT").groupBy("broker").agg(at_once, sf.count("*").alias("all"))
    return {row.broker: (row.at_once, row["all"]) for row in votes.collect()}


def _tasks(spark: SparkSession, context: Context, stretch: TimeRange) -> Tasks:
    handed, until_us = held(spark, context), stretch.until_us
    apart = take_sessions_apart(handed, until_us), take_requests_apart(handed, until_us)
    return Tasks(*apart, say_timelines(handed, stretch), TAKEN_APART, SAID)


def _leavings(remains: DataFrame) -> Leavings:
    def of(*parts: str) -> DataFrame:
        return remains.where(sf.col("part").isin(*parts)).withColumn("settled", sf.lit(True))

    states = of(SESSION).select(
        "broker", sf.col("kind").alias("session"), sf.lit(SESSION).alias("api"), sf.col("event").alias("body")
    )
    return Leavings(states, of(import_rows.FACT, SWEEP), of(import_rows.OPERATION))


def _remaining(parts: DataFrame, said: DataFrame, waiting: DataFrame) -> DataFrame:
    sessions = parts.where(sf.col("part") == SESSION).select(*KEPT.names)
    partitions = said.where(sf.col("part").isin(import_rows.FACT, SWEEP)).select(
        *(name for name in KEPT.names if name in SAID.names)
    )
    together = sessions.unionByName(waiting.select(*KEPT.names))
    return together.unionByName(partitions, allowMissingColumns=True).select(*KEPT.names)

"""What the tasks of a step do: as `importing.tasks`, but each goes on where the step before has stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.following.facts_kept import LOOK_BACK_US, is_said, kept
from purgatory_udf.requestlog.following.rows import SAID, SESSION, SWEEP, TAKEN_APART
from purgatory_udf.requestlog.importing.rows import Facts, RequestRow, copied, count_rows, request_of, request_rows_in
from purgatory_udf.requestlog.importing.tasks import (
    Batches,
    Row,
    Shown,
    Work,
    batches_of,
    facts_and_rows_in,
    rows_of_parts,
    rows_of_timeline,
)
from purgatory_udf.requestlog.lines.line import MALFORMED, malformed
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.partitions.stretch import Stretch
from purgatory_udf.requestlog.partitions.timeline import build_timeline
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.apart import Parts, copies_of, parts_of
from purgatory_udf.requestlog.requests.facts import Append, Fact, PartitionFacts
from purgatory_udf.requestlog.requests.fetches import SessionReader
from purgatory_udf.requestlog.supposed import SESSION_IDLE_US

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


def say_timelines(context: Callable[[], Context], stretch: Stretch) -> Work:
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
        for parts in parts_of([request], context, counted):
            yield from _settled(parts, settled, counted)
    yield from count_rows(report.counts)


def sessions_apart(rows: Iterable[RequestRow], context: Context, until_us: int) -> Iterator[Shown | Row]:
    report = Report()
    for (broker, session), of_session in groupby(rows, key=lambda row: (row.broker, row.session)):
        yield from _session(broker, session or "", of_session, SessionReader(context, report), context, until_us)
    yield from count_rows(report.counts)


def _session(
    broker: int, session: str, rows: Iterable[RequestRow], reader: SessionReader, context: Context, until_us: int
) -> Iterator[Shown | Row]:
    report, seen_us = reader.report, 0
    settled = True
    for row in rows:
        if row.api == SESSION:
            state = json.loads(row.body)
            reader, seen_us = SessionReader.resumed(context, report, state), state["seen_us"]
            continue
        request = request_of(row)
        if settled and request.start_us >= until_us:
            settled = False
            yield from _settled(Parts(broker, [], reader.tried()), True, report)
            yield _state(broker, session, reader, seen_us)
            # What is read from here on is read again, and counted then.
            reader.report = Report()
        seen_us = request.start_us
        for parts in [_read(reader, request), *copies_of(reader)]:
            yield from _settled(parts, settled, reader.report)
    if settled:
        yield from _settled(Parts(broker, [], reader.tried()), True, report)
        if seen_us >= until_us - SESSION_IDLE_US:
            yield _state(broker, session, reader, seen_us)
    yield from _settled(Parts(broker, [], reader.finish()), False, reader.report)


def _state(broker: int, session: str, reader: SessionReader, seen_us: int) -> Row:
    state = {**reader.snapshot(), "seen_us": seen_us}
    return {"part": SESSION, "broker": broker, "kind": session, "event": json.dumps(state)}


def _read(reader: SessionReader, request: Request) -> Parts:
    try:
        operation, facts = reader.read(request)
    except MALFORMED as error:
        return Parts(request.broker, [], [], malformed(request, error))
    return Parts(request.broker, [operation] if operation else [], facts)


def _settled(parts: Parts, settled: bool, report: Report) -> Iterator[Shown | Row]:
    for row in rows_of_parts(parts, report):
        row["settled"] = settled
        yield row
    if parts.facts:
        yield Shown(parts.broker, settled, parts.facts)


def timelines(rows: Iterable[Facts | Row], context: Context, stretch: Stretch) -> Iterator[Facts | Row]:
    report = Report()
    for (broker, topic, partition), of_partition in groupby(rows, key=partition_of):
        yield from _partition(PartitionFacts(broker, topic, partition), of_partition, context, stretch, report)
    yield from count_rows(report.counts)


def partition_of(row: Facts | Row) -> tuple[int, str, int]:
    """Whose facts or state it is: (broker, topic, partition)."""
    return row[:3] if isinstance(row, Facts) else (row["broker"], row["topic"], row["partition"])


def _partition(
    empty: PartitionFacts, rows: Iterable[Facts | Row], context: Context, stretch: Stretch, report: Report
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
    settled: Iterable[tuple[Fact, Fact]], given: Iterable[Fact], appends: Iterable[Append], stretch: Stretch
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

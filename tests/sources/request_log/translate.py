"""Converts requests into events in this process, as the import of a whole log does, but without tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import Dataset, LocalDataset
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context, GivenMetadata
from purgatory_udf.sources.request_log.fact_columns import attempt_rows
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    AttemptRun,
    Fact,
    FactBlock,
    FetchAttempt,
    Integers,
    SingleFact,
)
from purgatory_udf.sources.request_log.high_watermark_events import (
    KINDS_OF_OFFSETS,
    RANKS_OF_OFFSETS,
    OffsetChanges,
    TimedEvent,
)
from purgatory_udf.sources.request_log.importing.log_import import WholeLog, overview_of
from purgatory_udf.sources.request_log.importing.log_reader import READ, Row, Rows, Tally, in_time, row_of
from purgatory_udf.sources.request_log.logged_request import BadLine, Place, RecordedOutcome, Request
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts

Event = dict[str, Any]

NO_SOURCES: Mapping[int, str] = {}
_FIELDS = [name for name in EVENTS.names if name not in ("run_id", "event_time", "source", "line")]


@dataclass(frozen=True)
class Translation:
    """Result of an import: `recorded` has the recorded outcome of each operation by its `seq` in `events`."""

    events: list[Event]
    recorded: dict[int, RecordedOutcome]
    bad: list[BadLine]
    report: Report


def translate(
    requests: Iterable[Request], given: GivenMetadata | None = None, sources: Mapping[int, str] = NO_SOURCES
) -> Translation:
    """Convert requests into events; `sources` has names of files, and other files are called by their number."""
    log = list(requests)
    backend = LocalBackend()

    def source(file: int) -> str:
        return sources.get(file, str(file))

    whole = WholeLog(backend, given or GivenMetadata(), "run", str, keep_rows, None)
    named = WholeLog(backend, given or GivenMetadata(), "run", source, keep_rows, None)
    read = LocalDataset.of(read_rows(log))
    overview = overview_of(read)
    converted = named.convert(read, overview)
    rows = number_rows(converted.finished.events)
    by_number = whole.convert(read, overview) if sources else converted
    rejected = by_number.finished.rejected.collect().to_pylist()
    bad = [BadLine(Place(int(row["source"]), row["line"]), "", row["reason"], row["raw"]) for row in rejected]
    accepted = [row for row in rows if row["rule"] is None]
    recorded = {row["number"]: RecordedOutcome(**row["recorded"]) for row in accepted if row["recorded"]}
    return Translation([event_of(row) for row in accepted], recorded, bad, converted.report)


def context_of_log(requests: Iterable[Request], given: GivenMetadata) -> Context:
    """Return the cluster facts of a log."""
    return overview_of(LocalDataset.of(read_rows(requests))).context(given)


def read_rows(requests: Iterable[Request], since_us: int = 0) -> pa.Table:
    """Return the requests as rows of the log reader; requests handled before `since_us` are late."""
    tallies: dict[int, Tally] = {}
    rows: dict[int, Rows] = {}
    for request in requests:
        file = request.place.file
        tally = tallies.setdefault(file, Tally())
        tally.counts.update(("lines", "requests"))
        rows.setdefault(file, Rows(tally, 0)).add(in_time(row_of(request, tally), since_us, "", tally))
    ends = [tally.end(file=file, piece=0, line=0) for file, tally in tallies.items()]
    return pa.Table.from_batches([*(batch for each in rows.values() for batch in each.batches()), *ends], READ)


def keep_rows(_: str, rows: Dataset) -> Dataset:
    """Return the rows, collected once."""
    return rows.keep("")


def number_rows(events: Dataset) -> list[Row]:
    """Number all rows; tasks number only their own."""
    ordered = events.collect().sort_by([("task", "ascending"), ("number", "ascending")])
    rows: list[Row] = ordered.to_pylist()
    return [{**row, "number": number} for number, row in enumerate(rows)]


def event_of(row: Row) -> Event:
    """Return the event of a row without null fields."""
    fields = {**row, "seq": row["number"]}
    return {name: _without_nulls(fields[name]) for name in _FIELDS if fields[name] is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    return {name: field for name, field in value.items() if field is not None} if isinstance(value, dict) else value


def timed_events(events: Iterable[TimedEvent | OffsetChanges], facts: PartitionFacts) -> Iterator[TimedEvent]:
    """Yield the events of a partition's timeline, also those in columns, one by one."""
    place = {"broker": facts.broker, "topic": facts.topic, "partition": facts.partition}
    for event in events:
        if isinstance(event, TimedEvent):
            yield event
            continue
        for at_us, kind, offset, *others in zip(*(column.tolist() for column in event), strict=True):
            fields = {"time_us": at_us, "type": "partition", **place, "change": KINDS_OF_OFFSETS[kind]}
            if kind == 0:
                size, batches, _ = others
                fields |= {"offset": offset, "bytes": size, "batches": batches if batches >= 0 else None}
            else:
                fields |= {"replica_id": others[-1], "offset": offset} if kind == 1 else {"offset": offset}
            yield TimedEvent(at_us, RANKS_OF_OFFSETS[kind], fields)


def single_facts(facts: Iterable[Fact]) -> Iterator[SingleFact]:
    """Yield the facts, those of blocks one by one."""
    for fact in facts:
        if not isinstance(fact, FactBlock):
            yield fact
            continue
        kind, rows = fact.rows()
        if kind is Append:
            yield from fact.appends()
        elif kind is FetchAttempt:
            yield from _attempts_in(rows)
        else:
            yield from map(kind, *rows.tolist())


def facts_by_moment(facts: Iterable[Fact]) -> Iterator[SingleFact]:
    """Yield the facts, those of blocks and runs one by one."""
    for fact in single_facts(facts):
        if isinstance(fact, AttemptRun):
            yield from _attempts_in(attempt_rows([fact]))
        else:
            yield fact


def _attempts_in(rows: Integers) -> Iterator[FetchAttempt]:
    for at_us, replica, offset, empty in rows.T.tolist():
        yield FetchAttempt(at_us, replica, offset, bool(empty))

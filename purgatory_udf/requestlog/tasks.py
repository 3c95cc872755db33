"""What the tasks of an import do: each a function from batches of rows to batches of rows, in no need of the others.

The context comes as a function, because Spark hands a large value to tasks once, and not with each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from purgatory_udf.contract import Rejection, read_row
from purgatory_udf.requestlog.anonymise import Rename, anonymised
from purgatory_udf.requestlog.apart import Parts, parts_of, parts_of_sessions
from purgatory_udf.requestlog.context import Context
from purgatory_udf.requestlog.facts import PartitionFacts
from purgatory_udf.requestlog.order import order_of_change, order_of_operation
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.rows import (
    BAD,
    CHANGE,
    CHANGES,
    FINISHED,
    PARTS,
    PRODUCED,
    count_rows,
    fact_of,
    fact_row,
    operation_row,
    request_of,
)
from purgatory_udf.requestlog.timeline import Timeline, build_timeline

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]
Row = dict[str, Any]

ROWS = 10_000


def take_requests_apart(context: Callable[[], Context]) -> Work:
    """Requests other than fetches, in any order → PARTS."""

    def work(batches: Batches) -> Batches:
        report = Report()
        requests = (request_of(row) for row in rows_in(batches))
        yield from _parts(parts_of(requests, context(), report), report)

    return work


def take_sessions_apart(context: Callable[[], Context]) -> Work:
    """Fetches in the order of broker, session and handling → PARTS."""

    def work(batches: Batches) -> Batches:
        report = Report()
        fetches = ((row["session"], request_of(row)) for row in rows_in(batches))
        yield from _parts(parts_of_sessions(fetches, context(), report), report)

    return work


def build_timelines(context: Callable[[], Context]) -> Work:
    """Facts in the order of broker, topic and partition → CHANGES."""

    def work(batches: Batches) -> Batches:
        report = Report()

        def rows() -> Iterator[Row]:
            key = ("broker", "topic", "partition")
            for (broker, topic, partition), own in groupby(
                rows_in(batches), lambda row: tuple(row[name] for name in key)
            ):
                facts = PartitionFacts.of(broker, (topic, partition), map(fact_of, own))
                yield from rows_of_timeline(build_timeline(facts, context(), report), facts)
            yield from count_rows(report.counts)

        yield from batches_of(rows(), CHANGES)

    return work


def finish_events(rename: Rename | None) -> Work:
    """Events as JSON, in their order, with the offsets of produces → events of the contract, numbered in each task.

    What the contract refuses is no event: it keeps its reason. `rename` makes names into pseudonyms.
    """

    def work(batches: Batches) -> Batches:
        def rows() -> Iterator[Row]:
            for number, row in enumerate(rows_in(batches)):
                event = json.loads(row["event"])
                for slot, base, end in (tuple(one.values()) for one in row["offsets"] or ()):
                    event["partitions"][slot]["base_offset"] = base
                    event["partitions"][slot]["last_offset"] = end - 1
                if row["request_id"] is not None:
                    event["request_id"] = row["request_id"]
                if (later := row["time_us"] - event["time_us"]) > 0:
                    event["time_us"] = row["time_us"]
                    recorded = json.loads(row["recorded"])
                    recorded["remote_ms"] = max(0, recorded["remote_ms"] - later / 1000)
                    row["recorded"] = json.dumps(recorded)
                place = {name: row[name] for name in ("file", "at_line", "recorded")} | {"number": number}
                try:
                    event = read_row(event)
                except Rejection as rejection:
                    yield {**place, "rule": rejection.rule, "reason": rejection.reason, "raw": row["event"]}
                else:
                    yield {**place, **(anonymised(event, rename) if rename else event)}

        yield from batches_of(rows(), FINISHED)

    return work


def _parts(found: Iterable[Parts], report: Report) -> Batches:
    def rows() -> Iterator[Row]:
        for parts in found:
            yield from rows_of_parts(parts, report)
        yield from count_rows(report.counts)

    return batches_of(rows(), PARTS)


def rows_of_parts(parts: Parts, report: Report) -> Iterator[Row]:
    for operation in parts.operations:
        yield {**operation_row(operation), **order_of_operation(operation)._asdict()}
    for key, fact in parts.facts:
        yield fact_row(parts.broker, key, fact)
    if parts.bad is not None:
        file, line = parts.bad.place
        report.count("bad_lines")
        reason = {"kind": parts.bad.rule, "event": parts.bad.reason, "recorded": parts.bad.raw}
        yield {"part": BAD, "broker": parts.broker, "file": file, "line": line, **reason}


def rows_of_timeline(timeline: Timeline, facts: PartitionFacts) -> Iterator[Row]:
    for number, timed in enumerate(timeline.events):
        order = order_of_change(facts.broker, facts.topic, facts.partition, number, timed)
        yield {"part": CHANGE, **order._asdict(), "event": json.dumps(timed.event)}
    for one in timeline.produced:
        yield {"part": PRODUCED, **one._asdict()}


def rows_in(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(rows: Iterable[Row], schema: pa.Schema) -> Batches:
    held: list[Row] = []
    for row in rows:
        held.append(row)
        if len(held) == ROWS:
            yield pa.RecordBatch.from_pylist(held, schema=schema)
            held = []
    yield pa.RecordBatch.from_pylist(held, schema=schema)

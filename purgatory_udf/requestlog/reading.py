"""Stretches of log files in, requests out: one row a request that matters, one a bad line, one the end of a stretch.

A request's line is counted within its stretch, because a task knows no other; the ends tell where each stretch begins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

import pyarrow as pa

from purgatory_udf.ingest.lines import lines_of
from purgatory_udf.ingest.pieces import Piece
from purgatory_udf.requestlog.bodies import Fetch, fetch_answer_of, fetch_of
from purgatory_udf.requestlog.context import TELLING
from purgatory_udf.requestlog.controller import is_controllers, left_to
from purgatory_udf.requestlog.groups import MODERN
from purgatory_udf.requestlog.line import MALFORMED, NO_BROKER, BadLine, malformed, read_line
from purgatory_udf.requestlog.log_files import broker_of
from purgatory_udf.requestlog.request import Place, Request
from purgatory_udf.requestlog.rows import REQUESTS, request_row
from purgatory_udf.requestlog.sessions import session_key
from purgatory_udf.requestlog.take_apart import USED_APIS

REQUEST, BAD, END = "request", "bad", "end"
LATE = "late: what its broker did at that time is written already; hold lines back for longer (--hold-ms)"

# `rule`, `reason` and `raw` of a bad line; of a stretch's end `line`, `counts`, and partitions in `body` (JSON both).
READ = pa.schema(
    [
        ("row", pa.string()),
        ("piece", pa.int32()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        ("counts", pa.string()),
        *REQUESTS,
    ]
)


@dataclass(frozen=True)
class Tally:
    """What a stretch's lines come to: counts by cause, how many partitions of each topic (or its id) followers have
    asked for, and the groups of newer protocols."""

    counts: Counter[str] = field(default_factory=Counter)
    partitions: dict[str, int] = field(default_factory=dict)
    modern: set[str] = field(default_factory=set)

    def not_kept(self, request: Request) -> None:
        """A line that is none of a broker's purgatories."""
        if request.api in MODERN and isinstance(request.body.get("groupId"), str):
            self.modern.add(request.body["groupId"])
            self.counts["modern_group"] += 1
        else:
            self.counts[left_to(request)] += 1

    def asked(self, fetch: Fetch) -> None:
        self.counts["racked"] += fetch.racked
        if fetch.replica_id >= 0:
            for one in fetch.partitions:
                self.partitions[one.topic] = max(one.partition + 1, self.partitions.get(one.topic, 0))

    def end(self, **place: Any) -> pa.RecordBatch:
        body = {"partitions": self.partitions, "modern": sorted(self.modern)}
        told = {"counts": json.dumps(self.counts), "body": json.dumps(body)}
        return pa.RecordBatch.from_pylist([{"row": END, **place, **told}], schema=READ)


def most_partitions(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    most: dict[str, int] = {}
    for tally in tallies:
        for topic, count in tally.items():
            most[topic] = max(count, most.get(topic, 0))
    return most


def modern_groups(tallies: Iterable[Mapping[str, Any]]) -> set[str]:
    return {group for tally in tallies for group in tally["modern"]}


def read_piece(piece: Piece, zone: tzinfo) -> Iterator[pa.RecordBatch]:
    tally = Tally()
    by_path = broker_of(piece.source.name)
    line = 0
    for chunk in lines_of(piece):
        rows = []
        for raw in chunk.items:
            line += 1
            text = raw.decode("utf-8", errors="replace")
            row = _row(text, Place(piece.file, line), zone, by_path, tally)
            if row is not None:
                rows.append({**row, "piece": piece.index})
        yield pa.RecordBatch.from_pylist(rows, schema=READ)
    tally.counts["lines"] = line
    yield tally.end(file=piece.file, piece=piece.index, line=line)


def read_messages(zone: tzinfo, since_us: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Messages (partition, offset, value), each a line, for a file's stretch: what was handled before `since_us` is
    late, a bad line."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = Tally()
        for batch in batches:
            rows = []
            for message in batch.to_pylist():
                tally.counts["lines"] += 1
                place = Place(message["partition"], message["offset"])
                row = _row(message["value"], place, zone, None, tally)
                if row is not None and row["row"] == REQUEST and row["start_us"] < since_us:
                    tally.counts["late_lines"] += 1
                    row = _bad(BadLine(place, "late", LATE, message["value"]))
                if row is not None:
                    rows.append(row)
            yield pa.RecordBatch.from_pylist(rows, schema=READ)
        yield tally.end()

    return work


def _row(text: str, place: Place, zone: tzinfo, by_path: int | None, tally: Tally) -> dict[str, Any] | None:
    """The row of a line, None for one that only counts."""
    counts = tally.counts
    read = read_line(text, place, zone)
    if read is None:
        counts["other_lines"] += 1
        return None
    if isinstance(read, BadLine):
        counts["bad_lines"] += 1
        return _bad(read)
    counts["requests"] += 1
    if read.broker == NO_BROKER:
        counts["no_broker"] += 1
        if by_path is None:
            counts["bad_lines"] += 1
            reason = "no broker: neither the line's thread nor a number in the file's path names it"
            return _bad(BadLine(place, "no broker", reason, text))
        read.broker = by_path
    if not matters(read):
        tally.not_kept(read)
        return None
    try:
        session = _session(read, tally)
    except MALFORMED as error:
        counts["bad_lines"] += 1
        return _bad(malformed(read, error))
    return {"row": REQUEST, **request_row(read, session)}


def _bad(bad: BadLine) -> dict[str, Any]:
    file, line = bad.place
    return {"row": BAD, "file": file, "line": line, "rule": bad.rule, "reason": bad.reason, "raw": bad.raw}


def matters(request: Request) -> bool:
    if request.api in TELLING:
        return True
    return (request.api == "FETCH" or request.api in USED_APIS) and not is_controllers(request)


def _session(request: Request, tally: Tally) -> str | None:
    if request.api != "FETCH":
        return None
    fetch = fetch_of(request.body)
    tally.asked(fetch)
    return session_key(fetch, fetch_answer_of(request.answer), request.connection)

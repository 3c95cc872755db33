"""Stretches of log files in, requests out: one row a request that matters, one a bad line, one the end of a stretch.

A request's line is counted within its stretch, because a task knows no other; the ends tell where each stretch begins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

import pyarrow as pa

from purgatory_udf.ingest.lines import lines_of
from purgatory_udf.ingest.pieces import Piece
from purgatory_udf.requestlog.bodies import fetch_answer_of, fetch_of
from purgatory_udf.requestlog.context import TELLING
from purgatory_udf.requestlog.controller import is_controllers
from purgatory_udf.requestlog.line import MALFORMED, NO_BROKER, BadLine, malformed, read_line
from purgatory_udf.requestlog.log_files import broker_of
from purgatory_udf.requestlog.request import Place, Request
from purgatory_udf.requestlog.rows import REQUESTS, request_row
from purgatory_udf.requestlog.sessions import session_key
from purgatory_udf.requestlog.take_apart import USED_APIS

REQUEST, BAD, END = "request", "bad", "end"

# `rule`, `reason` and `raw` of a bad line; `counts` (JSON) and `line` of a stretch's end.
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


def read_piece(piece: Piece, zone: tzinfo) -> Iterator[pa.RecordBatch]:
    counts: Counter[str] = Counter()
    by_path = broker_of(piece.source.name)
    line = 0
    for chunk in lines_of(piece):
        rows = []
        for raw in chunk.items:
            line += 1
            row = _row(raw, Place(piece.file, line), zone, by_path, counts)
            if row is not None:
                rows.append({**row, "piece": piece.index})
        yield pa.RecordBatch.from_pylist(rows, schema=READ)
    counts["lines"] = line
    end = {"row": END, "file": piece.file, "piece": piece.index, "line": line, "counts": json.dumps(counts)}
    yield pa.RecordBatch.from_pylist([end], schema=READ)


def _row(raw: bytes, place: Place, zone: tzinfo, by_path: int | None, counts: Counter[str]) -> dict[str, Any] | None:
    """The row of a line, None for one that only counts."""
    read = read_line(raw.decode("utf-8", errors="replace"), place, zone)
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
            return _bad(BadLine(place, "no broker", reason, raw.decode("utf-8", errors="replace")))
        read.broker = by_path
    if not _matters(read):
        counts["controller" if is_controllers(read) else "no_purgatory"] += 1
        return None
    try:
        session = _session(read)
    except MALFORMED as error:
        counts["bad_lines"] += 1
        return _bad(malformed(read, error))
    return {"row": REQUEST, **request_row(read, session)}


def _bad(bad: BadLine) -> dict[str, Any]:
    file, line = bad.place
    return {"row": BAD, "file": file, "line": line, "rule": bad.rule, "reason": bad.reason, "raw": bad.raw}


def _matters(request: Request) -> bool:
    if request.api in TELLING:
        return True
    return (request.api == "FETCH" or request.api in USED_APIS) and not is_controllers(request)


def _session(request: Request) -> str | None:
    if request.api != "FETCH":
        return None
    return session_key(fetch_of(request.body), fetch_answer_of(request.answer), request.connection)

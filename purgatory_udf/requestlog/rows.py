"""Requests, facts and operations as rows, on their way between Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, get_type_hints

import pyarrow as pa

from purgatory_udf.requestlog.facts import Append, Copied, Delivery, Fact, Key, Position, Sight, Trim, Trouble, Try
from purgatory_udf.requestlog.operation import Operation
from purgatory_udf.requestlog.request import Place, Request
from purgatory_udf.tables import EVENTS

REQUESTS = pa.schema(
    [
        ("file", pa.int32()),
        ("line", pa.int64()),
        ("broker", pa.int32()),
        ("session", pa.string()),
        ("api", pa.string()),
        ("version", pa.int32()),
        ("client_id", pa.string()),
        ("connection", pa.string()),
        ("listener", pa.string()),
        ("forwarded", pa.bool_()),
        ("arrival_us", pa.int64()),
        ("start_us", pa.int64()),
        ("local_us", pa.int64()),
        ("remote_us", pa.int64()),
        ("answered_us", pa.int64()),
        ("written_us", pa.int64()),
        ("body", pa.string()),
        ("answer", pa.string()),
    ]
)

# The places of an event in the total order (`order.Order`), which all rows that become events have.
ORDER = [
    ("time_us", pa.int64()),
    ("rank", pa.int32()),
    ("broker", pa.int32()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("file", pa.int32()),
    ("line", pa.int64()),
    ("sub", pa.int32()),
]

OPERATION, FACT, CHANGE, PRODUCED, BAD, COUNT = "operation", "fact", "change", "produced", "bad", "count"

# One row an operation, a fact, a bad line or a count. A fact has its broker and partition; its values lie in `numbers`
# and `words`, in the order of its class. A bad line has its rule in `kind`, its reason in `event`, its text in
# `recorded`.
PARTS = pa.schema(
    [
        ("part", pa.string()),
        *ORDER,
        ("kind", pa.string()),
        ("numbers", pa.list_(pa.int64())),
        ("words", pa.list_(pa.string())),
        ("event", pa.string()),
        ("recorded", pa.string()),
    ]
)

# One row an event of a partition, the offsets of one partition of one produce, or a count.
CHANGES = pa.schema(
    [
        ("part", pa.string()),
        *ORDER,
        ("event", pa.string()),
        ("slot", pa.int32()),
        ("base", pa.int64()),
        ("end", pa.int64()),
        ("kind", pa.string()),
        ("numbers", pa.list_(pa.int64())),
    ]
)

# What an event's row takes from its place in the input or from the run, not from its own fields.
_PLACED = ("run_id", "event_time", "seq", "source", "line")

# An event, or why it is none; `number` counts within the task, whose rows are in order.
FINISHED = pa.schema(
    [
        ("number", pa.int64()),
        ("file", pa.int32()),
        ("at_line", pa.int64()),
        ("recorded", pa.string()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        *(one for one in EVENTS if one.name not in _PLACED),
    ]
)

Row = Mapping[str, Any]

_FACTS: dict[str, type[Fact]] = {
    kind.__name__: kind for kind in (Append, Position, Sight, Try, Delivery, Trouble, Trim, Copied)
}
_TYPES = {name: get_type_hints(kind) for name, kind in _FACTS.items()}
_NUMBERS = {
    name: [one.name for one in fields(kind) if _TYPES[name][one.name] in (int, bool)] for name, kind in _FACTS.items()
}
_WORDS = {name: [one.name for one in fields(kind) if one.name not in _NUMBERS[name]] for name, kind in _FACTS.items()}


def request_row(request: Request, session: str | None) -> dict[str, Any]:
    row = {name: getattr(request, name) for name in REQUESTS.names if hasattr(request, name)}
    row["file"], row["line"] = request.place
    row["session"] = session
    row["body"] = json.dumps(request.body)
    row["answer"] = json.dumps(request.answer) if request.answer is not None else None
    return row


def request_of(row: Row) -> Request:
    return Request(
        broker=row["broker"],
        place=Place(row["file"], row["line"]),
        api=row["api"],
        version=row["version"],
        client_id=row["client_id"],
        connection=row["connection"],
        listener=row["listener"],
        forwarded=row["forwarded"],
        arrival_us=row["arrival_us"],
        start_us=row["start_us"],
        local_us=row["local_us"],
        remote_us=row["remote_us"],
        answered_us=row["answered_us"],
        written_us=row["written_us"],
        body=json.loads(row["body"]),
        answer=json.loads(row["answer"]) if row["answer"] is not None else None,
    )


def fact_row(broker: int, key: Key, fact: Fact) -> dict[str, Any]:
    name = type(fact).__name__
    return {
        "part": FACT,
        "broker": broker,
        "topic": key[0],
        "partition": key[1],
        "kind": name,
        "numbers": [int(getattr(fact, field)) for field in _NUMBERS[name]],
        "words": [getattr(fact, field) for field in _WORDS[name]],
    }


def fact_of(row: Row) -> Fact:
    name = row["kind"]
    values: dict[str, Any] = dict(zip(_NUMBERS[name], row["numbers"], strict=True))
    values.update(zip(_WORDS[name], row["words"], strict=True))
    return _FACTS[name](**values)


def operation_row(operation: Operation) -> dict[str, Any]:
    return {
        "part": OPERATION,
        "kind": operation.event["type"],
        "event": json.dumps(operation.event),
        "recorded": json.dumps(asdict(operation.recorded)),
    }


def count_rows(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"part": COUNT, "kind": cause, "numbers": [number]} for cause, number in counts.items()]

"""Requests, facts and operations as rows of Arrow, between the tasks of an import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import nulls
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.sources.request_log.cluster_metadata import TopicSize
from purgatory_udf.sources.request_log.fact_kinds import Fact
from purgatory_udf.sources.request_log.fetch_conversion import FETCH, Fetches
from purgatory_udf.sources.request_log.high_watermark_events import REQUEST_RANK, STATE_RANK, TimedEvent
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause
from purgatory_udf.sources.request_log.kafka_protocol import (
    DecodedProduce,
    FetchColumns,
    Numbers,
    ProduceColumns,
    bounds_of,
)
from purgatory_udf.sources.request_log.logged_request import (
    RECORDED_OUTCOME,
    LoggedOperation,
    Place,
    Request,
)
from purgatory_udf.sources.request_log.partition_status import ALL_TIME, TimeRange
from purgatory_udf.sources.request_log.produce_conversion import PRODUCE, LoggedProduces

# Sort key of a change that no single request caused.
NO_REQUEST = Place(-1, -1)


class Order(NamedTuple):
    """Sort key of an event; the order decides its `seq`.

    Simultaneous events are sorted by rank (changes of partitions, then requests), then by partition or line.
    """

    time_us: int
    rank: int
    broker: int
    topic: str
    partition: int
    file: int
    line: int
    sub: int


def order_of_change(broker: int, topic: str, partition: int, number: int, timed: TimedEvent) -> Order:
    """Return the sort key of a change; `number` is its position in the timeline of the partition."""
    return Order(timed.at_us, timed.rank, broker, topic, partition, *(timed.cause or NO_REQUEST), number)


def order_of_operation(operation: LoggedOperation) -> Order:
    """Return the sort key of an operation: its time, broker, file and line."""
    time_us = operation.event["time_us"]
    return Order(time_us, REQUEST_RANK, operation.broker, "", -1, *operation.place, operation.sub)


def cluster_rows(
    sizes: Iterable[TopicSize], topic_ids: Mapping[str, str], pauses: Iterable[BrokerPause], span: TimeRange = ALL_TIME
) -> pa.Table:
    """Return the events `topic` for partition counts of topics, and `paused` and `resumed` for pauses, as ordered rows.

    Beginnings and ends of pauses outside `span` are left out. `topic_ids` has the known topic ids by name.
    """
    rows = []
    for at_us, topic, partitions in sizes:
        event = {"time_us": at_us, "type": "topic", "topic": topic, "partition_count": partitions}
        event |= {"topic_id": topic_ids[topic]} if topic in topic_ids else {}
        order = Order(at_us, STATE_RANK, -1, topic, -1, *NO_REQUEST, 0)
        rows.append({**order._asdict(), "event": to_json(event).decode()})
    for pause in pauses:
        for at_us, kind in ((pause.paused_us, "paused"), (pause.resumed_us, "resumed")):
            if span.has(at_us):
                event = {"time_us": at_us, "type": kind, "broker": pause.broker}
                order = Order(at_us, STATE_RANK, pause.broker, "", -1, *NO_REQUEST, 0)
                rows.append({**order._asdict(), "event": to_json(event).decode()})
    return pa.Table.from_pylist(rows, schema=pa.schema([*ORDER, ("event", pa.string())]))


# Columns of the bodies and responses of fetches and of produces, with the number of integers in a row of each: see
# `FetchColumns` and `ProduceColumns`.
_OF_FETCHES = {"limits": 7, "listed": 6, "forgotten": 2, "fetched": 8}
_OF_PRODUCES = {"limits": 3, "listed": 5}

# A request has the JSON of body and response. A fetch, and a produce with `limits`, has the JSON list of its topics in
# `body`; the topic numbers in its other columns, which are 64-bit integers, are places in this list. This produce has
# its transactional id in `answer`.
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
        *((name, pa.binary()) for name in _OF_FETCHES),
    ]
)

_FETCH_NUMBERS = (
    *("broker", "file", "line", "version", "arrival_us", "start_us", "local_us", "remote_us", "answered_us"),
    "written_us",
)

_PRODUCE_NUMBERS = ("broker", "file", "line", "start_us", "local_us", "remote_us", "answered_us", "written_us")

# Columns of the sort key `Order`, in all rows that become events.
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

# A change of a partition that moves an offset; `bytes`, `batches` and `replica_id` as in `events`.
CHANGED = pa.struct(
    [
        ("change", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("batches", pa.int64()),
        ("replica_id", pa.int64()),
    ]
)

OPERATION, FACT, CHANGE, PRODUCED, BAD, COUNT = "operation", "fact", "change", "produced", "bad", "count"
REMOTE_READ, OVERDUE = "remote read", "overdue"

# An operation or a change has its event in one of these columns: as JSON in `event`, or without JSON if there are many
# of its kind.
EVENT = [("event", pa.string()), ("fetch", FETCH), ("produce", PRODUCE), ("change", CHANGED)]

# Each row is an operation, facts of a partition, a bad line, the times of an overdue operation, or a count. A bad line
# has the reason in `kind` and its text in `event`.
PARTS = pa.schema(
    [
        ("part", pa.string()),
        *ORDER,
        ("kind", pa.string()),
        ("numbers", pa.list_(pa.int64())),
        ("packed", pa.binary()),
        ("event", pa.string()),
        ("fetch", FETCH),
        ("produce", PRODUCE),
        ("recorded", RECORDED_OUTCOME),
    ]
)

# Each row is an event of a partition, the offsets of one partition of a produce, a remote read, or a count. A remote
# read has the event of its end in `event`; `slot` is the index of the partition in the fetch, `base` is 1 if the read
# had not ended when the fetch was answered, else 0, and `end` is how long the fetch waited, in microseconds.
CHANGES = pa.schema(
    [
        ("part", pa.string()),
        *ORDER,
        ("event", pa.string()),
        ("change", CHANGED),
        ("slot", pa.int32()),
        ("base", pa.int64()),
        ("end", pa.int64()),
        ("kind", pa.string()),
        ("numbers", pa.list_(pa.int64())),
    ]
)

# Columns of `events` that come from the input or the run, not from fields of the event.
_PLACED = ("run_id", "event_time", "seq", "source", "line")

# An event, or the reason for its rejection; `number` counts the ordered rows of a task.
FINISHED = pa.schema(
    [
        ("number", pa.int64()),
        ("file", pa.int32()),
        ("at_line", pa.int64()),
        ("recorded", RECORDED_OUTCOME),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        *(column for column in EVENTS if column.name not in _PLACED),
    ]
)

Row = Mapping[str, Any]

_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(Fact)}

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Fact]).decode
_to_json = msgspec.json.Encoder().encode


def from_json(text: str | bytes) -> Any:
    """Decode JSON, with the constants and numbers that Python accepts."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        # msgspec rejects NaN and very large numbers.
        return json.loads(text)


def to_json(value: Any) -> bytes:
    """Encode a value as JSON, with integers of any size."""
    try:
        return _to_json(value)
    except OverflowError:
        return json.dumps(value).encode()


def constant(value: Any, count: int, type_: pa.DataType) -> pa.Array:
    """Return an array of equal values."""
    return nulls(count, type_) if value is None else pa.repeat(pa.scalar(value, type_), count)


class RequestRow(NamedTuple):
    """A row of REQUESTS of another API than FETCH; body and answer are JSON text."""

    file: int
    line: int
    broker: int
    session: str | None
    api: str
    version: int
    client_id: str | None
    connection: str
    listener: str
    forwarded: bool
    arrival_us: int
    start_us: int
    local_us: int
    remote_us: int
    answered_us: int
    written_us: int
    body: str
    answer: str | None


def request_row(request: Request, session: str | None) -> RequestRow:
    """Return the row of a request other than a fetch.

    `session` is the key by which requests are grouped for their conversion, or None if they need no grouping.
    """
    answer = json.dumps(request.answer) if request.answer is not None else None
    return row_of_texts(request, session, json.dumps(request.body), answer)


def row_of_texts(request: Request, session: str | None, body: str, answer: str | None) -> RequestRow:
    """Return the row of a request, given its session key (see `request_row`) and its body and response as text."""
    return RequestRow(
        request.place.file,
        request.place.line,
        request.broker,
        session,
        request.api,
        request.version,
        request.client_id,
        request.connection,
        request.listener,
        request.forwarded,
        request.arrival_us,
        request.start_us,
        request.local_us,
        request.remote_us,
        request.answered_us,
        request.written_us,
        body,
        answer,
    )


def request_rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[RequestRow]:
    """Yield the rows of REQUESTS batches, which have no fetches, and no produces as columns."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in RequestRow._fields)
        yield from map(RequestRow._make, zip(*columns, strict=True))


def request_batch(rows: Sequence[RequestRow], constants: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of request rows; `constants` has constant columns, and columns without a value are null."""
    columns = dict(zip(RequestRow._fields, zip(*rows, strict=True), strict=True)) if rows else {}
    return _batch(columns, len(rows), constants, schema)


def fetch_batch(
    columns: Mapping[str, Any], bodies: FetchColumns, constants: Mapping[str, Any], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of fetches.

    Args:
        columns: Columns of `schema`; others without a value are null.
        bodies: The bodies and responses.
        constants: Constant columns.
        schema: Columns of the batch, among them those of REQUESTS.
    """
    names, tables = _tables_of_fetches(bodies)
    return _batch_of_columns("FETCH", columns, names, bodies.limits, tables, constants, schema)


def produce_batch(
    columns: Mapping[str, Any], bodies: ProduceColumns, constants: Mapping[str, Any], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of produces as columns; see `fetch_batch`."""
    tables = {"listed": (bodies.partitions, bodies.bounds)}
    columns = {**columns, "answer": bodies.transactions}
    return _batch_of_columns("PRODUCE", columns, bodies.topics, bodies.limits, tables, constants, schema)


# Rows of a column, in which the first value is the number of a topic, and the bounds of each request's rows.
_Table = tuple[Numbers, Numbers]


def _tables_of_fetches(bodies: FetchColumns) -> tuple[Sequence[str], dict[str, _Table]]:
    return bodies.topics, {
        "listed": (bodies.listed, bodies.listed_bounds),
        "forgotten": (bodies.forgotten, bodies.forgotten_bounds),
        "fetched": (bodies.fetched, bodies.fetched_bounds),
    }


def _batch_of_columns(
    api: str,
    columns: Mapping[str, Any],
    topics: Sequence[str],
    limits: Numbers,
    tables: Mapping[str, _Table],
    constants: Mapping[str, Any],
    schema: pa.Schema,
) -> pa.RecordBatch:
    bodies = _columns_of(topics, limits, tables)
    return _batch({**columns, **bodies}, len(limits), {"api": api, **constants}, schema)


def _batch(columns: Mapping[str, Any], count: int, constants: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else constant(constants.get(field.name), count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of dictionaries, as `pa.RecordBatch.from_pylist` does, which is slow if most columns are null."""
    given = {name for row in rows for name in row}
    return _batch({name: [row.get(name) for row in rows] for name in given}, len(rows), {}, schema)


def _columns_of(names: Sequence[str], limits: Numbers, tables: Mapping[str, _Table]) -> dict[str, pa.Array]:
    """Return the columns `body`, `limits` and those of tables, in which each request has its own list of topics."""
    count = len(limits)
    of_request = np.concatenate([np.repeat(np.arange(count), np.diff(bounds)) for _, bounds in tables.values()])
    topic = np.concatenate([table[:, 0] for table, _ in tables.values()])
    pairs, places = np.unique(of_request * max(1, len(names)) + topic, return_inverse=True)
    owners, topics = np.divmod(pairs, max(1, len(names)))
    starts = np.searchsorted(owners, np.arange(count + 1))
    quoted = pa.array([to_json(name).decode() for name in names], pa.string()).take(pa.array(topics))
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(starts, pa.int32()), quoted), ",")
    columns = {
        "body": pc.binary_join_element_wise("[", texts, "]", ""),
        "limits": _packed(limits, np.arange(count + 1)),
    }
    first = 0
    for name, (table, bounds) in tables.items():
        last = first + len(table)
        placed = np.column_stack([(places - starts[of_request])[first:last], table[:, 1:]])
        columns[name], first = _packed(placed, bounds), last
    return columns


def _packed(table: Numbers, bounds: Numbers) -> pa.Array:
    """Return the rows of a table as bytes; `bounds` are those of the rows in each value."""
    offsets = (bounds * table.shape[1] * table.itemsize).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _unpacked(column: pa.Array, width: int) -> tuple[Numbers, Numbers]:
    """Return the rows of a table in a column of `_packed` values, and the bounds of each value's rows."""
    if not len(column):
        return np.empty((0, width), np.int64), np.zeros(1, np.int64)
    _, offsets, values = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    data = memoryview(values or b"")[bounds[0] : bounds[-1]]
    return np.array(data, np.uint8).view(np.int64).reshape(-1, width), (bounds - bounds[0]) // (8 * width)


def _tables_in(batch: pa.RecordBatch, widths: Mapping[str, int]) -> tuple[list[str], Numbers, list[_Table]]:
    """Return the topics, limits and tables in the columns of a batch; `widths` are those of its columns."""
    texts = batch.column("body").dictionary_encode()
    lists = list(map(from_json, texts.dictionary.to_pylist()))
    numbers: dict[str, int] = {}
    topics = np.array([numbers.setdefault(name, len(numbers)) for names in lists for name in names], np.int64)
    starts = bounds_of(list(map(len, lists)))[texts.indices.to_numpy()]
    tables = []
    for name, width in widths.items():
        table, bounds = _unpacked(batch.column(name), width)
        if name != "limits":
            table[:, 0] = topics[np.repeat(starts, np.diff(bounds)) + table[:, 0]]
        tables.append((table, bounds))
    (limits, _), *others = tables
    return list(numbers), limits, others


def fetches_in(batch: pa.RecordBatch) -> Fetches:
    """Return the fetches of a REQUESTS batch, which has no other requests, and those of each session together."""
    columns: dict[str, Any] = {name: batch.column(name).to_numpy() for name in _FETCH_NUMBERS}
    session = batch.column("session").dictionary_encode(null_encoding="encode").indices.to_numpy()
    is_first = np.append(True, (np.diff(session) != 0) | (np.diff(columns["broker"]) != 0))[: len(session)]
    firsts = np.flatnonzero(is_first)
    names = batch.column("session").take(pa.array(firsts)).to_pylist()
    columns["sessions"] = [
        (broker, name or "") for broker, name in zip(columns["broker"][firsts].tolist(), names, strict=True)
    ]
    topics, limits, (listed, forgotten, fetched) = _tables_in(batch, _OF_FETCHES)
    return Fetches(
        session_bounds=np.append(firsts, len(session)),
        client_id=batch.column("client_id"),
        bodies=FetchColumns(topics, limits, *listed, *forgotten, *fetched),
        **columns,
    )


def are_columns(batch: pa.RecordBatch) -> pa.Array:
    """Return for each row of REQUESTS whether body and response are columns."""
    return batch.column("limits").is_valid()


def produces_in(batch: pa.RecordBatch) -> LoggedProduces:
    """Return the produces of a REQUESTS batch, which has only produces as columns."""
    columns: dict[str, Any] = {name: batch.column(name).to_numpy() for name in _PRODUCE_NUMBERS}
    topics, limits, (partitions,) = _tables_in(batch, _OF_PRODUCES)
    bodies = ProduceColumns(topics, batch.column("answer").to_pylist(), limits, *partitions)
    return LoggedProduces(client_id=batch.column("client_id"), bodies=bodies, **columns)


def request_of(row: RequestRow, produce: DecodedProduce | None = None) -> Request:
    """Return the request of a row, with body and response decoded; `produce` is the body of a produce as columns."""
    body, answer = row.body, row.answer
    return Request(
        row.broker,
        Place(row.file, row.line),
        row.api,
        row.version,
        row.client_id,
        row.connection,
        row.listener,
        row.forwarded,
        row.arrival_us,
        row.start_us,
        row.local_us,
        row.remote_us,
        row.answered_us,
        row.written_us,
        from_json(body) if produce is None else {},
        from_json(answer) if produce is None and answer is not None else None,
        produce=produce,
    )


class Facts(NamedTuple):
    """Facts about a partition at a broker, within a task. Between tasks they are serialized in the column `packed`.

    `settled` is null unless a log is followed; see `carried_state.CONVERTED`.
    """

    broker: int
    topic: str
    partition: int
    settled: bool | None
    facts: Sequence[Fact]


def packed_facts(facts: Sequence[Fact]) -> bytes:
    """Serialize facts. Facts with integers of more than 64 bits are dropped."""
    try:
        return _pack(facts)
    except OverflowError:
        # Only a request that the contract rejects has such numbers; its facts are dropped.
        return _pack([fact for fact in facts if _has_64_bits(fact)])


def _has_64_bits(fact: Fact) -> bool:
    return all(abs(value) < 2**63 for value in msgspec.structs.astuple(fact) if type(value) is int)


def facts_in(packed: bytes) -> list[Fact]:
    """Return the facts that `packed_facts` serialized."""
    try:
        return _unpack(packed)
    except msgspec.ValidationError:
        # A request with a transactional id that is not text.
        return [_KINDS[number](*values) for number, *values in msgspec.msgpack.decode(packed)]


# Columns of an operation in PARTS, and of a partition's event in CHANGES.
OPERATION_FIELDS = (*Order._fields, "kind", "event", "recorded")
CHANGE_FIELDS = (*Order._fields, "event", "change")


def batch_of_part(
    part: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of rows with the same columns. This is faster than building it from dictionaries.

    Args:
        part: The value of the column `part`.
        names: The columns that the rows have, in their order; the other columns are null.
        rows: The values; may be empty.
        schema: The columns of the batch.
    """
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    columns["part"] = [part] * len(rows)
    arrays = [_array(columns.get(field.name), field.type, len(rows)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any] | None, type_: pa.DataType, count: int) -> pa.Array:
    """Return an array of `count` values, all null for None. The values of a struct type are tuples."""
    if values is None:
        return nulls(count, type_)
    if not pa.types.is_struct(type_):
        return pa.array(values, type_)
    present = [value for value in values if value is not None]
    if not present:
        return nulls(count, type_)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*present, strict=True), type_, strict=True)]
    structs = pa.StructArray.from_arrays(columns, fields=list(type_))
    if len(present) == count:
        return structs
    valid = np.fromiter((value is not None for value in values), bool, count)
    return structs.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def count_rows(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return a row for each cause with its count."""
    return [{"part": COUNT, "kind": cause, "numbers": [number]} for cause, number in counts.items()]

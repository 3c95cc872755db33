"""Batches of lines are decoded and validated like single lines: the same events and the same reasons."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.contract import CHANGE_FIELDS, EVENT_STRUCTS
from purgatory_udf.contract.event_checks import TYPES
from purgatory_udf.sources.request_log.fetch_conversion import FETCH
from purgatory_udf.sources.request_log.importing.import_rows import CHANGED
from purgatory_udf.sources.trace_files.typed_columns import FIELDS, changes_as_events, decode_lines, fetches_as_events
from tests.contract.examples import NEEDS, WHOLE
from tests.sources.trace_files.traces import validated_rows, write
from tests.support.examples import examples

Event = dict[str, Any]

_WHOLE = [json.dumps(event).encode() for event in WHOLE.values()]
_MINIMAL = [
    {name: value for name, value in event.items() if name in NEEDS[kind] or name == "type"}
    for kind, event in WHOLE.items()
]

# Values of every type at the limits of fields, and beyond.
_INTEGERS = [0, 1, -1, -2, 2**31 - 1, 2**31, -(2**31) - 1, 9_000_000_000_000_000, 2**63 - 1, 2**63, -(2**63), 10**30]
_TEXTS = ["", "x", "NONE", "a" * 100, "é\u2028", "\0", "read_committed", "fetch", "isr", "NOT_LEADER_OR_FOLLOWER"]
_OTHERS: list[Any] = [None, True, False, 1.0, 1.5, 1e300, [], {}, [None], [1, 1], [1, 2], ["a", "a"], [{}], {"a": [1]}]
values = st.one_of(st.sampled_from(_INTEGERS), st.sampled_from(_TEXTS), st.sampled_from(_OTHERS))


@st.composite
def changed_events(draw: st.DrawFn) -> bytes:
    """Draw an event with up to two changes, in the event or in one of its partitions."""
    event: Event = copy.deepcopy(draw(st.sampled_from([*WHOLE.values(), *_MINIMAL])))
    for _ in range(draw(st.integers(0, 2))):
        holder = event
        inner = [name for name, value in event.items() if isinstance(value, list) and value]
        within: bool = draw(st.booleans())
        if inner and within:
            items = event[draw(st.sampled_from(inner))]
            change = draw(st.sampled_from(["again", "another", "none", "within"]))
            if change == "again":
                items.append(copy.deepcopy(items[0]))
            elif change == "another":
                items.append({**items[0], "partition": 99, "topic": "other"} if isinstance(items[0], dict) else 99)
            elif change == "none":
                items.clear()
            if change == "within" and isinstance(items[0], dict):
                holder = items[0]
        name = draw(st.sampled_from([*holder, "unknown", "acks", "error", "change", "type", "seq"]))
        if draw(st.booleans()):
            holder.pop(name, None)
        else:
            holder[name] = copy.deepcopy(draw(values))
    text = json.dumps(event, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", errors="replace")


# Lines that JSON writers do not write: repeated keys, constants, unusual numbers, deep nesting, invalid text.
_UNUSUAL = [
    b'{"time_us":1,"time_us":2,"type":"clock"}',
    # A request id that may be missing.
    b'{"time_us":1,"type":"share_release","group":"g","member_id":"m"}',
    b'{"time_us":1,"type":"fetch","type":"clock"}',
    b'{"time_us":1,"type":"clock","x":NaN}',
    b'{"time_us":1,"type":"clock","x":-Infinity}',
    b'{"time_us":1,"type":"clock","x":1e999}',
    b'{"time_us":1,"type":"clock","x":01}',
    b'{"time_us":1,"type":"clock","x":"\\ud800"}',
    b'{"time_us":1,"type":"clock","client_id":"\\ud83d\\ude00"}',
    b'{"time_us":1,"type":"clock","x":"\xff"}',
    b'{"time_us":1,"type":"clock","x":"a\tb"}',
    b'{"time_us":1,"type":"clock","x":' + b"[" * 380 + b"]" * 380 + b"}",
    b'{"time_us":1,"type":"clock","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"time_us":1,"type":"clock","x":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    b'{"time_us":-0,"type":"clock"}',
    b'{"time_us":1.0,"type":"clock"}',
    b'{"time_us":1e3,"type":"clock"}',
    b'{"time_us":1,"type":"clock","seq":' + b"9" * 5_000 + b"}",
    b'{"time_us":1,"type":"heartbeat","request_id":' + b"9" * 5_000 + b',"group":"g","member_id":"","generation":1}',
    b'{"time_us":1,"type":"heartbeat","request_id":-0,"group":"g","member_id":"","generation":1}',
    b'{"time_us":1,"type":"heartbeat","request_id":1e3,"group":"g","member_id":"","generation":1}',
    b'{"\\u0074ime_us":1,"type":"cl\\u006fck"}',
    b'  {"time_us":1 , "type":"clock"}\t',
    b'\xc2\xa0{"time_us":1,"type":"clock"}',
    b'\xef\xbb\xbf{"time_us":1,"type":"clock"}',
    b'{"time_us":1,"type":"clock"}{"time_us":1,"type":"clock"}',
    b'{"time_us":1,"type":"clock"},',
    b'{"time_us":1,"type":"clock",}',
    b'{"time_us":1,"type":"clock"',
    b'{"time_us":1,"type":"clock"}\0',
    b"{'time_us':1,'type':'clock'}",
    b'[{"time_us":1,"type":"clock"}]',
    b"null",
    b"",
    b" \xe2\x80\x83 ",
]
lines = st.one_of(
    changed_events(),
    st.integers(0, len(_UNUSUAL) - 1).map(_UNUSUAL.__getitem__),
    st.sampled_from(_WHOLE),
    st.binary(max_size=30),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columns")


@given(st.lists(lines.map(lambda line: line.replace(b"\n", b" ")), min_size=1, max_size=12))
@examples(80)
def test_batch_validation_equals_single_lines(scratch: Path, given: list[bytes]) -> None:
    path = write(scratch / "a.jsonl", b"\n".join(given) + b"\n")
    assert validated_rows(path) == validated_rows(path, fast=False)


@pytest.mark.parametrize("line", _UNUSUAL, ids=range(len(_UNUSUAL)))
def test_unusual_line_is_validated_the_same(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path / "a.jsonl", b"\n".join([_WHOLE[0], line, _WHOLE[1]]))
    assert validated_rows(path) == validated_rows(path, fast=False)


def test_all_types_and_changes_are_decoded_in_batches() -> None:
    assert {shape.kind for shape in (*EVENT_STRUCTS.values(), *CHANGE_FIELDS.values())} == set(TYPES)
    assert decode_lines(_WHOLE).undecoded == []
    assert (
        decode_lines(
            [json.dumps(event).encode() for event in _MINIMAL if event["type"] not in ("produce", "fetch")]
        ).undecoded
        == []
    )


# Most values are valid, so that events with a single invalid value are frequent.
_numbers = st.one_of(
    st.integers(0, 3), st.integers(1, 3), st.sampled_from([n for n in _INTEGERS if -(2**63) <= n < 2**63])
)
_brokers = st.sampled_from([0, 1, 2**31 - 1, -1])
_topics = st.sampled_from(["orders", "orders", "b", ""])
_fetched = st.fixed_dictionaries(
    {
        "topic": _topics,
        **dict.fromkeys(("partition", "fetch_offset", "max_bytes", "current_leader_epoch"), _numbers),
        "preferred_replica": st.none() | _numbers,
    }
)
_fetches = st.fixed_dictionaries(
    {
        **dict.fromkeys(("time_us", "replica_id", "max_wait_ms", "min_bytes", "max_bytes"), _numbers),
        "isolation": st.sampled_from(["read_committed", "read_uncommitted"]),
        "partitions": st.lists(_fetched, max_size=3),
        "hard_max_bytes": st.booleans(),
        "client_id": st.sampled_from([None, "", "c"]),
        "broker": _brokers,
    }
)
_changes = st.fixed_dictionaries(
    {
        "change": st.sampled_from(["log_end", "replica_end", "high_watermark"]),
        "topic": _topics,
        "broker": _brokers,
        "partition": st.sampled_from([0, 1, 2**31 - 1, -1]),
        **dict.fromkeys(("time_us", "offset", "bytes", "replica_id"), _numbers),
        "batches": st.none() | _numbers,
    }
)


def _decoded(events: list[Event]) -> tuple[list[int], list[Event]]:
    """Return the numbers of the events that are valid as JSON, and their rows."""
    texts = [json.dumps({"request_id": "-", **event}).encode() for event in events]
    decoded = decode_lines(texts)
    valid = [number for numbers in decoded.numbers for number in numbers.tolist()]
    return valid, [{**row, "request_id": None} for batch in decoded.events for row in batch.to_pylist()]


def _rows(columns: dict[str, pa.Array], valid: Any) -> list[dict[str, Any]]:
    """Return the events of these columns, with null for the other fields; other rows have to be null."""
    count = len(columns["time_us"])
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in FIELDS]
    batch = pa.RecordBatch.from_arrays(arrays, schema=FIELDS)
    batch.validate(full=True)
    rest = batch.filter(pa.array(~valid))
    assert all(column.null_count == rest.num_rows for column in rest.columns)
    rows: list[dict[str, Any]] = batch.filter(pa.array(valid)).to_pylist()
    return rows


@given(st.lists(st.none() | _fetches, min_size=1, max_size=6))
@examples(75)
def test_fetches_without_json_equal_decoded_ones(given: list[Event | None]) -> None:
    fetches = [fetch for fetch in given if fetch is not None]
    places = [number for number, fetch in enumerate(given) if fetch is not None]
    brokers = pa.array([fetch["broker"] if fetch else 1 for fetch in given], pa.int32())
    columns, valid = fetches_as_events(pa.array(given, FETCH), brokers)
    numbers, rows = _decoded([{"type": "fetch", **fetch} for fetch in fetches])
    assert (np.flatnonzero(valid).tolist(), _rows(columns, valid)) == ([places[number] for number in numbers], rows)


def test_items_of_null_are_no_items() -> None:
    """Arrow allows items in lists that are null, as a selection of rows may leave them."""
    item = {"topic": "t", "partition": 0, "fetch_offset": 0, "max_bytes": 1, "current_leader_epoch": -1}
    numbers = dict.fromkeys(("time_us", "replica_id", "max_wait_ms", "min_bytes", "max_bytes"), 1)
    fetch = {**numbers, "isolation": "read_committed", "partitions": [item], "hard_max_bytes": True, "client_id": "c"}
    fetches = pa.array([fetch, fetch], FETCH)
    hidden = pa.StructArray.from_arrays(fetches.flatten(), fields=list(FETCH), mask=pa.array([True, False]))
    columns, valid = fetches_as_events(hidden, pa.array([1, 1], pa.int32()))
    assert valid.tolist() == [False, True]
    assert _rows(columns, valid) == _decoded([{"type": "fetch", **fetch, "broker": 1}])[1]


@given(st.lists(st.none() | _changes, min_size=1, max_size=6))
@examples(75)
def test_changes_without_json_equal_decoded_ones(given: list[Event | None]) -> None:
    of_others = {
        "log_end": ["replica_id"],
        "replica_end": ["bytes", "batches"],
        "high_watermark": ["bytes", "batches", "replica_id"],
    }
    rows = [row and {**row, **dict.fromkeys(of_others[row["change"]])} for row in given]
    of_partition = {"time_us": pa.int64(), "broker": pa.int32(), "topic": pa.string(), "partition": pa.int32()}
    place = {"time_us": 1, "broker": 1, "topic": "t", "partition": 0}
    columns, valid = changes_as_events(
        pa.array(rows, CHANGED),
        {name: pa.array([(row or place)[name] for row in rows], type_) for name, type_ in of_partition.items()},
    )
    changes = [row for row in rows if row is not None]
    numbers, decoded = _decoded([{"type": "partition", **row} for row in changes])
    by_kind = sorted(zip(numbers, decoded, strict=True), key=lambda each: each[0])
    places = [number for number, row in enumerate(rows) if row is not None]
    assert np.flatnonzero(valid).tolist() == [places[number] for number, _ in by_kind]
    assert _rows(columns, valid) == [row for _, row in by_kind]


def test_change_with_a_field_of_another_kind_is_not_taken() -> None:
    change = {"change": "high_watermark", "offset": 5, "bytes": 7, "batches": None, "replica_id": None}
    place = {"time_us": pa.array([1]), "broker": pa.array([1]), "topic": pa.array(["t"]), "partition": pa.array([0])}
    assert changes_as_events(pa.array([change], CHANGED), place)[1].tolist() == [False]


def test_empty_slice_of_fetches_gives_no_events() -> None:
    columns, valid = fetches_as_events(pa.nulls(2, FETCH)[1:1], pa.array([], pa.int32()))
    assert (_rows(columns, valid), len(valid)) == ([], 0)

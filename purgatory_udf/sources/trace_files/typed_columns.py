"""Decodes lines into columns of events in bulk, with the same result as the contract's validation line by line.

    lines ─► msgspec's decoder ─► structs, by type ─► columns ─► conditions beyond types hold? ─► events
                  └─ fails ────────────────────────────────────────────── no ─┴────► left for `contract.read_line`

Only lines that are certainly valid events are decoded here. All other lines are left for `read_line`, which accepts or
rejects each of them. A valid line among them is not lost, but takes more time.

Imports of request logs already have the fields of fetches, of most produces and of most changes as columns. These are
checked against the same conditions (`fetches_as_events`, `produces_as_events`, `changes_as_events`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import nulls
from purgatory_udf.contract import CHANGE_FIELDS, CHANGE_STRUCT, EVENT_STRUCTS, StructFields, decode_struct
from purgatory_udf.contract.event_checks import (
    CHANGED_FIELDS,
    KNOWN_ACKS,
    NO_ERROR,
    PRODUCE_FIELDS,
    REQUIRED,
    TYPES,
    Field,
)
from purgatory_udf.contract.event_checks import FIELDS as FIELDS_OF
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.contract.value_types import INT32, LIST_ITEMS, MSGSPEC_TYPES, Items, label, name

# Columns of `events` that come from the input or the run, not from fields of the event.
PLACED = ("run_id", "event_time", "source", "line")
FIELDS = pa.schema([field for field in EVENTS if field.name not in PLACED])

# Lines with more brackets are left: their nesting may exceed the recursion limit; no event is nested as deep.
DEEP = 400


class DecodedLines(NamedTuple):
    """The result of `decode_lines`.

    Attributes:
        events: Batches of events (FIELDS), in any order.
        numbers: The line numbers of these events.
        undecoded: The numbers of the lines that were not decoded, in order.
    """

    events: list[pa.RecordBatch]
    numbers: list[np.ndarray]
    undecoded: list[int]


def decode_lines(lines: Sequence[bytes], required: Collection[str] = ()) -> DecodedLines:
    """Decode the lines that are certainly valid events. Fields with the names in `required` have no default."""
    groups: dict[Any, tuple[list[Any], list[int]]] = {}
    undecoded: list[int] = []
    for number, line in enumerate(lines):
        try:
            if (not line.isascii() and not _is_utf8(line)) or (len(line) > DEEP and _may_be_deep(line)):
                undecoded.append(number)
                continue
            event = decode_struct(line)
            kind = type(event)
            key = kind if kind is not CHANGE_STRUCT else event.change
            group = groups.get(key)
            if group is None:
                group = groups[key] = [], []
            group[0].append(event)
            group[1].append(number)
        except (msgspec.MsgspecError, RecursionError):
            undecoded.append(number)
    decoded = DecodedLines([], [], undecoded)
    for key, (events, numbers) in groups.items():
        shape = EVENT_STRUCTS.get(key) or CHANGE_FIELDS.get(key)
        if shape is None:
            undecoded.extend(numbers)
            continue
        places = np.array(numbers)
        columns, invalid = _columns(shape, events, required)
        if invalid.any():
            undecoded.extend(places[invalid].tolist())
            places = places[~invalid]
            valid = [event for event, is_invalid in zip(events, invalid, strict=True) if not is_invalid]
            columns, _ = _columns(shape, valid, required)
        decoded.events.append(_batch(columns, len(places)))
        decoded.numbers.append(places)
    undecoded.sort()
    return decoded


def fetches_as_events(fetches: pa.StructArray, brokers: pa.Array) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Return the columns (FIELDS) of the fetches that are certainly valid events, and a mask of these rows.

    The columns have as many rows as `fetches`, null where no valid event is. Columns without values are left out.

    Args:
        fetches: The fields of each, with integers of 64 bits; null for rows that are no fetches.
        brokers: The broker of each.
    """
    return _requests_as_events("fetch", FIELDS_OF[TYPES["fetch"]], fetches, brokers)


def produces_as_events(produces: pa.StructArray, brokers: pa.Array) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Return the produces that are certainly valid events, and a mask of these rows; see `fetches_as_events`."""
    return _requests_as_events("produce", PRODUCE_FIELDS, produces, brokers)


def _requests_as_events(
    kind: str, fields: Sequence[Field], requests: pa.StructArray, brokers: pa.Array
) -> tuple[dict[str, pa.Array], np.ndarray]:
    is_given = _as_mask(requests.is_valid())
    columns = {**_fields(requests), "broker": brokers}
    items = LIST_ITEMS[next(field.check for field in fields if field.name == "partitions")]
    offsets, partitions = _items_of(columns["partitions"])
    event_of = np.repeat(np.arange(len(requests)), np.diff(offsets))
    valid = is_given & ~_outside(fields, columns)
    valid[event_of[_outside(FIELDS_OF[items.check], partitions)]] = False
    valid[list(_possible_duplicates(items, partitions, offsets, event_of))] = False
    if kind == "produce":
        is_known = np.isin(columns["acks"].fill_null(0).to_numpy(), KNOWN_ACKS)[event_of]
        valid[event_of[_appended(partitions, is_known) & ~_is_batch(partitions)]] = False
    if not np.array_equal(valid, is_given):
        return _requests_as_events(kind, fields, _where(valid, requests), brokers)
    type_ = FIELDS.field("partitions").type
    count = len(event_of)
    if kind == "fetch":
        partitions["throttled"] = pa.repeat(False, count)
    inner = [
        partitions[field.name].cast(field.type) if field.name in partitions else nulls(count, field.type)
        for field in type_.value_type
    ]
    records = pa.StructArray.from_arrays(inner, fields=list(type_.value_type))
    mask = None if is_given.all() else pa.array(~is_given)
    columns["partitions"] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), records, type=type_, mask=mask)
    return _typed(kind, columns, valid), valid


def changes_as_events(changes: pa.StructArray, places: dict[str, pa.Array]) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Return the columns of the changes of partitions that are certainly valid events; see `fetches_as_events`.

    Args:
        changes: The fields of each, with integers of 64 bits; null for rows that are no changes.
        places: The time, broker, topic and partition of each.
    """
    columns = {**_fields(changes), **places}
    valid = np.zeros(len(changes), bool)
    kinds = columns["change"]
    for kind in kinds.drop_null().unique().to_pylist():
        fields = CHANGED_FIELDS[kind]
        wrong = _outside(fields, columns)
        for other in columns.keys() - {field.name for field in fields}:
            wrong |= _as_mask(columns[other].is_valid())
        valid |= _as_mask(pc.equal(kinds, kind).fill_null(False)) & ~wrong
    if valid.sum() < len(changes) - changes.null_count:
        return changes_as_events(_where(valid, changes), places)
    return _typed("partition", columns, valid), valid


def _where(wanted: np.ndarray, structs: pa.StructArray) -> pa.StructArray:
    """Return the structs with null in the rows that are not wanted."""
    return structs.take(pa.array(np.arange(len(structs)), mask=~wanted))


def _fields(structs: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))


def _items_of(lists: pa.ListArray) -> tuple[np.ndarray, dict[str, pa.Array]]:
    """Return the offsets of the lists, from 0, and the fields of their items; null has no items."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]), _fields(lists.flatten())


def _outside(fields: Sequence[Field], columns: dict[str, pa.Array]) -> np.ndarray:
    """Return a mask of the rows with a value that its field refuses. The columns have the right kinds of values."""
    outside = np.zeros(len(next(iter(columns.values()))), bool)
    for field in fields:
        column = columns.get(field.name)
        if column is None:
            continue
        if column.null_count:
            outside |= column.is_null().to_numpy(zero_copy_only=False) & (field.default is REQUIRED)
        if field.check is name:
            outside |= pc.equal(column, "").fill_null(False).to_numpy(zero_copy_only=False)
        elif pa.types.is_integer(column.type):
            limits = get_args(MSGSPEC_TYPES[field.check])[1]
            extremes = pc.min_max(column)
            least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
            if least is None or (least >= limits.ge and greatest <= limits.le):
                continue
            within = pc.and_(pc.greater_equal(column, limits.ge), pc.less_equal(column, limits.le))
            outside |= ~within.fill_null(True).to_numpy(zero_copy_only=False)
    return outside


def _typed(kind: str, columns: dict[str, pa.Array], valid: np.ndarray) -> dict[str, pa.Array]:
    """Return the columns of events of a type, with the types of FIELDS, and null in rows that are not valid."""
    given = {"type": pa.repeat(kind, len(valid)), **columns}
    # The other columns are null there already.
    placed = {name: given[name] for name in ("type", "time_us", "broker", "topic", "partition") if name in given}
    if not valid.all():
        given |= {name: pc.if_else(pa.array(valid), column, None) for name, column in placed.items()}
    return {name: column.cast(FIELDS.field(name).type) for name, column in given.items()}


def _as_mask(booleans: pa.Array) -> np.ndarray:
    return np.asarray(booleans.to_numpy(zero_copy_only=False))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_deep(line: bytes) -> bool:
    return line.count(b"[") + line.count(b"{") > DEEP


def _batch(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in FIELDS]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def _columns(
    shape: StructFields, events: list[Any], required: Collection[str]
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Convert events of one type to columns. Returns the columns by name, and a mask of the rows that are invalid.

    An invalid row violates a condition that the decoder does not check, such as a range.
    """
    invalid = np.zeros(len(events), bool)
    columns = {"type": pa.repeat(pa.scalar(shape.kind), len(events))}
    values = zip(*map(shape.get, events), strict=True) if events else iter([()] * len(shape.fields))
    for known, of_field in zip(shape.fields, values, strict=True):
        field = replace(known, default=REQUIRED) if known.name in required else known
        items = LIST_ITEMS.get(field.check)
        type_ = FIELDS.field(field.name).type
        if items is None:
            columns[field.name] = _scalars(field, of_field, type_, invalid)
        elif items.check in FIELDS_OF:
            columns[field.name] = _records(items, of_field, type_, invalid, events if shape.kind == "produce" else None)
        else:
            columns[field.name] = _lists(field, items, of_field, type_, invalid)
    return columns, invalid


def _scalars(field: Field, values: Sequence[Any], type_: pa.DataType, invalid: np.ndarray) -> pa.Array:
    if field.check is label:
        values = [value if value is None or type(value) is str else str(value) for value in values]
    column = pa.array(values, type_)
    if column.null_count and field.default is REQUIRED:
        invalid |= column.is_null().to_numpy(zero_copy_only=False)
    elif column.null_count and field.default is not None:
        return column.fill_null(field.default)
    return column


def _lists(field: Field, items: Items, values: Sequence[Any], type_: pa.DataType, invalid: np.ndarray) -> pa.Array:
    for number, value in enumerate(values):
        missing = value is None and field.default is REQUIRED
        invalid[number] |= missing or (items.distinct and value is not None and len(set(value)) < len(value))
    return pa.array(values, type_)


def _records(
    items: Items, values: Sequence[Any], type_: pa.DataType, invalid: np.ndarray, produces: list[Any] | None
) -> pa.Array:
    absent = [value is None for value in values]
    values = [value or () for value in values]
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items_of_all = list(chain.from_iterable(values))
    fields = FIELDS_OF[items.check]
    columns = _items(fields, items_of_all, type_.value_type)
    event_of = np.repeat(np.arange(len(values)), lengths)
    if items.distinct:
        for number in _possible_duplicates(items, columns, offsets, event_of):
            invalid[number] |= _has_duplicates(items, values[number])
    if produces is not None:
        appended = _appended(columns, np.isin([event.acks for event in produces], KNOWN_ACKS)[event_of])
        invalid[event_of[appended & ~_is_batch(columns)]] = True
    inner = [columns.get(field.name, nulls(len(items_of_all), field.type)) for field in type_.value_type]
    records = pa.StructArray.from_arrays(inner, fields=list(type_.value_type))
    mask = pa.array(absent, pa.bool_()) if any(absent) else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), records, type=type_, mask=mask)


def _plain(field: Field, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values, with nested structs as dictionaries."""
    plain: Sequence[Any] = msgspec.to_builtins(values) if field.check in LIST_ITEMS else values
    return plain


def _items(fields: Sequence[Field], items_of_all: list[Any], type_: pa.StructType) -> dict[str, pa.Array]:
    get = attrgetter(*(field.name for field in fields))
    columns = zip(*map(get, items_of_all), strict=True) if items_of_all else iter([()] * len(fields))
    none = np.zeros(len(items_of_all), bool)
    return {
        field.name: _scalars(field, _plain(field, values), type_.field(field.name).type, none)
        for field, values in zip(fields, columns, strict=True)
    }


def _possible_duplicates(
    items: Items, columns: dict[str, pa.Array], offsets: np.ndarray, event_of: np.ndarray
) -> Iterator[int]:
    """Yield the indices of the rows in which an item may be repeated.

    Args:
        items: The check of the items.
        columns: The columns of the items.
        offsets: The offsets of an Arrow list: row i has the items from `offsets[i]` to before `offsets[i + 1]`.
        event_of: The index of each item's row.
    """
    if len(event_of) == len(offsets) - 1 and (np.diff(offsets) == 1).all():
        return
    code, codes = np.zeros(len(event_of), np.int64), 1
    for key in items.key:
        column = columns[key]
        numbers = column.dictionary_encode().indices if pa.types.is_string(column.type) else column
        # Larger or negative numbers may only add rows, which are then checked one by one.
        values = numbers.to_numpy(zero_copy_only=False).astype(np.int64) & INT32
        width = 1 + int(values.max(initial=0))
        code, codes = code * width + values, codes * width
    if codes * len(offsets) >= 2**63:
        code, codes = np.unique(code, return_inverse=True)[1], len(code)
    item = np.sort(event_of * codes + code)
    yield from np.unique(item[1:][item[1:] == item[:-1]] // codes).tolist()


def _has_duplicates(items: Items, value: list[Any]) -> bool:
    return len({tuple(getattr(record, name) for name in items.key) for record in value}) < len(value)


def _appended(columns: dict[str, pa.Array], known_acks: np.ndarray) -> np.ndarray:
    return known_acks & (columns["error"].to_numpy(zero_copy_only=False) == NO_ERROR)


def _is_batch(columns: dict[str, pa.Array]) -> np.ndarray:
    """Return a mask of the produced partitions that have `bytes` and a valid range of offsets, which may be empty."""
    base, last = (columns[name].fill_null(-3).to_numpy(zero_copy_only=False) for name in ("base_offset", "last_offset"))
    return (base >= 0) & (last >= base - 1) & ~columns["bytes"].is_null().to_numpy(zero_copy_only=False)

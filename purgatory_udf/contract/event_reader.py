"""One line of a trace: JSON text, or a row of a table, judged against the contract."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Optional, Union

import msgspec

from purgatory_udf.contract import event_types
from purgatory_udf.contract.event_types import FIELDS, REQUIRED, TYPES, Field, Row, object_reader
from purgatory_udf.contract.value_checks import LIST_ITEMS, MSGSPEC_TYPES, Check, Rejection, label, one_of


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# Built once: json.loads would make a new decoder at every call that passes an option.
_decode = json.JSONDecoder(parse_constant=_no_constant).decode

_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"}

_of_unknown_type = object_reader(Field("type", one_of(*TYPES)))


def read_line(raw: bytes) -> Row | None:
    """The event on a line, None for a blank line; raises `Rejection`. Repeated keys: the last one counts."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise Rejection("not UTF-8", f"not UTF-8: byte 0x{byte:02x} at column {error.start + 1}") from None
    if not text or text.isspace():
        return None
    try:
        values = _decode(text)
    except json.JSONDecodeError as error:
        raise Rejection("not JSON", f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise Rejection("not JSON", f"not JSON: {error}") from None
    except RecursionError:
        raise Rejection("not JSON", "not JSON: nested too deeply") from None
    # Half a surrogate pair can be escaped in JSON, but is no text that a table can hold.
    if "\\u" in text:
        _require_unicode(values)
    return read_row(values)


def read_row(values: Any) -> Row:
    """The event in an object; raises `Rejection`."""
    if type(values) is not dict:
        raise Rejection("not an object", f"expected an object, got {_NAMES.get(type(values), 'null')}")
    kind = values.get("type")
    reader = TYPES.get(kind) if type(kind) is str else None
    return (reader or _of_unknown_type)(values)


def as_text(raw: bytes) -> str:
    """The line as a table can hold it: bytes that are not UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace")


def _require_unicode(values: Any) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Rejection("not JSON", "not JSON: an escape is half a surrogate pair") from None


# The contract's types as msgspec's: a decoder made of them takes a line only where the contract's own readers would.
#
# They are made from those readers' fields, so what the contract gains they gain. Some things no type can say (a
# batch's offsets, what repeats, what a change needs): `ingest.columns` looks at them afterwards. A type that has a
# check without a type of its own is left out, and its lines are read one by one.


TYPE = "type"


class StructFields(NamedTuple):
    """The fields of a struct's events; `get` takes their values from one, in this order."""

    kind: str
    fields: tuple[Field, ...]
    get: Any


def _shape(kind: str, fields: Sequence[Field]) -> StructFields:
    named = tuple(field for field in fields if field.name != TYPE)
    return StructFields(kind, named, attrgetter(*(field.name for field in named)))


def _typed(check: Check) -> Any:
    """Raises KeyError where there is none."""
    if check is label:
        return str | int
    if check in LIST_ITEMS:
        return list[_typed(LIST_ITEMS[check].check)]  # type: ignore[misc]
    if check in FIELDS:
        return _struct("Item", FIELDS[check])
    return MSGSPEC_TYPES[check]


_STRUCTS: dict[tuple[str, tuple[Field, ...]], type[msgspec.Struct]] = {}


def _struct(name: str, fields: Sequence[Field], tag: str | None = None, lenient: bool = False) -> type[msgspec.Struct]:
    """What may be missing may be null: both come out as None, and so does, if `lenient`, all else that is missing."""
    known = tuple(field for field in fields if field.name != TYPE)
    key = (f"{tag or name}", known)
    if key not in _STRUCTS:
        required = [field for field in known if field.default is REQUIRED and not lenient]
        others = [field for field in known if field not in required]
        types: list[Any] = [(field.name, _typed(field.check)) for field in required]
        types += [(field.name, Optional[_typed(field.check)], None) for field in others]  # noqa: UP045 (a value, not a hint)
        options: dict[str, Any] = {"tag": tag, "tag_field": TYPE} if tag else {}
        # What is decoded holds no cycles.
        _STRUCTS[key] = msgspec.defstruct(name, types, gc=False, **options)
    return _STRUCTS[key]


def _decoded() -> tuple[dict[type[msgspec.Struct], StructFields], dict[str, StructFields]]:
    shapes: dict[type[msgspec.Struct], StructFields] = {}
    for kind, read in event_types.TYPES.items():
        # Of a produce what was appended needs more, which is looked at afterwards.
        fields = event_types.PRODUCE_FIELDS if read is event_types.produce else FIELDS.get(read)
        if fields is not None:
            try:
                shapes[_struct(kind, fields, kind)] = _shape(kind, fields)
            except KeyError:
                continue
    return shapes, {change: _shape("partition", fields) for change, fields in event_types.CHANGED_FIELDS.items()}


def _change() -> type[msgspec.Struct] | None:
    """Any change of a partition: the fields of all of them, each of which only some have."""
    together = {field.name: field for shape in CHANGE_FIELDS.values() for field in shape.fields}
    try:
        return _struct("partition", tuple(together.values()), "partition", lenient=True)
    except KeyError:
        return None


EVENT_STRUCTS, CHANGE_FIELDS = _decoded()
CHANGE_STRUCT = _change()
_known: Any = Union[(*EVENT_STRUCTS, *([CHANGE_STRUCT] if CHANGE_STRUCT else []))]
# A line's event as one of the structs; raises where there is none, or where this decoder cannot tell.
decode_struct = msgspec.json.Decoder(_known).decode

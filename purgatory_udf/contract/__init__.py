"""The event contract and the table schemas. No module imports Spark.

- this module reads an event from a line of JSON or from a row, or raises a `Rejection`
- `value_types`: types of single values, such as integers in a range, and `Rejection`
- `event_checks`: every event type with its fields, their checks and defaults
- `tables`, `metrics_tables`: the columns of every table, as Arrow schemas with comments
- `outcome`: the result of one operation, and the key of a partition
- `overrides`: what-if settings and the requests that they apply to

`read_line` and `read_row` read one event each. For large files there is a fast path: `decode_struct`, a msgspec decoder
built from the same fields, which accepts a line only if the readers would. Some rules cannot be expressed as msgspec
types (offsets of a batch, duplicates, the fields that a change requires); `sources.trace_files.typed_columns` checks
these afterwards. A field with a check without msgspec type excludes its event type from the fast path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

import msgspec

from purgatory_udf.contract import event_checks
from purgatory_udf.contract.event_checks import FIELDS, REQUIRED, TYPES, Field, Row, object_reader
from purgatory_udf.contract.value_types import LIST_ITEMS, MSGSPEC_TYPES, Check, Rejection, label, one_of

__all__ = [
    "CHANGE_FIELDS",
    "CHANGE_STRUCT",
    "EVENT_STRUCTS",
    "Rejection",
    "StructFields",
    "as_text",
    "decode_struct",
    "read_line",
    "read_row",
]


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# Built once: json.loads creates a new decoder for each call that passes an option.
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"}

_read_unknown_type = object_reader(Field("type", one_of(*TYPES)))


# The folders of a file that name a field, such as `broker=1`, by the name of the field.
Folders = Mapping[str, str]


def read_line(raw: bytes, folders: Folders = MappingProxyType({})) -> Row | None:
    """Return the event of a line, or None for a blank line. If a key is repeated, its last value counts.

    `folders` as in `read_row`.

    Raises:
        Rejection: The line is not JSON, or breaks the contract.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise Rejection("not UTF-8", f"not UTF-8: byte 0x{byte:02x} at position {error.start + 1}") from None
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
    # JSON can escape an unpaired surrogate, but a table cannot store it.
    if "\\u" in text:
        _require_unicode(values)
    return read_row(values, folders)


def read_row(values: Any, folders: Folders = MappingProxyType({})) -> Row:
    """Return the event of an object's fields. A field that one of the `folders` names has no default.

    Raises:
        Rejection: The object breaks the contract.
    """
    if type(values) is not dict:
        raise Rejection("not an object", f"expected a JSON object, got {_NAMES.get(type(values), 'null')}")
    kind = values.get("type")
    reader = TYPES.get(kind) if type(kind) is str else None
    row = (reader or _read_unknown_type)(values)
    for name, folder in folders.items():
        if name in row and values.get(name) is None:
            reason = f"{name}: missing, and only in the name of the folder {folder}; write it to the file, too"
            raise Rejection("missing field", reason)
    return row


def as_text(raw: bytes) -> str:
    """Return the line as text that a table can store: bytes that are not UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace")


def _require_unicode(values: Any) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Rejection("not JSON", "not JSON: a \\u escape is an unpaired surrogate") from None


TYPE = "type"


class StructFields(NamedTuple):
    """The fields of an event type. `get` returns the values of a decoded struct in the order of `fields`."""

    kind: str
    fields: tuple[Field, ...]
    get: Any


def _shape(kind: str, fields: Sequence[Field]) -> StructFields:
    named = tuple(field for field in fields if field.name != TYPE)
    return StructFields(kind, named, attrgetter(*(field.name for field in named)))


def _msgspec_type(check: Check) -> Any:
    """Return the msgspec type that accepts the same values as a check. Raises KeyError if no type does."""
    if check is label:
        return str | int
    if check in LIST_ITEMS:
        return list[_msgspec_type(LIST_ITEMS[check].check)]  # type: ignore[misc]
    if check in FIELDS:
        return _struct("Item", FIELDS[check])
    return MSGSPEC_TYPES[check]


_STRUCTS: dict[tuple[str, tuple[Field, ...]], type[msgspec.Struct]] = {}


def _struct(name: str, fields: Sequence[Field], tag: str | None = None, lenient: bool = False) -> type[msgspec.Struct]:
    """Return the msgspec struct type of these fields. It is cached.

    Missing or null optional fields become None; with `lenient`, required fields as well. `tag` is the value of `type`
    that selects the struct.
    """
    known = tuple(field for field in fields if field.name != TYPE)
    key = (f"{tag or name}", known)
    if key not in _STRUCTS:
        required = [field for field in known if field.default is REQUIRED and not lenient]
        others = [field for field in known if field not in required]
        types: list[Any] = [(field.name, _msgspec_type(field.check)) for field in required]
        types += [(field.name, Optional[_msgspec_type(field.check)], None) for field in others]  # noqa: UP045 (a value, not a hint)
        options: dict[str, Any] = {"tag": tag, "tag_field": TYPE} if tag else {}
        # Decoded events contain no cycles.
        _STRUCTS[key] = msgspec.defstruct(name, types, gc=False, **options)
    return _STRUCTS[key]


def _event_structs() -> tuple[dict[type[msgspec.Struct], StructFields], dict[str, StructFields]]:
    shapes: dict[type[msgspec.Struct], StructFields] = {}
    for kind, read in event_checks.TYPES.items():
        # A produce that was appended requires more fields, which are checked afterwards.
        fields = event_checks.PRODUCE_FIELDS if read is event_checks.produce else FIELDS.get(read)
        if fields is not None:
            try:
                shapes[_struct(kind, fields, kind)] = _shape(kind, fields)
            except KeyError:
                continue
    return shapes, {change: _shape("partition", fields) for change, fields in event_checks.CHANGED_FIELDS.items()}


def _change_struct() -> type[msgspec.Struct] | None:
    """Return the msgspec struct of partition changes, with the fields of every change.

    Returns None if a field's check has no msgspec type.
    """
    together = {field.name: field for shape in CHANGE_FIELDS.values() for field in shape.fields}
    try:
        return _struct("partition", tuple(together.values()), "partition", lenient=True)
    except KeyError:
        return None


EVENT_STRUCTS, CHANGE_FIELDS = _event_structs()
CHANGE_STRUCT = _change_struct()
_known: Any = Union[(*EVENT_STRUCTS, *([CHANGE_STRUCT] if CHANGE_STRUCT else []))]
# Decode a line to one of the structs; raises for invalid lines, and for valid lines that only `read_line` understands.
decode_struct = msgspec.json.Decoder(_known).decode

"""One line of a trace: JSON text, or a row of a table, judged against the contract."""

from __future__ import annotations

import json
from typing import Any

from purgatory_udf.contract.checks import one_of
from purgatory_udf.contract.events import TYPES
from purgatory_udf.contract.record import Field, Row, record
from purgatory_udf.contract.rejection import Rejection


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# Built once: json.loads would make a new decoder at every call that passes an option.
_decode = json.JSONDecoder(parse_constant=_no_constant).decode

_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"}

_of_unknown_type = record(Field("type", one_of(*TYPES)))


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

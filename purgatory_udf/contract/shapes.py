"""The contract's types as msgspec's: a decoder made of them takes a line only where the contract's own readers would.

They are made from those readers' fields, so what the contract gains they gain. Some things no type can say (a batch's
offsets, what repeats, what a change needs): `ingest.columns` looks at them afterwards. A type that has a check without
a type of its own is left out, and its lines are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Optional, Union

import msgspec

from purgatory_udf.contract import events
from purgatory_udf.contract.checks import LISTS, TYPED, Check, label
from purgatory_udf.contract.record import FIELDS, REQUIRED, Field

TYPE = "type"


class Shape(NamedTuple):
    """The fields of a struct's events; `get` takes their values from one, in this order."""

    kind: str
    fields: tuple[Field, ...]
    get: Any


def _shape(kind: str, fields: Sequence[Field]) -> Shape:
    named = tuple(field for field in fields if field.name != TYPE)
    return Shape(kind, named, attrgetter(*(field.name for field in named)))


def _typed(check: Check) -> Any:
    """Raises KeyError where there is none."""
    if check is label:
        return str | int
    if check in LISTS:
        return list[_typed(LISTS[check].check)]  # type: ignore[misc]
    if check in FIELDS:
        return _struct("Item", FIELDS[check])
    return TYPED[check]


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


def _decoded() -> tuple[dict[type[msgspec.Struct], Shape], dict[str, Shape]]:
    shapes: dict[type[msgspec.Struct], Shape] = {}
    for kind, read in events.TYPES.items():
        # Of a produce what was appended needs more, which is looked at afterwards.
        fields = events.PRODUCE_FIELDS if read is events.produce else FIELDS.get(read)
        if fields is not None:
            try:
                shapes[_struct(kind, fields, kind)] = _shape(kind, fields)
            except KeyError:
                continue
    return shapes, {change: _shape("partition", fields) for change, fields in events.CHANGED_FIELDS.items()}


def _change() -> type[msgspec.Struct] | None:
    """Any change of a partition: the fields of all of them, each of which only some have."""
    together = {field.name: field for shape in CHANGES.values() for field in shape.fields}
    try:
        return _struct("partition", tuple(together.values()), "partition", lenient=True)
    except KeyError:
        return None


SHAPES, CHANGES = _decoded()
CHANGE = _change()
_known: Any = Union[(*SHAPES, *([CHANGE] if CHANGE else []))]
# A line's event as one of the structs; raises where there is none, or where this decoder cannot tell.
decode = msgspec.json.Decoder(_known).decode

"""An object's fields: which there are, what each may be, and what stands for one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.checks import Check
from purgatory_udf.contract.described import Schema, described, or_null, schema_of
from purgatory_udf.contract.rejection import Rejection, unfit

REQUIRED: Any = object()

Row = dict[str, Any]
Read = Callable[[Any], Row]


@dataclass(frozen=True, slots=True)
class Field:
    """`default` stands for a field that is missing or null; without one the field is required."""

    name: str
    check: Check
    default: Any = REQUIRED


# The fields of each reader that `record` has made.
FIELDS: dict[Read, tuple[Field, ...]] = {}


def record(*fields: Field, also: Callable[[Row], None] | None = None) -> Read:
    """A reader of such objects: fields that are not named are left out; `also` judges fields against each other."""
    parts = tuple((field.name, field.check, field.default) for field in fields)

    @described(_schema(fields))
    def read(values: Any) -> Row:
        if type(values) is not dict:
            raise unfit(values, "an object")
        get = values.get
        row = {}
        name = ""
        try:
            for name, check, default in parts:
                value = get(name)
                row[name] = default if value is None and default is not REQUIRED else check(value)
        except Rejection as rejection:
            raise _missing(rejection, name, values).within(name) from None
        if also is not None:
            also(row)
        return row

    FIELDS[read] = fields
    return read


def _missing(rejection: Rejection, name: str, values: Mapping[str, Any]) -> Rejection:
    """What a check says of None, where the field was not given at all, is that it is missing."""
    return rejection if name in values else Rejection("missing field", "missing", rejection.expected)


def _schema(fields: tuple[Field, ...]) -> Schema:
    properties = {
        field.name: schema_of(field.check)
        if field.default is REQUIRED
        else {**or_null(schema_of(field.check)), "default": field.default}
        for field in fields
    }
    required = [field.name for field in fields if field.default is REQUIRED]
    return {"type": "object", "properties": properties, "required": required}

"""What a check accepts, as JSON Schema: kept beside the check, which stays the plain function that reading calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Schema = dict[str, Any]
Described = TypeVar("Described", bound=Callable[[Any], Any])

_SCHEMAS: dict[Callable[[Any], Any], Schema] = {}


def described(schema: Schema) -> Callable[[Described], Described]:
    """`@described({...})`: the function accepts, and refuses, what this schema does."""

    def keep(check: Described) -> Described:
        _SCHEMAS[check] = schema
        return check

    return keep


def schema_of(check: Callable[[Any], Any]) -> Schema:
    return _SCHEMAS[check]


def or_null(schema: Schema) -> Schema:
    """The same, where null says no more than a missing field does."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **allowed}


def where(field: str, value: Schema, then: Schema, otherwise: Schema | None = None) -> Schema:
    """`then` for objects whose field has such a value."""
    chosen = {"if": {"properties": {field: value}, "required": [field]}, "then": then}
    return chosen if otherwise is None else {**chosen, "else": otherwise}

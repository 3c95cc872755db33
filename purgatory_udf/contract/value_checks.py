"""Why an input line is not an event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from msgspec import Meta

MAX_SHOWN = 80


class Rejection(Exception):  # noqa: N818 (a verdict about the input, not a fault of the program)
    """`rule` is one of a few fixed words, to count by; `reason` is the sentence: field, value, what was expected."""

    def __init__(self, rule: str, actual: str, expected: str = "") -> None:
        super().__init__(rule, actual, expected)
        self.rule = rule
        self.actual = actual
        self.expected = expected
        self.path = ""

    def within(self, segment: str) -> Rejection:
        """The same verdict seen from the object or list around the value: `topic` becomes `[1].topic`, and so on."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = segment + dot + self.path
        return self

    @property
    def reason(self) -> str:
        return ": ".join(part for part in (self.path, self.actual, self.expected) if part)


def wrong_type(value: Any, expected: str) -> Rejection:
    """The value is of the wrong type for its field."""
    return Rejection("wrong type", abbreviated_json(value), f"expected {expected}")


def invalid_value(value: Any, expected: str) -> Rejection:
    """The value is of the right type, but no broker can have had it."""
    return Rejection("impossible value", abbreviated_json(value), f"expected {expected}")


def abbreviated_json(value: Any) -> str:
    """The value as JSON, cut to a length that a sentence can hold."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


# What a check accepts, as JSON Schema: kept beside the check, which stays the plain function that reading calls.


Schema = dict[str, Any]
Described = TypeVar("Described", bound=Callable[[Any], Any])

_SCHEMAS: dict[Callable[[Any], Any], Schema] = {}


def with_schema(schema: Schema) -> Callable[[Described], Described]:
    """`@described({...})`: the function accepts, and refuses, what this schema does."""

    def keep(check: Described) -> Described:
        _SCHEMAS[check] = schema
        return check

    return keep


def schema_of(check: Callable[[Any], Any]) -> Schema:
    return _SCHEMAS[check]


def nullable(schema: Schema) -> Schema:
    """The same, where null says no more than a missing field does."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **allowed}


def if_field(field: str, value: Schema, then: Schema, otherwise: Schema | None = None) -> Schema:
    """`then` for objects whose field has such a value."""
    chosen = {"if": {"properties": {field: value}, "required": [field]}, "then": then}
    return chosen if otherwise is None else {**chosen, "else": otherwise}


# What one value may be: a check returns the value to keep or raises a `Rejection`. All are built once, at import.


Check = Callable[[Any], Any]

INT32 = 2**31 - 1
INT64 = 2**63 - 1


class Items(NamedTuple):
    """What a list's items may be, and which of their fields (none: they themselves) tell them apart."""

    check: Check
    key: tuple[str, ...] = ()
    distinct: bool = False


# The type of the values that a check takes as they are, for a decoder that judges while it reads; of a list, its items.
MSGSPEC_TYPES: dict[Check, Any] = {}
LIST_ITEMS: dict[Check, Items] = {}


def integer(low: int, high: int) -> Check:
    """A whole number in [low, high]. JSON's 1.0 and true are not whole numbers."""
    floor = f"an integer >= {low}" if low >= -1 else "an integer"

    @with_schema({"type": "integer", "minimum": low, "maximum": high})
    def check(value: Any) -> Any:
        # `type is`, not isinstance: to Python a bool is an int; and no check runs more often than this one.
        if type(value) is int:
            if low <= value <= high:
                return value
            raise invalid_value(value, floor if value < low and low >= -1 else f"an integer from {low} to {high}")
        raise wrong_type(value, floor)

    MSGSPEC_TYPES[check] = Annotated[int, Meta(ge=low, le=high)]
    return check


@with_schema({"type": "string"})
def text(value: Any) -> Any:
    if type(value) is str:
        return value
    raise wrong_type(value, "a string")


@with_schema({"type": "string", "minLength": 1})
def name(value: Any) -> Any:
    if type(value) is str:
        if value:
            return value
        raise invalid_value(value, "a name")
    raise wrong_type(value, "a name")


@with_schema({"type": ["string", "integer"]})
def label(value: Any) -> Any:
    """A string, or an integer kept as its digits: Kafka's own correlation ids are integers."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    raise wrong_type(value, "a string")


@with_schema({"type": "boolean"})
def boolean(value: Any) -> Any:
    if value is True or value is False:
        return value
    raise wrong_type(value, "true or false")


# `label` has none: it makes text of a number.
MSGSPEC_TYPES.update({text: str, name: Annotated[str, Meta(min_length=1)], boolean: bool})


def one_of(*words: str) -> Check:
    known = frozenset(words)
    expected = f"one of {', '.join(words)}"

    @with_schema({"type": "string", "enum": list(words)})
    def check(value: Any) -> Any:
        if type(value) is str:
            if value in known:
                return value
            raise invalid_value(value, expected)
        raise wrong_type(value, expected)

    MSGSPEC_TYPES[check] = Literal[words]
    return check


def list_of(item: Check) -> Check:
    """A list whose items all fit; what is wrong with one is said with its place."""

    @with_schema({"type": "array", "items": schema_of(item)})
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_type(value, "a list")
        place = 0
        kept = []
        try:
            for place, element in enumerate(value):  # noqa: B007 (the place is needed where the loop broke off)
                kept.append(item(element))
        except Rejection as rejection:
            raise rejection.within(f"[{place}]") from None
        return kept

    LIST_ITEMS[check] = Items(item)
    return check


def distinct(item: Check, *key: str) -> Check:
    """A list without repetition: of values, or of objects that differ in the fields of `key`."""
    items = list_of(item)

    def identity(value: Any) -> Any:
        return tuple(value[field] for field in key) if key else value

    # JSON Schema has no word for objects that differ in some fields.
    @with_schema({**schema_of(items), **({} if key else {"uniqueItems": True})})
    def check(value: Any) -> Any:
        kept = items(value)
        if len(kept) > 1:
            seen = set()
            for place, element in enumerate(kept):
                same = identity(element)
                if same in seen:
                    twice = "-".join(map(str, same)) if key else same
                    raise Rejection("impossible value", str(twice), "given twice").within(f"[{place}]")
                seen.add(same)
        return kept

    LIST_ITEMS[check] = Items(item, key, distinct=True)
    return check

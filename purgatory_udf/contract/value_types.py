"""Types of single values, such as integers in a range, names and lists, and the rejection of other values.

A type is a check: a function that returns the value to keep, or raises a `Rejection`. Each check is built once, at
import, and registered with its JSON Schema (`schema_of`) and, if possible, its msgspec type (`MSGSPEC_TYPES`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from msgspec import Meta

MAX_SHOWN = 80


class Rejection(Exception):  # noqa: N818 (a finding about the input, not an error of the program)
    """The reason why a line or a value is not accepted.

    `rule` is one of a few fixed phrases by which rejections are counted. `reason` is the text for users:
    `partitions[1].offset: expected an integer >= 0, got -4`.
    """

    def __init__(self, rule: str, actual: str, expected: str = "") -> None:
        """Create a rejection.

        Args:
            rule: The phrase by which rejections are counted.
            actual: A description of the value, or the whole text if `expected` is empty.
            expected: A description of valid values.
        """
        super().__init__(rule, actual, expected)
        self.rule = rule
        self.actual = actual
        self.expected = expected
        self.path = ""

    def within(self, segment: str) -> Rejection:
        """Put a field name or list index in front of the path: `topic` becomes `[1].topic`; return the rejection."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = segment + dot + self.path
        return self

    @property
    def reason(self) -> str:
        """The path of the value, and the problem."""
        problem = f"expected {self.expected}, got {self.actual}" if self.expected else self.actual
        return f"{self.path}: {problem}" if self.path else problem


def wrong_type(value: Any, expected: str) -> Rejection:
    """Return the rejection of a value of the wrong type. `expected` describes the right type."""
    return Rejection("wrong type", abbreviated_json(value), expected)


def invalid_value(value: Any, expected: str) -> Rejection:
    """Return the rejection of a value of the right type that a broker cannot have recorded.

    `expected` describes the valid values.
    """
    return Rejection("invalid value", abbreviated_json(value), expected)


def abbreviated_json(value: Any) -> str:
    """Return the value as JSON, cut to `MAX_SHOWN` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


Schema = dict[str, Any]
Described = TypeVar("Described", bound=Callable[[Any], Any])

# By check, so that a check stays a plain function.
_SCHEMAS: dict[Callable[[Any], Any], Schema] = {}


def with_schema(schema: Schema) -> Callable[[Described], Described]:
    """Register the JSON Schema that accepts the same values as the decorated check."""

    def keep(check: Described) -> Described:
        _SCHEMAS[check] = schema
        return check

    return keep


def schema_of(check: Callable[[Any], Any]) -> Schema:
    """Return the JSON Schema of a check."""
    return _SCHEMAS[check]


def nullable(schema: Schema) -> Schema:
    """Return the schema of an optional field, for which null means the same as a missing field."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **allowed}


def if_field(field: str, value: Schema, then: Schema, otherwise: Schema | None = None) -> Schema:
    """Return a schema that applies `then` if the field matches `value`, and `otherwise` if not."""
    chosen = {"if": {"properties": {field: value}, "required": [field]}, "then": then}
    return chosen if otherwise is None else {**chosen, "else": otherwise}


Check = Callable[[Any], Any]

INT32 = 2**31 - 1
INT64 = 2**63 - 1


class Items(NamedTuple):
    """The items of a list: their check, and whether they must be distinct.

    Items are compared by their fields `key`, or as a whole if `key` is empty.
    """

    check: Check
    key: tuple[str, ...] = ()
    distinct: bool = False


# For checks that return accepted values unchanged: the type by which msgspec validates while it decodes.
MSGSPEC_TYPES: dict[Check, Any] = {}
LIST_ITEMS: dict[Check, Items] = {}


def integer(low: int, high: int) -> Check:
    """Return a check for integers from `low` to `high`; JSON's 1.0 and true are not integers."""
    floor = f"an integer >= {low}" if low >= -1 else "an integer"

    @with_schema({"type": "integer", "minimum": low, "maximum": high})
    def check(value: Any) -> Any:
        # `type is` rather than isinstance: a bool is an int in Python, and this is the hottest check.
        if type(value) is int:
            if low <= value <= high:
                return value
            raise invalid_value(value, floor if value < low and low >= -1 else f"an integer from {low} to {high}")
        raise wrong_type(value, floor)

    MSGSPEC_TYPES[check] = Annotated[int, Meta(ge=low, le=high)]
    return check


@with_schema({"type": "string"})
def text(value: Any) -> Any:
    """Check that a value is a string, and return it. Raises Rejection for any other value."""
    if type(value) is str:
        return value
    raise wrong_type(value, "a string")


@with_schema({"type": "string", "minLength": 1})
def name(value: Any) -> Any:
    """Check that a value is a non-empty string, and return it. Raises Rejection for any other value."""
    if type(value) is str:
        if value:
            return value
        raise invalid_value(value, "a non-empty string")
    raise wrong_type(value, "a non-empty string")


@with_schema({"type": ["string", "integer"]})
def label(value: Any) -> Any:
    """Check that a value is a string or an integer, and return it as a string. Raises Rejection for any other value.

    Integers are accepted because Kafka's correlation ids are integers.
    """
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    raise wrong_type(value, "a string or an integer")


@with_schema({"type": "boolean"})
def boolean(value: Any) -> Any:
    """Check that a value is true or false, and return it. Raises Rejection for any other value."""
    if value is True or value is False:
        return value
    raise wrong_type(value, "true or false")


# `label` has no type, because it converts integers.
MSGSPEC_TYPES.update({text: str, name: Annotated[str, Meta(min_length=1)], boolean: bool})


def one_of(*words: str) -> Check:
    """Return a check for one of these strings."""
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
    """Return a check for lists, which applies `item` to each item; a rejection names the index."""

    @with_schema({"type": "array", "items": schema_of(item)})
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_type(value, "a list")
        place = 0
        accepted = []
        try:
            for place, element in enumerate(value):  # noqa: B007 (the index is used after the loop)
                accepted.append(item(element))
        except Rejection as rejection:
            raise rejection.within(f"[{place}]") from None
        return accepted

    LIST_ITEMS[check] = Items(item)
    return check


def distinct(item: Check, *key: str) -> Check:
    """Return a check for lists without duplicates: of values, or of objects that differ in the fields of `key`."""
    items = list_of(item)

    def identity(value: Any) -> Any:
        return tuple(value[field] for field in key) if key else value

    # JSON Schema cannot express objects that differ in some fields.
    @with_schema({**schema_of(items), **({} if key else {"uniqueItems": True})})
    def check(value: Any) -> Any:
        accepted = items(value)
        if len(accepted) > 1:
            seen = set()
            for place, element in enumerate(accepted):
                same = identity(element)
                if same in seen:
                    duplicate = "-".join(map(str, same)) if key else same
                    raise Rejection("invalid value", f"duplicate {duplicate}").within(f"[{place}]")
                seen.add(same)
        return accepted

    LIST_ITEMS[check] = Items(item, key, distinct=True)
    return check

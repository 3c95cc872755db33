"""A column: an expression of DuckDB's, and the name under which it is selected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Union

ColumnOrName = Union["Column", str]

_TYPES = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "integer": "INTEGER",
    "long": "BIGINT",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMPTZ",
}
_ARRAY = "array<"


def type_of(name: str) -> str:
    """DuckDB's word for a type of Spark's."""
    name = name.strip().lower()
    if name.startswith(_ARRAY):
        return f"{type_of(name[len(_ARRAY) : -1])}[]"
    return _TYPES[name]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """Of what may stand for a column where a value is meant."""
    match value:
        case Column():
            return value.sql
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return f"({value})"
        case float():
            # Without the type it would be a decimal.
            return f"({value!r}::DOUBLE)"
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"{value!r} is no value of a column")


def column(expression: ColumnOrName) -> Column:
    """A name is a column's, and `a.b` the field `b` of `a`, or the column `b` of the frame `a`."""
    if isinstance(expression, Column):
        return expression
    parts = expression.split(".")
    return Column(".".join(map(quoted, parts)), parts[-1])


class Column:
    def __init__(self, sql: str, name: str | None = None) -> None:
        self.sql = sql
        self.name = name

    def alias(self, name: str) -> Column:
        return Column(self.sql, name)

    def cast(self, to: Any) -> Column:
        """`to`: the name of a type of Spark's, or the type."""
        named = to if isinstance(to, str) else to.simpleString()
        return Column(f"CAST({self.sql} AS {type_of(named)})", self.name)

    def over(self, window: Any) -> Column:
        return Column(f"{self.sql} OVER ({window.sql})", self.name)

    def __getitem__(self, key: str | int) -> Column:
        if isinstance(key, str):
            return Column(f"struct_extract({self.sql}, {literal(key)})", key)
        return Column(f"({self.sql})[{key + 1}]")

    def isin(self, *values: Any) -> Column:
        listed: Iterable[Any] = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set) else values
        words = ", ".join(map(literal, listed))
        return Column(f"({self.sql} IN ({words}))" if words else "FALSE")

    def between(self, low: Any, high: Any) -> Column:
        return Column(f"({self.sql} BETWEEN {literal(low)} AND {literal(high)})")

    def isNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT NULL)")

    def eqNullSafe(self, other: Any) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT DISTINCT FROM {literal(other)})")

    def startswith(self, head: Any) -> Column:
        return Column(f"starts_with({self.sql}, {literal(head)})")

    def asc(self) -> Ordered:
        return Ordered(f"{self.sql} ASC NULLS FIRST")

    asc_nulls_first = asc

    def desc(self) -> Ordered:
        return Ordered(f"{self.sql} DESC NULLS LAST")

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return _two(self, "=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return _two(self, "<>", other)

    def __lt__(self, other: Any) -> Column:
        return _two(self, "<", other)

    def __le__(self, other: Any) -> Column:
        return _two(self, "<=", other)

    def __gt__(self, other: Any) -> Column:
        return _two(self, ">", other)

    def __ge__(self, other: Any) -> Column:
        return _two(self, ">=", other)

    def __add__(self, other: Any) -> Column:
        return _two(self, "+", other)

    def __sub__(self, other: Any) -> Column:
        return _two(self, "-", other)

    def __mul__(self, other: Any) -> Column:
        return _two(self, "*", other)

    def __truediv__(self, other: Any) -> Column:
        return _two(self, "/", other)

    def __mod__(self, other: Any) -> Column:
        return _two(self, "%", other)

    def __and__(self, other: Any) -> Column:
        return _two(self, "AND", other)

    def __or__(self, other: Any) -> Column:
        return _two(self, "OR", other)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __bool__(self) -> bool:
        raise TypeError("a column has no truth: combine conditions by &, | and ~")

    __hash__ = None  # type: ignore[assignment]


class Ordered(Column):
    """What rows are put in order by."""


def order_of(col: ColumnOrName) -> str:
    return col.sql if isinstance(col, Ordered) else column(col).asc().sql


def _two(left: Column, sign: str, right: Any) -> Column:
    return Column(f"({left.sql} {sign} {literal(right)})")

"""A column: an expression of DuckDB's, the name under which it is selected, and how Arrow works it out, if it can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Union

import pyarrow.compute as pc

from purgatory_udf.backend.local import formula as formulas
from purgatory_udf.backend.local.formula import Formula, Total

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
    formula = formulas.of_column(parts[0])
    for name in parts[1:]:
        formula = formulas.of_field(formula, name)
    return Column(".".join(map(quoted, parts)), parts[-1], formula)


def formula_of(value: Any) -> Formula | None:
    """Of what may stand for a column where a value is meant."""
    return value.formula if isinstance(value, Column) else formulas.of_value(value)


class Column:
    """`formula` and `total` are what Arrow does for the same, of a row's values and of a group's."""

    def __init__(
        self, sql: str, name: str | None = None, formula: Formula | None = None, total: Total | None = None
    ) -> None:
        self.sql = sql
        self.name = name
        self.formula, self.total = formula, total

    def alias(self, name: str) -> Column:
        return Column(self.sql, name, self.formula, self.total)

    def cast(self, to: Any) -> Column:
        """`to`: the name of a type of Spark's, or the type."""
        named = to if isinstance(to, str) else to.simpleString()
        return Column(f"CAST({self.sql} AS {type_of(named)})", self.name)

    def over(self, window: Any) -> Column:
        return Column(f"{self.sql} OVER ({window.sql})", self.name)

    def __getitem__(self, key: str | int) -> Column:
        if isinstance(key, str):
            return Column(f"struct_extract({self.sql}, {literal(key)})", key)
        formula = formulas.worked_out(lambda lists: formulas.of_list(lists, key), self.formula)
        return Column(f"({self.sql})[{key + 1}]", formula=formula)

    def isin(self, *values: Any) -> Column:
        listed: Iterable[Any] = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set) else values
        among = list(listed)
        if not among:
            return Column("FALSE")
        formula = formulas.worked_out(lambda each: formulas.one_of(each, among), self.formula)
        return Column(f"({self.sql} IN ({', '.join(map(literal, among))}))", formula=formula)

    def between(self, low: Any, high: Any) -> Column:
        return Column(f"({self.sql} BETWEEN {literal(low)} AND {literal(high)})")

    def isNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NULL)", formula=formulas.worked_out(pc.is_null, self.formula))

    def isNotNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT NULL)", formula=formulas.worked_out(pc.is_valid, self.formula))

    def eqNullSafe(self, other: Any) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT DISTINCT FROM {literal(other)})")

    def startswith(self, head: Any) -> Column:
        return Column(f"starts_with({self.sql}, {literal(head)})")

    def asc(self) -> Ordered:
        return Ordered(f"{self.sql} ASC NULLS FIRST", formula=self.formula)

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
        return Column(f"(NOT {self.sql})", formula=formulas.worked_out(formulas.inverted, self.formula))

    def __bool__(self) -> bool:
        raise TypeError("a column has no truth: combine conditions by &, | and ~")

    __hash__ = None  # type: ignore[assignment]


class Ordered(Column):
    """What rows are put in order by; it has a formula only where the least come first."""


def order_of(col: ColumnOrName) -> Ordered:
    return col if isinstance(col, Ordered) else column(col).asc()


def _two(left: Column, sign: str, right: Any) -> Column:
    formula = formulas.two(sign, left.formula, formula_of(right))
    return Column(f"({left.sql} {sign} {literal(right)})", formula=formula)

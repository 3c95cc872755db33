"""pyspark's functions of columns, as far as the answers use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.backend.local import formula as formulas
from purgatory_udf.backend.local.column import Column, ColumnOrName, Ordered, column, formula_of, literal, type_of
from purgatory_udf.backend.local.formula import COUNT, LIST, Formula, Total, Values, objects_in

col = column


class _Literal(Column):
    def __init__(self, value: Any) -> None:
        super().__init__(literal(value), formula=formula_of(value))
        self.value = value


def lit(value: Any) -> Column:
    return _Literal(value)


def _call(name: str, *of: ColumnOrName, by: Callable[..., Values] | None = None) -> Column:
    """`by`: what Arrow does instead."""
    arguments = list(map(column, of))
    formula = by and formulas.worked_out(by, *(argument.formula for argument in arguments))
    return Column(f"{name}({', '.join(argument.sql for argument in arguments)})", formula=formula)


class _Cases(Column):
    """`CASE`, to which more may be added; without a match it is null. `formula` is that of one case alone."""

    def __init__(self, cases: str, only: tuple[Formula | None, Formula | None] | None = None) -> None:
        super().__init__(f"CASE{cases} END")
        self._cases, self._only = cases, only
        self.formula = self._else(None)

    def when(self, condition: Column, value: Any) -> _Cases:
        only = None if self._cases else (condition.formula, formula_of(value))
        return _Cases(f"{self._cases} WHEN {condition.sql} THEN {literal(value)}", only)

    def otherwise(self, value: Any) -> Column:
        return Column(f"CASE{self._cases} ELSE {literal(value)} END", formula=self._else(value))

    def _else(self, value: Any) -> Formula | None:
        return self._only and formulas.worked_out(formulas.chosen, *self._only, formula_of(value))


def when(condition: Column, value: Any) -> _Cases:
    return _Cases("").when(condition, value)


def desc(col: ColumnOrName) -> Ordered:
    return column(col).desc()


def broadcast(frame: Any) -> Any:
    return frame


# Of one row.


def coalesce(*of: ColumnOrName) -> Column:
    return _call("coalesce", *of)


def abs(col: ColumnOrName) -> Column:
    return _call("abs", col)


def greatest(*of: ColumnOrName) -> Column:
    return _call("greatest", *of, by=formulas.greatest)


def least(*of: ColumnOrName) -> Column:
    return _call("least", *of)


def floor(col: ColumnOrName) -> Column:
    return _call("floor", col).cast("bigint")


def ceil(col: ColumnOrName) -> Column:
    return _call("ceil", col).cast("bigint")


def log2(col: ColumnOrName) -> Column:
    return _call("log2", col)


def pow(base: ColumnOrName, power: ColumnOrName) -> Column:
    return _call("pow", base, power)


def pmod(col: ColumnOrName, by: ColumnOrName) -> Column:
    """The remainder that is never below zero; one that is not comes out as it is, to the last bit."""
    divisor = column(by).sql
    rest = f"({column(col).sql} % {divisor})"
    return Column(f"(CASE WHEN {rest} < 0 THEN ({rest} + {divisor}) % {divisor} ELSE {rest} END)")


def xxhash64(col: ColumnOrName) -> Column:
    return _call("spark_xxhash64", column(col).cast("bigint"))


def regexp_extract(col: ColumnOrName, pattern: str, group: int) -> Column:
    return Column(f"regexp_extract({column(col).sql}, {literal(pattern)}, {group})")


def substring_index(col: ColumnOrName, delimiter: str, count: int) -> Column:
    """What stands before so many delimiters, counted from the left."""
    parts = f"string_split({column(col).sql}, {literal(delimiter)})"
    return Column(f"array_to_string({parts}[1:{count}], {literal(delimiter)})")


# Of moments: what they are in words is in UTC.


def unix_micros(col: ColumnOrName) -> Column:
    return _call("epoch_us", col)


def unix_millis(col: ColumnOrName) -> Column:
    return Column(f"(epoch_us({column(col).sql}) // 1000)")


def timestamp_micros(col: ColumnOrName) -> Column:
    return _call("make_timestamptz", col, by=formulas.moment)


def timestamp_millis(col: ColumnOrName) -> Column:
    return Column(f"make_timestamptz({column(col).sql} * 1000)")


# The longest first, for they are looked for one after the other.
_LETTERS = {"yyyy": "%Y", "SSS": "%g", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def date_format(col: ColumnOrName, pattern: str) -> Column:
    for theirs, ours in _LETTERS.items():
        pattern = pattern.replace(theirs, ours)
    return Column(f"strftime(make_timestamp(epoch_us({column(col).sql})), {literal(pattern)})")


# Of arrays and structs.


def struct(*of: ColumnOrName) -> Column:
    fields = list(map(column, of))
    names = [field.name or "" for field in fields]
    formula = formulas.worked_out(
        lambda *values: formulas.structs(names, *values), *(field.formula for field in fields)
    )
    said = ", ".join(f"{literal(field.name)}: {field.sql}" for field in fields)
    return Column("{" + said + "}", formula=formula if all(names) else None)


def array(*of: ColumnOrName) -> Column:
    elements = list(map(column, of))
    said = [element.value for element in elements if isinstance(element, _Literal)]
    formula = formulas.of_values(said) if len(said) == len(elements) else None
    return Column(f"[{', '.join(element.sql for element in elements)}]", formula=formula)


def concat(*of: ColumnOrName) -> Column:
    """Of texts or of arrays; null where one of them is."""
    parts = list(map(column, of))
    formula = formulas.worked_out(formulas.joined, *(part.formula for part in parts))
    return Column(f"({' || '.join(part.sql for part in parts)})", formula=formula)


def lower(col: ColumnOrName) -> Column:
    return _call("lower", col)


def concat_ws(between: str, *of: ColumnOrName) -> Column:
    return Column(f"concat_ws({', '.join([literal(between), *(column(part).sql for part in of)])})")


def size(col: ColumnOrName) -> Column:
    return _call("len", col)


def array_max(col: ColumnOrName) -> Column:
    return _call("list_max", col)


def element_at(col: ColumnOrName, place: int | Column) -> Column:
    formula = formulas.worked_out(formulas.element, column(col).formula, formula_of(place))
    return Column(f"({column(col).sql})[{literal(place)}]", formula=formula)


def sequence(first: ColumnOrName, last: ColumnOrName, step: ColumnOrName) -> Column:
    return _call("generate_series", first, last, step)


def explode(col: ColumnOrName) -> Column:
    """A row for each element; none where there are none."""
    return _call("unnest", col)


def array_distinct(col: ColumnOrName) -> Column:
    """In no order that is told."""
    return _call("list_distinct", col)


def array_sort(col: ColumnOrName) -> Column:
    return Column(f"list_sort({column(col).sql}, 'ASC', 'NULLS LAST')")


def sort_array(col: ColumnOrName) -> Column:
    return Column(f"list_sort({column(col).sql}, 'ASC', 'NULLS FIRST')")


def array_except(col: ColumnOrName, other: ColumnOrName) -> Column:
    """In no order that is told; of arrays without nulls."""
    kept = f"list_filter(list_distinct({column(col).sql}), lambda e: NOT list_contains({column(other).sql}, e))"
    return Column(kept)


Each = Callable[[Column], Column]


def filter(col: ColumnOrName, keep: Each) -> Column:
    return Column(f"list_filter({column(col).sql}, lambda e: {keep(Column('e')).sql})")


def transform(col: ColumnOrName, to: Each) -> Column:
    return Column(f"list_transform({column(col).sql}, lambda e: {to(Column('e')).sql})")


def exists(col: ColumnOrName, holds: Each) -> Column:
    return Column(f"(len({filter(col, holds).sql}) > 0)")


def from_json(col: ColumnOrName, schema: str) -> Column:
    """A struct of these names and types of Spark's; what the text does not say is null."""
    kinds = {name: type_of(kind) for name, kind in (field.split() for field in schema.split(","))}
    shape = ", ".join(f'"{name}": "{kind}"' for name, kind in kinds.items())
    formula = formulas.worked_out(lambda texts: objects_in(texts, kinds), column(col).formula)
    return Column(f"from_json({column(col).sql}, '{{{shape}}}')", formula=formula)


def spark_partition_id() -> Column:
    """There is only one."""
    return lit(0)


# Of a group's rows, or of a window's.


def _total(kind: str, of: Column) -> Total | None:
    return Total(kind, of.formula) if of.formula else None


def _total_of(name: str, col: ColumnOrName) -> Column:
    return Column(_call(name, col).sql, total=_total(name, column(col)))


def count(col: ColumnOrName) -> Column:
    if isinstance(col, str) and col == "*":
        return Column("count(*)", total=_total(COUNT, lit(1)))
    return _total_of("count", col)


def count_if(condition: ColumnOrName) -> Column:
    return Column(f"count(*) FILTER (WHERE {column(condition).sql})")


def sum(col: ColumnOrName) -> Column:
    return _total_of("sum", col)


def avg(col: ColumnOrName) -> Column:
    return _call("avg", col)


def max(col: ColumnOrName) -> Column:
    return _total_of("max", col)


def min(col: ColumnOrName) -> Column:
    return _total_of("min", col)


def max_by(col: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_max_null", col, by)


def min_by(col: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_min_null", col, by)


def collect_list(col: ColumnOrName) -> Column:
    sql = column(col).sql
    return Column(f"coalesce(list({sql}) FILTER (WHERE {sql} IS NOT NULL), [])", total=_total(LIST, column(col)))


def percentile(col: ColumnOrName, share: float, times: ColumnOrName) -> Column:
    """Exact, each value counted so many times, interpolated between neighbours."""
    values = f"list({{'value': CAST({column(col).sql} AS DOUBLE), 'times': CAST({column(times).sql} AS BIGINT)}})"
    return Column(f"spark_percentile({values}, {literal(share)})")


def percentile_approx(col: ColumnOrName, share: float, accuracy: int = 10_000) -> Column:
    """Exact, as Spark's own is while there are no more rows than the accuracy."""
    sql = column(col).sql
    values = f"list_sort(list({sql}) FILTER (WHERE {sql} IS NOT NULL))"
    return Column(f"({values})[greatest(1, CAST(ceil({literal(share)} * count({sql})) AS BIGINT))]")


def row_number() -> Column:
    return Column("row_number()")


def lead(col: ColumnOrName) -> Column:
    return _call("lead", col)


def lag(col: ColumnOrName) -> Column:
    return _call("lag", col)


def last(col: ColumnOrName, ignorenulls: bool = False) -> Column:
    return Column(f"last_value({column(col).sql}{' IGNORE NULLS' if ignorenulls else ''})")

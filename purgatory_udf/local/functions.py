"""pyspark's functions of columns, as far as the answers use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.local.column import Column, ColumnOrName, Ordered, column, literal, type_of

col = column


def lit(value: Any) -> Column:
    return Column(literal(value))


def _call(name: str, *of: ColumnOrName) -> Column:
    return Column(f"{name}({', '.join(column(argument).sql for argument in of)})")


class _Cases(Column):
    """`CASE`, to which more may be added; without a match it is null."""

    def __init__(self, cases: str) -> None:
        super().__init__(f"CASE{cases} END")
        self._cases = cases

    def when(self, condition: Column, value: Any) -> _Cases:
        return _Cases(f"{self._cases} WHEN {condition.sql} THEN {literal(value)}")

    def otherwise(self, value: Any) -> Column:
        return Column(f"CASE{self._cases} ELSE {literal(value)} END")


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
    return _call("greatest", *of)


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
    return _call("make_timestamptz", col)


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
    fields = map(column, of)
    return Column("{" + ", ".join(f"{literal(field.name)}: {field.sql}" for field in fields) + "}")


def array(*of: ColumnOrName) -> Column:
    return Column(f"[{', '.join(column(element).sql for element in of)}]")


def concat(*of: ColumnOrName) -> Column:
    """Of texts or of arrays; null where one of them is."""
    return Column(f"({' || '.join(column(part).sql for part in of)})")


def lower(col: ColumnOrName) -> Column:
    return _call("lower", col)


def concat_ws(between: str, *of: ColumnOrName) -> Column:
    return Column(f"concat_ws({', '.join([literal(between), *(column(part).sql for part in of)])})")


def size(col: ColumnOrName) -> Column:
    return _call("len", col)


def array_max(col: ColumnOrName) -> Column:
    return _call("list_max", col)


def element_at(col: ColumnOrName, place: int | Column) -> Column:
    return Column(f"({column(col).sql})[{literal(place)}]")


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
    fields = (field.split() for field in schema.split(","))
    shape = ", ".join(f'"{name}": "{type_of(kind)}"' for name, kind in fields)
    return Column(f"from_json({column(col).sql}, '{{{shape}}}')")


def spark_partition_id() -> Column:
    """There is only one."""
    return lit(0)


# Of a group's rows, or of a window's.


def count(col: ColumnOrName) -> Column:
    return Column("count(*)") if isinstance(col, str) and col == "*" else _call("count", col)


def count_if(condition: ColumnOrName) -> Column:
    return Column(f"count(*) FILTER (WHERE {column(condition).sql})")


def sum(col: ColumnOrName) -> Column:
    return _call("sum", col)


def avg(col: ColumnOrName) -> Column:
    return _call("avg", col)


def max(col: ColumnOrName) -> Column:
    return _call("max", col)


def min(col: ColumnOrName) -> Column:
    return _call("min", col)


def max_by(col: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_max_null", col, by)


def min_by(col: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_min_null", col, by)


def collect_list(col: ColumnOrName) -> Column:
    sql = column(col).sql
    return Column(f"coalesce(list({sql}) FILTER (WHERE {sql} IS NOT NULL), [])")


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

"""pyspark's functions of columns, as far as the answers use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.local.column import Column, ColumnOrName, Ordered, column, literal, type_of

col = column


def lit(value: Any) -> Column:
    return Column(literal(value))


def _call(name: str, *of: ColumnOrName) -> Column:
    return Column(f"{name}({', '.join(column(one).sql for one in of)})")


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


def desc(one: ColumnOrName) -> Ordered:
    return column(one).desc()


def broadcast(frame: Any) -> Any:
    return frame


# Of one row.


def coalesce(*of: ColumnOrName) -> Column:
    return _call("coalesce", *of)


def abs(one: ColumnOrName) -> Column:
    return _call("abs", one)


def greatest(*of: ColumnOrName) -> Column:
    return _call("greatest", *of)


def least(*of: ColumnOrName) -> Column:
    return _call("least", *of)


def floor(one: ColumnOrName) -> Column:
    return _call("floor", one).cast("bigint")


def ceil(one: ColumnOrName) -> Column:
    return _call("ceil", one).cast("bigint")


def log2(one: ColumnOrName) -> Column:
    return _call("log2", one)


def pow(base: ColumnOrName, power: ColumnOrName) -> Column:
    return _call("pow", base, power)


def pmod(one: ColumnOrName, by: ColumnOrName) -> Column:
    """The remainder that is never below zero; one that is not comes out as it is, to the last bit."""
    divisor = column(by).sql
    rest = f"({column(one).sql} % {divisor})"
    return Column(f"(CASE WHEN {rest} < 0 THEN ({rest} + {divisor}) % {divisor} ELSE {rest} END)")


def xxhash64(one: ColumnOrName) -> Column:
    return _call("spark_xxhash64", column(one).cast("bigint"))


def regexp_extract(one: ColumnOrName, pattern: str, group: int) -> Column:
    return Column(f"regexp_extract({column(one).sql}, {literal(pattern)}, {group})")


def substring_index(one: ColumnOrName, delimiter: str, count: int) -> Column:
    """What stands before so many delimiters, counted from the left."""
    parts = f"string_split({column(one).sql}, {literal(delimiter)})"
    return Column(f"array_to_string({parts}[1:{count}], {literal(delimiter)})")


# Of moments: what they are in words is in UTC.


def unix_micros(one: ColumnOrName) -> Column:
    return _call("epoch_us", one)


def unix_millis(one: ColumnOrName) -> Column:
    return Column(f"(epoch_us({column(one).sql}) // 1000)")


def timestamp_micros(one: ColumnOrName) -> Column:
    return _call("make_timestamptz", one)


def timestamp_millis(one: ColumnOrName) -> Column:
    return Column(f"make_timestamptz({column(one).sql} * 1000)")


# The longest first, for they are looked for one after the other.
_LETTERS = {"yyyy": "%Y", "SSS": "%g", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def date_format(one: ColumnOrName, pattern: str) -> Column:
    for theirs, ours in _LETTERS.items():
        pattern = pattern.replace(theirs, ours)
    return Column(f"strftime(make_timestamp(epoch_us({column(one).sql})), {literal(pattern)})")


# Of arrays and structs.


def struct(*of: ColumnOrName) -> Column:
    fields = map(column, of)
    return Column("{" + ", ".join(f"{literal(one.name)}: {one.sql}" for one in fields) + "}")


def array(*of: ColumnOrName) -> Column:
    return Column(f"[{', '.join(column(one).sql for one in of)}]")


def concat(*of: ColumnOrName) -> Column:
    """Of texts or of arrays; null where one of them is."""
    return Column(f"({' || '.join(column(one).sql for one in of)})")


def lower(one: ColumnOrName) -> Column:
    return _call("lower", one)


def concat_ws(between: str, *of: ColumnOrName) -> Column:
    return Column(f"concat_ws({', '.join([literal(between), *(column(one).sql for one in of)])})")


def size(one: ColumnOrName) -> Column:
    return _call("len", one)


def array_max(one: ColumnOrName) -> Column:
    return _call("list_max", one)


def element_at(one: ColumnOrName, place: int | Column) -> Column:
    return Column(f"({column(one).sql})[{literal(place)}]")


def sequence(first: ColumnOrName, last: ColumnOrName, step: ColumnOrName) -> Column:
    return _call("generate_series", first, last, step)


def explode(one: ColumnOrName) -> Column:
    """A row for each element; none where there are none."""
    return _call("unnest", one)


def array_distinct(one: ColumnOrName) -> Column:
    """In no order that is told."""
    return _call("list_distinct", one)


def array_sort(one: ColumnOrName) -> Column:
    return Column(f"list_sort({column(one).sql}, 'ASC', 'NULLS LAST')")


def sort_array(one: ColumnOrName) -> Column:
    return Column(f"list_sort({column(one).sql}, 'ASC', 'NULLS FIRST')")


def array_except(one: ColumnOrName, other: ColumnOrName) -> Column:
    """In no order that is told; of arrays without nulls."""
    kept = f"list_filter(list_distinct({column(one).sql}), lambda e: NOT list_contains({column(other).sql}, e))"
    return Column(kept)


Each = Callable[[Column], Column]


def filter(one: ColumnOrName, keep: Each) -> Column:
    return Column(f"list_filter({column(one).sql}, lambda e: {keep(Column('e')).sql})")


def transform(one: ColumnOrName, to: Each) -> Column:
    return Column(f"list_transform({column(one).sql}, lambda e: {to(Column('e')).sql})")


def exists(one: ColumnOrName, holds: Each) -> Column:
    return Column(f"(len({filter(one, holds).sql}) > 0)")


def from_json(one: ColumnOrName, schema: str) -> Column:
    """A struct of these names and types of Spark's; what the text does not say is null."""
    fields = (field.split() for field in schema.split(","))
    shape = ", ".join(f'"{name}": "{type_of(kind)}"' for name, kind in fields)
    return Column(f"from_json({column(one).sql}, '{{{shape}}}')")


def spark_partition_id() -> Column:
    """There is only one."""
    return lit(0)


# Of a group's rows, or of a window's.


def count(one: ColumnOrName) -> Column:
    return Column("count(*)") if isinstance(one, str) and one == "*" else _call("count", one)


def count_if(condition: ColumnOrName) -> Column:
    return Column(f"count(*) FILTER (WHERE {column(condition).sql})")


def sum(one: ColumnOrName) -> Column:
    return _call("sum", one)


def avg(one: ColumnOrName) -> Column:
    return _call("avg", one)


def max(one: ColumnOrName) -> Column:
    return _call("max", one)


def min(one: ColumnOrName) -> Column:
    return _call("min", one)


def max_by(one: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_max_null", one, by)


def min_by(one: ColumnOrName, by: ColumnOrName) -> Column:
    return _call("arg_min_null", one, by)


def collect_list(one: ColumnOrName) -> Column:
    sql = column(one).sql
    return Column(f"coalesce(list({sql}) FILTER (WHERE {sql} IS NOT NULL), [])")


def percentile(one: ColumnOrName, share: float, times: ColumnOrName) -> Column:
    """Exact, each value counted so many times, interpolated between neighbours."""
    values = f"list({{'value': CAST({column(one).sql} AS DOUBLE), 'times': CAST({column(times).sql} AS BIGINT)}})"
    return Column(f"spark_percentile({values}, {literal(share)})")


def percentile_approx(one: ColumnOrName, share: float, accuracy: int = 10_000) -> Column:
    """Exact, as Spark's own is while there are no more rows than the accuracy."""
    sql = column(one).sql
    values = f"list_sort(list({sql}) FILTER (WHERE {sql} IS NOT NULL))"
    return Column(f"({values})[greatest(1, CAST(ceil({literal(share)} * count({sql})) AS BIGINT))]")


def row_number() -> Column:
    return Column("row_number()")


def lead(one: ColumnOrName) -> Column:
    return _call("lead", one)


def lag(one: ColumnOrName) -> Column:
    return _call("lag", one)


def last(one: ColumnOrName, ignorenulls: bool = False) -> Column:
    return Column(f"last_value({column(one).sql}{' IGNORE NULLS' if ignorenulls else ''})")

"""What a column is worked out by where Arrow can: from the columns of a table, the values, row by row.

Whatever DuckDB would see in another way (numbers that may be no number, texts compared with numbers) has no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

# An array of Arrow's, in pieces or in one; or one value, which stands for a column that has it in every row.
Values: TypeAlias = Any
Formula = Callable[[Callable[[str], Values]], Values]


class NoFormulaError(Exception):
    """Of these values: DuckDB is asked instead."""


def of_column(name: str) -> Formula:
    return lambda named: named(name)


def of_field(formula: Formula, name: str) -> Formula:
    def field(named: Callable[[str], Values]) -> Values:
        structs = formula(named)
        if not pa.types.is_struct(structs.type) or structs.type.get_field_index(name) < 0:
            raise NoFormulaError
        return pc.struct_field(structs, name)

    return field


def of_value(value: Any) -> Formula | None:
    if isinstance(value, int) and not isinstance(value, bool):
        scalar = pa.scalar(value, pa.int32() if abs(value) < 2**31 else pa.int64()) if abs(value) < 2**63 else None
    else:
        scalar = pa.scalar(value) if value is None or isinstance(value, bool | str) else None
    return None if scalar is None else lambda named: scalar


def of_values(values: Sequence[Any]) -> Formula | None:
    """A list of texts, in every row."""
    return (lambda named: pa.scalar(list(values))) if values and all(type(value) is str for value in values) else None


def worked_out(by: Callable[..., Values], *of: Formula | None) -> Formula | None:
    """By a function of values; None where one of them has no formula."""
    if any(formula is None for formula in of):
        return None
    formulas = [formula for formula in of if formula is not None]
    return lambda named: by(*(formula(named) for formula in formulas))


def two(sign: str, left: Formula | None, right: Formula | None) -> Formula | None:
    return worked_out(_TWO[sign], left, right) if sign in _TWO else None


def _compared(by: Callable[..., Values]) -> Callable[[Values, Values], Values]:
    def compare(left: Values, right: Values) -> Values:
        if not (left.type == right.type or (_is_whole(left) and _is_whole(right))) or not _has_one_order(left.type):
            raise NoFormulaError
        return by(left, right)

    return compare


def _counted(by: Callable[..., Values]) -> Callable[[Values, Values], Values]:
    def count(left: Values, right: Values) -> Values:
        if not (_is_whole(left) and _is_whole(right)):
            raise NoFormulaError
        return by(left, right)

    return count


def _logical(by: Callable[..., Values]) -> Callable[..., Values]:
    def decide(*of: Values) -> Values:
        if not all(pa.types.is_boolean(values.type) for values in of):
            raise NoFormulaError
        return by(*of)

    return decide


_TWO: dict[str, Callable[[Values, Values], Values]] = {
    "=": _compared(pc.equal),
    "<>": _compared(pc.not_equal),
    "<": _compared(pc.less),
    "<=": _compared(pc.less_equal),
    ">": _compared(pc.greater),
    ">=": _compared(pc.greater_equal),
    "+": _counted(pc.add_checked),
    "-": _counted(pc.subtract_checked),
    "AND": _logical(pc.and_kleene),
    "OR": _logical(pc.or_kleene),
}

inverted = _logical(pc.invert)


def one_of(values: Values, among: Sequence[Any]) -> Values:
    if not all(isinstance(value, str) for value in among) or values.type != pa.string():
        raise NoFormulaError
    return pc.if_else(pc.is_valid(values), pc.is_in(values, pa.array(among, pa.string())), pa.scalar(None, pa.bool_()))


def greatest(*of: Values) -> Values:
    if not all(map(_is_whole, of)):
        raise NoFormulaError
    return pc.max_element_wise(*of)


def chosen(condition: Values, value: Values, other: Values) -> Values:
    """`value` where the condition holds, else `other`."""
    kinds = {values.type for values in (value, other) if not pa.types.is_null(values.type)}
    if len(kinds) > 1 or not pa.types.is_boolean(condition.type):
        raise NoFormulaError
    (kind,) = kinds or {pa.int32()}
    value, other = (pa.scalar(None, kind) if pa.types.is_null(v.type) else v for v in (value, other))
    return pc.if_else(pc.fill_null(condition, False), value, other)


def moment(us: Values) -> Values:
    if us.type != pa.int64():
        raise NoFormulaError
    return pc.cast(us, pa.timestamp("us", "UTC"))


def element(of: Values, place: Values) -> Values:
    """Of one list; its first has the number 1. What is behind its end, and the number 0, is null."""
    if not isinstance(of, pa.ListScalar) or isinstance(place, pa.Scalar) or not _is_whole(place):
        raise NoFormulaError
    is_there = pc.and_(pc.greater_equal(place, 1), pc.less_equal(place, len(of)))
    # Negative ones count from the end.
    if pc.any(pc.less(place, 0)).as_py():
        raise NoFormulaError
    places = pc.if_else(is_there, pc.subtract(place, 1), pa.scalar(None, place.type))
    return of.values.take(_in_one(places))


def of_list(lists: Values, place: int) -> Values:
    """Its first has the number 0."""
    if not pa.types.is_list(lists.type):
        raise NoFormulaError
    return pc.list_element(lists, place)


def structs(names: Sequence[str], *fields: Values) -> Values:
    if any(isinstance(values, pa.Scalar) for values in fields):
        raise NoFormulaError
    return pc.make_struct(*map(_in_one, fields), field_names=list(names))


def joined(*of: Values) -> Values:
    """Texts and whole numbers, one behind the other; null where one of them is."""
    if not all(_is_whole(values) or values.type == pa.string() for values in of):
        raise NoFormulaError
    return pc.binary_join_element_wise(*(pc.cast(values, pa.string()) for values in of), "")


def _in_one(values: Values) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _is_whole(values: Values) -> bool:
    return bool(pa.types.is_int32(values.type) or pa.types.is_int64(values.type))


def _has_one_order(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.timestamp("us", "UTC"))


# What the rows of a table come to that have the same keys.


SUM, COUNT, LIST = "sum", "count", "list"


class Total(NamedTuple):
    """`kind`: sum, min, max, count (of what is no null), list; `formula` has the values of the rows."""

    kind: str
    formula: Formula


def grouped(rows: pa.Table, keys: Sequence[str], kinds: Mapping[str, str]) -> pa.Table:
    """Its other columns come to what `kinds` says."""
    if any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in rows.select(keys).schema.types):
        raise NoFormulaError
    asked = []
    columns = {name: rows.column(name) for name in keys}
    for name, kind in kinds.items():
        values = rows.column(name)
        if kind == LIST:
            # Of structs none can be made: of the rows' numbers one can.
            values = pa.chunked_array([np.arange(rows.num_rows)], pa.int64())
        elif kind != COUNT and (values.type not in (pa.int32(), pa.int64()) or (kind == SUM and not _fits(values))):
            raise NoFormulaError
        columns[name] = values
        asked.append((name, kind))
    made = pa.table(columns).group_by(list(keys), use_threads=False).aggregate(asked)
    totals = [made.column(f"{name}_{kind}") for name, kind in asked]
    listed = [
        _listed(rows.column(name), total.combine_chunks()) if kind == LIST else total
        for (name, kind), total in zip(asked, totals, strict=True)
    ]
    return pa.Table.from_arrays([*made.select(keys).columns, *listed], [*keys, *kinds])


def _fits(values: pa.ChunkedArray) -> bool:
    """Whether no sum of some of them is too large: Arrow would not say so."""
    least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
    return max(-least, most) * len(values) < 2**63


def _listed(values: pa.ChunkedArray, numbers: pa.ListArray) -> pa.Array:
    if values.null_count:
        raise NoFormulaError
    return pa.ListArray.from_arrays(numbers.offsets, pc.take(values.combine_chunks(), numbers.values))


# Objects of JSON, one a row, in columns.


_TYPES = {
    "VARCHAR": pa.string(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}


def objects_in(texts: Values, kinds: Mapping[str, str]) -> Values:
    """A struct of fields of these types of DuckDB's; what a text does not say is null."""
    if isinstance(texts, pa.Scalar) or texts.null_count or not set(kinds.values()) <= _TYPES.keys():
        raise NoFormulaError
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()])
    if not len(texts) or pc.any(pc.match_substring(texts, "\n")).as_py():
        # None at all, or texts of several lines.
        raise NoFormulaError
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    lines = pc.binary_join(together, "\n")[0].as_buffer()
    longest = pc.max(pc.binary_length(texts)).as_py()
    read = pj.read_json(
        pa.BufferReader(lines),
        pj.ReadOptions(use_threads=False, block_size=max(1 << 20, 2 * longest)),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if len(read) != len(texts):
        raise NoFormulaError
    return read.select(schema.names).to_struct_array()

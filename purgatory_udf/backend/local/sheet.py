"""Tables in memory of which Arrow chooses rows and columns itself, looks rows up, and puts them in order.

A query of DuckDB's takes some milliseconds whatever it is about, and copies all that it gives. So where every column is
a formula here, none is asked; what has no formula, or only looks as if it had, is asked of DuckDB as ever
(`NoFormulaError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.local.formula import Formula, NoFormulaError, Total, Values, grouped

# Where in one table the row stands that has the same keys as a row of another.


def places_of(keys: pa.Table, among: pa.Table) -> pa.Array:
    """Of each row of `keys`, the place `among` others that are all different; null where it is not among them. A null
    is the same as nothing."""
    if keys.schema.types != among.schema.types or any(
        pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in keys.schema.types
    ):
        raise NoFormulaError
    numbers, others = _numbers(keys, among)
    if others.null_count or pc.count_distinct(others).as_py() < len(others):
        raise NoFormulaError
    return pc.index_in(numbers, others)


def _numbers(keys: pa.Table, among: pa.Table) -> tuple[pa.Array, pa.Array]:
    """A number for each row of either: the same for the same keys, null where one of them is null or not among them."""
    numbers = others = None
    for name in keys.column_names:
        values, theirs = keys.column(name).combine_chunks(), among.column(name).combine_chunks()
        distinct = theirs.drop_null().unique()
        here, there = (pc.cast(pc.index_in(each, distinct, skip_nulls=True), pa.int64()) for each in (values, theirs))
        if numbers is None:
            numbers, others = here, there
        else:
            size = pa.scalar(len(distinct), pa.int64())
            numbers, others = (
                pc.add_checked(pc.multiply_checked(before, size), each)
                for before, each in ((numbers, here), (others, there))
            )
    return numbers, others


# Rows cut into parts that are about as much work each, for the machine's cores.
#
# What is to be put in order first is cut as it will lie: the rows of a part are brought together by who works on them.


# Of a row, but for its text.
_ROW_BYTES = 64
# What is less is sooner done than a process is forked for it: rows that belong together are more work than others.
LEAST_BYTES, LEAST_ALONE_BYTES = 1 << 19, 1 << 21


Part = Callable[[], pa.Table]


class Arranged(NamedTuple):
    """`places` are the rows' numbers in the order that is meant; None: as they lie."""

    rows: pa.Table
    places: npt.NDArray[np.uint64] | None = None

    def table(self) -> pa.Table:
        return self.rows if self.places is None else self.rows.take(self.places)

    def part(self, begin: int, end: int) -> Part:
        if self.places is None:
            return partial(self.rows.slice, begin, end - begin)
        return partial(self.rows.take, self.places[begin:end])


def cut_apart(rows: Arranged, together: Sequence[str], most: int) -> list[Part]:
    """About so many parts, in order. Rows that lie side by side and are the same in the columns `together` stay so;
    where none are named, any row may begin a part."""
    return [rows.part(begin, end) for begin, end in pairwise(_borders(*rows, together, most))]


def _borders(
    rows: pa.Table, places: npt.NDArray[np.uint64] | None, together: Sequence[str], most: int
) -> Sequence[int]:
    lengths = _bytes(rows)
    ends = np.cumsum(lengths if places is None else lengths[places])
    count = min(most, int(ends[-1]) // (LEAST_BYTES if together else LEAST_ALONE_BYTES)) if len(ends) else 0
    if count < 2:
        return [0, rows.num_rows]
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
    if together:
        # Before and behind what lies there: it may be most of the work.
        begins = np.array([0, *np.flatnonzero(_begins(rows, places, together)), rows.num_rows])
        after = np.searchsorted(begins, cuts, side="right")
        cuts = begins[np.concatenate([after - 1, after])]
    borders: list[int] = np.unique([0, *cuts, rows.num_rows]).tolist()
    return borders


def _bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    lengths = np.full(rows.num_rows, _ROW_BYTES, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths += pc.binary_length(column).fill_null(0).to_numpy()
    return lengths


def _begins(rows: pa.Table, places: npt.NDArray[np.uint64] | None, together: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows differ from the one before."""
    begins = np.zeros(rows.num_rows, bool)
    for name in together:
        numbers = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        numbers = numbers if places is None else numbers[places]
        begins[1:] |= numbers[1:] != numbers[:-1]
    return begins


Rows = Callable[[], pa.Table]

# Where rows that are kept lie in so few stretches, the stretches are kept: they need not be copied.
FEW_STRETCHES = 64


class Sheet:
    """`columns` are worked out of `rows`, of those alone for which all `conditions` hold."""

    def __init__(self, rows: Rows, columns: Mapping[str, Formula], conditions: Sequence[Formula] = ()) -> None:
        self._rows, self._columns, self._conditions = rows, columns, tuple(conditions)
        self._arranged: Callable[[], Arranged] | None = None

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def where(self, condition: Formula | None) -> Sheet | None:
        if condition is None:
            return None
        return Sheet(self._rows, self._columns, (*self._conditions, self._inside(condition)))

    def select(self, columns: Sequence[tuple[Formula | None, str]]) -> Sheet | None:
        chosen = {name: self._inside(formula) for formula, name in columns if formula is not None}
        return Sheet(self._rows, chosen, self._conditions) if len(chosen) == len(columns) else None

    def union(self, other: Sheet) -> Sheet:
        """By the places of columns."""
        return _later(lambda: _together(self.table(), other.table()), self.names)

    def limit(self, most: int) -> Sheet:
        return _later(lambda: self.table().slice(0, most), self.names)

    def ordered(self, keys: Sequence[Formula | None]) -> Sheet | None:
        """Nulls first. What is the same in all keys keeps its order."""
        named = [(self._inside(key), f"the key {place}") for place, key in enumerate(keys) if key is not None]
        if len(named) < len(keys):
            return None

        def arranged() -> Arranged:
            both = Sheet(self._rows, {**self._columns, **{name: key for key, name in named}}, self._conditions).table()
            table, by = both.select(self.names), both.select([name for _, name in named])
            places = _in_order(by)
            lies_so = np.array_equal(places, np.arange(len(places)))
            return Arranged(table) if lies_so else Arranged(table.combine_chunks(), places)

        sheet = _later(lambda: arranged().table(), self.names)
        sheet._arranged = arranged
        return sheet

    def join(self, right: Rows, keys: Sequence[str], rest: Sequence[str], *, inner: bool) -> Sheet:
        """`rest` of the one row of `right` that has the same `keys`; nulls where there is none."""
        names = [*keys, *(name for name in self.names if name not in keys), *rest]

        def rows() -> pa.Table:
            left, looked_up = self.table(), right()
            places = places_of(left.select(keys), looked_up.select(keys))
            matching = looked_up.select(rest).combine_chunks()
            columns = [left.column(name) for name in names[: -len(rest) or None]]
            joined = pa.Table.from_arrays([*columns, *matching.take(places).columns], names)
            return joined.filter(places.is_valid()) if inner and places.null_count else joined

        return _later(rows, names)

    def grouped(
        self, keys: Sequence[tuple[Formula | None, str]], totals: Sequence[tuple[Total | None, str]]
    ) -> Sheet | None:
        """A row for each combination of keys; one for all rows, where there are no keys."""
        kinds = {name: total.kind for total, name in totals if total is not None}
        chosen = self.select([*keys, *((total and total.formula, name) for total, name in totals)])
        if chosen is None or len(chosen.names) < len(keys) + len(totals):
            return None
        by = [name for _, name in keys]
        return _later(lambda: grouped(chosen.table(), by, kinds), chosen.names)

    def distinct(self) -> Sheet:
        return _later(lambda: grouped(self.table(), self.names, {}), self.names)

    def table(self) -> pa.Table:
        kept = self._kept()
        made = [_whole(kept.of(formula), kept.count) for formula in self._columns.values()]
        return pa.Table.from_arrays(made, list(self._columns))

    def in_parts(self, together: Sequence[str], most: int) -> list[Part]:
        """As `cut_apart` cuts it."""
        return cut_apart(self._arranged() if self._arranged else Arranged(self.table()), together, most)

    def count(self) -> int:
        return self._kept().count

    def _kept(self) -> _Kept:
        """The rows for which the conditions hold."""
        rows = _Kept(self._rows())
        if not self._conditions:
            return rows
        conditions = [_whole(rows.of(condition), rows.count) for condition in self._conditions]
        if not all(pa.types.is_boolean(condition.type) for condition in conditions):
            raise NoFormulaError
        return _Kept(self._rows(), reduce(pc.and_kleene, conditions))

    def _inside(self, formula: Formula) -> Formula:
        """Of the rows: where it names columns, it means those that are chosen."""

        def of_rows(named: Callable[[str], Values]) -> Values:
            known = named.of if isinstance(named, _Kept) else None
            return formula(lambda name: known(self._column(name)) if known else self._column(name)(named))

        return of_rows

    def _column(self, name: str) -> Formula:
        if name not in self._columns:
            raise NoFormulaError
        return self._columns[name]


class _Kept:
    """Some rows of a table: what is worked out of them is worked out once."""

    def __init__(self, rows: pa.Table, holds: Values | None = None) -> None:
        self._rows, self._holds = rows, holds
        self._stretches = None if holds is None else _stretches(holds)
        self.count: int = rows.num_rows if holds is None else pc.sum(holds).as_py() or 0
        self._columns: dict[str, Values] = {}
        self._known: dict[Formula, Values] = {}

    def __call__(self, name: str) -> Values:
        if name not in self._columns:
            self._columns[name] = self._chosen(self._rows.column(name))
        return self._columns[name]

    def _chosen(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if self._stretches is not None:
            slices = (column.slice(begin, end - begin) for begin, end in self._stretches)
            return pa.chunked_array([chunk for slice_ in slices for chunk in slice_.chunks], column.type)
        return column if self._holds is None else column.filter(self._holds)

    def of(self, formula: Formula) -> Values:
        if formula not in self._known:
            self._known[formula] = formula(self)
        return self._known[formula]


def _stretches(holds: Values) -> list[tuple[int, int]] | None:
    """From where to where it holds; None if these are many."""
    flags = pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
    borders = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return list(zip(borders[::2], borders[1::2], strict=True)) if len(borders) <= 2 * FEW_STRETCHES else None


def sheet_of(rows: object) -> Sheet | None:
    """Of a table whose types come out of DuckDB as they went in."""
    if not isinstance(rows, pa.Table) or len(set(rows.column_names)) < rows.num_columns:
        return None
    return _later(lambda: rows, rows.column_names) if all(map(_stays, rows.schema.types)) else None


def _later(rows: Rows, names: Sequence[str]) -> Sheet:
    """Worked out when it is asked for, once."""
    known: list[pa.Table] = []

    def once() -> pa.Table:
        if not known:
            known.append(rows())
        return known[0]

    return Sheet(once, {name: _itself(name) for name in names})


def _itself(name: str) -> Formula:
    return lambda named: named(name)


_PLAIN = {pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us", "UTC")}


def _stays(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _stays(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_stays(field.type) for field in kind)
    return kind in _PLAIN


def _whole(values: Values, count: int) -> pa.Array | pa.ChunkedArray:
    if not isinstance(values, pa.Scalar):
        return values
    if pa.types.is_list(values.type):
        raise NoFormulaError
    return pa.repeat(values, count)


def _together(above: pa.Table, below: pa.Table) -> pa.Table:
    """What one of them lacks is null there."""
    fields = []
    for name, kinds in zip(above.column_names, zip(above.schema.types, below.schema.types, strict=True), strict=True):
        known = [kind for kind in kinds if not pa.types.is_null(kind)]
        if len(known) == 2 and known[0] != known[1]:
            raise NoFormulaError
        fields.append(pa.field(name, known[0] if known else pa.null()))
    schema = pa.schema(fields)
    return pa.concat_tables([table.rename_columns(schema.names).cast(schema) for table in (above, below)])


def _in_order(keys: pa.Table) -> npt.NDArray[np.uint64]:
    """The places of rows in the order of their keys."""
    if any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in keys.schema.types):
        raise NoFormulaError
    by = {}
    for name in keys.column_names:
        values = keys.column(name)
        if values.null_count:
            by[f"{name} is there"] = pc.is_valid(values)
        by[name] = values
    places = pc.sort_indices(pa.table(by), [(name, "ascending") for name in by])
    return np.asarray(places.to_numpy())

"""Distributed rows, and the operations on them that imports consist of.

A step is a function from record batches to record batches. It is independent of its executor: `SparkDataset` calls
it in a task (`mapInArrow`), `LocalDataset` in this process or, for many rows, in threads or a few forked processes.
Columns that a step does not need are dropped before it by `select`, and rows by `where_in` and `where_null`, so that
they are not read.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any, ParamSpec
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.delta_store import Transaction
from purgatory_udf.backend.process_pool import cores, run_parallel

Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]
Part = Callable[[], Iterable[pa.RecordBatch]]
# Returns for each value of a column whether its row is wanted; null means no.
Condition = Callable[[Any], Any]
Arguments = ParamSpec("Arguments")
Numbers = npt.NDArray[np.int64]

# Rows handed to a step at once; a step that makes Python objects of rows has those of one batch at a time.
BATCH_ROWS = 25_000
# Parts per forked process, so that none waits long for another at the end.
_PARTS_PER_CORE = 2
# Estimated bytes of a row without its strings.
_ROW_BYTES = 64
# Smallest parts. Grouped rows are more work than independent ones, so their bytes count twice.
_LEAST_BYTES, _GROUPED_WEIGHT = 1 << 21, 2
# Largest input of a step that is not worth another process. For half as many bytes, a step takes as long with it,
# because of the fork, and because then each process copies the memory that it writes to.
_MOST_ALONE_BYTES = 1 << 26
# Largest input of a step that is not worth another thread.
_MOST_IN_ONE_THREAD = 1 << 24
# Number of values up to which a column is compared with each of them; a lookup takes as long as four comparisons.
_FEW_VALUES = 3


class Dataset(ABC):
    """Rows of one schema, which are computed when they are collected, kept or saved."""

    schema: pa.Schema

    @abstractmethod
    def map(self, step: Step, schema: pa.Schema) -> Dataset:
        """Apply a step to the rows of each task, in their order."""

    def map_columns(self, step: Step, schema: pa.Schema) -> Dataset:
        """Do the same as `map` for a step that only computes columns from columns: it is not worth another process."""
        return self.map(step, schema)

    @abstractmethod
    def map_groups(self, keys: Sequence[str], order: Sequence[str], step: Step, schema: pa.Schema) -> Dataset:
        """Apply a step to rows that are grouped and sorted.

        Args:
            keys: Columns of the groups. All rows with equal keys are consecutive and in the same call of the step.
            order: Columns by which the rows of a group are sorted, nulls first.
            step: The step.
            schema: Schema of the rows that it returns.
        """

    @abstractmethod
    def map_in_order(self, order: Sequence[str], step: Step, schema: pa.Schema, task: str) -> Dataset:
        """Apply a step to all rows in one total order, cut into tasks.

        Args:
            order: Columns of the order, ascending.
            step: Called for each task with its consecutive rows.
            schema: Schema of the rows that the step returns.
            task: Name of an int32 column added to the result: the number of the task, ascending in the order.
        """

    @abstractmethod
    def map_numbered(
        self, order: Sequence[str], step: Callable[[int], Step], schema: pa.Schema, width: int, folder: str
    ) -> Dataset:
        """Apply a step to all rows in one total order, cut into few tasks.

        Args:
            order: Columns of the order, ascending.
            step: Returns the step of a task, given the number of rows before those of the task.
            schema: Schema of the rows that the step returns.
            width: Rows are in the same task if their values of the first column are in the same interval of this width.
            folder: Where Spark stores the rows until they are collected, kept or saved.
        """

    @abstractmethod
    def select(self, *names: str) -> Dataset:
        """Keep these columns, in this order."""

    @abstractmethod
    def rename(self, column: str, to: str) -> Dataset:
        """Give a column another name."""

    def where_in(self, column: str, values: Iterable[str | int], within: bool = True) -> Dataset:
        """Keep rows with these values in the column or, with `within=False`, all other rows."""
        wanted = pa.array(list(values), self.schema.field(column).type)
        if within:
            return self._where(column, partial(_is_any_of, wanted))
        return self._where(column, lambda found: pc.invert(_is_any_of(wanted, found)))

    def where_null(self, column: str, null: bool = True) -> Dataset:
        """Keep rows with null in the column or, with `null=False`, all other rows."""
        return self._where(column, pc.is_null if null else pc.is_valid)

    def where_below(self, column: str, value: int, below: bool = True) -> Dataset:
        """Keep rows with less than the value in the column or, with `below=False`, all other rows."""
        compare = pc.less if below else pc.greater_equal
        return self._where(column, lambda found: compare(found, value))

    @abstractmethod
    def _where(self, column: str, condition: Condition) -> Dataset:
        """Keep rows with a value in the column that meets the condition."""

    @abstractmethod
    def sql(self, text: str, schema: pa.Schema, **others: Dataset) -> Dataset:
        """Return the rows of a query over this and other datasets.

        Args:
            text: The query, in the SQL of `SqlDatabase`. `{rows}` is this dataset.
            schema: Names and types of the result's columns.
            others: Further datasets; the query refers to them by their names in braces.
        """

    @abstractmethod
    def union(self, *others: Dataset) -> Dataset:
        """Concatenate datasets; a missing column is null in the rows of its dataset."""

    def computed_if_small(self) -> Dataset:
        """Compute few rows in this process at once, if they are in memory, so that a union with others is, too."""
        return self

    @abstractmethod
    def keep(self, folder: str) -> Dataset:
        """Return a dataset of the same rows that computes them only once. Spark stores them as Parquet in `folder`."""

    @abstractmethod
    def collect(self) -> pa.Table:
        """Return all rows as an Arrow table."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def save(self, path: str, schema: pa.Schema, transaction: Transaction | None = None) -> None:
        """Append the rows to a Delta table. A new table gets the column comments of `schema`."""


class LocalDataset(Dataset):
    """Rows in this process: parts that are yet to be computed, or an Arrow table."""

    def __init__(
        self, schema: pa.Schema, parts: Sequence[Part], input_bytes: int | None = None, in_threads: bool = False
    ) -> None:
        """Create a dataset of parts.

        Args:
            schema: Schema of the rows.
            parts: The parts.
            input_bytes: Size of the rows from which the parts are computed, weighted by the work for them, if known.
            in_threads: Whether threads compute the parts, instead of processes.
        """
        self.schema = schema
        self._parts = list(parts)
        self._input_bytes = input_bytes
        self._in_threads = in_threads
        self._table: pa.Table | None = None

    @classmethod
    def of(cls, table: pa.Table) -> LocalDataset:
        """Wrap a table that is in memory."""
        dataset = cls(table.schema, ())
        dataset._table = table
        return dataset

    def map(self, step: Step, schema: pa.Schema) -> LocalDataset:
        step = without_garbage_collection(step)
        return self._with_parts(schema, [partial(_apply, step, part) for part in self._ungrouped_parts()])

    def map_columns(self, step: Step, schema: pa.Schema) -> LocalDataset:
        if self._table is None:
            return self.map(step, schema)
        batches = step(iter(self._table.to_batches(max_chunksize=BATCH_ROWS)))
        return LocalDataset.of(pa.Table.from_batches(batches, schema))

    def map_groups(self, keys: Sequence[str], order: Sequence[str], step: Step, schema: pa.Schema) -> LocalDataset:
        rows = self.collect()
        places = sorted_places(rows, [*keys, *order])
        parts = _cut(rows, places, keys)
        step = without_garbage_collection(step)
        return LocalDataset(schema, [partial(_apply, step, part) for part in parts], _GROUPED_WEIGHT * rows.nbytes)

    def map_in_order(self, order: Sequence[str], step: Step, schema: pa.Schema, task: str) -> LocalDataset:
        numbered = [apply_numbered(step, part, number, task) for number, (_, part) in enumerate(self.in_order(order))]
        return self._with_parts(schema.append(pa.field(task, pa.int32())), numbered)

    def map_numbered(
        self, order: Sequence[str], step: Callable[[int], Step], schema: pa.Schema, width: int, folder: str
    ) -> LocalDataset:
        parts = [
            partial(_apply, without_garbage_collection(step(first)), part)
            for first, part in self.in_order(order, width, in_threads=True)
        ]
        return self._computed_in_threads(schema, parts)

    def _computed_in_threads(self, schema: pa.Schema, parts: Sequence[Part]) -> LocalDataset:
        """Return the parts of `map_numbered`, whose steps are expected to spend most of their time in Arrow."""
        return LocalDataset(schema, parts, in_threads=True)

    def in_order(self, order: Sequence[str], width: int = 1, in_threads: bool = False) -> list[tuple[int, Part]]:
        """Return parts in the order of columns, each with the number of rows before it; see `map_numbered`.

        `in_threads` is whether threads compute them, instead of processes.
        """
        rows = self.collect()
        places = sorted_places(rows, order)
        borders = _borders(rows, places, (), in_threads)
        if width > 1 and len(borders) > 2:
            intervals = rows.column(order[0]).to_numpy()[places] // width
            ends = np.append(np.flatnonzero(np.diff(intervals)) + 1, rows.num_rows)
            borders = np.unique([0, *ends[np.searchsorted(ends, borders[1:])]]).tolist()
        return [(begin, partial(_rows_between, rows, places, begin, end)) for begin, end in pairwise(borders)]

    def select(self, *names: str) -> LocalDataset:
        schema = pa.schema([self.schema.field(name) for name in names])
        return self._derived(lambda batch: batch.select(list(names)), schema)

    def rename(self, column: str, to: str) -> LocalDataset:
        schema = renamed(self.schema, column, to)
        return self._derived(lambda batch: batch.rename_columns(schema.names), schema)

    def sql(self, text: str, schema: pa.Schema, **others: Dataset) -> LocalDataset:
        from purgatory_udf.backend.sql_database import query_rows

        named = {name: each.collect() for name, each in {"rows": self, **others}.items()}
        return LocalDataset.of(query_rows(text, named).cast(schema))

    def union(self, *others: Dataset) -> LocalDataset:
        schema = union_schema(self, others)
        datasets = [each for each in (self, *others) if isinstance(each, LocalDataset)]
        assert len(datasets) == 1 + len(others)
        tables = [with_schema(each._table, schema) for each in datasets if each._table is not None]
        if len(tables) == len(datasets):
            return LocalDataset.of(pa.concat_tables(tables))
        parts = [part for each in datasets for part in each.widened_parts(schema)]
        sizes = [each._size() for each in datasets]
        known = [size for size in sizes if size is not None]
        return LocalDataset(schema, parts, sum(known) if len(known) == len(sizes) else None)

    def computed_if_small(self) -> LocalDataset:
        if self._is_small():
            self.collect()
        return self

    def keep(self, folder: str) -> LocalDataset:
        return LocalDataset.of(self.collect())

    def collect(self) -> pa.Table:
        if self._table is None:
            if self._is_small():
                made = [list(part()) for part in self._parts]
            else:
                # The last part may be large: start it first, so that no process waits for it at the end.
                made = run_parallel(lambda part: part(), self._parts[::-1], self._in_threads)[::-1]
            self._table = pa.Table.from_batches([batch for part in made for batch in part], self.schema)
            self._parts = []
        return self._table

    def count(self) -> int:
        return self.collect().num_rows

    def readers(self) -> list[Part]:
        """Return functions that together read all rows, in their order: each reads a row, or a file of rows."""
        return [partial(list, [batch]) for batch in self.collect().to_batches(max_chunksize=1)]

    def save(self, path: str, schema: pa.Schema, transaction: Transaction | None = None) -> None:
        from purgatory_udf.backend.local_delta import LocalDelta

        LocalDelta().append(path, self.collect().select(schema.names).cast(schema), transaction)

    def _where(self, column: str, condition: Condition) -> LocalDataset:
        if self._table is None:
            return self._derived(partial(rows_where, column, condition), self.schema)
        mask, first = condition(self._table.column(column)), 0
        is_chosen = mask.fill_null(False).to_numpy()
        chosen: list[pa.RecordBatch] = []
        for batch in self._table.to_batches():
            of_batch = is_chosen[first : first + batch.num_rows]
            first += batch.num_rows
            if of_batch.all():
                chosen.append(batch)
            elif of_batch.any():
                chosen.append(batch.filter(pa.array(of_batch)))
        return LocalDataset.of(pa.Table.from_batches(chosen, self.schema))

    def _is_small(self) -> bool:
        """Return whether the parts are not worth another process."""
        return self._input_bytes is not None and self._input_bytes <= _MOST_ALONE_BYTES

    def _size(self) -> int | None:
        """Return the size of the rows, or of those from which they are computed, if known."""
        return self._input_bytes if self._table is None else self._table.nbytes

    def _derived(self, change: Callable[[Any], Any], schema: pa.Schema) -> LocalDataset:
        if self._table is not None:
            return LocalDataset.of(change(self._table))
        return self._with_parts(schema, [partial(_mapped, change, part) for part in self._parts])

    def widened_parts(self, schema: pa.Schema) -> list[Part]:
        """Return the parts with the columns of the schema; missing columns are null."""
        widen = partial(with_schema, schema=schema)
        return [partial(_mapped, widen, part) for part in self._ungrouped_parts()]

    def _with_parts(self, schema: pa.Schema, parts: Sequence[Part]) -> LocalDataset:
        return LocalDataset(schema, parts, self._size())

    def _ungrouped_parts(self) -> Sequence[Part]:
        return self._parts if self._table is None else _cut(self._table, None, ())


def without_garbage_collection(step: Callable[Arguments, Batches]) -> Callable[Arguments, Batches]:
    """Wrap a step so that it runs without garbage collection, which would take a third of the time and find nothing."""

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Batches:
        with no_garbage_collection():
            yield from step(*args, **kwargs)

    return run


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the `with` block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _apply(step: Step, part: Part) -> Batches:
    return step(iter(part()))


def apply_numbered(step: Step, part: Part, number: int, task: str) -> Part:
    """Return the part that `step` makes of a part, with the column `task` that has the part's number."""
    step = without_garbage_collection(step)

    def numbered() -> Batches:
        for batch in step(iter(part())):
            numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
            yield batch.append_column(pa.field(task, pa.int32()), numbers)

    return numbered


def _is_any_of(values: pa.Array, found: Any) -> Any:
    """Return a mask of the elements that are one of the values."""
    if found.null_count or not 0 < len(values) <= _FEW_VALUES:
        return pc.is_in(found, values)
    return reduce(pc.or_, (pc.equal(found, value) for value in values))


def rows_where(column: str, condition: Condition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch whose value in the column meets the condition."""
    mask = condition(batch.column(column))
    # Often all rows of a batch are wanted, or none, and then none is copied. A comparison with null is null.
    count = mask.true_count
    return batch if count == batch.num_rows else batch.filter(mask) if count else batch.slice(0, 0)


def read_stream(
    source: Any, names: Sequence[str], columns: Sequence[str], conditions: Sequence[tuple[str, Condition]] = ()
) -> Batches:
    """Read the rows of an Arrow stream that meet all conditions. Only needed columns are decompressed.

    Args:
        source: The stream, a file or a buffer.
        names: Its columns.
        columns: The wanted columns.
        conditions: Columns with conditions.
    """
    wanted = list(columns)
    needed = {*wanted, *(column for column, _ in conditions)}
    places = [place for place, name in enumerate(names) if name in needed]
    with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=places)) as reader:
        for batch in reader:
            for column, condition in conditions:
                batch = rows_where(column, condition, batch)
            yield batch if batch.schema.names == wanted else batch.select(wanted)


def _mapped(change: Callable[[Any], Any], part: Part) -> Batches:
    return map(change, part())


def renamed(schema: pa.Schema, column: str, to: str) -> pa.Schema:
    """Return a schema in which a column has another name."""
    return pa.schema([field.with_name(to) if field.name == column else field for field in schema])


def union_schema(first: Dataset, others: Sequence[Dataset]) -> pa.Schema:
    """Return the columns of the datasets, in the order in which they first appear."""
    fields = {field.name: field for each in (*others[::-1], first) for field in each.schema}
    names = dict.fromkeys(name for each in (first, *others) for name in each.schema.names)
    return pa.schema([fields[name] for name in names])


def with_schema(rows: Any, schema: pa.Schema) -> Any:
    """Return a table or batch with the columns of the schema; missing columns are null."""
    given = set(rows.schema.names)
    columns = [rows.column(field.name) if field.name in given else nulls(rows.num_rows, field.type) for field in schema]
    return type(rows).from_arrays(columns, schema=schema)


def sorted_places(rows: pa.Table, order: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the row numbers in ascending order of the columns, nulls first. Equal rows keep the order of the input."""
    columns = {}
    for name in order:
        column = rows.column(name)
        if column.null_count:
            columns[f"_valid_{name}"] = column.is_valid()
        columns[name] = column
    columns["_row"] = pa.array(np.arange(rows.num_rows))
    return pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns]).to_numpy()


def _cut(rows: pa.Table, places: npt.NDArray[np.uint64] | None, keys: Sequence[str]) -> list[Part]:
    """Cut rows into parts of about equal size for the machine's cores; rows of equal keys stay together.

    `places` is the order of the rows, None for that of the table. Each part is a function that returns its batches.
    """
    return [partial(_rows_between, rows, places, begin, end) for begin, end in pairwise(_borders(rows, places, keys))]


def _rows_between(rows: pa.Table, places: npt.NDArray[np.uint64] | None, begin: int, end: int) -> list[pa.RecordBatch]:
    part = rows.slice(begin, end - begin) if places is None else rows_at(rows, places[begin:end])
    return part.to_batches(max_chunksize=BATCH_ROWS)


def rows_at(rows: pa.Table, places: npt.NDArray[np.uint64]) -> pa.Table:
    """Return the rows of a table at these places, as `take` does, which first joins all chunks of nested columns."""
    batches = rows.to_batches()
    sizes = np.array([batch.num_rows for batch in batches], np.int64)
    number = np.searchsorted(np.cumsum(sizes), places, side="right")
    is_used = np.bincount(number, minlength=len(batches)) > 0
    if is_used.all():
        return rows.take(places)
    used = pa.Table.from_batches([batches[each] for each in np.flatnonzero(is_used).tolist()], rows.schema)
    return used.take(places.astype(np.int64) - np.cumsum(np.where(is_used, 0, sizes))[number])


def _borders(
    rows: pa.Table, places: npt.NDArray[np.uint64] | None, keys: Sequence[str], in_threads: bool = False
) -> list[int]:
    alone, per_core = (_MOST_IN_ONE_THREAD, 1) if in_threads else (_MOST_ALONE_BYTES, _PARTS_PER_CORE)
    most = _ROW_BYTES * rows.num_rows + rows.get_total_buffer_size()
    if most * (_GROUPED_WEIGHT if keys else 1) <= alone:
        return [0, rows.num_rows]
    sizes = np.full(rows.num_rows, _ROW_BYTES, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
        elif pa.types.is_nested(column.type) and rows.num_rows:
            sizes += column.nbytes // rows.num_rows
    ends = np.cumsum(sizes if places is None else sizes[places])
    work = int(ends[-1]) * (_GROUPED_WEIGHT if keys else 1) if len(ends) else 0
    count = min(per_core * cores(), work // _LEAST_BYTES)
    if work <= alone:
        return [0, rows.num_rows]
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
    if keys:
        # A cut moves to the borders before and after it: a large group becomes a separate part.
        group_starts = np.array([0, *np.flatnonzero(_key_changes(rows, places, keys)), rows.num_rows])
        after = np.searchsorted(group_starts, cuts, side="right")
        cuts = group_starts[np.concatenate([after - 1, after])]
    borders: list[int] = np.unique([0, *cuts, rows.num_rows]).tolist()
    return borders


def _key_changes(rows: pa.Table, places: npt.NDArray[np.uint64] | None, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with other keys than the row before, in the order of `places` (None: of the table)."""
    changes = np.zeros(rows.num_rows, bool)
    for name in keys:
        numbers = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        numbers = numbers if places is None else numbers[places]
        changes[1:] |= numbers[1:] != numbers[:-1]
    return changes


LEAST_INTEGER = -(2**63)


def integers(column: Any) -> Numbers:
    """Return a column of integers as an array, nulls as the least integer."""
    values: Numbers = column.cast(pa.int64()).fill_null(LEAST_INTEGER).to_numpy()
    return values


def numbers_of_ranges(column: str, borders: Numbers, table: pa.Table) -> Numbers:
    """Return the numbers of the ranges between borders in which the values of a column are."""
    return np.searchsorted(borders, integers(table.column(column)), side="right")


def numbers_of_groups(keys: Sequence[str], count: int, table: pa.Table) -> Numbers:
    """Return a number below `count` for each row; it is the same for rows with equal keys, and in all processes."""
    hashed = np.zeros(table.num_rows, np.uint64)
    for name in keys:
        encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        of_keys = np.array([crc32(repr(key).encode()) for key in encoded.dictionary.to_pylist()], np.uint64)
        hashed = hashed * np.uint64(31) + of_keys[encoded.indices.to_numpy()]
    return (hashed % np.uint64(count)).astype(np.int64)


# Length of the shared columns of nulls: most columns of most batches of an import are null.
_MANY = 1 << 17


@cache
def _many_nulls(type_: pa.DataType) -> pa.Array:
    zeros, types = _zeros(), pa.types
    if types.is_struct(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros], _MANY, children=[_many_nulls(each.type) for each in type_])
    if types.is_list(type_):
        items = pa.nulls(0, type_.value_type)
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros], _MANY, children=[items])
    if types.is_string(type_) or types.is_binary(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros, pa.py_buffer(b"")], _MANY)
    if types.is_primitive(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros], _MANY)
    return pa.nulls(_MANY, type_)


@cache
def _zeros() -> pa.Buffer:
    """Return memory for the values of `_MANY` nulls. While it is only read, the operating system keeps one page."""
    return pa.py_buffer(np.zeros(_MANY + 1, np.int64))


def nulls(count: int, type_: pa.DataType) -> pa.Array:
    """Return an array of nulls, in memory that all columns of nulls share."""
    return _many_nulls(type_)[:count] if count <= _MANY else pa.nulls(count, type_)

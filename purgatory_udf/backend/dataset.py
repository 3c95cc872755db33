"""Distributed rows, and the operations on them that imports consist of.

A step is a function from record batches to record batches. It is independent of its executor: `SparkDataset` calls
it in a task (`mapInArrow`), `LocalDataset` in one of a few forked processes. Columns that a step does not need are
dropped before it by `select`, and rows by `where_in` and `where_null`, so that they never cross into Python.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.delta_store import SparkDelta, Transaction, with_column_comments
from purgatory_udf.backend.process_pool import cores, run_parallel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]
Part = Callable[[], Iterable[pa.RecordBatch]]
# Returns for each value of a column whether its row is wanted; null means no.
Condition = Callable[[Any], Any]
Arguments = ParamSpec("Arguments")

# Rows handed to a step at once; a step that makes Python objects of rows has those of one batch at a time.
BATCH_ROWS = 10_000
# Parts per core, so that no process waits long for another at the end.
_PARTS_PER_CORE = 2
# Estimated bytes of a row without its strings.
_ROW_BYTES = 64
# Smallest parts. Grouped rows are more work than independent ones, so their bytes count several times.
_LEAST_BYTES, _GROUPED_WEIGHT = 1 << 21, 4
# Largest input of a step that is not worth another process. Steps take about 200 ms for this many bytes; a fork takes
# 20 to 50 ms, and then each process copies the memory that it writes to.
_MOST_ALONE_BYTES = 1 << 24


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
    def select(self, *names: str) -> Dataset:
        """Keep these columns, in this order."""

    @abstractmethod
    def rename(self, column: str, to: str) -> Dataset:
        """Give a column another name."""

    @abstractmethod
    def where_in(self, column: str, values: Iterable[str | int]) -> Dataset:
        """Keep rows with these values in the column."""

    @abstractmethod
    def where_null(self, column: str, null: bool = True) -> Dataset:
        """Keep rows with null in the column or, with `null=False`, all other rows."""

    @abstractmethod
    def where_below(self, column: str, value: int, below: bool = True) -> Dataset:
        """Keep rows with less than the value in the column or, with `below=False`, all other rows."""

    @abstractmethod
    def sql(self, text: str, schema: pa.Schema, *, joined_on: Sequence[str] = (), **others: Dataset) -> Dataset:
        """Return the rows of a query over this and other datasets.

        Args:
            text: The query, in the SQL of `SqlDatabase`. `{rows}` is this dataset.
            schema: Names and types of the result's columns.
            joined_on: Columns of integers that all datasets have. If they are given, each row of the result depends
                only on rows with the same values in them, so that spilled rows can be joined part by part.
            others: Further datasets; the query refers to them by their names in braces.
        """

    @abstractmethod
    def union(self, *others: Dataset) -> Dataset:
        """Concatenate datasets; a missing column is null in the rows of its dataset."""

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
    """Rows in this process: parts that forked processes have yet to compute, or an Arrow table."""

    def __init__(self, schema: pa.Schema, parts: Sequence[Part], input_bytes: int | None = None) -> None:
        """Create a dataset of parts.

        Args:
            schema: Schema of the rows.
            parts: The parts.
            input_bytes: Size of the rows from which the parts are computed, weighted by the work for them, if known.
        """
        self.schema = schema
        self._parts = list(parts)
        self._input_bytes = input_bytes
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
        self, order: Sequence[str], step: Callable[[int], Step], schema: pa.Schema, width: int
    ) -> LocalDataset:
        """Apply a step to all rows in one total order, cut into few tasks.

        Args:
            order: Columns of the order, ascending.
            step: Returns the step of a task, given the number of rows before those of the task.
            schema: Schema of the rows that the step returns.
            width: Rows are in the same task if their values of the first column are in the same interval of this width.
        """
        parts = [
            partial(_apply, without_garbage_collection(step(first)), part)
            for first, part in self.in_order(order, width, 1)
        ]
        return self._with_parts(schema, parts)

    def in_order(self, order: Sequence[str], width: int = 1, per_core: int = _PARTS_PER_CORE) -> list[tuple[int, Part]]:
        """Return parts in the order of columns, each with the number of rows before it; see `map_numbered`."""
        rows = self.collect()
        places = sorted_places(rows, order)
        borders = _borders(rows, places, (), per_core)
        if width > 1 and len(borders) > 2:
            intervals = rows.column(order[0]).to_numpy()[places] // width
            ends = np.append(np.flatnonzero(np.diff(intervals)) + 1, rows.num_rows)
            borders = np.unique([0, *ends[np.searchsorted(ends, borders[1:])]]).tolist()
        return [(begin, partial(_rows_between, rows, places, begin, end)) for begin, end in pairwise(borders)]

    def select(self, *names: str) -> LocalDataset:
        schema = pa.schema([self.schema.field(name) for name in names])
        return self._derived(lambda batch: batch.select(list(names)), schema)

    def rename(self, column: str, to: str) -> LocalDataset:
        schema = _renamed(self.schema, column, to)
        return self._derived(lambda batch: batch.rename_columns(schema.names), schema)

    def where_in(self, column: str, values: Iterable[str | int]) -> LocalDataset:
        wanted = pa.array(list(values), self.schema.field(column).type)
        return self._where(column, lambda found: pc.is_in(found, wanted))

    def where_null(self, column: str, null: bool = True) -> LocalDataset:
        keep = pc.is_null if null else pc.is_valid
        return self._where(column, keep)

    def where_below(self, column: str, value: int, below: bool = True) -> LocalDataset:
        compare = pc.less if below else pc.greater_equal
        return self._where(column, lambda found: compare(found, value))

    def sql(self, text: str, schema: pa.Schema, *, joined_on: Sequence[str] = (), **others: Dataset) -> LocalDataset:
        from purgatory_udf.backend.sql_database import query_rows

        named = {name: each.collect() for name, each in {"rows": self, **others}.items()}
        return LocalDataset.of(query_rows(text, named).cast(schema))

    def union(self, *others: Dataset) -> LocalDataset:
        schema = union_schema(self, others)
        tables: list[pa.Table] = []
        parts: list[Part] = []
        sizes: list[int | None] = []
        for each in (self, *others):
            assert isinstance(each, LocalDataset)
            if each._table is not None:
                tables.append(_with_schema(each._table, schema))
            parts += each.widened_parts(schema)
            sizes.append(each._size())
        if len(tables) == 1 + len(others):
            return LocalDataset.of(pa.concat_tables(tables))
        known = [size for size in sizes if size is not None]
        return LocalDataset(schema, parts, sum(known) if len(known) == len(sizes) else None)

    def keep(self, folder: str) -> LocalDataset:
        return LocalDataset.of(self.collect())

    def collect(self) -> pa.Table:
        if self._table is None:
            if self._input_bytes is not None and self._input_bytes <= _MOST_ALONE_BYTES:
                made = [list(part()) for part in self._parts]
            else:
                # The last part may be large: start it first, so that no process waits for it at the end.
                made = run_parallel(lambda part: part(), self._parts[::-1])[::-1]
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
        chosen = (rows_where(column, condition, batch) for batch in self._table.to_batches())
        return LocalDataset.of(pa.Table.from_batches([batch for batch in chosen if batch.num_rows], self.schema))

    def _size(self) -> int | None:
        """Return the size of the rows, or of those from which they are computed, if known."""
        return self._input_bytes if self._table is None else self._table.nbytes

    def _derived(self, change: Callable[[Any], Any], schema: pa.Schema) -> LocalDataset:
        if self._table is not None:
            return LocalDataset.of(change(self._table))
        return self._with_parts(schema, [partial(_mapped, change, part) for part in self._parts])

    def widened_parts(self, schema: pa.Schema) -> list[Part]:
        """Return the parts with the columns of the schema; missing columns are null."""
        widen = partial(_with_schema, schema=schema)
        return [partial(_mapped, widen, part) for part in self._ungrouped_parts()]

    def _with_parts(self, schema: pa.Schema, parts: Sequence[Part]) -> LocalDataset:
        return LocalDataset(schema, parts, self._size())

    def _ungrouped_parts(self) -> Sequence[Part]:
        return self._parts if self._table is None else _cut(self._table, None, ())


class SparkDataset(Dataset):
    """Rows of a Spark DataFrame."""

    def __init__(self, frame: DataFrame, schema: pa.Schema) -> None:
        self._frame = frame
        self.schema = schema

    @property
    def frame(self) -> DataFrame:
        """The rows."""
        return self._frame

    def map(self, step: Step, schema: pa.Schema) -> SparkDataset:
        from pyspark.sql.pandas.types import from_arrow_schema

        made = self.frame.mapInArrow(without_garbage_collection(step), from_arrow_schema(schema))
        return SparkDataset(made, schema)

    def map_groups(self, keys: Sequence[str], order: Sequence[str], step: Step, schema: pa.Schema) -> SparkDataset:
        from pyspark.sql import functions as sf

        columns = [sf.col(name).asc_nulls_first() for name in (*keys, *order)]
        return SparkDataset(self.frame.repartition(*keys).sortWithinPartitions(*columns), self.schema).map(step, schema)

    def map_in_order(self, order: Sequence[str], step: Step, schema: pa.Schema, task: str) -> PackedDataset:
        from pyspark.sql.pandas.types import from_arrow_schema

        ordered = self.frame.repartitionByRange(*order).sortWithinPartitions(*order)
        packed = ordered.mapInArrow(
            without_garbage_collection(partial(_packed, step=step, task=task, column=order[0])),
            from_arrow_schema(_PACKED),
        )
        return PackedDataset(packed, schema.append(pa.field(task, pa.int32())))

    def select(self, *names: str) -> SparkDataset:
        return SparkDataset(self.frame.select(*names), pa.schema([self.schema.field(name) for name in names]))

    def rename(self, column: str, to: str) -> SparkDataset:
        return SparkDataset(self.frame.withColumnRenamed(column, to), _renamed(self.schema, column, to))

    def where_in(self, column: str, values: Iterable[str | int]) -> SparkDataset:
        from pyspark.sql import functions as sf

        return SparkDataset(self.frame.where(sf.col(column).isin(*values)), self.schema)

    def where_null(self, column: str, null: bool = True) -> SparkDataset:
        from pyspark.sql import functions as sf

        wanted = sf.col(column).isNull() if null else sf.col(column).isNotNull()
        return SparkDataset(self.frame.where(wanted), self.schema)

    def where_below(self, column: str, value: int, below: bool = True) -> SparkDataset:
        from pyspark.sql import functions as sf

        compared = sf.col(column) < value if below else sf.col(column) >= value
        return SparkDataset(self.frame.where(compared), self.schema)

    def sql(self, text: str, schema: pa.Schema, *, joined_on: Sequence[str] = (), **others: Dataset) -> SparkDataset:
        from pyspark.sql.pandas.types import from_arrow_schema

        frames = {"rows": self.frame}
        for name, each in others.items():
            assert isinstance(each, SparkDataset)
            frames[name] = each.frame
        rows = self.frame.sparkSession.sql(text, None, **frames)
        typed = from_arrow_schema(schema)
        return SparkDataset(rows.select(*(rows[field.name].cast(field.dataType) for field in typed.fields)), schema)

    def union(self, *others: Dataset) -> SparkDataset:
        frames = [self.frame]
        for each in others:
            assert isinstance(each, SparkDataset)
            frames.append(each.frame)
        united = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
        return SparkDataset(united, union_schema(self, others))

    def keep(self, folder: str) -> SparkDataset:
        self.frame.write.mode("overwrite").parquet(folder)
        return SparkDataset(self.frame.sparkSession.read.schema(self.frame.schema).parquet(folder), self.schema)

    def collect(self) -> pa.Table:
        return self.frame.toArrow().cast(self.schema)

    def count(self) -> int:
        return self.frame.count()

    def save(self, path: str, schema: pa.Schema, transaction: Transaction | None = None) -> None:
        rows = with_column_comments(self.frame.select(*schema.names), schema)
        SparkDelta(self.frame.sparkSession).append_frame(path, rows, transaction)


class PackedDataset(SparkDataset):
    """Rows of Spark in a total order, in chunks that each are a value of a DataFrame.

    The JVM reads, shuffles and writes chunks instead of rows, which saves most of the time for rows with nested
    columns. A chunk is unpacked by the Python worker that applies the next step, with only the columns that are needed.
    """

    def __init__(self, packed: DataFrame, schema: pa.Schema, changes: Sequence[Step] = ()) -> None:
        """Create a dataset.

        Args:
            packed: Rows of `_PACKED`.
            schema: Schema of the rows after the changes.
            changes: Steps that are applied to the rows of a chunk when it is unpacked.
        """
        super().__init__(packed, schema)
        self._changes = tuple(changes)

    @property
    def frame(self) -> DataFrame:
        """The unpacked rows."""
        return self._unpacked(self._frame)

    def map(self, step: Step, schema: pa.Schema) -> PackedDataset:
        return PackedDataset(self._frame, schema, (*self._changes, step))

    def select(self, *names: str) -> PackedDataset:
        schema = pa.schema([self.schema.field(name) for name in names])
        return self.map(partial(map, lambda batch: batch.select(list(names))), schema)

    def rename(self, column: str, to: str) -> PackedDataset:
        schema = _renamed(self.schema, column, to)
        return self.map(partial(map, lambda batch: batch.rename_columns(schema.names)), schema)

    def where_in(self, column: str, values: Iterable[str | int]) -> PackedDataset:
        wanted = pa.array(list(values), self.schema.field(column).type)
        return self._where(column, lambda found: pc.is_in(found, wanted))

    def where_null(self, column: str, null: bool = True) -> PackedDataset:
        return self._where(column, pc.is_null if null else pc.is_valid)

    def where_below(self, column: str, value: int, below: bool = True) -> PackedDataset:
        compare = pc.less if below else pc.greater_equal
        return self._where(column, lambda found: compare(found, value))

    def _where(self, column: str, condition: Condition) -> PackedDataset:
        return self.map(partial(map, partial(rows_where, column, condition)), self.schema)

    def keep(self, folder: str) -> SparkDataset:
        if self._changes:
            return super().keep(folder)
        self._frame.write.mode("overwrite").parquet(folder)
        stored = self._frame.sparkSession.read.schema(self._frame.schema).parquet(folder)
        return PackedDataset(stored, self.schema)

    def partition_by_count(self, rows: int) -> DataFrame:
        """Return the rows in partitions of about this many rows, in their total order.

        The number of rows before the changes counts. No millisecond is divided between two partitions. The rows must
        have been kept: computed again, they may be cut into other chunks.
        """
        from pyspark.sql import functions as sf

        chunks = self._frame.drop("chunk").toArrow().sort_by([("task", "ascending"), ("number", "ascending")])
        sizes, firsts, lasts = (chunks.column(name).to_pylist() for name in ("rows", "first", "last"))
        partitions = partitions_of_chunks(sizes, firsts, lasts, rows)
        places = pa.table(
            {
                "task": chunks.column("task"),
                "number": chunks.column("number"),
                "partition": pa.array(partitions, pa.int32()),
            }
        )
        count = partitions[-1] + 1 if partitions else 1
        placed = sf.broadcast(self._frame.sparkSession.createDataFrame(places))
        joined = self._frame.join(placed, ["task", "number"]).repartitionById(count, "partition")
        return self._unpacked(joined.sortWithinPartitions("task", "number"))

    def _unpacked(self, packed: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        step = without_garbage_collection(partial(_unpack, changes=self._changes))
        return packed.select("chunk").mapInArrow(step, from_arrow_schema(self.schema))


# A chunk of consecutive rows: the number of its task, its own number within the task, the number of rows, the first and
# the last value of the column by which rows are ordered first, and the rows as a stream of Arrow.
_PACKED = pa.schema(
    [
        ("task", pa.int32()),
        ("number", pa.int64()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("chunk", pa.binary()),
    ]
)
# Rows of a chunk: few, as partitions of about a given size consist of whole chunks.
_CHUNK_ROWS = 2_000
# Rows with the same value of the first column of the order, divided by this, are in one chunk: those of a millisecond.
_UNIT = 1_000


def _packed(batches: Batches, step: Step, task: str, column: str) -> Batches:
    """Yield the rows that a step makes of a task's rows, with the task's number in the column `task`, as chunks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = context.partitionId()
    for place, rows in enumerate(_chunks(step(batches), column)):
        numbered = rows.append_column(pa.field(task, pa.int32()), pa.repeat(pa.scalar(number, pa.int32()), len(rows)))
        values = rows.column(column)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, numbered.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(numbered)
        row = (number, place, len(rows), values[0].as_py(), values[-1].as_py(), sink.getvalue().to_pybytes())
        columns = [pa.array([value], field.type) for value, field in zip(row, _PACKED, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def _chunks(batches: Batches, column: str) -> Iterator[pa.Table]:
    """Cut consecutive rows into chunks. Only the last one may end within a millisecond of the column."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count < _CHUNK_ROWS:
            continue
        rows = pa.Table.from_batches(held).combine_chunks()
        units = rows.column(column).to_numpy() // _UNIT
        borders = np.flatnonzero(units[1:] != units[:-1]) + 1
        begin = 0
        while len(rows) - begin >= _CHUNK_ROWS:
            at = int(np.searchsorted(borders, begin + _CHUNK_ROWS))
            if at == len(borders):
                break
            yield rows.slice(begin, int(borders[at]) - begin)
            begin = int(borders[at])
        held = rows.slice(begin).to_batches()
        count = len(rows) - begin
    if count:
        yield pa.Table.from_batches(held).combine_chunks()


def _unpack(batches: Batches, changes: Sequence[Step]) -> Batches:
    """Yield the rows of chunks, after all changes."""
    streams = (pa.ipc.open_stream(chunk.as_buffer()) for each in batches for chunk in each.column("chunk"))
    rows = (batch for stream in streams for batch in stream)
    return reduce(lambda made, change: change(made), changes, rows)


def partitions_of_chunks(sizes: Sequence[int], firsts: Sequence[int], lasts: Sequence[int], rows: int) -> list[int]:
    """Return the number of the partition of each chunk, given the chunks' sizes and their first and last values."""
    partitions: list[int] = []
    partition = filled = 0
    for place, (size, first) in enumerate(zip(sizes, firsts, strict=True)):
        if filled >= rows and first // _UNIT > lasts[place - 1] // _UNIT:
            partition, filled = partition + 1, 0
        partitions.append(partition)
        filled += size
    return partitions


def without_garbage_collection(step: Callable[Arguments, Batches]) -> Callable[Arguments, Batches]:
    """Wrap a step so that it runs without garbage collection, which would take a third of the time and find nothing."""

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Batches:
        gc.disable()
        try:
            yield from step(*args, **kwargs)
        finally:
            gc.enable()

    return run


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


def rows_where(column: str, condition: Condition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch whose value in the column meets the condition."""
    mask = condition(batch.column(column))
    # Often all rows of a batch are wanted, or none, and then none is copied. A comparison with null is null.
    if mask.null_count == 0 and pc.all(mask).as_py():
        return batch
    return batch.filter(mask) if pc.any(mask).as_py() else batch.slice(0, 0)


def _mapped(change: Callable[[Any], Any], part: Part) -> Batches:
    return map(change, part())


def _renamed(schema: pa.Schema, column: str, to: str) -> pa.Schema:
    return pa.schema([field.with_name(to) if field.name == column else field for field in schema])


def union_schema(first: Dataset, others: Sequence[Dataset]) -> pa.Schema:
    """Return the columns of the datasets, in the order in which they first appear."""
    fields = {field.name: field for each in (*others[::-1], first) for field in each.schema}
    names = dict.fromkeys(name for each in (first, *others) for name in each.schema.names)
    return pa.schema([fields[name] for name in names])


def _with_schema(rows: Any, schema: pa.Schema) -> Any:
    """Return a table or batch with the columns of the schema; missing columns are null."""
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
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
    part = rows.slice(begin, end - begin) if places is None else rows.take(places[begin:end])
    return part.to_batches(max_chunksize=BATCH_ROWS)


def _borders(
    rows: pa.Table, places: npt.NDArray[np.uint64] | None, keys: Sequence[str], per_core: int = _PARTS_PER_CORE
) -> list[int]:
    most = _ROW_BYTES * rows.num_rows + rows.get_total_buffer_size()
    if most * (_GROUPED_WEIGHT if keys else 1) <= _MOST_ALONE_BYTES:
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
    if work <= _MOST_ALONE_BYTES:
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

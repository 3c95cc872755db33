"""Rows of Spark: the `Dataset` of inputs of any size on any file system.

Rows that steps make pass through the JVM in chunks. A chunk is one value, an Arrow stream of many rows, so the JVM
reads, shuffles and writes few values. Converting rows with nested columns one by one would cost it most of the time.
Python workers unpack chunks, with only the columns that the next step needs. Queries and Delta tables need rows, and
only they unpack all.

    keep            step ─► chunks ─► Parquet ─► chunks ─► next step
    map_groups      step ─► a chunk per bucket of keys ─► shuffle ─► a bucket's rows, sorted ─► next step
    map_in_order    the same with ranges of the first column as buckets, and so map_numbered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from purgatory_udf.backend.dataset import (
    BATCH_ROWS,
    Batches,
    Condition,
    Dataset,
    Numbers,
    Step,
    integers,
    numbers_of_groups,
    numbers_of_ranges,
    read_stream,
    renamed,
    rows_where,
    sorted_places,
    union_schema,
    with_schema,
    without_garbage_collection,
)
from purgatory_udf.backend.delta_store import SparkDelta, Transaction, with_column_comments
from purgatory_udf.backend.spark_workers import freeze_in_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# A chunk of consecutive rows: the number of its task, its own number within the task, the number of rows, and the rows
# as a stream of Arrow. If the rows are in a total order, also the first and the last value of the column by which they
# are ordered first.
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
# A chunk of rows of one bucket, from a task.
_IN_BUCKETS = pa.schema(
    [("bucket", pa.int32()), ("task", pa.int32()), ("number", pa.int64()), ("rows", pa.int64()), ("chunk", pa.binary())]
)
_SAMPLED = pa.schema([("rows", pa.int64()), ("values", pa.list_(pa.int64()))])
_COUNTED = pa.schema([("rows", pa.int64())])
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")

# Bytes of rows, and their number, from which a chunk is complete. Rows that are distributed to buckets are collected
# first, because a chunk has fixed costs.
_CHUNK_BYTES, _CHUNK_ROWS, _DISTRIBUTED_BYTES = 2 << 20, 10_000, 8 << 20
# Buckets of groups. A task sorts one bucket after the other in memory.
_BUCKETS = 256
# Rows of a range, which a task sorts in memory. The borders of ranges are found by a value of every 64th row.
_RANGE_ROWS, _SAMPLE_EVERY = 100_000, 64
# Rows of a chunk of ordered rows: few, as partitions of about a given size consist of whole chunks.
_ORDERED_CHUNK_ROWS = 2_000
# Rows with the same value of the first column of the order, divided by this, are in one chunk: those of a millisecond.
_UNIT = 1_000


class Branch(NamedTuple):
    """The result of a step that reads a DataFrame; without a step, the rows of the DataFrame."""

    frame: DataFrame
    step: Step | None = None


@dataclass(frozen=True)
class Unpack:
    """The step that unpacks chunks. Only needed columns are decompressed.

    Attributes:
        stored: Names of the columns of a chunk.
        columns: Name in the chunk of each wanted column, and its name and type in the result.
        schema: Schema of the result. Columns that are not in `columns` are null.
        conditions: Columns of the chunk with conditions; rows have to meet every condition.
    """

    stored: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    schema: pa.Schema
    conditions: tuple[tuple[str, Condition], ...] = ()

    @classmethod
    def all_of(cls, schema: pa.Schema) -> Unpack:
        """Return the step that unpacks all columns."""
        return cls(tuple(schema.names), tuple((name, name) for name in schema.names), schema)

    def __call__(self, batches: Batches) -> Batches:
        stored, shown = [each for each, _ in self.columns], [name for _, name in self.columns]
        for batch in batches:
            for chunk in batch.column("chunk"):
                for rows in read_stream(chunk.as_buffer(), self.stored, stored, self.conditions):
                    yield with_schema(rows.rename_columns(shown), self.schema)

    def select(self, names: Sequence[str]) -> Unpack:
        """Return the step for these columns only."""
        columns = tuple(each for each in self.columns if each[1] in names)
        return replace(self, columns=columns, schema=pa.schema([self.schema.field(name) for name in names]))

    def rename(self, column: str, to: str) -> Unpack:
        """Return the step that gives a column another name."""
        columns = tuple((stored, to if name == column else name) for stored, name in self.columns)
        return replace(self, columns=columns, schema=renamed(self.schema, column, to))

    def widen(self, schema: pa.Schema) -> Unpack:
        """Return the step that adds the missing columns of a schema."""
        return replace(self, schema=schema)

    def where(self, column: str, condition: Condition) -> Unpack | None:
        """Return the step for rows that meet a condition; None if the column is not stored."""
        stored = {name: each for each, name in self.columns}.get(column)
        return replace(self, conditions=(*self.conditions, (stored, condition))) if stored is not None else None


class SparkDataset(Dataset):
    """Rows of Spark DataFrames, after steps that Python workers apply to them."""

    def __init__(self, branches: Sequence[Branch], schema: pa.Schema) -> None:
        """Create a dataset of the rows of `branches`."""
        self._branches = tuple(branches)
        self.schema = schema

    @classmethod
    def of(cls, frame: DataFrame, schema: pa.Schema) -> SparkDataset:
        """Wrap the rows of a DataFrame."""
        return SparkDataset([Branch(frame)], schema)

    @property
    def frame(self) -> DataFrame:
        """The rows."""
        return _united(
            branch.frame if branch.step is None else _in_python(branch, self.schema) for branch in self._branches
        )

    def map(self, step: Step, schema: pa.Schema) -> SparkDataset:
        return self._with((self._then(branch, step) for branch in self._branches), schema)

    def map_groups(self, keys: Sequence[str], order: Sequence[str], step: Step, schema: pa.Schema) -> SparkDataset:
        in_buckets = self._in_buckets(partial(numbers_of_groups, keys, _BUCKETS))
        spark = in_buckets.sparkSession
        cores, usual = spark.sparkContext.defaultParallelism, int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        # Spark merges small partitions only if their number is not given.
        shuffled = in_buckets.repartition("bucket") if usual >= cores else in_buckets.repartition(cores, "bucket")
        # Many buckets may be in a task, and all their groups are in the same call of the step.
        return SparkDataset([self._sorted(shuffled, [*keys, *order])], self.schema).map(step, schema)

    def map_in_order(self, order: Sequence[str], step: Step, schema: pa.Schema, task: str) -> OrderedDataset:
        borders = self._borders(order[0])
        in_ranges = self._in_buckets(partial(numbers_of_ranges, order[0], borders))
        ordered = self._sorted(in_ranges.repartitionById(len(borders) + 1, "bucket"), order)
        pack = partial(_packed_in_order, step=step, task=task, column=order[0])
        packed = _in_python(self._then(ordered, pack), _PACKED)
        numbered = schema.append(pa.field(task, pa.int32()))
        return OrderedDataset(packed, Unpack.all_of(numbered), numbered)

    def map_numbered(
        self, order: Sequence[str], step: Callable[[int], Step], schema: pa.Schema, width: int, folder: str
    ) -> SparkDataset:
        borders = np.unique(self._borders(order[0]) // width * width)
        in_ranges = _stored(self._in_buckets(partial(numbers_of_ranges, order[0], borders)), folder)
        counted = in_ranges.groupBy("bucket").sum("rows").toArrow()
        sizes = np.zeros(len(borders) + 1, np.int64)
        sizes[counted.column(0).to_numpy()] = counted.column(1).to_numpy()
        firsts = [0, *np.cumsum(sizes).tolist()]
        ordered = self._sorted(in_ranges.repartitionById(len(sizes), "bucket"), order, lambda of: step(firsts[of]))
        return SparkDataset([ordered], schema)

    def select(self, *names: str) -> SparkDataset:
        schema = pa.schema([self.schema.field(name) for name in names])

        def change(branch: Branch) -> Branch:
            if branch.step is None:
                return Branch(branch.frame.select(*names))
            if isinstance(branch.step, Unpack):
                return branch._replace(step=branch.step.select(names))
            return self._then(branch, partial(map, lambda batch: batch.select(list(names))))

        return self._with(map(change, self._branches), schema)

    def rename(self, column: str, to: str) -> SparkDataset:
        schema = renamed(self.schema, column, to)

        def change(branch: Branch) -> Branch:
            if branch.step is None:
                return Branch(branch.frame.withColumnRenamed(column, to))
            if isinstance(branch.step, Unpack):
                return branch._replace(step=branch.step.rename(column, to))
            return self._then(branch, partial(map, lambda batch: batch.rename_columns(schema.names)))

        return self._with(map(change, self._branches), schema)

    def _where(self, column: str, condition: Condition) -> SparkDataset:
        def change(branch: Branch) -> Branch:
            if isinstance(branch.step, Unpack) and (step := branch.step.where(column, condition)) is not None:
                return branch._replace(step=step)
            return self._then(branch, partial(map, partial(rows_where, column, condition)))

        return self._with(map(change, self._branches), self.schema)

    def sql(self, text: str, schema: pa.Schema, **others: Dataset) -> SparkDataset:
        from pyspark.sql.pandas.types import from_arrow_schema

        frames = {"rows": self.frame}
        for name, each in others.items():
            assert isinstance(each, SparkDataset)
            frames[name] = each.frame
        rows = frames["rows"].sparkSession.sql(text, None, **frames)
        typed = from_arrow_schema(schema)
        return SparkDataset.of(rows.select(*(rows[field.name].cast(field.dataType) for field in typed.fields)), schema)

    def union(self, *others: Dataset) -> SparkDataset:
        schema = union_schema(self, others)
        branches: list[Branch] = []
        for each in (self, *others):
            assert isinstance(each, SparkDataset)
            branches += each._widened(schema)
        return SparkDataset(branches, schema)

    def keep(self, folder: str) -> SparkDataset:
        stored = _stored(self._packed(), folder).select("chunk")
        return SparkDataset([Branch(stored, Unpack.all_of(self.schema))], self.schema)

    def collect(self) -> pa.Table:
        if self._has_no_steps:
            return self.frame.toArrow().cast(self.schema)
        chunks = self._packed().select("chunk").toArrow().to_batches()
        return pa.Table.from_batches(Unpack.all_of(self.schema)(iter(chunks)), self.schema)

    def count(self) -> int:
        if self._has_no_steps:
            return self.frame.count()
        counted = self.map(partial(map, _rows_counted), _COUNTED)
        return sum(counted.collect().column("rows").to_pylist())

    def save(self, path: str, schema: pa.Schema, transaction: Transaction | None = None) -> None:
        frame = self.frame
        rows = with_column_comments(frame.select(*schema.names), schema)
        SparkDelta(frame.sparkSession).append_frame(path, rows, transaction)

    @property
    def _has_no_steps(self) -> bool:
        return all(branch.step is None for branch in self._branches)

    def _with(self, branches: Iterable[Branch], schema: pa.Schema) -> SparkDataset:
        """Return a dataset of this kind with changed steps."""
        return SparkDataset([*branches], schema)

    def _then(self, branch: Branch, step: Step) -> Branch:
        """Return the branch with a further step, which gets rows with the types of this dataset."""
        before = branch.step or partial(map, partial(_typed, schema=self.schema))
        return branch._replace(step=partial(_both, before, step))

    def _widened(self, schema: pa.Schema) -> Iterator[Branch]:
        """Yield the branches with the columns of the schema; missing columns are null."""
        for branch in self._branches:
            if isinstance(branch.step, Unpack):
                yield branch._replace(step=branch.step.widen(schema))
            else:
                yield self._then(branch, partial(map, partial(with_schema, schema=schema)))

    def _packed(self) -> DataFrame:
        """Return the rows in chunks."""
        return _united(_in_python(self._then(branch, _packed), _PACKED) for branch in self._branches)

    def _in_buckets(self, number: Callable[[pa.Table], Numbers]) -> DataFrame:
        """Return the rows in chunks that each belong to one bucket; `number` returns the bucket of each row."""
        step = partial(_distributed, number=number)
        return _united(_in_python(self._then(branch, step), _IN_BUCKETS) for branch in self._branches)

    def _sorted(
        self, in_buckets: DataFrame, order: Sequence[str], step: Callable[[int], Step] = lambda _: iter
    ) -> Branch:
        """Return the rows of buckets, each sorted, after the step for its number. No partition divides a bucket."""
        consecutive = in_buckets.sortWithinPartitions("bucket", "task", "number").select("bucket", "chunk")
        return Branch(consecutive, partial(_sorted_buckets, schema=self.schema, order=order, step=step))

    def _borders(self, column: str) -> Numbers:
        """Return borders of ranges of a column, which have about `_RANGE_ROWS` rows each."""
        sampled = self.select(column).map(partial(map, partial(_sample, column)), _SAMPLED).collect()
        rows = sum(sampled.column("rows").to_pylist())
        values = np.sort(sampled.column("values").combine_chunks().flatten().to_numpy())
        count = -(-rows // _RANGE_ROWS)
        return np.unique(values[np.arange(1, count) * len(values) // max(1, count)])


class OrderedDataset(SparkDataset):
    """Rows in a total order. Each step is applied to a chunk of them."""

    def __init__(self, packed: DataFrame, step: Step, schema: pa.Schema) -> None:
        """Create a dataset of the rows that a step reads from chunks (`_PACKED`)."""
        super().__init__([Branch(packed.select("chunk"), step)], schema)
        self._chunks = packed

    def _with(self, branches: Iterable[Branch], schema: pa.Schema) -> SparkDataset:
        (branch,) = branches
        assert branch.step is not None
        return OrderedDataset(self._chunks, branch.step, schema)

    def keep(self, folder: str) -> SparkDataset:
        unpack = Unpack.all_of(self.schema)
        if self._branches[0].step != unpack:
            return super().keep(folder)
        return OrderedDataset(_stored(self._chunks, folder), unpack, self.schema)

    def partition_by_count(self, rows: int) -> DataFrame:
        """Return the rows in partitions of about this many rows, in their total order.

        The number of rows before the changes counts. No millisecond is divided between two partitions. The rows must
        have been kept: computed again, they may be cut into other chunks.
        """
        from pyspark.sql import functions as sf

        chunks = self._chunks.drop("chunk").toArrow().sort_by([("task", "ascending"), ("number", "ascending")])
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
        placed = sf.broadcast(self._chunks.sparkSession.createDataFrame(places))
        joined = self._chunks.join(placed, ["task", "number"]).repartitionById(count, "partition")
        in_order = joined.sortWithinPartitions("task", "number").select("chunk")
        return _in_python(Branch(in_order, self._branches[0].step), self.schema)


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


def _united(frames: Iterator[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionAll(right), frames)


def _in_python(branch: Branch, schema: pa.Schema) -> DataFrame:
    """Return the rows that Python workers make by the branch's step."""
    from pyspark.sql.pandas.types import from_arrow_schema

    assert branch.step is not None
    step = freeze_in_workers(without_garbage_collection(branch.step))
    return branch.frame.mapInArrow(step, from_arrow_schema(schema))


def _stored(chunks: DataFrame, folder: str) -> DataFrame:
    """Write chunks to a folder of Parquet files, and return them as stored."""
    # They are compressed already.
    chunks.write.mode("overwrite").option("compression", "none").parquet(folder)
    return parquet_rows(chunks.sparkSession, chunks.schema, folder)


def parquet_rows(spark: SparkSession, schema: StructType, folder: str) -> DataFrame:
    """Return the rows of a folder of Parquet files. Characters such as `[` in its path are no pattern."""
    return spark.read.option("__globPaths__", "false").schema(schema).parquet(folder)


def _both(first: Step, second: Step, batches: Batches) -> Batches:
    return second(first(batches))


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return batch if batch.schema == schema else batch.cast(schema)


def _rows_counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], schema=_COUNTED)


def _sample(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the number of rows of a batch, and some values of a column."""
    values = integers(batch.column(column))[::_SAMPLE_EVERY]
    return pa.RecordBatch.from_arrays(
        [pa.array([batch.num_rows]), pa.array([values], pa.list_(pa.int64()))], schema=_SAMPLED
    )


def _task() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _tables(batches: Batches, size: int, rows: int | None = None) -> Iterator[pa.Table]:
    """Yield rows in tables of at least `size` bytes or `rows` rows."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes, held_rows = held_bytes + batch.nbytes, held_rows + batch.num_rows
        if held_bytes >= size or (rows is not None and held_rows >= rows):
            yield pa.Table.from_batches(held)
            held, held_bytes, held_rows = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _chunk(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_IPC_OPTIONS) as stream:
        stream.write_table(table)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def _row(values: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _packed(batches: Batches) -> Batches:
    """Yield rows as chunks."""
    task = _task()
    for number, rows in enumerate(_tables(batches, _CHUNK_BYTES, _CHUNK_ROWS)):
        yield _row((task, number, len(rows), None, None, _chunk(rows.combine_chunks())), _PACKED)


def _distributed(batches: Batches, number: Callable[[pa.Table], Numbers]) -> Batches:
    """Yield rows as chunks of one bucket each; `number` returns the bucket of each row."""
    task, made = _task(), 0
    for table in _tables(batches, _DISTRIBUTED_BYTES):
        buckets = number(table)
        places = np.argsort(buckets, kind="stable")
        table, buckets = table.take(places).combine_chunks(), buckets[places]
        borders = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(buckets)]
        for begin, end in pairwise(borders):
            rows = table.slice(begin, end - begin)
            yield _row((buckets[begin], task, made, len(rows), _chunk(rows)), _IN_BUCKETS)
            made += 1


def _sorted_buckets(batches: Batches, schema: pa.Schema, order: Sequence[str], step: Callable[[int], Step]) -> Batches:
    """Yield the rows of consecutive buckets, each in ascending order, nulls first, after the step for its number."""
    unpack = Unpack.all_of(schema)
    chunks = (
        (bucket, batch.slice(place, 1))
        for batch in batches
        for place, bucket in enumerate(batch.column("bucket").to_pylist())
    )
    for bucket, of_bucket in groupby(chunks, key=lambda chunk: chunk[0]):
        table = pa.Table.from_batches(unpack(chunk for _, chunk in of_bucket), schema)
        places = sorted_places(table, order)
        starts = range(0, len(places), BATCH_ROWS)
        parts = (table.take(places[start : start + BATCH_ROWS]).combine_chunks().to_batches() for start in starts)
        yield from step(bucket)(chain.from_iterable(parts))


def _packed_in_order(batches: Batches, step: Step, task: str, column: str) -> Batches:
    """Apply a step to a task's rows, and yield its result with the task's number in the column `task`, as chunks."""
    number = _task()
    for place, rows in enumerate(_ordered_chunks(step(batches), column)):
        numbered = rows.append_column(pa.field(task, pa.int32()), pa.repeat(pa.scalar(number, pa.int32()), len(rows)))
        values = rows.column(column)
        yield _row((number, place, len(rows), values[0].as_py(), values[-1].as_py(), _chunk(numbered)), _PACKED)


def _ordered_chunks(batches: Batches, column: str) -> Iterator[pa.Table]:
    """Cut consecutive rows into chunks. Only the last one may end within a millisecond of the column."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count < _ORDERED_CHUNK_ROWS:
            continue
        rows = pa.Table.from_batches(held).combine_chunks()
        units = rows.column(column).to_numpy() // _UNIT
        borders = np.flatnonzero(units[1:] != units[:-1]) + 1
        begin = 0
        while len(rows) - begin >= _ORDERED_CHUNK_ROWS:
            at = int(np.searchsorted(borders, begin + _ORDERED_CHUNK_ROWS))
            if at == len(borders):
                break
            yield rows.slice(begin, int(borders[at]) - begin)
            begin = int(borders[at])
        held = rows.slice(begin).to_batches()
        count = len(rows) - begin
    if count:
        yield pa.Table.from_batches(held).combine_chunks()

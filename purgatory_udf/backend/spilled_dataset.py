"""Rows in files of a local folder: the `Dataset` of inputs that may be too large for the memory of this process.

Steps read their rows batch by batch from Arrow files, and write the rows that they make to other files. For a sort,
forked processes distribute the rows to buckets, and each bucket is sorted in memory when a step reads it. DuckDB sorts
the keys of larger buckets within `MEMORY`, and joins, and spills the rest. Joins whose results contain lists, which it
cannot spill, are made part by part. So a process needs memory only for a bucket of rows, for the number of each row in
the order of a large bucket, and for the objects that a step makes of one group.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import (
    BATCH_ROWS,
    LEAST_INTEGER,
    Condition,
    Dataset,
    LocalDataset,
    Numbers,
    Part,
    Step,
    integers,
    numbers_of_groups,
    numbers_of_ranges,
    read_stream,
    sorted_places,
    union_schema,
)
from purgatory_udf.backend.delta_store import Transaction
from purgatory_udf.backend.process_pool import release_free_memory, run_parallel
from purgatory_udf.common.local_files import require_local_path

if TYPE_CHECKING:
    from purgatory_udf.backend.sql_database import DuckDatabase

# Memory of DuckDB for a sort or a join.
MEMORY = "150MB"
# Bytes of rows in a file, which is a part of the next step, and in a batch.
_FILE_BYTES, _BATCH_BYTES = 16 << 20, 2 << 20
# Largest bucket that is sorted in memory.
_SORTED_BYTES = 32 << 20
# Tasks that distribute rows to buckets. Each of them writes a file for each bucket.
_TASKS = 8
# Values of a batch that determine the borders of ranges.
_SAMPLES = 200
# Each bucket needs an open file.
_MOST_BUCKETS = 256
_FILES = pa.schema([("path", pa.string()), ("size", pa.int64())])


@dataclass(frozen=True)
class Spill:
    """A folder for files of rows, and whether these are compressed.

    Compressed files take a third of the space or less. Others are read from the memory in which the operating system
    has them, if they have just been written.
    """

    folder: str
    is_compressed: bool = True

    @property
    def options(self) -> pa.ipc.IpcWriteOptions:
        """The options of a file that is written."""
        return pa.ipc.IpcWriteOptions(compression="lz4" if self.is_compressed else None)

    def new_folder(self, name: str) -> Path:
        """Create a folder in this one."""
        return _new_folder(f"{self.folder}/{name}")


class SpilledDataset(LocalDataset):
    """Rows in files, or parts that forked processes have yet to compute; `spill` is for the files of later steps."""

    def __init__(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        spill: Spill,
        input_bytes: int | None = None,
        in_threads: bool = False,
    ) -> None:
        super().__init__(schema, parts, input_bytes, in_threads)
        self._spill = spill

    def map_groups(self, keys: Sequence[str], order: Sequence[str], step: Step, schema: pa.Schema) -> LocalDataset:
        return self._sorted([*keys, *order], keys).map(step, schema)

    def in_order(self, order: Sequence[str], width: int = 1, in_threads: bool = False) -> list[tuple[int, Part]]:
        size, values = self._measured(order[0])
        places = np.arange(1, _bucket_count(size)) * len(values) // _bucket_count(size)
        # The least multiple of `width` is not an integer of 64 bits.
        borders = np.unique(np.maximum(np.sort(values)[places], LEAST_INTEGER + width) // width * width)
        buckets = self._distributed(partial(numbers_of_ranges, order[0], borders), len(borders) + 1)
        firsts = [0, *np.cumsum([bucket.rows for bucket in buckets]).tolist()]
        return [
            (first, partial(_rows_of, self._parts_in_order(bucket, order)))
            for first, bucket in zip(firsts, buckets, strict=False)
            if bucket.rows
        ]

    def _computed_in_threads(self, schema: pa.Schema, parts: Sequence[Part]) -> LocalDataset:
        # Parts may be large; forked processes release their memory.
        return self._with_parts(schema, parts)

    def sql(self, text: str, schema: pa.Schema, **others: Dataset) -> LocalDataset:
        named: dict[str, SpilledDataset] = {"rows": self}
        for name, each in others.items():
            assert isinstance(each, SpilledDataset)
            named[name] = each
        return self._stored(_results(text, schema, named), schema)

    def union(self, *others: Dataset) -> LocalDataset:
        schema = union_schema(self, others)
        united = [self, *others]
        sizes = [each._input_bytes for each in united if isinstance(each, LocalDataset)]
        known = [size for size in sizes if size is not None]
        parts = [part for each in united for part in _widened(each, schema)]
        return SpilledDataset(schema, parts, self._spill, sum(known) if len(known) == len(united) else None)

    def computed_if_small(self) -> SpilledDataset:
        return self

    def keep(self, folder: str) -> SpilledDataset:
        place, schema = _new_folder(folder), self.schema

        def work(numbered: tuple[int, Part]) -> Iterator[pa.RecordBatch]:
            number, part = numbered
            yield _files_of(_written(part(), schema, place, f"{number:05}", self._spill))

        # As in `LocalDataset.collect`, the last part comes first.
        made = run_parallel(work, list(enumerate(self._parts))[::-1])[::-1]
        files = pa.Table.from_batches(chain.from_iterable(made), _FILES)
        return self._of_files(schema, zip(*files.to_pydict().values(), strict=True))

    def collect(self) -> pa.Table:
        # To read rows takes less time than to fork.
        in_threads = all(isinstance(part, StoredRows) for part in self._parts)
        made = run_parallel(lambda part: part(), self._parts, in_threads)
        return pa.Table.from_batches(chain.from_iterable(made), self.schema)

    def keep_small(self, folder: str, most: int) -> LocalDataset:
        """Do the same as `keep`, but return rows in memory if they take at most `most` bytes.

        The rows are in memory until they exceed this size, so few rows are never written to files.
        """
        place, schema = _new_folder(folder), self.schema
        # Forked processes share the sizes. Each part has its own, so that neither they nor threads need a lock.
        sizes = np.frombuffer(mmap.mmap(-1, max(1, len(self._parts)) * 8), np.int64)

        def work(numbered: tuple[int, Part]) -> Iterator[pa.RecordBatch]:
            number, part = numbered
            batches = iter(part())
            for batch in batches:
                sizes[number] += batch.nbytes
                if sizes.sum() > most:
                    list(_written(chain([batch], batches), schema, place, f"{number:05}-rest", self._spill))
                    return
                yield batch

        made = run_parallel(work, list(enumerate(self._parts))[::-1], self._in_threads)[::-1]
        if sizes.sum() <= most:
            return LocalDataset.of(pa.Table.from_batches(chain.from_iterable(made), schema))
        for number, batches in enumerate(made):
            list(_written(batches, schema, place, f"{number:05}-first", self._spill))
        paths = sorted(str(path) for path in place.iterdir())
        return SpilledDataset(schema, _stored_in(paths, schema), self._spill, int(sizes.sum()))

    def readers(self) -> list[Part]:
        return list(self._parts)

    def count(self) -> int:
        return sum(batch.num_rows for batch in self._batches())

    def save(self, path: str, schema: pa.Schema, transaction: Transaction | None = None) -> None:
        from purgatory_udf.backend.local_delta import LocalDelta

        batches = (batch.select(schema.names).cast(schema) for batch in self._batches())
        LocalDelta().append(path, pa.RecordBatchReader.from_batches(schema, batches), transaction)

    def select(self, *names: str) -> LocalDataset:
        files = [part for part in self._parts if isinstance(part, StoredRows)]
        if len(files) < len(self._parts):
            return super().select(*names)
        schema = pa.schema([self.schema.field(name) for name in names])
        return self._with_parts(schema, [replace(file, columns=names) for file in files])

    def _where(self, column: str, condition: Condition) -> LocalDataset:
        files = [part for part in self._parts if isinstance(part, StoredRows)]
        if len(files) < len(self._parts):
            return super()._where(column, condition)
        conditions = [(*file.conditions, (column, condition)) for file in files]
        parts = [replace(file, conditions=added) for file, added in zip(files, conditions, strict=True)]
        return self._with_parts(self.schema, parts)

    def _with_parts(self, schema: pa.Schema, parts: Sequence[Part]) -> SpilledDataset:
        return SpilledDataset(schema, parts, self._spill, self._input_bytes)

    def _of_files(self, schema: pa.Schema, files: Iterable[tuple[str, int]]) -> SpilledDataset:
        """Return the rows of files, given their paths and the sizes of their rows."""
        known = list(files)
        parts = _stored_in([path for path, _ in known], schema)
        return SpilledDataset(schema, parts, self._spill, sum(size for _, size in known))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return _rows_of(self._parts)

    def _sorted(self, order: Sequence[str], keys: Sequence[str]) -> SpilledDataset:
        """Return the rows in parts that are in ascending order, nulls first. Equal rows keep their order.

        No part divides a group of equal keys, which are the first columns of the order.
        """
        size = self._input_bytes if self._input_bytes is not None else self._measured(None)[0]
        buckets = self._distributed(partial(numbers_of_groups, keys, _bucket_count(size)), _bucket_count(size))
        parts = [self._parts_in_order(bucket, order, keys) for bucket in buckets if bucket.rows]
        return SpilledDataset(self.schema, list(chain.from_iterable(parts)), self._spill, size)

    def _parts_in_order(self, bucket: Bucket, order: Sequence[str], keys: Sequence[str] = ()) -> list[Part]:
        """Return the rows of a bucket in ascending order; see `_sorted`."""
        if bucket.size > _SORTED_BYTES:
            large = self._with_parts(self.schema, _stored_in(bucket.paths, self.schema))
            return large._sorted_by_duckdb(order, keys)._parts
        return [partial(_read_in_order, bucket.paths, self.schema, order)]

    def _measured(self, column: str | None) -> tuple[int, Numbers]:
        """Return the size of the rows in bytes, and values of a column, nulls as the least integer."""
        schema = pa.schema([("size", pa.int64()), ("values", pa.list_(pa.int64()))])

        def work(part: Part) -> Iterator[pa.RecordBatch]:
            for batch in part():
                every = max(1, batch.num_rows // _SAMPLES)
                values: Any = integers(batch.column(column))[::every] if column else []
                yield pa.record_batch([pa.array([batch.nbytes]), pa.array([values], pa.list_(pa.int64()))], schema)

        table = pa.Table.from_batches(chain.from_iterable(run_parallel(work, self._parts)), schema)
        values = table.column("values").combine_chunks()
        sample: Numbers = pc.list_flatten(values).to_numpy()
        return sum(table.column("size").to_pylist()), sample

    def _distributed(self, number: Callable[[pa.Table], Numbers], count: int) -> list[Bucket]:
        """Write the rows to `count` buckets, in parallel; `number` returns the number of the bucket of each row."""
        place = self._spill.new_folder("buckets")
        schema, options = self.schema, self._spill.options
        result = pa.schema([("bucket", pa.int64()), *_FILES, ("rows", pa.int64())])
        borders = np.unique(np.linspace(0, len(self._parts), _TASKS + 1).astype(int)).tolist()
        tasks = list(enumerate(self._parts[begin:end] for begin, end in pairwise(borders)))

        def work(task: tuple[int, Sequence[Part]]) -> Iterator[pa.RecordBatch]:
            index, parts = task
            writers: dict[int, Any] = {}
            sizes, rows_in = np.zeros(count, np.int64), np.zeros(count, np.int64)
            paths = [str(place / f"{bucket:05}-{index:02}.arrow") for bucket in range(count)]
            for table in _tables_of(chain.from_iterable(part() for part in parts), schema):
                buckets = number(table)
                places = np.argsort(buckets, kind="stable")
                table = table.take(places)
                starts = np.searchsorted(buckets[places], np.arange(count + 1))
                for bucket in np.flatnonzero(np.diff(starts)).tolist():
                    rows = table.slice(starts[bucket], starts[bucket + 1] - starts[bucket])
                    if bucket not in writers:
                        writers[bucket] = pa.ipc.new_stream(paths[bucket], schema, options=options)
                    writers[bucket].write_table(rows, max_chunksize=BATCH_ROWS)
                    sizes[bucket] += rows.nbytes
                    rows_in[bucket] += rows.num_rows
            for writer in writers.values():
                writer.close()
            written = sorted(writers)
            columns = [written, [paths[bucket] for bucket in written], sizes[written], rows_in[written]]
            yield pa.record_batch([pa.array(column) for column in columns], result)

        found = [Bucket([], 0, 0) for _ in range(count)]
        # In the order of the tasks, so that equal rows keep their order.
        for batch in chain.from_iterable(run_parallel(work, tasks)):
            for bucket, path, size, rows in zip(*batch.to_pydict().values(), strict=True):
                before = found[bucket]
                found[bucket] = Bucket([*before.paths, path], before.size + size, before.rows + rows)
        release_free_memory()
        return found

    def _sorted_by_duckdb(self, order: Sequence[str], keys: Sequence[str]) -> SpilledDataset:
        """Do the same as `_sorted` in this process, with memory for a single file of rows."""
        folder = self._spill.new_folder("unsorted")
        ranks, size = self._ranks(order)
        runs = max(1, -(-size // _FILE_BYTES))
        ordered = _in_order_of_ranks(
            self._batches(), ranks, max(1, -(-len(ranks) // runs)), self.schema, folder, self._spill
        )
        stored = self._stored(ordered, self.schema, keys)
        shutil.rmtree(folder)
        release_free_memory()
        return stored

    def _ranks(self, order: Sequence[str]) -> tuple[Ranks, int]:
        """Return the number of each row in the order (see `_sorted`), and the size of all rows in bytes."""
        rows = size = 0
        names = list(dict.fromkeys(order))

        def numbered() -> Iterator[pa.RecordBatch]:
            nonlocal rows, size
            for batch in self._batches():
                numbers = np.arange(rows, rows + batch.num_rows)
                rows += batch.num_rows
                size += batch.nbytes
                yield batch.select(names).append_column(_ROW, pa.array(numbers))

        schema = pa.schema([*(self.schema.field(name) for name in names), _ROW])
        places = ", ".join(f'"{name}" ASC NULLS FIRST' for name in (*names, _ROW.name))
        with _database() as database:
            database.add_rows("rows", pa.RecordBatchReader.from_batches(schema, numbered()))
            query = f"SELECT {_ROW.name} FROM rows ORDER BY {places}"
            ranks: Ranks = np.empty(0, np.uint32)
            rank = 0
            for batch in database.stream(query, pa.schema([_ROW]), BATCH_ROWS):
                # All rows have been read now.
                if not rank:
                    ranks = np.empty(rows, np.uint32 if rows < 1 << 32 else np.int64)
                ranks[batch.column(0).to_numpy()] = np.arange(rank, rank + batch.num_rows)
                rank += batch.num_rows
        return ranks, size

    def _stored(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str] = ()) -> SpilledDataset:
        return self._of_files(schema, _written(batches, schema, self._spill.new_folder("rows"), "0", self._spill, keys))


class Bucket(NamedTuple):
    """Files of some rows, the size of these rows in bytes, and their number."""

    paths: list[str]
    size: int
    rows: int


def _bucket_count(size: int) -> int:
    return max(1, min(_MOST_BUCKETS, -(-size // _FILE_BYTES)))


def _tables_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in tables of about half of `_FILE_BYTES`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _FILE_BYTES // 2:
            yield pa.Table.from_batches(held, schema)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def _rows_of(parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of consecutive parts."""
    return chain.from_iterable(part() for part in parts)


def _read_in_order(paths: Sequence[str], schema: pa.Schema, order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in ascending order, nulls first; equal rows in the order of the files."""
    table = pa.Table.from_batches(chain.from_iterable(part() for part in _stored_in(paths, schema)), schema)
    places = sorted_places(table, order)
    for start in range(0, len(places), BATCH_ROWS):
        yield from table.take(places[start : start + BATCH_ROWS]).combine_chunks().to_batches()


def _files_of(files: Iterable[tuple[str, int]]) -> pa.RecordBatch:
    paths, sizes = zip(*files, strict=True) if (files := list(files)) else ((), ())
    return pa.record_batch([pa.array(paths, pa.string()), pa.array(sizes, pa.int64())], _FILES)


def _results(text: str, schema: pa.Schema, named: Mapping[str, SpilledDataset]) -> Iterator[pa.RecordBatch]:
    """Yield the results of a query."""
    with _database() as database:
        for name, each in named.items():
            database.add_rows(name, pa.RecordBatchReader.from_batches(each.schema, each._batches()))
            if text.count(f"{{{name}}}") > 1:
                # A stream can be read once.
                database.keep(name, f'SELECT * FROM "{name}"')
        query = text.format_map({name: f'"{name}"' for name in named})
        yield from database.stream(query, schema, BATCH_ROWS)


_ROW = pa.field("_row", pa.int64())
# The number of each row in an order, in 4 bytes if there are fewer than 2**32 rows.
Ranks = npt.NDArray[np.uint32 | np.int64]


@contextmanager
def _database() -> Iterator[DuckDatabase]:
    from purgatory_udf.backend.sql_database import DuckDatabase

    database = DuckDatabase(MEMORY)
    try:
        yield database
    finally:
        # Its threads must not be running when this process forks.
        database.close()
        release_free_memory()


def _widened(dataset: Dataset, schema: pa.Schema) -> list[Part]:
    assert isinstance(dataset, LocalDataset)
    return dataset.widened_parts(schema)


def _in_order_of_ranks(
    batches: Iterable[pa.RecordBatch], ranks: Ranks, rows: int, schema: pa.Schema, folder: Path, spill: Spill
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in the order of their ranks. Each file in `folder` has `rows` consecutive ranks."""
    ranked, writers, first = schema.append(_ROW), {}, 0
    for batch in batches:
        of_batch = ranks[first : first + batch.num_rows].astype(np.int64)
        first += batch.num_rows
        batch = batch.append_column(_ROW, pa.array(of_batch))
        files = of_batch // rows
        for file in np.unique(files).tolist():
            part = batch if (files == file).all() else batch.filter(pa.array(files == file))
            if file not in writers:
                writers[file] = pa.ipc.new_stream(str(folder / f"{file:05}.arrow"), ranked, options=spill.options)
            writers[file].write_batch(part)
    for writer in writers.values():
        writer.close()
    for file in sorted(writers):
        path = folder / f"{file:05}.arrow"
        table = pa.Table.from_batches(StoredRows(str(path), ranked, ranked.names)(), ranked).combine_chunks()
        path.unlink()
        yield from (
            table.select(schema.names).take(np.argsort(table.column(_ROW.name).to_numpy())).to_batches(BATCH_ROWS)
        )


def _new_folder(path: str) -> Path:
    """Create a folder at the path; with a number at its end if the folder exists."""
    for number in count():
        place = require_local_path(f"{path}-{number}" if number else path)
        if not place.exists():
            break
    place.mkdir(parents=True)
    return place


def _written(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    folder: Path,
    name: str,
    spill: Spill,
    keys: Sequence[str] = (),
) -> Iterator[tuple[str, int]]:
    """Write batches to files of about `_FILE_BYTES`, and yield the path of each file and the size of its rows.

    Rows with equal `keys`, which are consecutive, are in the same file.
    """
    writer, path, size, files, last = None, "", 0, 0, None
    for batch in chain.from_iterable(map(_in_small_batches, batches)):
        while batch.num_rows:
            if writer is None:
                path = str(folder / f"{name}-{files:05}.arrow")
                writer = pa.ipc.new_stream(path, schema, options=spill.options)
                size, files = 0, files + 1
            end = batch.num_rows if size < _FILE_BYTES or last is None else _end_of_group(batch, keys, last)
            writer.write_batch(batch.slice(0, end))
            size += batch.nbytes
            if end:
                last = _keys_of(batch, keys, end - 1)
            if end < batch.num_rows:
                writer.close()
                writer = None
                yield path, size
            batch = batch.slice(end)
    if writer is not None:
        writer.close()
        yield path, size


def _in_small_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _keys_of(batch: pa.RecordBatch, keys: Sequence[str], row: int) -> list[Any]:
    return [batch.column(name)[row].as_py() for name in keys]


def _end_of_group(batch: pa.RecordBatch, keys: Sequence[str], last: Sequence[Any]) -> int:
    """Return the number of rows at the start of a batch that have the keys of the row before it; 0 without keys."""
    if not keys:
        return 0
    if _keys_of(batch, keys, batch.num_rows - 1) == last:
        return batch.num_rows
    return next(row for row in range(batch.num_rows) if _keys_of(batch, keys, row) != last)


@dataclass(frozen=True)
class StoredRows:
    """Part of a dataset: the rows of a file. Only needed columns are decompressed.

    Attributes:
        path: The file.
        schema: Its columns.
        columns: The wanted columns.
        conditions: Columns with conditions; rows have to meet all conditions.
    """

    path: str
    schema: pa.Schema
    columns: Sequence[str]
    conditions: Sequence[tuple[str, Condition]] = ()

    def __call__(self) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.path) as file:
            yield from read_stream(file, self.schema.names, self.columns, self.conditions)


def _stored_in(paths: Iterable[str], schema: pa.Schema) -> list[StoredRows]:
    return [StoredRows(path, schema, schema.names) for path in paths]

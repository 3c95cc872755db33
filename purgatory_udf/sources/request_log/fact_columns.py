"""Facts of one kind as columns, because a busy partition has millions of appends, positions and readings.

Fetch attempts have columns of their own (`AttemptColumns`), which are read from runs of attempts.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    AttemptRun,
    Booleans,
    Column,
    Fact,
    FactBlock,
    FetchAttempt,
    Integers,
    columns_of_appends,
    fields_of,
    object_column,
    rows_of_runs,
)

# The facts of several partitions are processed like those of one: times and offsets of each partition are moved into a
# separate interval of this length, because no rule compares those of different intervals. With at most this number of
# intervals, all values are below 2**62.
INTERVAL = 1 << 52
MAX_INTERVALS = (1 << 10) - 1

F = TypeVar("F", bound=msgspec.Struct)
# Number of facts that are made into columns, or read from them, at once; number of chunks that are joined.
_CHUNK, _CHUNKS = 4096, 64
# Number of facts in blocks, which need less memory, that are made into columns at once.
_CHUNK_OF_BLOCKS = 1 << 15
_INTEGER_TYPES = [(each, np.iinfo(each).min, np.iinfo(each).max) for each in (np.int8, np.int16, np.int32, np.int64)]


class FactColumns(Generic[F]):
    """Facts of one kind as columns; many are stored in the narrowest type. The facts that it yields are copies."""

    __slots__ = ("_columns", "_kind", "_length")

    def __init__(self, kind: type[F], columns: dict[str, Column], length: int) -> None:
        self._kind, self._columns, self._length = kind, columns, length

    @classmethod
    def of(cls, kind: type[F], facts: Iterable[F]) -> FactColumns[F]:
        """Return the columns of facts, in the same order."""
        collector = FactCollector(kind)
        for fact in facts:
            collector.append(fact)
        return collector.columns()

    @classmethod
    def none(cls, kind: type[F]) -> FactColumns[F]:
        """Return columns without facts."""
        return cls(kind, dict(_no_columns(kind)), 0)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[F]:
        for start in range(0, self._length, _CHUNK):
            yield from self.rows(slice(start, start + _CHUNK))

    def in_order(self, rows: Integers) -> Iterator[F]:
        """Yield the facts of rows, given their numbers."""
        for start in range(0, len(rows), _CHUNK):
            yield from self.rows(rows[start : start + _CHUNK])

    def __getitem__(self, row: int) -> F:
        return self.rows(slice(row, row + 1))[0]

    def rows(self, which: slice | Integers) -> list[F]:
        """Return the facts of some rows."""
        return list(map(self._kind, *(column[which].tolist() for column in self._columns.values())))

    def is_none(self, name: str) -> Booleans:
        """Return whether each value of a field is None."""
        none: Any = None
        return np.equal(self._columns[name], none).astype(bool)

    def has_any(self, name: str, rows: Integers) -> bool:
        """Return whether any value of a field is true in some rows."""
        column = self._columns[name]
        return any(column[rows[:1] if _has_one_value(column) else rows])

    def integers(self, name: str) -> Integers:
        """Return the values of a field, widened so that calculations do not overflow."""
        return self._columns[name].astype(np.int64, copy=False)

    def values(self, name: str) -> Column:
        """Return the values of a field in the type in which they are stored."""
        return self._columns[name]

    def replace(self, name: str, values: Integers) -> None:
        """Replace the values of a field."""
        self._columns[name] = _narrowed(values) if len(values) >= _CHUNK else values

    def sort(self, *names: str, bounds: Sequence[int] = ()) -> npt.NDArray[np.intp] | None:
        """Sort by fields, the first one first; return the former number of each row, or None if all are the same.

        Equal facts keep their order. With the `bounds` of groups of consecutive rows, each group is sorted for itself.
        """
        if self._length < 2:
            return None
        groups, first = _numbers_of_groups(bounds), self._columns[names[0]]
        is_in_order = first[1:] > first[:-1]
        for numbers in groups:
            is_in_order |= numbers[1:] > numbers[:-1]
        if is_in_order.all():
            return None
        order = order_by(*groups, *(self._columns[name] for name in names))
        if (order[1:] > order[:-1]).all():
            return None
        for name, column in self._columns.items():
            if not _has_one_value(column):
                self._columns[name] = column[order]
        return order

    def split(self, bounds: Sequence[int]) -> list[FactColumns[F]]:
        """Return the facts between each two bounds. They share memory."""
        if len(bounds) == 2:
            return [self]
        kind, columns = self._kind, self._columns.items()
        return [
            FactColumns(kind, {name: column[begin:end] for name, column in columns}, end - begin)
            if begin < end
            else FactColumns.none(kind)
            for begin, end in pairwise(bounds)
        ]

    def extend(self, more: FactColumns[F]) -> None:
        """Add facts at the end."""
        for name, column in self._columns.items():
            self._columns[name] = _joined([column, more._columns[name]])
        self._length += len(more)


class FactCollector(Generic[F]):
    """Collects facts of one kind as columns."""

    def __init__(self, kind: type[F]) -> None:
        self._kind = kind
        self._fields = fields_of(kind)
        self._held: list[F] = []
        self._held_blocks: list[Integers] = []
        self._in_blocks = 0
        # The number of held facts before each held block.
        self._held_before: list[int] = []
        # Small chunks are joined soon, because the C library keeps their memory for a long time.
        self._chunks: dict[str, list[Column]] = defaultdict(list)
        self._large_chunks: dict[str, list[Column]] = defaultdict(list)
        self._length = 0
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return self._length + len(self._held) + self._in_blocks

    def append(self, fact: F) -> None:
        """Add a fact."""
        self._held.append(fact)
        if len(self._held) == _CHUNK:
            self._make_columns()

    def append_block(self, rows: Integers) -> None:
        """Add facts of integers; `rows` is as in a `FactBlock`."""
        self._held_blocks.append(rows)
        self._held_before.append(len(self._held))
        self._in_blocks += rows.shape[1]
        if self._in_blocks >= _CHUNK_OF_BLOCKS:
            self._make_columns()

    def columns(self) -> FactColumns[F]:
        """Return all facts, and remove them from the collector."""
        self._make_columns()
        if not self._length:
            # Most partitions lack facts of most kinds.
            return FactColumns.none(self._kind)
        columns = {}
        for name in self._fields:
            chunks = self._chunks[name]
            # Narrower types only save memory, of which few facts need little.
            if self._length >= _CHUNK_OF_BLOCKS and chunks:
                chunks = [self._narrowed(name, _joined(chunks))]
            columns[name] = _joined([*self._large_chunks[name], *chunks])
        return FactColumns(self._kind, columns, self._length)

    def _make_columns(self) -> None:
        """Make the held facts and blocks into a chunk of columns."""
        self._length = len(self)
        parts = [*([self._columns_of_held()] if self._held else []), *self._columns_of_blocks()]
        order = None
        if len(parts) == 2:
            lengths = [block.shape[1] for block in self._held_blocks]
            before = np.repeat(self._held_before, lengths)
            order = np.insert(np.arange(len(self._held)), before, len(self._held) + np.arange(self._in_blocks))
        for name in self._fields if parts else ():
            column = _joined([part[name] for part in parts])
            self._add_chunk(name, column if order is None or _has_one_value(column) else column[order])
        self._held.clear()
        self._held_blocks.clear()
        self._held_before.clear()
        self._in_blocks = 0

    def _columns_of_held(self) -> dict[str, Column]:
        rows = zip(*map(msgspec.structs.astuple, self._held), strict=True)
        return {
            name: np.array(values, np.int64) if is_integer else self._objects(values)
            for (name, is_integer), values in zip(self._fields.items(), rows, strict=True)
        }

    def _columns_of_blocks(self) -> list[dict[str, Column]]:
        if not self._held_blocks:
            return []
        rows = np.concatenate(self._held_blocks, axis=1)
        return [columns_of_appends(rows) if self._kind is Append else dict(zip(self._fields, rows, strict=True))]

    def _add_chunk(self, name: str, column: Column) -> None:
        chunks = self._chunks[name]
        chunks.append(column if len(column) < _CHUNK else self._narrowed(name, column))
        if len(chunks) == _CHUNKS:
            self._large_chunks[name].append(self._narrowed(name, _joined(chunks)))
            chunks.clear()

    def _narrowed(self, name: str, column: Column) -> Column:
        return _narrowed(column) if self._fields[name] else column

    def _objects(self, values: tuple[Any, ...]) -> Column:
        if len(set(map(id, values))) == 1:
            single = np.empty(1, object)
            single[0] = values[0]
            return np.broadcast_to(single, (len(values),))
        # Equal names share one object.
        texts = self._texts
        return object_column([texts.setdefault(value, value) if type(value) is str else value for value in values])


@cache
def _no_columns(kind: type[Fact]) -> dict[str, Column]:
    return {name: np.empty(0, np.int64 if is_integer else object) for name, is_integer in fields_of(kind).items()}


def _narrowed(values: Integers) -> Column:
    """Return the same numbers in the narrowest type; equal numbers are stored once."""
    if not len(values):
        return values
    least, most = int(values.min()), int(values.max())
    narrowest = next(each for each, lowest, highest in _INTEGER_TYPES if lowest <= least and most <= highest)
    if least == most:
        return np.broadcast_to(values[:1].astype(narrowest), values.shape)
    return values.astype(narrowest)


def _joined(chunks: Sequence[Column]) -> Column:
    """Return the chunks as one column; a value that all rows have is stored once."""
    if len(chunks) == 1:
        return chunks[0]
    filled = [chunk for chunk in chunks if len(chunk)]
    if not filled:
        return chunks[0]
    first = filled[0]
    if all(_has_one_value(chunk) and chunk[0] == first[0] and type(chunk[0]) is type(first[0]) for chunk in filled):
        return np.broadcast_to(first[:1].copy(), (sum(map(len, filled)),))
    return np.concatenate(filled)


def _has_one_value(column: Column) -> bool:
    """Return whether a column stores one value for all rows."""
    return column.strides == (0,)


@dataclass(frozen=True, slots=True)
class AttemptColumns:
    """Attempts as columns, ordered by time, replica and offset."""

    at_us: Integers
    replica: Integers
    offset: Integers
    empty: Booleans

    @classmethod
    def of(cls, attempts: Iterable[FetchAttempt | AttemptRun | FactBlock]) -> AttemptColumns:
        """Build the columns from attempts, runs and blocks of attempts in any order."""
        return sorted_attempts(*attempt_rows_of_each([attempts]))

    def __len__(self) -> int:
        return len(self.at_us)

    def where(self, wanted: Booleans | Integers | slice) -> AttemptColumns:
        """Return the attempts with True in a mask, or with these numbers."""
        return AttemptColumns(self.at_us[wanted], self.replica[wanted], self.offset[wanted], self.empty[wanted])

    def empty_attempts(self) -> tuple[Integers, Integers]:
        """Return times (in microseconds) and offsets of the attempts that were empty, as two arrays in time order."""
        return self.at_us[self.empty], self.offset[self.empty]

    def last_us(self, replica: int, until_us: int) -> int:
        """Return the time of a replica's latest attempt until `until_us`, or 0."""
        times = self.at_us[(self.replica == replica) & (self.at_us <= until_us)]
        return int(times[-1]) if len(times) else 0


_NO_NUMBERS = np.zeros(0, np.int64)
NO_ATTEMPTS = AttemptColumns(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.zeros(0, bool))


def attempt_rows(attempts: Iterable[FetchAttempt | AttemptRun | FactBlock]) -> Integers:
    """Return a row for each field of `FetchAttempt`, with all attempts in their order."""
    return attempt_rows_of_each([attempts])[0]


def attempt_rows_of_each(
    groups: Iterable[Iterable[FetchAttempt | AttemptRun | FactBlock]],
) -> tuple[Integers, list[int]]:
    """Return `attempt_rows` of several groups together, and the bounds of those of each group."""
    runs: list[Integers] = []
    times: list[bytes] = []
    single: list[tuple[int, int, bool, int]] = []
    count, bounds = 0, [0]
    for attempts in groups:
        for attempt in attempts:
            if isinstance(attempt, FactBlock):
                if single:
                    runs.append(np.array(single, np.int64).T)
                    single = []
                of_block, times_of_block = attempt.runs()
                runs.append(of_block)
                count += len(times_of_block)
                times.append(times_of_block.tobytes())
                continue
            of_run = attempt.times if isinstance(attempt, AttemptRun) else array("q", (attempt.at_us,)).tobytes()
            length = len(of_run) // 8
            single.append((attempt.replica, attempt.offset, attempt.empty, length))
            times.append(of_run)
            count += length
        bounds.append(count)
    runs.append(np.array(single, np.int64).reshape(-1, 4).T)
    return rows_of_runs(np.concatenate(runs, axis=1), np.frombuffer(b"".join(times), np.int64)), bounds


def sorted_attempts(rows: Integers, bounds: Sequence[int]) -> AttemptColumns:
    """Return the columns of attempts, those of each group in order; see `attempt_rows_of_each` for the arguments."""
    at, replica, offset, empty = rows
    order = order_by(*_numbers_of_groups(bounds), at, replica, offset)
    return AttemptColumns(at[order], replica[order], offset[order], empty[order].astype(bool))


def order_by(*keys: Integers) -> npt.NDArray[np.intp]:
    """Return the order that sorts rows by keys, the first one first; rows with equal keys keep their order."""
    if not len(keys[0]):
        return np.arange(0)
    # One number for all keys is sorted much faster, if it has no more than 63 bits.
    joined, count = np.zeros(1, np.int64), 1
    for key in keys:
        least = int(key.min())
        width = int(key.max()) - least + 1
        count *= width
        if count >= 2**63:
            return np.lexsort(keys[::-1])
        joined = joined * width + (key.astype(np.int64, copy=False) - least)
    return joined.argsort(kind="stable")


def _numbers_of_groups(bounds: Sequence[int]) -> list[Integers]:
    """Return the number of the group of each row, as a list of one array; empty if there is only one group."""
    return [np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))] if len(bounds) > 2 else []

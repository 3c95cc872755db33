"""Tables of records for compiled code: an arena is one record with the addresses of its tables.

Passing a dozen arrays from helper to helper costs more than what most helpers do, in run time and even more in
compilation time. An arena costs one pointer: `part_at(arena, 7)` is a pointer to row 7 of its table of parts.

Compiled code checks no index, so an arena must be allocated with capacity for everything that a call can add. Without
compilation (`NUMBA_DISABLE_JIT=1`), every access is checked.

Python copies and gathers arrays of records as raw bytes: numpy would copy them field by field, which is 10 to 30 times
slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.rules.engine.jit.compiled_functions import COMPILED, instruction

Records = npt.NDArray[Any]
DType = np.dtype[Any]
Arena = Any  # one record of an `arena_dtype`
Accessor = Callable[[Arena, int], Any]

CACHE_LINE = 64  # bytes

# Fewer than one in this many are sorted: that is faster than marking all that occur.
_SORT_BELOW = 16


def record(
    i8: str = "",
    i4: str = "",
    i1: str = "",
    base: DType | None = None,
    aliases: Mapping[str, tuple[str, str]] | None = None,
    align: int = 1,
) -> DType:
    """Return the dtype of a record, padded to a multiple of its longest field and of `align`.

    Args:
        i8: Names of fields of 8 bytes; they come first, so that every field is aligned.
        i4: Names of fields of 4 bytes.
        i1: Names of fields of 1 byte.
        base: A record to extend: its fields come first.
        aliases: Further names, each with the field that it overlays and its own type.
        align: The size of the record in bytes is a multiple of this.
    """
    fields = stored_fields(base) if base is not None else []
    for kind, names in (("i8", i8), ("i4", i4), ("i1", i1)):
        fields += [(name, np.dtype(kind)) for name in names.split()]
    size, longest = (combine(dtype.itemsize for _, dtype in fields) for combine in (sum, max))
    padding = -size % max(longest, align)
    fields += [(f"padding_{place}", np.dtype("i1")) for place in range(size, size + padding)]
    starts = accumulate((dtype.itemsize for _, dtype in fields), initial=0)
    offsets = dict(zip((name for name, _ in fields), starts, strict=False))
    further = [(name, np.dtype(kind), offsets[field]) for name, (field, kind) in (aliases or {}).items()]
    return np.dtype(
        {
            "names": [*offsets, *(name for name, _, _ in further)],
            "formats": [*(dtype for _, dtype in fields), *(dtype for _, dtype, _ in further)],
            "offsets": [*offsets.values(), *(offset for _, _, offset in further)],
            "itemsize": sum(dtype.itemsize for _, dtype in fields),
        }
    )


def stored_fields(dtype: DType) -> list[tuple[str, DType]]:
    """Return a record's fields in order, without aliases."""
    end, fields = 0, []
    for name, (field, offset, *_) in _fields(dtype).items():
        if offset == end:
            fields.append((name, field))
            end += field.itemsize
    return fields


def _fields(dtype: DType) -> Mapping[str, Any]:
    assert dtype.fields is not None
    return {name: dtype.fields[name] for name in dtype.names or ()}


def arena_dtype(tables: Iterable[str], *scalars: str) -> DType:
    """Return the dtype of an arena: address and capacity of each table, then its scalars."""
    places = [f"{name}_{what}" for name in tables for what in ("address", "capacity")]
    return np.dtype([(name, "i8") for name in (*places, *scalars)])


def attribute_view(rows: Records) -> Records:
    """Return a view of rows with fields as attributes, as in compiled code, for uncompiled functions."""
    return rows if COMPILED else rows.view(np.recarray)


def make_arena(tables: Mapping[str, Records], dtypes: Mapping[str, DType], arena: DType, **scalars: int) -> Records:
    """Return an arena over these tables, as an array of one record. The tables must outlive it.

    Args:
        tables: The tables by name; those without rows may be left out.
        dtypes: The record type of each table.
        arena: The arena's own type (`arena_dtype`).
        scalars: Initial values of the arena's scalars; the others are 0.
    """
    fields: list[int] = []
    for name, dtype in dtypes.items():
        rows = tables.get(name)
        if rows is None:
            fields += (0, 0)
        else:
            assert rows.dtype == dtype and rows.flags.c_contiguous, name
            # numpy takes six times as long to return the address.
            fields += (pa.py_buffer(rows).address, len(rows))
    fields += [scalars.pop(name, 0) for name in cast("tuple[str, ...]", arena.names)[len(fields) :]]
    assert not scalars and tables.keys() <= dtypes.keys(), "the arena has no such table or scalar"
    return attribute_view(np.ndarray(1, arena, np.array(fields, np.int64)))


def accessor(name: str, dtypes: Mapping[str, DType], arena: DType) -> Accessor:
    """Return a function `(arena, row) -> record` for the table `name`; the record is a reference."""
    assert arena.fields is not None
    address_offset = arena.fields[f"{name}_address"][1]
    return instruction(_accessor(name, dtypes[name]), "accessor", dtypes[name], address_offset)


def prefetcher(name: str, dtypes: Mapping[str, DType], arena: DType) -> Callable[[Arena, int], None]:
    """Return a function `(arena, row)` that prefetches a row of the table `name`. The row need not exist."""
    assert arena.fields is not None
    return instruction(_no_prefetch, "prefetcher", dtypes[name], arena.fields[f"{name}_address"][1])


def _no_prefetch(arena: Arena, row: int) -> None:
    pass


def record_copier(source: DType, target: DType) -> Callable[[Any, Any], None]:
    """Return a function `(to, of)` that copies a record into the first fields of a longer one."""
    small, large = stored_fields(source), stored_fields(target)
    assert large[: len(small)] == small, "the target must start with the source's fields"
    return instruction(_copier([name for name, _ in small]), "record_copier", source.itemsize)


def _copier(names: list[str]) -> Callable[[Any, Any], None]:
    def copy(to: Any, of: Any) -> None:
        for name in names:
            setattr(to, name, getattr(of, name))

    return copy


def _copy_rows(to: Records, at: int, of: Records, first: int, count: int) -> None:
    to[at : at + count] = of[first : first + count]


# `copy_rows(to, at, of, first, count)` copies rows between arrays with one memcpy. Plain assignments in compiled code
# copy a record byte by byte.
copy_rows = instruction(_copy_rows, "copy_rows")


def nested_accessor(outer: DType, inner: DType, begin: str) -> Accessor:
    """Return a function `(record, n) -> record` that views the n-th group of fields as a separate record.

    Args:
        outer: The type of a record with several adjacent groups of fields.
        inner: The type of one group.
        begin: The field with which the first group starts.
    """
    assert outer.fields is not None
    first = outer.fields[begin][1]
    return instruction(_nested_accessor(inner, first), "nested_accessor", inner, first)


def _nested_accessor(dtype: DType, first: int) -> Accessor:
    def at(row: Any, n: int) -> Any:
        return _Row(np.frombuffer(row._fields.tobytes(), dtype, 1, first + int(n) * dtype.itemsize)[0])

    return at


class _Row:
    """A record with all fields as attributes, even those with names that numpy's records use (`size`)."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Any) -> None:
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        return self._fields[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields[name] = value


def _accessor(name: str, dtype: DType) -> Accessor:
    def at(arena: Arena, row: int) -> Any:
        capacity = arena[f"{name}_capacity"]
        assert 0 <= row < capacity, f"{name}: row {row} of {capacity}"
        address = int(arena[f"{name}_address"]) + int(row) * dtype.itemsize
        raw: Any = (ctypes.c_char * dtype.itemsize).from_address(address)
        return _Row(np.frombuffer(raw, dtype)[0])

    return at


def empty_records(count: int, dtype: DType) -> Records:
    """Return an uninitialized array. `np.empty` visits all fields of the dtype, which takes several times as long."""
    return np.ndarray(count, dtype, np.empty(count * dtype.itemsize, np.uint8))


def _as_bytes(rows: Records) -> Records:
    return rows.view(f"V{rows.itemsize}")


def copy_records(rows: Records) -> Records:
    """Return a copy of the rows."""
    copied = empty_records(len(rows), rows.dtype)
    copy_to_front(rows, copied)
    return copied


def take_records(rows: Records, which: Records) -> Records:
    """Return a copy of the rows selected by indices or by a mask."""
    return _as_bytes(rows)[which].view(rows.dtype)


def concat_records(parts: Sequence[Records]) -> Records:
    """Return a copy of several arrays of one dtype as one."""
    dtype, parts = parts[0].dtype, [part for part in parts if len(part)]
    if len(parts) == 1:
        return copy_records(parts[0])
    rows = empty_records(sum(map(len, parts)), dtype)
    start = 0
    for part in parts:
        _as_bytes(rows)[start : start + len(part)] = _as_bytes(part)
        start += len(part)
    return rows


def copy_to_front(source: Records, target: Records) -> None:
    """Copy the source to the first rows of the target."""
    if len(source):
        _as_bytes(target)[: len(source)] = _as_bytes(source)


def repeat_record(row: Records, count: int) -> Records:
    """Return an array that repeats the one row."""
    rows = empty_records(count, row.dtype)
    _as_bytes(rows)[:] = _as_bytes(row)
    return rows


def move_rows(rows: Records, start: int, to: int, count: int) -> None:
    """Move `count` rows from `start` to an earlier place.

    The two ranges may overlap, for which numpy would copy twice.
    """
    size = rows.itemsize
    ctypes.memmove(rows.ctypes.data + to * size, rows.ctypes.data + start * size, count * size)


def allocate_tables(sizes: Mapping[str, tuple[DType, int]]) -> dict[str, Records]:
    """Allocate uninitialized tables in one block of memory, for which numpy requests huge pages if it is large.

    Each table starts at a cache line.
    """
    in_bytes = [dtype.itemsize * count for dtype, count in sizes.values()]
    starts = list(accumulate((size + -size % CACHE_LINE for size in in_bytes), initial=0))
    memory = np.empty(starts[-1] + CACHE_LINE, np.uint8)
    memory = memory[-memory.ctypes.data % CACHE_LINE :]
    return {
        name: np.ndarray(count, dtype, memory, start)
        for (name, (dtype, count)), start in zip(sizes.items(), starts, strict=False)
    }


def sorted_unique(numbers: Records, below: int) -> Records:
    """Return the distinct numbers in ascending order; all are at least 0 and less than `below`."""
    if len(numbers) * _SORT_BELOW < below:
        return np.unique(numbers)
    present = np.zeros(below, bool)
    present[numbers] = True
    return np.flatnonzero(present).astype(numbers.dtype)

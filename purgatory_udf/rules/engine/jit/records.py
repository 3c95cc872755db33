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
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Records = npt.NDArray[Any]
DType = np.dtype[Any]
Arena = Any  # one record of an `arena_dtype`
Accessor = Callable[[Arena, int], Any]

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"

CACHE_LINE = 64  # bytes

_memcpy = cast("Callable[..., Any]", cgutils.raw_memcpy)
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
    if COMPILED:
        return _compiled_accessor(dtypes[name], arena.fields[f"{name}_address"][1])
    return _python_accessor(name, dtypes[name])


def _compiled_accessor(dtype: DType, address_offset: int) -> Accessor:
    record, row_address = numba.from_dtype(dtype), _row_address(dtype, address_offset)

    def at(typing: Any, arena: Any, row: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(row_address(builder, *arguments), context.get_value_type(record))

        return record(arena, types.int64), code

    return cast("Accessor", intrinsic(at))


def _row_address(dtype: DType, address_offset: int) -> Callable[[Any, Any, Any], Any]:
    """Return a function that emits the instructions which compute the address of a row."""
    long, byte = ir.IntType(64), ir.IntType(8)

    def row_address(builder: Any, arena: Any, row: Any) -> Any:
        field = builder.gep(builder.bitcast(arena, byte.as_pointer()), [ir.Constant(long, address_offset)])
        address = builder.load(builder.bitcast(field, long.as_pointer()))
        # Tables never move during a call.
        address.set_metadata("invariant.load", builder.module.add_metadata([]))
        return builder.add(address, builder.mul(row, ir.Constant(long, dtype.itemsize)))

    return row_address


def prefetcher(name: str, dtypes: Mapping[str, DType], arena: DType) -> Callable[[Arena, int], None]:
    """Return a function `(arena, row)` that prefetches a row of the table `name`. The row need not exist."""
    assert arena.fields is not None
    if COMPILED:
        return _compiled_prefetcher(dtypes[name], arena.fields[f"{name}_address"][1])
    return _no_prefetch


def _compiled_prefetcher(dtype: DType, address_offset: int) -> Callable[[Arena, int], None]:
    row_address = _row_address(dtype, address_offset)

    def prefetch(typing: Any, arena: Any, row: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = row_address(builder, *arguments)
            for line in range(0, dtype.itemsize, CACHE_LINE):
                emit_prefetch(builder, builder.add(start, ir.Constant(ir.IntType(64), line)), for_writing=True)
            return context.get_dummy_value()

        return types.void(arena, types.int64), code

    return cast("Callable[[Arena, int], None]", intrinsic(prefetch))


def emit_prefetch(builder: Any, address: Any, for_writing: bool) -> None:
    """Emit the instruction that prefetches the cache line at an address into all levels of the data cache."""
    bytes_, size = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [bytes_, size, size, size])
    llvm_prefetch = builder.module.declare_intrinsic("llvm.prefetch", [bytes_], function)
    builder.call(llvm_prefetch, [builder.inttoptr(address, bytes_), size(int(for_writing)), size(3), size(1)])


def _no_prefetch(arena: Arena, row: int) -> None:
    pass


def record_copier(source: DType, target: DType) -> Callable[[Any, Any], None]:
    """Return a function `(to, of)` that copies a record into the first fields of a longer one."""
    small, large = stored_fields(source), stored_fields(target)
    assert large[: len(small)] == small, "the target must start with the source's fields"
    return _compiled_copier(source.itemsize) if COMPILED else _python_copier([name for name, _ in small])


def _compiled_copier(size: int) -> Callable[[Any, Any], None]:
    def copy(typing: Any, to: Any, of: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_bytes, of_bytes = (builder.bitcast(row, ir.IntType(8).as_pointer()) for row in arguments)
            _memcpy(builder, to_bytes, of_bytes, ir.Constant(ir.IntType(64), size), 1, 8)
            return context.get_dummy_value()

        return types.void(to, of), code

    return cast("Callable[[Any, Any], None]", intrinsic(copy))


def _python_copier(names: list[str]) -> Callable[[Any, Any], None]:
    def copy(to: Any, of: Any) -> None:
        for name in names:
            setattr(to, name, getattr(of, name))

    return copy


def _compiled_copy_rows() -> Callable[[Records, int, Records, int, int], None]:
    def copy(typing: Any, to: Any, at: Any, of: Any, first: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_rows, to_first, of_rows, of_first, rows = arguments
            table_type = signature.args[0]
            target, source = (
                builder.gep(context.make_array(table_type)(context, builder, table).data, [start])
                for table, start in ((to_rows, to_first), (of_rows, of_first))
            )
            _memcpy(builder, target, source, rows, table_type.dtype.size)
            return context.get_dummy_value()

        return types.void(to, at, of, first, count), code

    return cast("Callable[[Records, int, Records, int, int], None]", intrinsic(copy))


def _python_copy_rows(to: Records, at: int, of: Records, first: int, count: int) -> None:
    to[at : at + count] = of[first : first + count]


# `copy_rows(to, at, of, first, count)` copies rows between arrays with one memcpy. Plain assignments in compiled code
# copy a record byte by byte.
copy_rows = _compiled_copy_rows() if COMPILED else _python_copy_rows


def nested_accessor(outer: DType, inner: DType, begin: str) -> Accessor:
    """Return a function `(record, n) -> record` that views the n-th group of fields as a separate record.

    Args:
        outer: The type of a record with several adjacent groups of fields.
        inner: The type of one group.
        begin: The field with which the first group starts.
    """
    assert outer.fields is not None
    first = outer.fields[begin][1]
    return _compiled_nested_accessor(inner, first) if COMPILED else _python_nested_accessor(inner, first)


def _compiled_nested_accessor(dtype: DType, first: int) -> Accessor:
    record = numba.from_dtype(dtype)
    long, byte = ir.IntType(64), ir.IntType(8)

    def at(typing: Any, row: Any, n: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            outer, index = arguments
            offset = builder.add(builder.mul(index, ir.Constant(long, dtype.itemsize)), ir.Constant(long, first))
            inner = builder.gep(builder.bitcast(outer, byte.as_pointer()), [offset])
            return builder.bitcast(inner, context.get_value_type(record))

        return record(row, types.int64), code

    return cast("Accessor", intrinsic(at))


def _python_nested_accessor(dtype: DType, first: int) -> Accessor:
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


def _python_accessor(name: str, dtype: DType) -> Accessor:
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

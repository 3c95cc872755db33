"""Arrays of records in numpy, copied and gathered as raw bytes.

numpy itself copies records field by field, which is 10 to 30 times slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from purgatory_udf.rules.engine.jit.records import DType, Records

# Fewer than one in this many are sorted: that is faster than marking all that occur.
_SORT_BELOW = 16
_CACHE_LINE = 64  # bytes


def _as_bytes(rows: Records) -> Records:
    return rows.view(f"V{rows.itemsize}")


def copy_records(rows: Records) -> Records:
    """Return a copy of the rows."""
    return _as_bytes(rows).copy().view(rows.dtype)


def take_records(rows: Records, which: Records) -> Records:
    """Return a copy of the rows selected by indices or by a mask."""
    return _as_bytes(rows)[which].view(rows.dtype)


def concat_records(parts: Sequence[Records]) -> Records:
    """Return a copy of several arrays of one dtype as one."""
    dtype, parts = parts[0].dtype, [part for part in parts if len(part)]
    if len(parts) == 1:
        return copy_records(parts[0])
    rows = np.empty(sum(map(len, parts)), dtype)
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
    rows = np.empty(count, row.dtype)
    _as_bytes(rows)[:] = _as_bytes(row)
    return rows


def move_rows(rows: Records, start: int, to: int, count: int) -> None:
    """Move rows to an earlier place. The two ranges may overlap, which numpy would copy twice for."""
    size = rows.itemsize
    ctypes.memmove(rows.ctypes.data + to * size, rows.ctypes.data + start * size, count * size)


def allocate_tables(sizes: Mapping[str, tuple[DType, int]]) -> dict[str, Records]:
    """Allocate uninitialized tables in one block of memory, for which numpy requests huge pages if it is large.

    Each table starts at a cache line.
    """
    in_bytes = [dtype.itemsize * count for dtype, count in sizes.values()]
    starts = list(accumulate((size + -size % _CACHE_LINE for size in in_bytes), initial=0))
    memory = np.empty(starts[-1] + _CACHE_LINE, np.uint8)
    memory = memory[-memory.ctypes.data % _CACHE_LINE :]
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

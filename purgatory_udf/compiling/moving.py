"""Rows of tables chosen and put elsewhere, as plain bytes. numpy moves records field by field, 10 to 30 times slower.

So it is worth a look wherever a table's rows are indexed, copied or concatenated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from purgatory_udf.compiling.records import Kind, Records

# One of so many is sorted sooner than all are looked through.
_FEW = 16
_LINE = 64


def _bytes(rows: Records) -> Records:
    return rows.view(f"V{rows.itemsize}")


def copied(rows: Records) -> Records:
    return _bytes(rows).copy().view(rows.dtype)


def chosen(rows: Records, which: Records) -> Records:
    """A copy of those at these places, or where it is true."""
    return _bytes(rows)[which].view(rows.dtype)


def joined(parts: Sequence[Records]) -> Records:
    """One behind the other, of one kind."""
    kind, parts = parts[0].dtype, [part for part in parts if len(part)]
    if len(parts) == 1:
        return copied(parts[0])
    rows = np.empty(sum(map(len, parts)), kind)
    begin = 0
    for part in parts:
        _bytes(rows)[begin : begin + len(part)] = _bytes(part)
        begin += len(part)
    return rows


def put(held: Records, rows: Records) -> None:
    """To the front of `rows`."""
    if len(held):
        _bytes(rows)[: len(held)] = _bytes(held)


def repeated(row: Records, count: int) -> Records:
    """The one row, so often."""
    rows = np.empty(count, row.dtype)
    _bytes(rows)[:] = _bytes(row)
    return rows


def move_up(rows: Records, begin: int, to: int, count: int) -> None:
    """So many rows to an earlier place. The two may lie on each other, for which numpy would copy them twice."""
    size = rows.itemsize
    ctypes.memmove(rows.ctypes.data + to * size, rows.ctypes.data + begin * size, count * size)


def side_by_side(rooms: Mapping[str, tuple[Kind, int]]) -> dict[str, Records]:
    """Tables of so many rows that hold anything, in one piece of memory: if that is large numpy asks for large pages.
    Each begins with a line of the processor's cache."""
    sizes = [kind.itemsize * count for kind, count in rooms.values()]
    begins = list(accumulate((size + -size % _LINE for size in sizes), initial=0))
    memory = np.empty(begins[-1] + _LINE, np.uint8)
    memory = memory[-memory.ctypes.data % _LINE :]
    return {
        name: np.ndarray(count, kind, memory, begin)
        for (name, (kind, count)), begin in zip(rooms.items(), begins, strict=False)
    }


def distinct(numbers: Records, below: int) -> Records:
    """The different ones of these numbers, in order."""
    if len(numbers) * _FEW < below:
        return np.unique(numbers)
    there = np.zeros(below, bool)
    there[numbers] = True
    return np.flatnonzero(there).astype(numbers.dtype)

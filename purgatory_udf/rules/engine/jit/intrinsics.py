"""What of numbers the processor does in an instruction or two, and Python's own operators take several for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from purgatory_udf.rules.engine.jit.records import COMPILED, Kind, Records


def _lowest_bit(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


@intrinsic
def _compiled_units(typing: Any, amount: Any, unit: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.udiv(*arguments)

    return types.int64(types.int64, types.int64), code


def _units(amount: int, unit: int) -> int:
    assert amount >= 0
    return amount // unit


# The place of the lowest bit that is set, if any is: one instruction of the processor.
lowest_bit = cast("Callable[[int], int]", trailing_zeros) if COMPILED else _lowest_bit
# How many whole units there are of something that is not negative, as times are not: where that is not known, each
# division takes twice as many instructions.
units = cast("Callable[[int, int], int]", _compiled_units) if COMPILED else _units


# Numbers that lie in memory that others have filled: `int_at(address, 7)`, the eighth of 32 bits from there on.


def _loader(bits: int) -> Callable[[int, int], int]:
    long, kind = ir.IntType(64), ir.IntType(bits)

    def load(typing: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            begin, place = arguments
            at = builder.add(begin, builder.mul(place, ir.Constant(long, bits // 8)))
            # Of a text, they lie anywhere.
            value = builder.load(builder.inttoptr(at, kind.as_pointer()), align=1)
            if bits == 64:
                return value
            return (builder.zext if bits == 8 else builder.sext)(value, long)

        return types.int64(types.int64, types.int64), code

    return cast("Callable[[int, int], int]", intrinsic(load))


def _plain(kind: Any) -> Callable[[int, int], int]:
    def load(address: int, index: int) -> int:
        return int(kind.from_address(int(address) + int(index) * ctypes.sizeof(kind)).value)

    return load


byte_at = _loader(8) if COMPILED else _plain(ctypes.c_uint8)
int_at = _loader(32) if COMPILED else _plain(ctypes.c_int32)
long_at = _loader(64) if COMPILED else _plain(ctypes.c_int64)


# Rows of tables chosen and put elsewhere, as plain bytes. numpy moves records field by field, 10 to 30 times slower.
#
# So it is worth a look wherever a table's rows are indexed, copied or concatenated.


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

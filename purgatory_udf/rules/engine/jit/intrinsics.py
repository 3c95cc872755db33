"""Integer arithmetic and memory reads as single instructions, where Python's own operators take several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from purgatory_udf.rules.engine.jit.records import COMPILED


def _python_lowest_set_bit(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


@intrinsic
def _compiled_floor_div(typing: Any, amount: Any, unit: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.udiv(*arguments)

    return types.int64(types.int64, types.int64), code


def _python_floor_div(amount: int, unit: int) -> int:
    assert amount >= 0
    return amount // unit


# `lowest_set_bit(bits)`: number of trailing zeros; `bits` must not be 0.
lowest_set_bit = cast("Callable[[int], int]", trailing_zeros) if COMPILED else _python_lowest_set_bit
# `floor_div(amount, unit)` of an amount that is not negative, as times are not. A signed division rounds towards zero,
# and takes twice as many instructions to correct that.
floor_div = cast("Callable[[int, int], int]", _compiled_floor_div) if COMPILED else _python_floor_div


def _compiled_loader(bits: int) -> Callable[[int, int], int]:
    long, kind = ir.IntType(64), ir.IntType(bits)

    def load(typing: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start, place = arguments
            at = builder.add(start, builder.mul(place, ir.Constant(long, bits // 8)))
            # Strings are read eight bytes at a time from any address.
            value = builder.load(builder.inttoptr(at, kind.as_pointer()), align=1)
            if bits == 64:
                return value
            return (builder.zext if bits == 8 else builder.sext)(value, long)

        return types.int64(types.int64, types.int64), code

    return cast("Callable[[int, int], int]", intrinsic(load))


def _python_loader(kind: Any) -> Callable[[int, int], int]:
    def load(address: int, index: int) -> int:
        return int(kind.from_address(int(address) + int(index) * ctypes.sizeof(kind)).value)

    return load


# `load_int32(address, 7)` is the eighth 32-bit integer from the address on, in memory that others own.
load_uint8 = _compiled_loader(8) if COMPILED else _python_loader(ctypes.c_uint8)
load_int32 = _compiled_loader(32) if COMPILED else _python_loader(ctypes.c_int32)
load_int64 = _compiled_loader(64) if COMPILED else _python_loader(ctypes.c_int64)

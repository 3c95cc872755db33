"""Numbers that lie in memory that others have filled: `int_at(address, 7)`, the eighth of 32 bits from there on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from purgatory_udf.compiling.access import COMPILED


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

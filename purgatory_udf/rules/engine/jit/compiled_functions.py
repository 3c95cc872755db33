"""Functions that only compiled code calls: helpers, and operations that are one instruction.

`code_cache` has the decorator of the functions that Python calls. Helpers get records as pointers, without reference
counts, copies or allocations (see `records`). With `NUMBA_DISABLE_JIT=1` the same functions run uncompiled.

At the end: arithmetic and memory reads as single instructions, where Python's own operators take several.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"

# A constant. numba specializes a helper for each literal Python integer that it is called with; this is not a literal.
int64 = cast("Callable[[int], int]", np.int64)
# An index. For signed ones, compiled code checks in each access whether they are negative.
uint64 = cast("Callable[[int], int]", np.uint64)


class Helper:
    """A function that only compiled code calls; `numba_compiler` compiles it with its first caller."""

    def __init__(self, function: Callable[..., Any], is_inlined: bool) -> None:
        self.function, self.is_inlined = function, is_inlined


def helper(function: Function) -> Function:
    """Compile a function that only compiled code calls."""
    return cast("Function", Helper(function, is_inlined=False)) if COMPILED else function


def inlined(function: Function) -> Function:
    """Compile a function that only compiled code calls, and inline it at every call.

    It is meant for functions that are small or have one caller. For these a call costs more than the body, but inlining
    everything would take minutes to compile.
    """
    return cast("Function", Helper(function, is_inlined=True)) if COMPILED else function


class Instruction:
    """An operation of compiled code: the name of a function in `numba_compiler` that returns it, and its arguments."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments


def instruction(uncompiled: Function, name: str, *arguments: Any) -> Function:
    """Return an operation (`Instruction`), or the function that does the same uncompiled."""
    return cast("Function", Instruction(name, arguments)) if COMPILED else uncompiled


def _lowest_set_bit(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


def _count_bits(bits: int) -> int:
    return (int(bits) & (1 << 64) - 1).bit_count()


def _floor_div(amount: int, unit: int) -> int:
    assert amount >= 0
    return amount // unit


# `lowest_set_bit(bits)`: number of trailing zeros; `bits` must not be 0.
lowest_set_bit = instruction(_lowest_set_bit, "lowest_set_bit")
# `count_bits(bits)`: number of bits that are set, of 64.
count_bits = instruction(_count_bits, "count_bits")
# `floor_div(amount, unit)` of an amount that is not negative, as times are not. A signed division rounds towards zero,
# and takes twice as many instructions to correct that.
floor_div = instruction(_floor_div, "floor_div")


def _loader(kind: Any) -> Callable[[int, int], int]:
    def load(address: int, index: int) -> int:
        return int(kind.from_address(int(address) + int(index) * ctypes.sizeof(kind)).value)

    return load


# `load_int32(address, 7)` is the eighth 32-bit integer from the address on, in memory that others own.
load_uint8 = instruction(_loader(ctypes.c_uint8), "loader", 8)
load_int32 = instruction(_loader(ctypes.c_int32), "loader", 32)
load_int64 = instruction(_loader(ctypes.c_int64), "loader", 64)


def _copy_16(to: int, of: int) -> None:
    ctypes.memmove(int(to), int(of), 16)


# `copy_16(to, of)` copies 16 bytes between two addresses.
copy_16 = instruction(_copy_16, "copy_16")


def _prefetch(address: int) -> None:
    pass


# `prefetch(address)` prefetches a cache line for reading. The address need not be valid.
prefetch = instruction(_prefetch, "prefetch")

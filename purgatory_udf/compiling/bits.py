"""What of numbers the processor does in an instruction or two, and Python's own operators take several for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba.core import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from purgatory_udf.compiling.access import COMPILED


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

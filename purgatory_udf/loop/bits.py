"""Numbers as rows of bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from numba.cpython.unsafe.numbers import trailing_zeros

from purgatory_udf.loop.tables import COMPILED


def _plain(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


# The place of the lowest bit that is set, if any is: one instruction of the processor.
lowest_bit = cast("Callable[[int], int]", trailing_zeros) if COMPILED else _plain

"""Arrow's columns as compiled code reads them: where values and validity lie, nothing copied."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from purgatory_udf.compiling.compiled import inlined
from purgatory_udf.compiling.loading import byte_at, int_at, long_at
from purgatory_udf.compiling.records import record

# `values` is 0 where every row is null, `bits` where none is; `offset` is where a slice begins, and `base` where the
# items of a slice of lists do. The values of lists and texts are where each begins; of texts, `base` is their bytes'.
COLUMN = record("values bits offset base")
Column = Any  # the record


def placed(array: pa.Array | None) -> tuple[int, int, int, int]:
    """An array's record; the array must outlive it."""
    if array is None or array.null_count == len(array):
        return 0, 0, 0, 0
    bits, values = array.buffers()[:2]
    base = 0
    if isinstance(array, pa.ListArray):
        base = array.offsets[0].as_py()
    elif isinstance(array, pa.StringArray):
        base = array.buffers()[2].address if array.buffers()[2] else 0
    return values.address, bits.address if array.null_count else 0, array.offset, base


def items_of(lists: pa.ListArray) -> pa.Array:
    """What the lists hold: of a slice, no more than its own."""
    begin, end = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return lists.values.slice(begin, end - begin)


@inlined
def _bit(bits: int, place: int) -> bool:
    return ((byte_at(bits, place >> 3) >> (place & 7)) & 1) != 0


@inlined
def known(column: Column, row: int) -> bool:
    return column.values != 0 and (column.bits == 0 or _bit(column.bits, column.offset + row))


@inlined
def long_of(column: Column, row: int, absent: int) -> int:
    return long_at(column.values, column.offset + row) if known(column, row) else absent


@inlined
def int_of(column: Column, row: int, absent: int) -> int:
    return int_at(column.values, column.offset + row) if known(column, row) else absent


@inlined
def flag_of(column: Column, row: int) -> bool:
    return known(column, row) and _bit(column.values, column.offset + row)


@inlined
def begin_of(lists: Column, row: int) -> int:
    """Where the row's list begins among the items; it ends where the next row's begins."""
    return int_at(lists.values, lists.offset + row) - lists.base

"""Arrow's columns as compiled code reads them: where values and validity lie, nothing copied."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.jit.intrinsics import byte_at, int_at, long_at
from purgatory_udf.rules.engine.jit.records import Records, record

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


# Texts in Arrow's columns as compiled code reads them: where one lies, whether two are the same, and known words.


# Eight bytes are read at a time: the last eight overlap the ones before.
_LONG = number(8)
_LOW_BITS, _FACTOR = number(2**31 - 1), number(0x2C1B3C6D)

# A word, where it lies, and the number that it stands for.
WORD = record("text length number")


@inlined
def text_of(column: Column, row: int) -> tuple[int, int]:
    """Where the row's text lies, and how long it is; nothing has no length."""
    if not known(column, row):
        return 0, 0
    begin = int_at(column.values, column.offset + row)
    return column.base + begin, int_at(column.values, column.offset + row + 1) - begin


@inlined
def same(left: int, right: int, length: int) -> bool:
    """Whether two texts of this length are the same."""
    at = 0
    while at + _LONG <= length:
        if long_at(left + at, 0) != long_at(right + at, 0):
            return False
        at += _LONG
    if at > 0:
        return at == length or long_at(left + length - _LONG, 0) == long_at(right + length - _LONG, 0)
    while at < length:
        if byte_at(left, at) != byte_at(right, at):
            return False
        at += 1
    return True


@rule
def spread(text: int, length: int) -> int:
    """A number of 31 bits that differs for most texts that differ."""
    mixed, at = length, 0
    while at + _LONG <= length:
        mixed = _mix(mixed, long_at(text + at, 0))
        at += _LONG
    if at > 0 and at < length:
        return _mix(mixed, long_at(text + length - _LONG, 0))
    while at < length:
        mixed = _mix(mixed, byte_at(text, at))
        at += 1
    return mixed


@inlined
def _mix(mixed: int, more: int) -> int:
    product = (mixed ^ ((more ^ (more >> 31)) & _LOW_BITS)) * _FACTOR
    return (product ^ (product >> 29)) & _LOW_BITS


class Words:
    """Known words of several kinds, as one table of records, kind after kind: `borders` says where each begins, and
    where the last one ends."""

    def __init__(self, kinds: Sequence[Mapping[str, int]]) -> None:
        self.borders = [0, *accumulate(len(kind) for kind in kinds)]
        texts = [word.encode() for kind in kinds for word in kind]
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        self.records: Records = np.zeros(len(texts), WORD)
        self.records["length"] = [len(text) for text in texts]
        self.records["text"] = self._bytes.ctypes.data + np.cumsum(self.records["length"]) - self.records["length"]
        self.records["number"] = [meant for kind in kinds for meant in kind.values()]


def read(text: int, length: int) -> str:
    """A text that compiled code has found."""
    return ctypes.string_at(text, length).decode()

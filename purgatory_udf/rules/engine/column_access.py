"""Reads Arrow columns in compiled code, without copying them.

A column is passed as a record of addresses. Strings are pairs of address and length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined, int64, load_int32, load_int64, load_uint8
from purgatory_udf.rules.engine.jit.records import Records, record

# `values`: address of the values, 0 if all rows are null; of lists and strings, of their offsets. `bits`: address of
# the validity bitmap, 0 if no row is null. `offset`: first row of a slice. `base`: of a slice of lists, the offset of
# its first item; of strings, the address of the bytes.
COLUMN = record("values bits offset base")
Column = Any  # a `COLUMN` record


def column_record(array: pa.Array | None) -> tuple[int, int, int, int]:
    """Return a record with the addresses of the array's buffers. The array must outlive the record.

    None yields the record of a column in which all rows are null.
    """
    if array is None or array.null_count == len(array):
        return 0, 0, 0, 0
    bits, values = array.buffers()[:2]
    base = 0
    if isinstance(array, pa.ListArray):
        base = array.offsets[0].as_py()
    elif isinstance(array, pa.StringArray):
        base = array.buffers()[2].address if array.buffers()[2] else 0
    return values.address, bits.address if array.null_count else 0, array.offset, base


def list_items(lists: pa.ListArray) -> pa.Array:
    """Return the items of the lists as one array. If the lists are a slice, other items are left out."""
    begin, end = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return lists.values.slice(begin, end - begin)


@inlined
def _bit(bits: int, row: int) -> bool:
    return ((load_uint8(bits, row >> 3) >> (row & 7)) & 1) != 0


@inlined
def is_valid(column: Column, row: int) -> bool:
    """Return whether the row is not null."""
    return column.values != 0 and (column.bits == 0 or _bit(column.bits, column.offset + row))


@inlined
def int64_value(column: Column, row: int, absent: int) -> int:
    """Return the row's value, or `absent` if it is null."""
    return load_int64(column.values, column.offset + row) if is_valid(column, row) else absent


@inlined
def int32_value(column: Column, row: int, absent: int) -> int:
    """Return the row's value, or `absent` if it is null."""
    return load_int32(column.values, column.offset + row) if is_valid(column, row) else absent


@inlined
def bool_value(column: Column, row: int) -> bool:
    """Return the row's value; null is false."""
    return is_valid(column, row) and _bit(column.values, column.offset + row)


@inlined
def list_start(lists: Column, row: int) -> int:
    """Return the index of the row's first item. The next row's start is its end."""
    return load_int32(lists.values, lists.offset + row) - lists.base


# Strings are read eight bytes at a time; the last eight bytes overlap the ones before.


_WORD_BYTES = int64(8)
_LOW_BITS, _FACTOR = int64(2**31 - 1), int64(0x2C1B3C6D)

# A word of a vocabulary: address, length, and code.
WORD = record("text length number")


@inlined
def string_value(column: Column, row: int) -> tuple[int, int]:
    """Return the address and length of the row's string; null has length 0."""
    if not is_valid(column, row):
        return 0, 0
    begin = load_int32(column.values, column.offset + row)
    return column.base + begin, load_int32(column.values, column.offset + row + 1) - begin


@inlined
def strings_equal(left: int, right: int, length: int) -> bool:
    """Return whether two strings of the same length in bytes are equal. `left` and `right` are their addresses."""
    at = 0
    while at + _WORD_BYTES <= length:
        if load_int64(left + at, 0) != load_int64(right + at, 0):
            return False
        at += _WORD_BYTES
    if at > 0:
        return at == length or load_int64(left + length - _WORD_BYTES, 0) == load_int64(right + length - _WORD_BYTES, 0)
    while at < length:
        if load_uint8(left, at) != load_uint8(right, at):
            return False
        at += 1
    return True


@helper
def hash_string(text: int, length: int) -> int:
    """Return a 31-bit hash of the string at the address `text`, of `length` bytes."""
    mixed, at = length, 0
    while at + _WORD_BYTES <= length:
        mixed = _mix(mixed, load_int64(text + at, 0))
        at += _WORD_BYTES
    if at > 0 and at < length:
        return _mix(mixed, load_int64(text + length - _WORD_BYTES, 0))
    while at < length:
        mixed = _mix(mixed, load_uint8(text, at))
        at += 1
    return mixed


@inlined
def _mix(mixed: int, value: int) -> int:
    product = (mixed ^ ((value ^ (value >> 31)) & _LOW_BITS)) * _FACTOR
    return (product ^ (product >> 29)) & _LOW_BITS


class Vocabulary:
    """A table of words with their numbers, in which compiled code looks up strings.

    Attributes:
        records: One row for each word, group by group.
        bounds: The first row of each group, then the total number of rows.
    """

    def __init__(self, groups: Sequence[Mapping[str, int]]) -> None:
        self.bounds = [0, *accumulate(len(group) for group in groups)]
        texts = [word.encode() for group in groups for word in group]
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        self.records: Records = np.zeros(len(texts), WORD)
        self.records["length"] = [len(text) for text in texts]
        self.records["text"] = self._bytes.ctypes.data + np.cumsum(self.records["length"]) - self.records["length"]
        self.records["number"] = [number for group in groups for number in group.values()]


def decode_string(text: int, length: int) -> str:
    """Return the string at an address, given its length in bytes."""
    return ctypes.string_at(text, length).decode()

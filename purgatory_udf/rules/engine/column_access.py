"""Reads Arrow columns in compiled code, without copying them.

A column is passed as a record of addresses, which `read_batch` gets through Arrow's C data interface. Strings are pairs
of address and length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import (
    copy_16,
    count_bits,
    helper,
    inlined,
    int64,
    load_int32,
    load_int64,
    load_uint8,
    prefetch,
)
from purgatory_udf.rules.engine.jit.records import CACHE_LINE, Records, attribute_view, empty_records, record

# `values`: address of the values, 0 if all rows are null; of lists and strings, of their offsets. `bits`: address of
# the validity bitmap, 0 if no row is null. `offset`: first row of a slice. `base`: of a slice of lists, the offset of
# its first item; of strings, the address of the bytes, which end at `limit`. `width`: bytes of a value or an offset.
# `count`: number of rows; `valid`: number of rows that are not null.
COLUMN = record("values bits offset base limit width count valid")
Column = Any  # a `COLUMN` record, or `Addresses`
_OFFSET_BYTES = 4
# Strings are copied in steps of this size.
COPIED_BYTES, _ZERO = int64(16), int64(0)


# Where a column is in a batch: its number; the number of a list item's field, `WHOLE` for the item itself, or `NO_ITEM`
# for the column; its kind of type; and the width of its values.
PLACE = record("column field kind width")
WHOLE, NO_ITEM, ABSENT = int64(-1), int64(-2), int64(-1)
_FIXED, _STRING, _LIST = map(int64, range(3))
# The fields of the C data interface's `ArrowArray`, in words of 64 bits.
_LENGTH, _NULL_COUNT, _OFFSET, _BUFFER_COUNT, _BUFFERS, _CHILDREN, _RELEASE, _WORDS = map(
    int64, (0, 1, 2, 3, 5, 6, 8, 10)
)
_CALL_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def column_place(schema: pa.Schema, name: str, field: str | None = None) -> tuple[int, int, int, int]:
    """Return the `PLACE` of a column, or of a field of its list items; the field "" is the items themselves."""
    column, number = schema.get_field_index(name), int(NO_ITEM)
    kind = schema.field(column).type if column >= 0 else None
    if kind is not None and field is not None:
        kind, number = kind.value_type, int(WHOLE)
        if field:
            number = kind.get_field_index(field)
            kind = kind.field(number).type if number >= 0 else None
    if kind is None:
        return int(ABSENT), 0, 0, 0
    if isinstance(kind, pa.ListType):
        return column, number, int(_LIST), _OFFSET_BYTES
    if kind == pa.string():
        return column, number, int(_STRING), _OFFSET_BYTES
    return column, number, int(_FIXED), kind.bit_width // 8


def read_batch(batch: pa.RecordBatch, places: Records) -> Records:
    """Return a `COLUMN` for each `PLACE`, with addresses in the batch, which must outlive them.

    The C data interface passes all addresses at once. Separate arrays of pyarrow take three times as long.
    """
    columns = empty_records(len(places), COLUMN)
    exported = (ctypes.c_int64 * int(_WORDS))()
    address = ctypes.addressof(exported)
    batch._export_to_c(address)
    _read_batch(address, attribute_view(places), attribute_view(columns))
    _CALL_RELEASE(exported[_RELEASE])(address)
    return columns


@entry_point
def _read_batch(batch: int, places: Records, columns: Records) -> None:
    rows = load_int64(batch, _LENGTH)
    for c in range(len(places)):
        place, column = places[c], columns[c]
        # The attribute `base` of a numpy record is its array.
        column.values = column.bits = column.offset = column["base"] = column.limit = column.count = column.valid = 0
        column.width = place.width
        if place.column != ABSENT and rows > 0:
            array, count = _child(batch, place.column), rows
            first = load_int64(batch, _OFFSET) + load_int64(array, _OFFSET)
            if place.field != NO_ITEM:
                offsets = _buffer(array, 1)
                begin, count = (
                    load_int32(offsets, first),
                    load_int32(offsets, first + rows) - load_int32(offsets, first),
                )
                array = _child(array, 0)
                first = load_int64(array, _OFFSET) + begin
                if place.field != WHOLE:
                    array = _child(array, place.field)
                    first += load_int64(array, _OFFSET)
            column.count = count
            if count > 0 and load_int64(array, _BUFFER_COUNT) > 1:
                _read_array(array, first, place.kind, column)


@inlined
def _child(array: int, n: int) -> int:
    return load_int64(load_int64(array, _CHILDREN), n)


@inlined
def _buffer(array: int, n: int) -> int:
    return load_int64(load_int64(array, _BUFFERS), n)


@helper
def _read_array(array: int, first: int, kind: int, column: Column) -> None:
    """Set the addresses of a column of `column.count` rows from `first` on, unless all of them are null."""
    bits, values, length, nulls = (
        _buffer(array, 0),
        _buffer(array, 1),
        load_int64(array, _LENGTH),
        load_int64(array, _NULL_COUNT),
    )
    if bits == 0:
        nulls = _ZERO
    if nulls < 0 or (nulls > 0 and nulls < length and column.count < length):
        nulls = _count_nulls(bits, first, column.count)
    elif nulls == length:
        nulls = column.count
    column.valid = column.count - nulls
    if column.valid > 0:
        column.values, column.offset = values, first
        column.bits = bits if nulls > 0 else _ZERO
        if kind == _LIST:
            column["base"] = load_int32(values, first)
        elif kind == _STRING:
            column["base"] = text = _buffer(array, 2)
            column.limit = text + load_int32(values, first + column.count)


@helper
def _count_nulls(bits: int, first: int, count: int) -> int:
    valid, row, end = _ZERO, first, first + count
    while row < end:
        if row & 7 == 0 and row + 64 <= end:
            valid += count_bits(load_int64(bits + (row >> 3), 0))
            row += 64
        else:
            valid += _bit(bits, row)
            row += 1
    return count - valid


def column_record(array: pa.Array) -> tuple[int, int, int, int, int, int, int, int]:
    """Return a `COLUMN` with the addresses of an array, which must outlive it. The array has no lists."""
    count, valid = len(array), len(array) - array.null_count
    if not valid:
        return 0, 0, 0, 0, 0, 0, count, 0
    bits, values, *texts = array.buffers()
    base, limit, width = 0, 0, _OFFSET_BYTES
    if not isinstance(array, pa.StringArray):
        width = array.type.bit_width // 8
    elif texts[0]:
        base = texts[0].address
        limit = base + texts[0].size
    return values.address, bits.address if valid < count else 0, array.offset, base, limit, width, count, valid


def list_items(lists: pa.ListArray) -> pa.Array:
    """Return the items of the lists as one array. If the lists are a slice, other items are left out."""
    begin, end = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return lists.values.slice(begin, end - begin)


class Addresses(NamedTuple):
    """The addresses of a `COLUMN`. In a loop, compiled code keeps them in registers, but reads records again."""

    values: int
    bits: int
    offset: int
    base: int
    limit: int


@inlined
def addresses_of(column: Column) -> Addresses:
    """Return the addresses of a `COLUMN`, which functions that read columns accept, too."""
    return Addresses(column.values, column.bits, column.offset, column.base, column.limit)


@inlined
def _bit(bits: int, row: int) -> bool:
    return ((load_uint8(bits, row >> 3) >> (row & 7)) & 1) != 0


@inlined
def is_valid(column: Column, row: int) -> bool:
    """Return whether the row is not null."""
    return column.values != 0 and (column.bits == 0 or _bit(column.bits, column.offset + row))


# Nulls among values are unpredictable, so the functions below also load the value of a null, and then select.


@inlined
def int64_value(column: Column, row: int, absent: int) -> int:
    """Return the row's value, or `absent` if it is null."""
    if column.values == 0:
        return absent
    at = column.offset + row
    value = load_int64(column.values, at)
    return value if column.bits == 0 or _bit(column.bits, at) else absent


@inlined
def int32_value(column: Column, row: int, absent: int) -> int:
    """Return the row's value, or `absent` if it is null."""
    if column.values == 0:
        return absent
    at = column.offset + row
    value = load_int32(column.values, at)
    return value if column.bits == 0 or _bit(column.bits, at) else absent


@inlined
def bool_value(column: Column, row: int) -> bool:
    """Return the row's value; null is false."""
    return is_valid(column, row) and _bit(column.values, column.offset + row)


@inlined
def list_start(lists: Column, row: int) -> int:
    """Return the index of the row's first item. The next row's start is its end."""
    return load_int32(lists.values, lists.offset + row) - lists.base


@inlined
def prefetch_rows(column: Column, begin: int, end: int) -> None:
    """Prefetch the values of the rows from `begin` up to `end`; of lists and strings, their offsets."""
    if column.values != 0:
        start, stop = (column.offset + begin) * column.width, (column.offset + end) * column.width
        for line in range(column.values + start, column.values + stop, CACHE_LINE):
            prefetch(line)


# Strings are read eight bytes at a time; the last eight bytes overlap the ones before.


_WORD_BYTES = int64(8)
_LOW_BITS, _FACTOR = int64(2**31 - 1), int64(0x2C1B3C6D)


@inlined
def string_value(column: Column, row: int) -> tuple[int, int]:
    """Return the address and length of the row's string; null has length 0."""
    if column.values == 0:
        return _ZERO, _ZERO
    at = column.offset + row
    begin = load_int32(column.values, at)
    length = load_int32(column.values, at + 1) - begin
    return column.base + begin, length if column.bits == 0 or _bit(column.bits, at) else _ZERO


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


# A slot of a vocabulary: address and length of the word, its first 16 bytes as two integers with masks of the bytes
# that it has, its number, and its group. An empty slot has group -1.
WORD = record("text length low low_mask high high_mask number group")
_HEAD_BYTES, _SLOTS = int64(16), int64(256)


class Vocabulary:
    """A hash table of words with their numbers, in which compiled code looks up strings (`word_slot`, `is_word`).

    Attributes:
        records: The slots. No two words have the same.
        factor: Parameter of the hash.
    """

    def __init__(self, groups: Sequence[Mapping[str, int]]) -> None:
        words = [word.encode() for group in groups for word in group]
        hashed = [(len(word), word[len(word) // 4], word[len(word) // 2]) for word in words]
        candidates = ((factor, [_slot_of(factor, *parts) for parts in hashed]) for factor in count(_FACTOR, 2))
        self.factor, slots = next((factor, slots) for factor, slots in candidates if len(set(slots)) == len(words))
        self._bytes = np.frombuffer(b"".join(words), np.uint8)
        self.records: Records = np.zeros(_SLOTS, WORD)
        self.records["group"] = -1
        text = self._bytes.ctypes.data
        numbers = [(number, group) for group, codes in enumerate(groups) for number in codes.values()]
        for word, slot, (number, group) in zip(words, slots, numbers, strict=True):
            low, high = np.frombuffer(word[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0"), np.int64)
            low_mask, high_mask = np.frombuffer(
                (b"\xff" * min(len(word), _HEAD_BYTES)).ljust(_HEAD_BYTES, b"\0"), np.int64
            )
            self.records[slot] = (text, len(word), low, low_mask, high, high_mask, number, group)
            text += len(word)


def _slot_of(factor: int, length: int, byte: int, middle: int) -> int:
    """Return the slot of a word, given the bytes at a quarter and at half of its length."""
    return (((length + (byte << 6) + (middle << 14)) * factor) >> 13) & (_SLOTS - 1)


_compiled_slot_of = inlined(_slot_of)


@inlined
def word_slot(factor: int, text: int, length: int) -> int:
    """Return the slot of a vocabulary that may have the string. The byte at the address `text` must be readable."""
    return _compiled_slot_of(factor, length, load_uint8(text, length >> 2), load_uint8(text, length >> 1))


@inlined
def is_word(word: Any, text: int, length: int, limit: int) -> bool:
    """Return whether the string is the word of this slot. No byte from the address `limit` on is read."""
    if text + _HEAD_BYTES > limit or length > _HEAD_BYTES:
        return word.length == length and strings_equal(word.text, text, length)
    # One branch instead of one per byte: the processor cannot predict which word is next.
    low, high = (load_int64(text, 0) ^ word.low) & word.low_mask, (load_int64(text, 1) ^ word.high) & word.high_mask
    return (low | high | (word.length ^ length)) == 0


@entry_point
def _gather(
    starts: int, bits: int, first: int, text: int, limit: int, rows: Records, offsets: Records, target: Records, to: int
) -> int:
    """Copy the strings in some rows of a column to `target`, and fill `offsets` with Arrow's offsets.

    `to` is the address of `target`, and the first five arguments are those of a `COLUMN`. Up to 15 bytes after a string
    are copied too, if the column has them.

    Returns:
        The total size in bytes, or -1 if one of the strings is null or empty, or if the target is too small.
    """
    size = offsets[0] = 0
    for n in range(len(rows)):
        at = first + rows[n]
        begin = load_int32(starts, at)
        length = load_int32(starts, at + 1) - begin
        if length == 0 or size + length + COPIED_BYTES > len(target) or (bits != 0 and not _bit(bits, at)):
            return -1
        begin += text
        if begin + length + COPIED_BYTES <= limit:
            for copied in range(_ZERO, length, COPIED_BYTES):
                copy_16(to + size + copied, begin + copied)
        else:
            for copied in range(length):
                target[size + copied] = load_uint8(begin, copied)
        size += length
        offsets[n + 1] = size
    return size


def gather_strings(strings: pa.StringArray, rows: Records) -> pa.StringArray | None:
    """Return the strings in different rows, in less time than `take`; null if one of the strings is null or empty."""
    if strings.null_count == len(strings):
        return None
    bounds = np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1, 4 * strings.offset)
    target, offsets = np.empty(bounds[-1] - bounds[0] + COPIED_BYTES, np.uint8), np.empty(len(rows) + 1, np.int32)
    size = _gather(*column_record(strings)[:5], rows, offsets, target, target.ctypes.data)
    if size < 0:
        return None
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(target[:size]))

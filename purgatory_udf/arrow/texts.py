"""Texts in Arrow's columns as compiled code reads them: where one lies, whether two are the same, and known words."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from purgatory_udf.arrow.reading import Column, known
from purgatory_udf.compiling.compiled import inlined, number, rule
from purgatory_udf.compiling.loading import byte_at, int_at, long_at
from purgatory_udf.compiling.records import Records, record

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

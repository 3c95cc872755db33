"""Rows of tables chosen and put elsewhere, as plain bytes. numpy moves records field by field, 10 to 30 times slower.

So it is worth a look wherever a table's rows are indexed, copied or concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from purgatory_udf.loop.world import Kind, Records

# One of so many is sorted sooner than all are looked through.
_FEW = 16


def _bytes(rows: Records) -> Records:
    return rows.view(f"V{rows.itemsize}")


def copied(rows: Records) -> Records:
    return _bytes(rows).copy().view(rows.dtype)


def chosen(rows: Records, which: Records) -> Records:
    """A copy of those at these places, or where it is true."""
    return _bytes(rows)[which].view(rows.dtype)


def joined(kind: Kind, parts: Sequence[Records]) -> Records:
    rows = np.empty(sum(map(len, parts)), kind)
    begin = 0
    for part in parts:
        _bytes(rows)[begin : begin + len(part)] = _bytes(part)
        begin += len(part)
    return rows


def with_room(held: Records, more: int) -> Records:
    """A copy with so many rows behind it that hold anything."""
    rows = np.empty(len(held) + more, held.dtype)
    _bytes(rows)[: len(held)] = _bytes(held)
    return rows


def distinct(numbers: Records, below: int) -> Records:
    """The different ones of these numbers, in order."""
    if len(numbers) * _FEW < below:
        return np.unique(numbers)
    there = np.zeros(below, bool)
    there[numbers] = True
    return np.flatnonzero(there).astype(numbers.dtype)

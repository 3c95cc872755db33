"""Rows cut into parts that are about as much work each, for the machine's cores.

What is to be put in order first is cut as it will lie: the rows of a part are brought together by who works on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Of a row, but for its text.
_ROW_BYTES = 64
# What is less is sooner done than a process is forked for it: rows that belong together are more work than others.
LEAST_BYTES, LEAST_ALONE_BYTES = 1 << 19, 1 << 21


Part = Callable[[], pa.Table]


class Arranged(NamedTuple):
    """`places` are the rows' numbers in the order that is meant; None: as they lie."""

    rows: pa.Table
    places: npt.NDArray[np.uint64] | None = None

    def table(self) -> pa.Table:
        return self.rows if self.places is None else self.rows.take(self.places)

    def part(self, begin: int, end: int) -> Part:
        if self.places is None:
            return partial(self.rows.slice, begin, end - begin)
        return partial(self.rows.take, self.places[begin:end])


def cut_apart(rows: Arranged, together: Sequence[str], most: int) -> list[Part]:
    """About so many parts, in order. Rows that lie side by side and are the same in the columns `together` stay so;
    where none are named, any row may begin a part."""
    return [rows.part(begin, end) for begin, end in pairwise(_borders(*rows, together, most))]


def _borders(
    rows: pa.Table, places: npt.NDArray[np.uint64] | None, together: Sequence[str], most: int
) -> Sequence[int]:
    lengths = _bytes(rows)
    ends = np.cumsum(lengths if places is None else lengths[places])
    count = min(most, int(ends[-1]) // (LEAST_BYTES if together else LEAST_ALONE_BYTES)) if len(ends) else 0
    if count < 2:
        return [0, rows.num_rows]
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
    if together:
        # Before and behind what lies there: it may be most of the work.
        begins = np.array([0, *np.flatnonzero(_begins(rows, places, together)), rows.num_rows])
        after = np.searchsorted(begins, cuts, side="right")
        cuts = begins[np.concatenate([after - 1, after])]
    borders: list[int] = np.unique([0, *cuts, rows.num_rows]).tolist()
    return borders


def _bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    lengths = np.full(rows.num_rows, _ROW_BYTES, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths += pc.binary_length(column).fill_null(0).to_numpy()
    return lengths


def _begins(rows: pa.Table, places: npt.NDArray[np.uint64] | None, together: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows differ from the one before."""
    begins = np.zeros(rows.num_rows, bool)
    for name in together:
        numbers = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        numbers = numbers if places is None else numbers[places]
        begins[1:] |= numbers[1:] != numbers[:-1]
    return begins

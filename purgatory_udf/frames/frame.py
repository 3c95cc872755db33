"""A frame: named numpy columns of one length. Small on purpose: what the rules need, and nothing that costs a copy.

Rows that are taken from a frame, and frames that are joined, copy no column before it is asked for: most columns of
most frames never are. An array that a frame was made of must therefore not be changed in place while rows of it are in
use; change a copy, and put that into the frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class FrameLayout:
    """The columns a frame must have: whole numbers (int64), and texts (object) where named so."""

    numbers: tuple[str, ...]
    texts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.numbers + self.texts

    def of(self, rows: Sequence[tuple[int | str, ...]]) -> Frame:
        """Rows that were found one by one, each with a value for every column in the order of `names`."""
        if not rows:
            return self.empty()
        columns = zip(self.names, zip(*rows, strict=True), strict=True)
        return Frame(
            {name: np.array(values, dtype=object if name in self.texts else np.int64) for name, values in columns}
        )

    def empty(self, rows: int = 0, fill: int = 0) -> Frame:
        columns: dict[str, Array] = {name: np.full(rows, fill, dtype=np.int64) for name in self.numbers}
        columns |= {name: np.full(rows, "", dtype=object) for name in self.texts}
        return Frame(columns)


class Frame:
    """Columns by attribute (`frame.seq`); rows by `take` (indices or a mask); joined end to end by `concat`."""

    __slots__ = ("_held",)

    _held: dict[str, _Column]

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._held = dict(columns)

    @property
    def columns(self) -> Columns:
        """The columns by their names; a new one may be put in."""
        return Columns(self)

    def __getattr__(self, name: str) -> Array:
        try:
            held = self._held[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(held, np.ndarray):
            return held
        array = self._held[name] = held.array()
        return array

    def __len__(self) -> int:
        return len(next(iter(self._held.values()))) if self._held else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def take(self, rows: Array | slice) -> Frame:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        elif rows.dtype == np.bool_:
            if rows.all():
                return _frame(dict(self._held))
            rows = np.flatnonzero(rows)
        # Columns that were taken together are so again.
        taken: dict[int, _Rows] = {}
        held: dict[str, _Column] = {}
        for name, column in self._held.items():
            source, before = (column.source, column.rows) if isinstance(column, _Taken) else (column, None)
            place = id(before)
            if place not in taken:
                taken[place] = _Rows(rows, before)
            held[name] = _Taken(source, taken[place])
        return _frame(held)

    def only(self, names: tuple[str, ...]) -> Frame:
        return _frame({name: self._held[name] for name in names})

    def with_columns(self, **columns: Array) -> Frame:
        return _frame({**self._held, **columns})

    def beside(self, other: Frame) -> Frame:
        """The columns of both; where both have one, the other's."""
        return _frame({**self._held, **other._held})

    def whole(self) -> Frame:
        """The same frame, holding on to nothing that it was taken from: what is kept for long."""
        return Frame({name: column if column.base is None else column.copy() for name, column in self.columns.items()})

    @staticmethod
    def concat(frames: list[Frame]) -> Frame:
        filled = [frame for frame in frames if len(frame)] or frames[:1]
        if len(filled) == 1:
            return filled[0]
        return _frame({name: _Joined([frame._held[name] for frame in filled]) for name in filled[0]})


class Columns(MutableMapping[str, Array]):
    """A frame's columns, as a mapping."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Array:
        try:
            return self._frame.__getattr__(name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, column: Array) -> None:
        self._frame._held[name] = column

    def __delitem__(self, name: str) -> None:
        del self._frame._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame._held)

    def __len__(self) -> int:
        return len(self._frame._held)


def _frame(held: dict[str, _Column]) -> Frame:
    frame = Frame.__new__(Frame)
    frame._held = held
    return frame


class _Rows:
    """Which rows, of those taken before: put together when the first column is asked for, once for all columns."""

    __slots__ = ("_before", "_rows")

    def __init__(self, rows: Array, before: _Rows | None) -> None:
        self._rows, self._before = rows, before

    def __len__(self) -> int:
        return len(self._rows)

    def array(self) -> Array:
        if self._before is not None:
            self._rows, self._before = self._before.array().take(self._rows), None
        return self._rows


class _Taken:
    """Rows of a column, not yet looked at."""

    __slots__ = ("rows", "source")

    def __init__(self, source: Array | _Joined, rows: _Rows) -> None:
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return len(self.rows)

    def array(self) -> Array:
        source = self.source if isinstance(self.source, np.ndarray) else self.source.array()
        taken: Array = source.take(self.rows.array())
        return taken


class _Joined:
    """Columns end to end, not yet looked at; joined once, whoever asks."""

    __slots__ = ("_array", "_length", "_parts")

    def __init__(self, parts: list[_Column]) -> None:
        self._parts = parts
        self._length = sum(map(len, parts))
        self._array: Array | None = None

    def __len__(self) -> int:
        return self._length

    def array(self) -> Array:
        if self._array is None:
            parts = (part if isinstance(part, np.ndarray) else part.array() for part in self._parts)
            self._array, self._parts = np.concatenate(list(parts)), []
        return self._array


_Column = Array | _Taken | _Joined

"""A frame: named numpy columns of one length. Small on purpose: what the rules need, and nothing that costs a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
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

    __slots__ = ("columns",)

    columns: dict[str, Array]

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.columns = dict(columns)

    def __getattr__(self, name: str) -> Array:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def take(self, rows: Array | slice) -> Frame:
        return Frame({name: column[rows] for name, column in self.columns.items()})

    def only(self, names: tuple[str, ...]) -> Frame:
        return Frame({name: self.columns[name] for name in names})

    def with_columns(self, **columns: Array) -> Frame:
        return Frame({**self.columns, **columns})

    @staticmethod
    def concat(frames: list[Frame]) -> Frame:
        filled = [frame for frame in frames if len(frame)] or frames[:1]
        if len(filled) == 1:
            return filled[0]
        return Frame({name: np.concatenate([frame.columns[name] for frame in filled]) for name in filled[0]})

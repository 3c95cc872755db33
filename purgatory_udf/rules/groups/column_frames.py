"""A frame: named numpy columns of equal length, with lazy row selection, and its binary form.

Selecting rows and concatenating frames copies a column only when it is read, because most columns of most frames never
are. Slices are views. An array that a frame was built from must therefore not be modified while frames derived from it
are in use: replace the column by a modified copy instead.

Frames are serialized for a group's state in Spark, and for the data that one query passes to the next. A number column
is stored as its minimum and the unsigned differences from it, in the fewest bytes that hold the largest one. Columns of
the same width are stored together, so that packing takes a few numpy calls regardless of the number of columns. A text
column is stored as lengths and one block of UTF-8. Values of 256 bytes or more are compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.rules.engine.loop.state_codec import add_header, strip_header

Array = npt.NDArray[Any]
Row = tuple[int | str, ...]


@dataclass(frozen=True)
class FrameLayout:
    """The columns of a frame: numbers (int64) and texts (object)."""

    numbers: tuple[str, ...]
    texts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.numbers + self.texts

    def from_rows(self, rows: Sequence[Row]) -> Frame:
        """Build a frame from row tuples, each with a value for every column in the order of `names`."""
        if not rows:
            return self.empty()
        columns = zip(self.names, zip(*rows, strict=True), strict=True)
        return Frame(
            {name: np.array(values, dtype=object if name in self.texts else np.int64) for name, values in columns}
        )

    def empty(self, rows: int = 0, fill: int = 0) -> Frame:
        """Return a frame of `rows` rows, with `fill` as every number and empty texts."""
        columns: dict[str, Array] = {name: np.full(rows, fill, dtype=np.int64) for name in self.numbers}
        columns |= {name: np.full(rows, "", dtype=object) for name in self.texts}
        return Frame(columns)


class Frame:
    """A table of numpy columns of equal length, which are its attributes (`frame.seq`).

    `take` selects rows by indices or a mask; `concat` appends frames.
    """

    __slots__ = ("_stored",)

    _stored: dict[str, _Column]

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._stored = dict(columns)

    @property
    def columns(self) -> Columns:
        """The columns by name. Columns may be added and replaced."""
        return Columns(self)

    def __getattr__(self, name: str) -> Array:
        try:
            stored = self._stored[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(stored, np.ndarray):
            return stored
        array = self._stored[name] = stored.array()
        return array

    def __len__(self) -> int:
        return len(next(iter(self._stored.values()))) if self._stored else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def take(self, rows: Array | slice) -> Frame:
        """Select rows by indices, a boolean mask or a slice."""
        if isinstance(rows, slice):
            # Many slices of a frame are read, so each column is copied once, and slices are views of it.
            return _new_frame({name: column[rows] for name, column in self.columns.items()})
        if rows.dtype == np.bool_:
            if rows.all():
                return _new_frame(dict(self._stored))
            rows = np.flatnonzero(rows)
        # Columns that share a row selection keep sharing one.
        selections: dict[int, _RowSelection] = {}
        stored: dict[str, _Column] = {}
        for name, column in self._stored.items():
            source, before = (column.source, column.rows) if isinstance(column, _SelectedColumn) else (column, None)
            shared = id(before)
            if shared not in selections:
                selections[shared] = _RowSelection(rows, before)
            stored[name] = _SelectedColumn(source, selections[shared])
        return _new_frame(stored)

    def select(self, names: tuple[str, ...]) -> Frame:
        """Return a frame with these columns only."""
        return _new_frame({name: self._stored[name] for name in names})

    def with_columns(self, **columns: Array) -> Frame:
        """Return a frame with these columns added or replaced."""
        return _new_frame({**self._stored, **columns})

    def merge(self, other: Frame) -> Frame:
        """Return a frame with the columns of both frames. If both have a column, that of `other` is used."""
        return _new_frame({**self._stored, **other._stored})

    def copy(self) -> Frame:
        """Return an equal frame that keeps no reference to the frames it was derived from."""
        return Frame({name: column if column.base is None else column.copy() for name, column in self.columns.items()})

    @staticmethod
    def concat(frames: list[Frame]) -> Frame:
        """Append frames that have the same columns."""
        filled = [frame for frame in frames if len(frame)] or frames[:1]
        if len(filled) == 1:
            return filled[0]
        return _new_frame({name: _ConcatenatedColumn([frame._stored[name] for frame in filled]) for name in filled[0]})


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
        self._frame._stored[name] = column

    def __delitem__(self, name: str) -> None:
        del self._frame._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame._stored)

    def __len__(self) -> int:
        return len(self._frame._stored)


def _new_frame(stored: dict[str, _Column]) -> Frame:
    frame = Frame.__new__(Frame)
    frame._stored = stored
    return frame


class _RowSelection:
    """Row indices relative to an earlier selection. They are resolved once, when the first column is read."""

    __slots__ = ("_before", "_rows")

    def __init__(self, rows: Array, before: _RowSelection | None) -> None:
        self._rows, self._before = rows, before

    def __len__(self) -> int:
        return len(self._rows)

    def array(self) -> Array:
        if self._before is not None:
            self._rows, self._before = self._before.array().take(self._rows), None
        return self._rows


class _SelectedColumn:
    """A column that consists of selected rows of another, which are copied each time that `array` is called."""

    __slots__ = ("rows", "source")

    def __init__(self, source: Array | _ConcatenatedColumn, rows: _RowSelection) -> None:
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return len(self.rows)

    def array(self) -> Array:
        source = self.source if isinstance(self.source, np.ndarray) else self.source.array()
        taken: Array = source.take(self.rows.array())
        return taken


class _ConcatenatedColumn:
    """A column that consists of several others, which are copied once, when `array` is first called."""

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


_Column = Array | _SelectedColumn | _ConcatenatedColumn


VERSION = 2
_KIND = b"PRfr"
_FRAME = struct.Struct("<HHI")
_MIN_COMPRESSED_BYTES = 256
_WIDTHS = ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64))
_WIDTH_OF_CLASS = np.array([0, 1, 2, 4, 8])


@cache
def _label(name: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> bytes:
    return f"{name}|{','.join(numbers)}|{','.join(texts)}".encode("ascii")


@cache
def _parse_label(label: bytes) -> tuple[str, list[str], list[str]]:
    name, numbers, texts = label.decode("ascii").split("|")
    return name, numbers.split(",") if numbers else [], texts.split(",") if texts else []


def _pack_numbers(columns: list[Array], rows: int) -> list[bytes]:
    """Serialize number columns: minimums, widths in bytes (0: all equal), and differences, narrow columns first."""
    if not columns or not rows:
        return []
    matrix = np.array(columns, dtype=np.int64)
    low = matrix.min(axis=1)
    spread = (matrix.max(axis=1) - low).view(np.uint64)
    width = _WIDTH_OF_CLASS[
        (spread > 0).astype(np.intp) + (spread >= 1 << 8) + (spread >= 1 << 16) + (spread >= 1 << 32)
    ]
    parts = [low.tobytes(), width.astype(np.uint8).tobytes()]
    for size, kind in _WIDTHS:
        columns_of_size = np.flatnonzero(width == size)
        if len(columns_of_size):
            parts.append((matrix[columns_of_size] - low[columns_of_size, None]).view(np.uint64).astype(kind).tobytes())
    return parts


def _unpack_numbers(data: memoryview, at: int, columns: int, rows: int) -> tuple[Array, int]:
    if not columns or not rows:
        return np.zeros((columns, rows), dtype=np.int64), at
    low = np.frombuffer(data, dtype=np.int64, count=columns, offset=at)
    width = np.frombuffer(data, dtype=np.uint8, count=columns, offset=at + 8 * columns)
    at += 9 * columns
    matrix = np.repeat(low, rows).reshape(columns, rows)
    for size, kind in _WIDTHS:
        columns_of_size = np.flatnonzero(width == size)
        if len(columns_of_size):
            raw = np.frombuffer(data, dtype=kind, count=len(columns_of_size) * rows, offset=at).reshape(
                len(columns_of_size), rows
            )
            matrix[columns_of_size] += raw.astype(np.uint64).view(np.int64)
            at += size * rows * len(columns_of_size)
    return matrix, at


def _pack_texts(column: Array) -> list[bytes]:
    """Serialize a text column as lengths and one block of text. A column of only empty texts takes one byte."""
    texts: list[str] = column.tolist()
    if not any(texts):
        return [b"\0"]
    _, offsets, data = pa.array(texts, pa.large_string()).buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(texts) + 1)
    return [b"\1", np.diff(ends).astype(np.uint32).tobytes(), data.to_pybytes()[: int(ends[-1])]]


def _unpack_texts(data: memoryview, at: int, rows: int) -> tuple[pa.Array, int]:
    if not data[at]:
        return pa.repeat(pa.scalar("", pa.large_string()), rows), at + 1
    ends = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(data, dtype=np.uint32, count=rows, offset=at + 1), out=ends[1:])
    begin = at + 1 + 4 * rows
    end = begin + int(ends[-1])
    return pa.LargeStringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(data[begin:end])), end


def pack(frames: Mapping[str, Frame]) -> bytes:
    """Serialize several named frames into one value."""
    parts = [struct.pack("<H", len(frames))]
    for name, frame in frames.items():
        numbers = {column: values for column, values in frame.columns.items() if values.dtype != object}
        texts = {column: values for column, values in frame.columns.items() if values.dtype == object}
        label, rows = _label(name, tuple(numbers), tuple(texts)), len(frame)
        parts += [_FRAME.pack(len(label), 0, rows), label, *_pack_numbers(list(numbers.values()), rows)]
        for values in texts.values():
            parts += _pack_texts(values)
    body = b"".join(parts)
    return add_header(_KIND, VERSION, body, pack=len(body) >= _MIN_COMPRESSED_BYTES)


def unpack(value: bytes) -> dict[str, Frame]:
    """Deserialize the frames of `pack`. Raises UserError if the value has another version."""
    return {
        name: Frame(
            {
                column: values if isinstance(values, np.ndarray) else values.to_numpy(zero_copy_only=False)
                for column, values in columns.items()
            }
        )
        for name, columns in unpack_columns(value).items()
    }


def unpack_columns(value: bytes) -> dict[str, dict[str, Any]]:
    """Deserialize the frames of `pack` as columns by name, with texts as Arrow arrays."""
    data = strip_header(_KIND, VERSION, value)
    (count,) = struct.unpack_from("<H", data)
    at, frames = 2, dict[str, dict[str, Any]]()
    for _ in range(count):
        length, _, rows = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        name, numbers, texts = _parse_label(bytes(data[at - length : at]))
        matrix, at = _unpack_numbers(data, at, len(numbers), rows)
        columns: dict[str, Any] = dict(zip(numbers, matrix, strict=True))
        for text in texts:
            columns[text], at = _unpack_texts(data, at, rows)
        frames[name] = columns
    return frames

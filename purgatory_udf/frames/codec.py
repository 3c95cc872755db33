"""Frames as bytes: a key's state in Spark, and what one query hands to the next.

A number column is kept as its least value and the unsigned differences from it, in the fewest whole bytes that hold
the greatest; columns of one width lie together, so that a frame is packed in a few numpy calls whatever its columns.
A text column is lengths and one run of UTF-8. What is long enough to gain is compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache

import numpy as np
import pyarrow as pa

from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.sealed import seal, unseal

VERSION = 2
_KIND = b"PRfr"
_FRAME = struct.Struct("<HHI")
_WORTH_COMPRESSING = 256
_WIDTHS = ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64))
_WIDTH_OF_CLASS = np.array([0, 1, 2, 4, 8])


@cache
def _label(name: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> bytes:
    return f"{name}|{','.join(numbers)}|{','.join(texts)}".encode("ascii")


@cache
def _unlabel(label: bytes) -> tuple[str, list[str], list[str]]:
    name, numbers, texts = label.decode("ascii").split("|")
    return name, numbers.split(",") if numbers else [], texts.split(",") if texts else []


def _pack_numbers(columns: list[Array], rows: int) -> list[bytes]:
    """Least values, widths in bytes (0: all the same), then the differences, narrow columns first."""
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
        mine = np.flatnonzero(width == size)
        if len(mine):
            parts.append((matrix[mine] - low[mine, None]).view(np.uint64).astype(kind).tobytes())
    return parts


def _unpack_numbers(data: memoryview, at: int, columns: int, rows: int) -> tuple[Array, int]:
    if not columns or not rows:
        return np.zeros((columns, rows), dtype=np.int64), at
    low = np.frombuffer(data, dtype=np.int64, count=columns, offset=at)
    width = np.frombuffer(data, dtype=np.uint8, count=columns, offset=at + 8 * columns)
    at += 9 * columns
    matrix = np.repeat(low, rows).reshape(columns, rows)
    for size, kind in _WIDTHS:
        mine = np.flatnonzero(width == size)
        if len(mine):
            raw = np.frombuffer(data, dtype=kind, count=len(mine) * rows, offset=at).reshape(len(mine), rows)
            matrix[mine] += raw.astype(np.uint64).view(np.int64)
            at += size * rows * len(mine)
    return matrix, at


def _pack_texts(column: Array) -> list[bytes]:
    """Lengths and one run of text; a column of nothing but empty texts is one byte."""
    texts: list[str] = column.tolist()
    if not any(texts):
        return [b"\0"]
    _, offsets, data = pa.array(texts, pa.large_string()).buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(texts) + 1)
    return [b"\1", np.diff(ends).astype(np.uint32).tobytes(), data.to_pybytes()[: int(ends[-1])]]


def _unpack_texts(data: memoryview, at: int, rows: int) -> tuple[Array, int]:
    if not data[at]:
        return np.full(rows, "", dtype=object), at + 1
    ends = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(data, dtype=np.uint32, count=rows, offset=at + 1), out=ends[1:])
    begin = at + 1 + 4 * rows
    end = begin + int(ends[-1])
    texts = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(data[begin:end]))
    return texts.to_numpy(zero_copy_only=False), end


def pack(frames: Mapping[str, Frame]) -> bytes:
    """Several named frames as one value."""
    parts = [struct.pack("<H", len(frames))]
    for name, frame in frames.items():
        numbers = {column: values for column, values in frame.columns.items() if values.dtype != object}
        texts = {column: values for column, values in frame.columns.items() if values.dtype == object}
        label, rows = _label(name, tuple(numbers), tuple(texts)), len(frame)
        parts += [_FRAME.pack(len(label), 0, rows), label, *_pack_numbers(list(numbers.values()), rows)]
        for values in texts.values():
            parts += _pack_texts(values)
    body = b"".join(parts)
    return seal(_KIND, VERSION, body, pack=len(body) >= _WORTH_COMPRESSING)


def unpack(value: bytes) -> dict[str, Frame]:
    """The frames that `pack` made; a value of another version is refused."""
    data = unseal(_KIND, VERSION, value)
    (count,) = struct.unpack_from("<H", data)
    at, frames = 2, {}
    for _ in range(count):
        length, _, rows = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        name, numbers, texts = _unlabel(bytes(data[at - length : at]))
        matrix, at = _unpack_numbers(data, at, len(numbers), rows)
        columns: dict[str, Array] = dict(zip(numbers, matrix, strict=True))
        for text in texts:
            columns[text], at = _unpack_texts(data, at, rows)
        frames[name] = Frame(columns)
    return frames

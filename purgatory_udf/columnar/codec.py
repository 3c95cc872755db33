"""Frames as bytes: a key's state in Spark, and what one query hands to the next.

A number column is kept as its least value and the unsigned differences from it, in the fewest whole bytes that hold
the greatest; a text column as lengths and one run of UTF-8. What is long enough to gain is compressed. The first
bytes say which version wrote it: an older or newer one is refused in one sentence, since a watcher list that is
read wrongly would end operations wrongly.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.errors import UserError

VERSION = 1
_MAGIC = b"PR"
_HEAD = struct.Struct("<2sBBI")
_WORTH_COMPRESSING = 256
_CODEC = pa.Codec("zstd", compression_level=1)
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _pack_numbers(column: Array) -> bytes:
    if not len(column):
        return struct.pack("<Bq", 0, 0)
    low = int(column.min())
    spread = int(column.max()) - low
    if spread == 0:
        return struct.pack("<Bq", 0, low)
    width = next(width for width in (1, 2, 4, 8) if spread < 1 << (8 * width))
    shifted = (column.astype(np.int64, copy=False) - np.int64(low)).view(np.uint64)
    return struct.pack("<Bq", width, low) + shifted.astype(_WIDTHS[width]).tobytes()


def _unpack_numbers(data: memoryview, at: int, rows: int) -> tuple[Array, int]:
    width, low = struct.unpack_from("<Bq", data, at)
    at += 9
    if width == 0:
        return np.full(rows, low, dtype=np.int64), at
    raw = np.frombuffer(data, dtype=_WIDTHS[width], count=rows, offset=at)
    return raw.astype(np.uint64).view(np.int64) + np.int64(low), at + width * rows


def _pack_texts(column: Array) -> bytes:
    encoded = [text.encode("utf-8") for text in column]
    lengths = np.fromiter((len(text) for text in encoded), dtype=np.int64, count=len(encoded))
    return _pack_numbers(lengths) + b"".join(encoded)


def _unpack_texts(data: memoryview, at: int, rows: int) -> tuple[Array, int]:
    lengths, at = _unpack_numbers(data, at, rows)
    ends = at + np.cumsum(lengths)
    column = np.full(rows, "", dtype=object)
    for row in np.flatnonzero(lengths):
        column[row] = str(data[ends[row] - lengths[row] : ends[row]], "utf-8")
    return column, int(ends[-1]) if rows else at


def pack(frames: Mapping[str, Frame]) -> bytes:
    """Several named frames as one value."""
    parts = [struct.pack("<H", len(frames))]
    for name, frame in frames.items():
        tag = name.encode("ascii")
        parts.append(struct.pack("<B", len(tag)) + tag + struct.pack("<IH", len(frame), len(frame.columns)))
        for column, values in frame.columns.items():
            label = column.encode("ascii")
            text = values.dtype == object
            parts.append(struct.pack("<B", len(label)) + label + struct.pack("<B", text))
            parts.append(_pack_texts(values) if text else _pack_numbers(values))
    body = b"".join(parts)
    if len(body) < _WORTH_COMPRESSING:
        return _HEAD.pack(_MAGIC, VERSION, 0, len(body)) + body
    return _HEAD.pack(_MAGIC, VERSION, 1, len(body)) + _CODEC.compress(body, asbytes=True)


def unpack(value: bytes) -> dict[str, Frame]:
    """The frames that `pack` made; a value of another version is refused."""
    if len(value) < _HEAD.size:
        raise UserError("state: too short to be a watcher list of this product")
    magic, version, compressed, size = _HEAD.unpack_from(value)
    if magic != _MAGIC:
        raise UserError("state: not a watcher list of this product")
    if version != VERSION:
        raise UserError(
            f"state: written in format {version}, this version reads format {VERSION}: "
            "finish the run with the version that began it, or start it anew with --overwrite"
        )
    body = value[_HEAD.size :]
    data = memoryview(_CODEC.decompress(body, decompressed_size=size, asbytes=True) if compressed else body)
    (count,) = struct.unpack_from("<H", data)
    at, frames = 2, {}
    for _ in range(count):
        name, at = _label(data, at)
        rows, width = struct.unpack_from("<IH", data, at)
        at += 6
        columns: dict[str, Array] = {}
        for _ in range(width):
            column, at = _label(data, at)
            text = data[at]
            columns[column], at = (_unpack_texts if text else _unpack_numbers)(data, at + 1, rows)
        frames[name] = Frame(columns)
    return frames


def _label(data: memoryview, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return str(data[at + 1 : end], "ascii"), end

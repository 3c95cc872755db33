"""Byte values with a header: magic, format version and compression of group state and of values between Spark stages.

A value of another version is refused, because state that is misread would end operations wrongly.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from purgatory_udf.common.errors import UserError

# Magic, version, compression, and the size of the body before compression.
_HEAD = struct.Struct("<4sHBxQ")
_PLAIN, _PACKED = 0, 1
_ZSTD = pa.Codec("zstd", compression_level=1)


def add_header(kind: bytes, version: int, body: bytes, pack: bool) -> bytes:
    """Return the body, compressed if `pack`, behind a header; `kind` is a magic of four bytes."""
    if not pack:
        return _HEAD.pack(kind, version, _PLAIN, len(body)) + body
    return _HEAD.pack(kind, version, _PACKED, len(body)) + _ZSTD.compress(body, asbytes=True)


def strip_header(kind: bytes, version: int, value: bytes) -> memoryview:
    """Return the body of a value.

    Raises:
        UserError: The value has another magic or version.
    """
    found, written_version, packed, size = _HEAD.unpack_from(value) if len(value) >= _HEAD.size else (b"", 0, 0, 0)
    if found != kind:
        raise UserError("state: not written by this program, or damaged; restart the run with --overwrite")
    if written_version != version:
        raise UserError(
            f"state: written in format {written_version}, this version reads format {version}: "
            "finish the run with the version that started it, or restart it with --overwrite"
        )
    body = memoryview(value)[_HEAD.size :]
    return memoryview(_ZSTD.decompress(body, decompressed_size=size, asbytes=True)) if packed else body

"""Values that say what they are and which version wrote them: what Spark keeps of a group, what its stages hand on.

A value of another version is refused in one sentence, since a watcher list that is read wrongly would end operations
wrongly.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from purgatory_udf.common.errors import UserError

_HEAD = struct.Struct("<4sHBxQ")
_PLAIN, _PACKED = 0, 1
_ZSTD = pa.Codec("zstd", compression_level=1)


def add_header(kind: bytes, version: int, body: bytes, pack: bool) -> bytes:
    """The body behind its head; `kind` is four letters."""
    if not pack:
        return _HEAD.pack(kind, version, _PLAIN, len(body)) + body
    return _HEAD.pack(kind, version, _PACKED, len(body)) + _ZSTD.compress(body, asbytes=True)


def strip_header(kind: bytes, version: int, value: bytes) -> memoryview:
    """The body of such a value; a UserError of any other."""
    if len(value) < _HEAD.size:
        raise UserError("state: too short to be a watcher list of this product")
    said, wrote, packed, size = _HEAD.unpack_from(value)
    if said != kind:
        raise UserError("state: not a watcher list of this product")
    if wrote != version:
        raise UserError(
            f"state: written in format {wrote}, this version reads format {version}: "
            "finish the run with the version that began it, or start it anew with --overwrite"
        )
    body = memoryview(value)[_HEAD.size :]
    return memoryview(_ZSTD.decompress(body, decompressed_size=size, asbytes=True)) if packed else body

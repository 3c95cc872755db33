"""Serializes states, which Spark keeps in its state store, and calls, which it shuffles.

Records have the same layout as in memory. Those of a state are transposed (all first bytes, then all second bytes, …)
and compressed, because adjacent records differ in few of their bytes. Calls are neither.

Each value has a header: magic, format version and compression. The states and frames of consumer groups use the same
header. A value of another version is refused, because misread state would end operations wrongly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.jit.records import Records, copy_records
from purgatory_udf.rules.engine.loop.arena import TABLES
from purgatory_udf.rules.engine.loop.engine_call import Call, KeyNames, no_strings
from purgatory_udf.rules.engine.loop.engine_state import State

# Format of the records. Increment it when their layout or meaning changes; a test compares their fields.
VERSION = 18

_KIND = b"PRst"
_SECTION = struct.Struct("<QQ")
_MIN_COMPRESSED_BYTES = 1 << 12

_STATE = ("keys", "batches", "rolls", "nodes", "in_sync", "operations", "parts", "purgatories", "bucket_bits")
_CALL = ("events", "request_parts", "leader_and_isr", "in_sync")
# Magic, version, compression, and the size of the body before compression.
_HEAD = struct.Struct("<4sHBxQ")
_PLAIN, _PACKED = 0, 1
_ZSTD = pa.Codec("zstd", compression_level=1)


def encode_state(state: State) -> bytes:
    """Serialize a group's state for Spark's state store: transposed and compressed, for `decode_state`."""
    sections = [_encode_records(getattr(state, name), True) for name in _STATE]
    sections += [np.int64(state.now_ms).tobytes(), *_encode_strings(pa.array(state.names.strings, pa.string()))]
    for column in (state.request_ids, state.client_ids, state.errors):
        sections += _encode_strings(column)
    return _seal_sections(sections, keep=True)


def decode_state(value: bytes) -> State:
    """Deserialize a state. Raises UserError if the value has another format or is not a state."""
    sections = _read_sections(value)
    records = {name: _decode_records(next(sections), name, True) for name in _STATE}
    now_ms = int(np.frombuffer(next(sections), np.int64)[0])
    names, request_ids, client_ids, errors = (_next_strings(sections) for _ in range(4))
    return State(
        names=KeyNames(names.to_pylist()),
        now_ms=now_ms,
        request_ids=request_ids,
        client_ids=client_ids,
        errors=errors,
        **records,
    )


def encode_call(call: Call) -> bytes:
    """Serialize a call for a shuffle: uncompressed, for `decode_call`. Ids of other events are left out."""
    call = call.with_own_ids()
    sections = [_encode_records(getattr(call, name), False) for name in _CALL]
    for column in (pa.array(call.names.strings, pa.string()), call.request_ids, call.client_ids, call.errors):
        sections += _encode_strings(column)
    return _seal_sections(sections, keep=False)


def decode_call(value: bytes) -> Call:
    """Deserialize a call. Raises UserError if the value has another format or is not a call."""
    sections = _read_sections(value)
    events, requested, leader_and_isr, in_sync = (_decode_records(next(sections), name, False) for name in _CALL)
    names, request_ids, client_ids, errors = (_next_strings(sections) for _ in range(4))
    keys = KeyNames(names.to_pylist())
    return Call(keys, events, requested, leader_and_isr, in_sync, request_ids, client_ids, errors)


def _seal_sections(sections: Sequence[bytes | memoryview], keep: bool) -> bytes:
    body = b"".join(part for section in sections for part in (_SECTION.pack(len(section), 0), section))
    return add_header(_KIND, VERSION, body, pack=keep and len(body) >= _MIN_COMPRESSED_BYTES)


def _read_sections(value: bytes) -> Iterator[memoryview]:
    """Yield the sections of a serialized state or call: the bytes of one table or column each. Checks the header."""
    body, end = strip_header(_KIND, VERSION, value), 0
    while end < len(body):
        length, _ = _SECTION.unpack_from(body, end)
        begin = end + _SECTION.size
        end = begin + length
        yield body[begin:end]


def _encode_records(rows: Records, transposed: bool) -> bytes | memoryview:
    """Return the records' bytes, without a copy unless they are transposed."""
    raw = np.ascontiguousarray(rows)
    if not transposed or not len(raw):
        return raw.view(np.uint8).data
    return raw.view(np.uint8).reshape(len(raw), raw.itemsize).T.tobytes()


def _decode_records(section: memoryview, table: str, transposed: bool) -> Records:
    """Return the records of a section of the table `table`, as a writable copy.

    `transposed` is whether the section was serialized byte by byte, as those of states are.
    """
    dtype = TABLES[table]
    if not transposed or not len(section):
        return copy_records(np.frombuffer(section, dtype))
    columns = np.frombuffer(section, np.uint8).reshape(dtype.itemsize, -1)
    return columns.T.copy().view(dtype).reshape(-1)


def _encode_strings(column: pa.Array) -> list[bytes]:
    """Serialize a column as three sections: validity bits, lengths, and all strings concatenated."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not len(column):
        return [b"", b"", b""]
    valid = b""
    if column.null_count:
        valid = np.packbits(column.is_valid().to_numpy(zero_copy_only=False)).tobytes()
        column = column.fill_null("")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    text = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    return [valid, np.diff(ends).astype(np.uint32).tobytes(), bytes(text)]


def _next_strings(sections: Iterator[memoryview]) -> pa.Array:
    return _decode_strings(next(sections), next(sections), next(sections))


def _decode_strings(valid: memoryview, lengths: memoryview, text: memoryview) -> pa.Array:
    if not len(lengths):
        return no_strings()
    sizes = np.frombuffer(lengths, np.uint32)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    known = None
    if len(valid):
        known = pa.py_buffer(np.packbits(np.unpackbits(np.frombuffer(valid, np.uint8)), bitorder="little"))
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), pa.py_buffer(bytes(text)), known)


def layout_signature() -> str:
    """Return a description of the records' layout; a test fails if it changes without a new `VERSION`."""
    return "; ".join(f"{name}: {TABLES[name].fields}" for name in dict.fromkeys(_STATE + _CALL))


def add_header(kind: bytes, version: int, body: bytes, pack: bool) -> bytes:
    """Return a header followed by the body, which is compressed if `pack`. `kind` is a magic of four bytes."""
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

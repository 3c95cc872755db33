"""Transfer of calls and record batches between this process and forked ones, in files in memory that they share.

A file is written by one process, and mapped by the others, which copies nothing. A call is a function with its
arguments, for processes that were forked before these existed. It is pickled without its large buffers:

    pickled code ─────────► the pipe to each process; at most 1 MiB, because a fork is faster than more code
    buffers of results ───► remain in the file of the process that made them
    other buffers ────────► the file of inputs, each once for all processes

Functions within functions are pickled, too: their code, and the values that they refer to. Of a chunk of a table's
column without values, only the length is pickled.
"""

from __future__ import annotations

import gc
import importlib
import io
import marshal
import mmap
import os
import pickle
from collections.abc import Iterable, Sequence
from functools import cache
from tempfile import TemporaryFile
from types import CellType, FunctionType
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

# Largest size of pickled code without its buffers: pickling more takes as long as a fork. Least size of a buffer that
# is shared.
_MOST_CODE, _LEAST_SHARED = 1 << 20, 256
# Alignment of buffers, as in Arrow's own.
_ALIGNED = 64
# Map all pages at once, instead of one by one on access.
_MAPPED = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)


class SharedPlace(NamedTuple):
    """A part of a shared file, given by its number: 0 is the file of inputs, the others are those of processes."""

    file: int
    begin: int
    end: int


def shared_file() -> IO[bytes]:
    """Return an anonymous file in memory, or a temporary file if the system does not support that."""
    return os.fdopen(os.memfd_create("made"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def align(file: IO[bytes], width: int) -> int:
    """Move to the next place that is a multiple of `width`, and return it."""
    return file.seek(-(-file.tell() // width) * width)


def mapped(file: IO[bytes], begin: int, end: int) -> pa.Buffer:
    """Map a part of a file into memory. The mapping exists as long as any buffer refers to it."""
    if begin == end:
        return pa.py_buffer(b"")
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    content = mmap.mmap(file.fileno(), end - first, _MAPPED, mmap.PROT_READ, offset=first)
    return pa.py_buffer(content)[begin - first :]


def write_batches(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> None:
    """Write record batches to a file. Without batches, the file stays as it is."""
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def read_batches(content: pa.Buffer) -> list[pa.RecordBatch]:
    """Return the record batches that `write_batches` wrote; they refer to the memory of `content`."""
    if not content.size:
        return []
    with pa.ipc.open_stream(content) as reader:
        return list(reader)


class CallWriter:
    """Serializes calls for processes that share the file of inputs, and the files with the results of earlier calls."""

    def __init__(self) -> None:
        self.inputs = shared_file()
        self._results: list[tuple[pa.Buffer, SharedPlace]] = []

    def add_result(self, content: pa.Buffer, place: SharedPlace) -> None:
        """Add memory that is in a shared file already, so that calls with buffers in it refer to its place."""
        self._results.append((content, place))

    def serialized(self, call: Any) -> bytes | None:
        """Return a call as `read_call` reads it; None if its code is large, or cannot be pickled."""
        places: list[SharedPlace] = []
        # The buffers are held, so that no other has the address of one of them.
        shared: dict[tuple[int, int], tuple[pa.Buffer, SharedPlace]] = {}

        def share(value: pickle.PickleBuffer) -> bool:
            """Put a buffer in shared memory; return True if it is small, and has to be pickled."""
            buffer = pa.py_buffer(value)
            if buffer.size < _LEAST_SHARED:
                return True
            key = buffer.address, buffer.size
            if key not in shared:
                shared[key] = buffer, self._place_of(buffer)
            places.append(shared[key][1])
            return False

        code = _LimitedCode()
        # The many new objects would start the garbage collection, which would find nothing.
        gc.disable()
        try:
            _CallPickler(code, protocol=5, buffer_callback=share).dump(call)
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError, pickle.PicklingError):
            return None
        finally:
            gc.enable()
        self.inputs.flush()
        return pickle.dumps((code.getvalue(), places))

    def _place_of(self, buffer: pa.Buffer) -> SharedPlace:
        """Return the place of a buffer in a shared file; write it to the inputs if it is no part of a result."""
        for content, (file, first, last) in self._results:
            begin = first + buffer.address - content.address
            if first <= begin and begin + buffer.size <= last:
                return SharedPlace(file, begin, begin + buffer.size)
        begin = align(self.inputs, _ALIGNED)
        self.inputs.write(buffer)
        return SharedPlace(0, begin, begin + buffer.size)


def read_call(call: bytes, files: Sequence[IO[bytes]]) -> Any:
    """Return a call that a `CallWriter` serialized, given the shared files by their numbers."""
    code, places = pickle.loads(call)
    contents = {}
    # One mapping for each file is faster than one for each buffer.
    for number in {place.file for place in places}:
        of_file = [place for place in places if place.file == number]
        first = min(place.begin for place in of_file)
        contents[number] = first, mapped(files[number], first, max(place.end for place in of_file))
    buffers = (contents[file][1][begin - contents[file][0] : end - contents[file][0]] for file, begin, end in places)
    return pickle.loads(code, buffers=buffers)


# Length of the shared columns of nulls.
_MANY = 1 << 17


@cache
def _many_nulls(type_: pa.DataType) -> pa.Array:
    zeros, types = _zeros(), pa.types
    if types.is_struct(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros], _MANY, children=[_many_nulls(each.type) for each in type_])
    if types.is_list(type_):
        items = pa.nulls(0, type_.value_type)
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros], _MANY, children=[items])
    if types.is_string(type_) or types.is_binary(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros, pa.py_buffer(b"")], _MANY)
    if types.is_primitive(type_):
        return pa.Array.from_buffers(type_, _MANY, [zeros, zeros], _MANY)
    return pa.nulls(_MANY, type_)


@cache
def _zeros() -> pa.Buffer:
    """Return memory for the values of `_MANY` nulls. While it is only read, the operating system keeps one page."""
    return pa.py_buffer(np.zeros(_MANY + 1, np.int64))


def nulls(count: int, type_: pa.DataType) -> pa.Array:
    """Return an array of nulls, in memory that all columns of nulls share: most columns of most batches are null."""
    return _many_nulls(type_)[:count] if count <= _MANY else pa.nulls(count, type_)


class _LimitedCode(io.BytesIO):
    """Memory for pickled code. Raises OverflowError if the code is large, so that copying it takes long."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MOST_CODE:
            raise OverflowError("more code than a fork is worth")
        return super().write(data)


class _CallPickler(pickle.Pickler):
    """Pickles functions within functions as well, for a process that has the same modules.

    A column has its type once; types of its chunks, and buffers of chunks of nulls are left out.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, pa.ChunkedArray):
            chunks = [len(chunk) if chunk.null_count == len(chunk) else _content(chunk) for chunk in value.chunks]
            return _column, (value.type, chunks)
        if not isinstance(value, FunctionType) or "<" not in value.__qualname__:
            return NotImplemented
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = value.__defaults__, value.__kwdefaults__
        return _function, (marshal.dumps(value.__code__), value.__module__, value.__qualname__, defaults, cells)


class _Content(NamedTuple):
    """An array without its types."""

    length: int
    offset: int
    buffers: list[pa.Buffer | None]
    children: list[Any]


def _content(array: pa.Array) -> _Content | pa.Array:
    """Return the content of an array of a usual type; others are returned as they are."""
    type_ = array.type
    if pa.types.is_list(type_):
        children = [_content(array.values)]
    elif pa.types.is_struct(type_) and not array.offset:
        children = list(map(_content, map(array.field, range(type_.num_fields))))
    elif pa.types.is_primitive(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
        children = []
    else:
        return array
    return _Content(len(array), array.offset, array.buffers()[: type_.num_buffers], children)


def _array(type_: pa.DataType, content: _Content | pa.Array) -> pa.Array:
    """Return an array, given its type and what `_content` returned."""
    if not isinstance(content, _Content):
        return content
    types = [type_.field(number).type for number in range(type_.num_fields)]
    children = list(map(_array, types, content.children))
    return pa.Array.from_buffers(type_, content.length, content.buffers, -1, content.offset, children)


def _column(type_: pa.DataType, chunks: Sequence[_Content | pa.Array | int]) -> pa.ChunkedArray:
    """Return a column that `_CallPickler` has pickled; an integer is the length of a chunk of nulls."""
    arrays = [nulls(chunk, type_) if isinstance(chunk, int) else _array(type_, chunk) for chunk in chunks]
    return pa.chunked_array(arrays, type_)


def _function(code: bytes, module: str, name: str, defaults: tuple[Any, Any], cells: list[Any]) -> FunctionType:
    """Return a function that `_CallPickler` has pickled."""
    namespace = vars(importlib.import_module(module))
    function = FunctionType(marshal.loads(code), namespace, name, defaults[0], tuple(map(CellType, cells)))
    function.__kwdefaults__ = defaults[1]
    return function

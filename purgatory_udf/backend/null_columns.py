"""Columns of nulls, which share their memory: most columns of most batches of an import are null."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

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
    """Return an array of nulls, in memory that all columns of nulls share."""
    return _many_nulls(type_)[:count] if count <= _MANY else pa.nulls(count, type_)

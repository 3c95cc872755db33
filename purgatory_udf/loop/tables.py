"""How the loop finds its records: a world is one record with its tables' addresses, and `part_at(w, 7)` a pointer.

To hand a dozen arrays from helper to helper costs more than what most helpers do, in time and, above all, in
compilation. A record costs one word. Nothing checks an index, so a world is made with room for all that its call can
bring about (`state`), and uncompiled every access is checked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from purgatory_udf.loop.world import TABLES, WORLD, Records

World = Any  # the record
Access = Callable[[World, int], Any]


def world_of(tables: dict[str, Records], **scalars: int) -> Records:
    """A world over these tables, which must outlive it: an array of one record."""
    world = np.zeros(1, WORLD).view(np.recarray)
    for name, rows in tables.items():
        assert rows.dtype == TABLES[name] and rows.flags.c_contiguous, name
        world[f"{name}_address"], world[f"{name}_room"] = rows.ctypes.data, rows.size
    for name, value in scalars.items():
        world[name] = value
    return world


def _place(field: str) -> int:
    assert WORLD.fields is not None
    return WORLD.fields[field][1]


def _compiled(name: str) -> Access:
    dtype = TABLES[name]
    record, where = numba.from_dtype(dtype), _place(f"{name}_address")
    long, byte = ir.IntType(64), ir.IntType(8)

    def at(typing: Any, w: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            world, place = arguments
            if place.type.width < 64:
                place = builder.sext(place, long)
            field = builder.gep(builder.bitcast(world, byte.as_pointer()), [ir.Constant(long, where)])
            address = builder.load(builder.bitcast(field, long.as_pointer()))
            # A table never moves during a call.
            address.set_metadata("invariant.load", builder.module.add_metadata([]))
            offset = builder.mul(place, ir.Constant(long, dtype.itemsize))
            return builder.inttoptr(builder.add(address, offset), context.get_value_type(record))

        if not isinstance(index, types.Integer):
            return None
        return record(w, index), code

    return cast("Access", intrinsic(at))


def _plain(name: str) -> Access:
    dtype = TABLES[name]

    def at(w: World, index: int) -> Any:
        assert 0 <= index < w[f"{name}_room"], f"{name}: {index} of {w[f'{name}_room']}"
        address = int(w[f"{name}_address"]) + int(index) * dtype.itemsize
        raw: Any = (ctypes.c_char * dtype.itemsize).from_address(address)
        return np.frombuffer(raw, dtype).view(np.recarray)[0]

    return at


_access = _plain if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" else _compiled

event_at = _access("events")
asked_at = _access("asked")
key_at = _access("keys")
batch_at = _access("batches")
roll_at = _access("rolls")
node_at = _access("nodes")
member_at = _access("in_sync")
operation_at = _access("operations")
part_at = _access("parts")
root_at = _access("roots")
purgatory_at = _access("purgatories")
queued_at = _access("queued")
wheel_at = _access("wheels")
reading_at = _access("readings")

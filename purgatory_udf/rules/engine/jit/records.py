"""How compiled code finds its records: a world is one record with its tables' addresses, `part_at(w, 7)` a pointer.

To hand a dozen arrays from helper to helper costs more than what most helpers do, in time and, above all, in
compilation. A record costs one word. Nothing checks an index, so a world is made with room for all that its call can
bring about, and uncompiled every access is checked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Kinds of records, and of worlds: a world is one record with its tables' addresses (see `access`).


Records = npt.NDArray[Any]
Kind = np.dtype[Any]


def record(
    i8: str = "",
    i4: str = "",
    i1: str = "",
    begins: Kind | None = None,
    also: Mapping[str, tuple[str, str]] | None = None,
    multiple: int = 1,
) -> Kind:
    """Long fields first, so that each lies at a multiple of its size; the whole is one of the longest, and of
    `multiple`. `begins`: another record whose fields come first. `also`: further names for what lies where a field
    does, with their kinds."""
    fields = own_fields(begins) if begins is not None else []
    for kind, names in (("i8", i8), ("i4", i4), ("i1", i1)):
        fields += [(name, np.dtype(kind)) for name in names.split()]
    size, longest = (chosen(kind.itemsize for _, kind in fields) for chosen in (sum, max))
    padding = -size % max(longest, multiple)
    fields += [(f"padding_{place}", np.dtype("i1")) for place in range(size, size + padding)]
    begins_at = accumulate((kind.itemsize for _, kind in fields), initial=0)
    places = dict(zip((name for name, _ in fields), begins_at, strict=False))
    further = [(name, np.dtype(kind), places[field]) for name, (field, kind) in (also or {}).items()]
    return np.dtype(
        {
            "names": [*places, *(name for name, _, _ in further)],
            "formats": [*(kind for _, kind in fields), *(kind for _, kind, _ in further)],
            "offsets": [*places.values(), *(place for _, _, place in further)],
            "itemsize": sum(kind.itemsize for _, kind in fields),
        }
    )


def own_fields(kind: Kind) -> list[tuple[str, Kind]]:
    """Without further names for the same."""
    end, fields = 0, []
    for name, (field, place, *_) in _fields(kind).items():
        if place == end:
            fields.append((name, field))
            end += field.itemsize
    return fields


def _fields(kind: Kind) -> Mapping[str, Any]:
    assert kind.fields is not None
    return {name: kind.fields[name] for name in kind.names or ()}


def world(tables: Iterable[str], *scalars: str) -> Kind:
    """A world: where each of its tables lies and how much room that has; and its own numbers."""
    places = [f"{name}_{what}" for name in tables for what in ("address", "room")]
    return np.dtype([(name, "i8") for name in (*places, *scalars)])


World = Any  # the record
Access = Callable[[World, int], Any]

memcpy = cast("Callable[..., Any]", cgutils.raw_memcpy)

_LINE = 64  # of the processor's cache

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def named(rows: Records) -> Records:
    """Records whose fields can be had by name uncompiled, too."""
    return rows if COMPILED else rows.view(np.recarray)


def world_of(tables: Mapping[str, Records], kinds: Mapping[str, Kind], world: Kind, **scalars: int) -> Records:
    """A world over these tables, which must outlive it: an array of one record."""
    fields: list[int] = []
    for name, kind in kinds.items():
        rows = tables.get(name)
        if rows is None:
            fields += (0, 0)
        else:
            assert rows.dtype == kind and rows.flags.c_contiguous, name
            fields += (rows.ctypes.data, len(rows))
    fields += [scalars.pop(name, 0) for name in cast("tuple[str, ...]", world.names)[len(fields) :]]
    assert not scalars and tables.keys() <= kinds.keys(), "a table or number that this world does not have"
    return named(np.array(fields, np.int64).view(world))


def access(name: str, kinds: Mapping[str, Kind], world: Kind) -> Access:
    """How a world's table is read and written: `part_at(w, 7)`."""
    assert world.fields is not None
    return _compiled(kinds[name], world.fields[f"{name}_address"][1]) if COMPILED else _plain(name, kinds[name])


def _compiled(kind: Kind, where: int) -> Access:
    record, address = numba.from_dtype(kind), _place(kind, where)

    def at(typing: Any, w: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(address(builder, *arguments), context.get_value_type(record))

        return record(w, types.int64), code

    return cast("Access", intrinsic(at))


def _place(kind: Kind, where: int) -> Callable[[Any, Any, Any], Any]:
    """Instructions for a row's address, of the table whose address the world has there."""
    long, byte = ir.IntType(64), ir.IntType(8)

    def place(builder: Any, world: Any, index: Any) -> Any:
        field = builder.gep(builder.bitcast(world, byte.as_pointer()), [ir.Constant(long, where)])
        address = builder.load(builder.bitcast(field, long.as_pointer()))
        # A table never moves during a call.
        address.set_metadata("invariant.load", builder.module.add_metadata([]))
        return builder.add(address, builder.mul(index, ir.Constant(long, kind.itemsize)))

    return place


def soon(name: str, kinds: Mapping[str, Kind], world: Kind) -> Callable[[World, int], None]:
    """Has a row's lines brought near before they are needed: `batch_soon(w, 7)`. There need not be such a row."""
    assert world.fields is not None
    return _compiled_soon(kinds[name], world.fields[f"{name}_address"][1]) if COMPILED else _plain_soon


def _compiled_soon(kind: Kind, where: int) -> Callable[[World, int], None]:
    bytes_, size = ir.IntType(8).as_pointer(), ir.IntType(32)
    prefetch = ir.FunctionType(ir.VoidType(), [bytes_, size, size, size])
    at = _place(kind, where)

    def bring(typing: Any, w: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            row = builder.inttoptr(at(builder, *arguments), bytes_)
            bring = builder.module.declare_intrinsic("llvm.prefetch", [bytes_], prefetch)
            for line in range(0, kind.itemsize, _LINE):
                # To be written, to stay, and it is data.
                builder.call(bring, [builder.gep(row, [size(line)]), size(1), size(3), size(1)])
            return context.get_dummy_value()

        return types.void(w, types.int64), code

    return cast("Callable[[World, int], None]", intrinsic(bring))


def _plain_soon(w: World, index: int) -> None:
    """Where it makes no difference."""


def copies(source: Kind, target: Kind) -> Callable[[Any, Any], None]:
    """How a whole record of one kind becomes the beginning of another: `to`, `of`."""
    small, large = own_fields(source), own_fields(target)
    assert large[: len(small)] == small, "the fields do not lie alike"
    return _compiled_copy(source.itemsize) if COMPILED else _plain_copy([name for name, _ in small])


def _compiled_copy(size: int) -> Callable[[Any, Any], None]:
    def copy(typing: Any, to: Any, of_: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_bytes, of_bytes = (builder.bitcast(row, ir.IntType(8).as_pointer()) for row in arguments)
            memcpy(builder, to_bytes, of_bytes, ir.Constant(ir.IntType(64), size), 1, 8)
            return context.get_dummy_value()

        return types.void(to, of_), code

    return cast("Callable[[Any, Any], None]", intrinsic(copy))


def _plain_copy(names: list[str]) -> Callable[[Any, Any], None]:
    def copy(to: Any, of_: Any) -> None:
        for name in names:
            setattr(to, name, getattr(of_, name))

    return copy


def _compiled_rows_copy() -> Callable[[Records, int, Records, int, int], None]:
    def copy(typing: Any, to: Any, at: Any, of_: Any, first: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_rows, place, of_rows, first_place, rows = arguments
            kind = signature.args[0]
            target, source = (
                builder.gep(context.make_array(kind)(context, builder, table).data, [begin])
                for table, begin in ((to_rows, place), (of_rows, first_place))
            )
            memcpy(builder, target, source, rows, kind.dtype.size)
            return context.get_dummy_value()

        return types.void(to, at, of_, first, count), code

    return cast("Callable[[Records, int, Records, int, int], None]", intrinsic(copy))


def _plain_rows_copy(to: Records, at: int, of_: Records, first: int, count: int) -> None:
    to[at : at + count] = of_[first : first + count]


# Rows of an array to those of another: `to`, `at`; `of`, `first`, and how many. By itself compiled code copies a record
# byte by byte.
copy_rows = _compiled_rows_copy() if COMPILED else _plain_rows_copy


def inside(whole: Kind, kind: Kind, begin: str) -> Access:
    """How one of several like groups of a record's fields is read, from that field on: `end_of(key, reader)`."""
    assert whole.fields is not None
    first = whole.fields[begin][1]
    return _compiled_inside(kind, first) if COMPILED else _plain_inside(kind, first)


def _compiled_inside(kind: Kind, first: int) -> Access:
    record = numba.from_dtype(kind)
    long, byte = ir.IntType(64), ir.IntType(8)

    def at(typing: Any, row: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            whole, place = arguments
            offset = builder.add(builder.mul(place, ir.Constant(long, kind.itemsize)), ir.Constant(long, first))
            inner = builder.gep(builder.bitcast(whole, byte.as_pointer()), [offset])
            return builder.bitcast(inner, context.get_value_type(record))

        return record(row, types.int64), code

    return cast("Access", intrinsic(at))


def _plain_inside(kind: Kind, first: int) -> Access:
    def at(row: Any, index: int) -> Any:
        return _Row(np.frombuffer(row._fields.tobytes(), kind, 1, first + int(index) * kind.itemsize)[0])

    return at


class _Row:
    """A record whose fields come by name, also those that numpy's own records call otherwise (`size`, `base`)."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Any) -> None:
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        return self._fields[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields[name] = value


def _plain(name: str, kind: Kind) -> Access:
    def at(w: World, index: int) -> Any:
        assert 0 <= index < w[f"{name}_room"], f"{name}: {index} of {w[f'{name}_room']}"
        address = int(w[f"{name}_address"]) + int(index) * kind.itemsize
        raw: Any = (ctypes.c_char * kind.itemsize).from_address(address)
        return _Row(np.frombuffer(raw, kind)[0])

    return at

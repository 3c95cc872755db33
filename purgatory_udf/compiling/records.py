"""Kinds of records, and of worlds: a world is one record with its tables' addresses (see `access`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

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

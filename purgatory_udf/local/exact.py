"""What DuckDB lacks, to the last bit as Spark has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_SEED = np.uint64(42)
_VALUES = "STRUCT(value DOUBLE, times BIGINT)[]"


def register(connection: duckdb.DuckDBPyConnection) -> None:
    functions: tuple[tuple[str, Any, Any, str, dict[str, Any]], ...] = (
        ("spark_percentile", percentile, [_VALUES, "DOUBLE"], "DOUBLE", {"null_handling": "special"}),
        ("spark_xxhash64", _hashed, ["BIGINT"], "BIGINT", {"type": "arrow"}),
    )
    for name, function, takes, gives, how in functions:
        connection.create_function(name, function, takes, gives, **how)


def percentile(values: Sequence[dict[str, Any]] | None, share: float) -> float | None:
    """Of values that are each there so many times: the one at that share of the way, or between its neighbours."""
    counted = sorted((one["value"], one["times"]) for one in values or () if one["value"] is not None and one["times"])
    if not counted:
        return None
    place = (sum(times for _, times in counted) - 1) * share
    low, high = _at(counted, math.floor(place)), _at(counted, math.ceil(place))
    if low == high or place == math.floor(place):
        return low
    return (math.ceil(place) - place) * low + (place - math.floor(place)) * high


def _at(counted: Sequence[tuple[float, int]], place: int) -> float:
    for value, times in counted:
        place -= times
        if place < 0:
            return value
    return counted[-1][0]


def _hashed(values: pa.ChunkedArray) -> pa.Array:
    return pa.array(xxhash64(values.to_numpy().astype(np.int64)))


def xxhash64(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """XXH64 of each value's eight bytes."""
    hashed = np.full(len(values), _SEED + _P5 + np.uint64(8))
    hashed ^= _turned(values.view(np.uint64) * _P2, 31) * _P1
    hashed = _turned(hashed, 27) * _P1 + _P4
    hashed ^= hashed >> np.uint64(33)
    hashed *= _P2
    hashed ^= hashed >> np.uint64(29)
    hashed *= _P3
    hashed ^= hashed >> np.uint64(32)
    return hashed.view(np.int64)


def _turned(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))

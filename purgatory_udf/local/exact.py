"""What DuckDB lacks, to the last bit as Spark has it."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
        (
            "spark_percentile",
            _percentiles,
            [_VALUES, "DOUBLE"],
            "DOUBLE",
            {"null_handling": "special", "type": "arrow"},
        ),
        ("spark_xxhash64", _hashed, ["BIGINT"], "BIGINT", {"type": "arrow"}),
    )
    for name, function, takes, gives, how in functions:
        connection.create_function(name, function, takes, gives, **how)


def _percentiles(values: pa.ChunkedArray, shares: pa.ChunkedArray) -> pa.Array:
    lists = pa.concat_arrays(values.chunks)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    together = lists.flatten()
    of, times = (pc.struct_field(together, name) for name in ("value", "times"))
    here = pc.and_(of.is_valid(), pc.not_equal(times.fill_null(0), 0)).to_numpy(zero_copy_only=False)
    all_values = of.fill_null(0).to_numpy(zero_copy_only=False)
    all_times = times.fill_null(0).to_numpy(zero_copy_only=False)
    percentiles = []
    for begin, end, share in zip(ends - lengths, ends, shares.to_pylist(), strict=True):
        kept = here[begin:end]
        percentiles.append(percentile(all_values[begin:end][kept], all_times[begin:end][kept], share))
    return pa.array(percentiles, pa.float64())


def percentile(values: npt.NDArray[np.float64], times: npt.NDArray[np.int64], share: float) -> float | None:
    """Of values that are each there so many times: the one at that share of the way, or between its neighbours."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(times[order])
    place = (int(ends[-1]) - 1) * share
    below, above = math.floor(place), math.ceil(place)
    low, high = values[np.searchsorted(ends, [below, above], side="right")].tolist()
    if low == high or place == below:
        return float(low)
    return float((above - place) * low + (place - below) * high)


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

"""One DuckDB, which is asked by one thread at a time, and works with as many as the machine has."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyspark.sql import Row

from purgatory_udf.common.errors import NeedsSparkError

# What DuckDB lacks, to the last bit as Spark has it.


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


# Whatever fails here is asked of Spark: it reads more, and what its errors mean to a user is known.


@contextmanager
def needing_spark() -> Iterator[None]:
    """Raises `NeedsSparkError` in the place of what DuckDB, Arrow, the tables or the disk have against it."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, DeltaError, OSError) as error:
        raise NeedsSparkError(f"{type(error).__name__}: {error}") from error


# Results as pyspark gives them: rows whose fields have names, moments without a zone.


def plain(table: pa.Table) -> pa.Table:
    """In Spark's types: DuckDB's sums are longer, and its moments have this machine's zone."""
    return table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.int64()
    return _MOMENT if pa.types.is_timestamp(kind) else kind


_MOMENT = pa.timestamp("us", "UTC")


def as_rows(table: pa.Table) -> list[Row]:
    row = Row(*table.column_names)
    columns = [list(map(_reader(column.type), column.to_pylist())) for column in table.columns]
    return [row(*values) for values in zip(*columns, strict=True)]


def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_struct(kind):
        row = Row(*(field.name for field in kind))
        readers = {field.name: _reader(field.type) for field in kind}
        return lambda value: value and row(*(read(value[name]) for name, read in readers.items()))
    if pa.types.is_list(kind):
        read = _reader(kind.value_type)
        return lambda value: None if value is None else list(map(read, value))
    if pa.types.is_timestamp(kind):
        return _here
    return _same


def _same(value: Any) -> Any:
    return value


def _here(value: datetime | None) -> datetime | None:
    """As pyspark does: in this machine's zone, whose name is lost."""
    return None if value is None else value.astimezone().replace(tzinfo=None)


_NAME = re.compile(r"\brows\d+\b")

# It is handed all that it reads: no query of it has business with files or the network.
_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
}


class Asking:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._alone = threading.Lock()
        # What has been named, and no query has asked for yet.
        self._waiting: dict[str, Any] = {}

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """Made when something is asked: whether there is a table, say, its log tells."""
        connection = duckdb.connect(config=_ALONE)
        register(connection)
        return connection

    def named(self, rows: Any) -> str:
        """A name for a table or a dataset of Arrow's."""
        with self._alone:
            name = f"rows{next(self._numbers)}"
            self._waiting[name] = rows
        return name

    def run(self, sql: str) -> pa.Table:
        with self._alone, needing_spark():
            for name in self._waiting.keys() & set(_NAME.findall(sql)):
                self._connection.register(name, self._waiting.pop(name))
            return plain(self._connection.sql(sql).to_arrow_table())

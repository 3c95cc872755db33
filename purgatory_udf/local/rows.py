"""Results as pyspark gives them: rows whose fields have names, moments without a zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Row


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

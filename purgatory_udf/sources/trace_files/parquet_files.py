"""Parquet files as a trace: columns are checked before rows are read, and rows are validated like lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from purgatory_udf.contract import Rejection
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.text_lines import Chunk, Piece
from purgatory_udf.sources.trace_files.typed_columns import FIELDS

REQUIRED = ("time_us", "type")
BATCH_ROWS = 4096

FOOTER = pa.schema([("file", pa.int32()), ("row_group", pa.int32()), ("bytes", pa.int64()), ("problem", pa.string())])


def footer_of(place: int, source: InputFile) -> pa.RecordBatch:
    """Return a row for each row group of a file, or one row with the reason why the file cannot be read.

    `place` is the number of the file in the input.
    """
    try:
        with source.filesystem.open_input_file(source.path) as file:
            parquet = pq.ParquetFile(file)
            problem = schema_problem(parquet.schema_arrow)
            sizes = [parquet.metadata.row_group(index).total_byte_size for index in range(parquet.num_row_groups)]
    except (OSError, pa.ArrowException) as error:
        problem, sizes = f"not a Parquet file that can be read: {str(error).splitlines()[0]}", []
    if problem:
        return pa.RecordBatch.from_pylist([{"file": place, "problem": f"{source.name}: {problem}"}], schema=FOOTER)
    groups = [{"file": place, "row_group": group, "bytes": size} for group, size in enumerate(sizes)]
    return pa.RecordBatch.from_pylist(groups, schema=FOOTER)


def schema_problem(schema: pa.Schema) -> str | None:
    """Return the first difference between a file's columns and the contract, or None. Unknown columns are ignored."""
    for name in REQUIRED:
        if name not in schema.names:
            return f"column {name} is missing, expected {FIELDS.field(name).type}"
    for field in FIELDS:
        if field.name in schema.names:
            problem = _type_problem(field.name, schema.field(field.name).type, field.type)
            if problem:
                return problem
    return None


def _type_problem(name: str, kind: pa.DataType, expected: pa.DataType) -> str | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_list(expected) and _is_list(kind):
        return _type_problem(f"{name}[]", kind.value_type, expected.value_type)
    if pa.types.is_struct(expected) and pa.types.is_struct(kind):
        inner = {field.name: field.type for field in kind}
        problems = (_type_problem(f"{name}.{f.name}", inner[f.name], f.type) for f in expected if f.name in inner)
        return next((problem for problem in problems if problem), None)
    # Integers of any width: the contract validates the values row by row.
    if pa.types.is_integer(expected) and pa.types.is_integer(kind):
        return None
    if pa.types.is_string(expected) and (pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return None
    return None if kind == expected else f"column {name} is {kind}, expected {expected}"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def rows_of(piece: Piece) -> Iterator[Chunk]:
    """Yield the rows of a row group as objects without nulls. If the file is damaged, the last item is broken."""
    with piece.source.filesystem.open_input_file(piece.source.path) as file:
        parquet = pq.ParquetFile(file)
        columns = [name for name in FIELDS.names if name in parquet.schema_arrow.names]
        try:
            for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[piece.index], columns=columns):
                yield Chunk([_given(row) for row in batch.to_pylist()])
        except (OSError, pa.ArrowException) as error:
            reason = f"damaged Parquet: row group {piece.index}: {str(error).splitlines()[0]}"
            yield Chunk([None], Rejection("broken file", reason))


def row_as_text(row: dict[str, Any] | None) -> str:
    """Return the row as a line of JSON."""
    return "" if row is None else json.dumps(row, ensure_ascii=False)


def _given(value: Any) -> Any:
    if type(value) is dict:
        return {name: _given(inner) for name, inner in value.items() if inner is not None}
    return [_given(inner) for inner in value] if type(value) is list else value

"""Objects of JSON, one a row, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import pyarrow as pa
import pyarrow.json as pj

from purgatory_udf.local.formula import NoFormulaError, Values

_TYPES = {
    "VARCHAR": pa.string(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}


def objects_in(texts: Values, kinds: Mapping[str, str]) -> Values:
    """A struct of fields of these types of DuckDB's; what a text does not say is null."""
    if isinstance(texts, pa.Scalar) or texts.null_count or not set(kinds.values()) <= _TYPES.keys():
        raise NoFormulaError
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()])
    lines = "\n".join(texts.to_pylist())
    if lines.count("\n") != len(texts) - 1:
        # None at all, or texts of several lines.
        raise NoFormulaError
    read = pj.read_json(
        BytesIO(lines.encode()),
        pj.ReadOptions(use_threads=False, block_size=max(1 << 20, 2 * max(map(len, lines.split("\n"))))),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if len(read) != len(texts):
        raise NoFormulaError
    return read.select(schema.names).to_struct_array()

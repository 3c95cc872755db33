"""Objects of JSON, one a row, in columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
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
    if not len(texts) or pc.any(pc.match_substring(texts, "\n")).as_py():
        # None at all, or texts of several lines.
        raise NoFormulaError
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    lines = pc.binary_join(together, "\n")[0].as_buffer()
    longest = pc.max(pc.binary_length(texts)).as_py()
    read = pj.read_json(
        pa.BufferReader(lines),
        pj.ReadOptions(use_threads=False, block_size=max(1 << 20, 2 * longest)),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if len(read) != len(texts):
        raise NoFormulaError
    return read.select(schema.names).to_struct_array()

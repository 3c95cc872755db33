"""What the rows of a table come to that have the same keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.local.formula import Formula, NoFormulaError

SUM, COUNT, LIST = "sum", "count", "list"


class Total(NamedTuple):
    """`kind`: sum, min, max, count (of what is no null), list; `formula` has the values of the rows."""

    kind: str
    formula: Formula


def grouped(rows: pa.Table, keys: Sequence[str], kinds: Mapping[str, str]) -> pa.Table:
    """Its other columns come to what `kinds` says."""
    if any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in rows.select(keys).schema.types):
        raise NoFormulaError
    asked = []
    columns = {name: rows.column(name) for name in keys}
    for name, kind in kinds.items():
        values = rows.column(name)
        if kind == LIST:
            # Of structs none can be made: of the rows' numbers one can.
            values = pa.chunked_array([np.arange(rows.num_rows)], pa.int64())
        elif kind != COUNT and (values.type not in (pa.int32(), pa.int64()) or (kind == SUM and not _fits(values))):
            raise NoFormulaError
        columns[name] = values
        asked.append((name, kind))
    made = pa.table(columns).group_by(list(keys), use_threads=False).aggregate(asked)
    totals = [made.column(f"{name}_{kind}") for name, kind in asked]
    listed = [
        _listed(rows.column(name), total.combine_chunks()) if kind == LIST else total
        for (name, kind), total in zip(asked, totals, strict=True)
    ]
    return pa.Table.from_arrays([*made.select(keys).columns, *listed], [*keys, *kinds])


def _fits(values: pa.ChunkedArray) -> bool:
    """Whether no sum of some of them is too large: Arrow would not say so."""
    least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
    return max(-least, most) * len(values) < 2**63


def _listed(values: pa.ChunkedArray, numbers: pa.ListArray) -> pa.Array:
    if values.null_count:
        raise NoFormulaError
    return pa.ListArray.from_arrays(numbers.offsets, pc.take(values.combine_chunks(), numbers.values))

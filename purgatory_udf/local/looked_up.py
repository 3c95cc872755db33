"""Where in one table the row stands that has the same keys as a row of another."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.local.formula import NoFormulaError


def places_of(keys: pa.Table, among: pa.Table) -> pa.Array:
    """Of each row of `keys`, the place `among` others that are all different; null where it is not among them. A null
    is the same as nothing."""
    if keys.schema.types != among.schema.types or any(
        pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in keys.schema.types
    ):
        raise NoFormulaError
    numbers, others = _numbers(keys, among)
    if others.null_count or pc.count_distinct(others).as_py() < len(others):
        raise NoFormulaError
    return pc.index_in(numbers, others)


def _numbers(keys: pa.Table, among: pa.Table) -> tuple[pa.Array, pa.Array]:
    """A number for each row of either: the same for the same keys, null where one of them is null or not among them."""
    numbers = others = None
    for name in keys.column_names:
        values, theirs = keys.column(name).combine_chunks(), among.column(name).combine_chunks()
        distinct = theirs.drop_null().unique()
        here, there = (pc.cast(pc.index_in(each, distinct, skip_nulls=True), pa.int64()) for each in (values, theirs))
        if numbers is None:
            numbers, others = here, there
        else:
            size = pa.scalar(len(distinct), pa.int64())
            numbers, others = (
                pc.add_checked(pc.multiply_checked(before, size), each)
                for before, each in ((numbers, here), (others, there))
            )
    return numbers, others

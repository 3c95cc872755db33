"""docs/tables.md lists every table with the columns, types and comments of its schema, and every check of `audit`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pyarrow as pa
import pytest

from purgatory_udf.answers import audit
from purgatory_udf.contract.metrics_tables import COMMENTED_METRICS, METRICS
from purgatory_udf.contract.tables import (
    COMMENT,
    COMMENTED_TABLES,
    COMMENTED_TRUTH,
    COMMENTED_WHAT_IF,
    ENDS,
    TABLES,
    TRUTH,
    WHAT_IF,
    without_comments,
)
from tests.docs import pages

PAGE = pages.text("docs/tables.md")
SCHEMAS: dict[str, pa.Schema] = {
    **COMMENTED_TABLES,
    **COMMENTED_METRICS,
    "what_if": COMMENTED_WHAT_IF,
    "truth_requests": COMMENTED_TRUTH["truth_requests"],
}
COLUMNS = ("column", "type", "meaning")
DOCUMENTED = {
    table.headings[-1].strip("`"): [(row["column"].strip("`"), row["type"], row["meaning"]) for row in table.rows]
    for table in pages.tables(PAGE)
    if table.columns == COLUMNS
}


def _word(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_word(kind.value_type)}"
    words = {pa.string(): "text", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "bool"}
    return "objects" if pa.types.is_struct(kind) else "time" if pa.types.is_timestamp(kind) else words[kind]


def _columns(fields: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for field in fields:
        yield prefix + field.name, _word(field.type), (field.metadata or {}).get(COMMENT.encode(), b"").decode()
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            yield from _columns(field.type.value_type, f"{prefix}{field.name}[].")


def test_page_has_exactly_the_tables() -> None:
    assert set(DOCUMENTED) == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_page_has_columns_types_and_comments(name: str) -> None:
    assert DOCUMENTED[name] == list(_columns(SCHEMAS[name]))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_column_has_a_comment(name: str) -> None:
    assert [column for column, _, comment in _columns(SCHEMAS[name]) if not comment] == []


def test_row_schemas_have_no_metadata() -> None:
    commented = {**COMMENTED_TABLES, **COMMENTED_METRICS, **COMMENTED_TRUTH, "what_if": COMMENTED_WHAT_IF}
    for name, schema in {**TABLES, **METRICS, **TRUTH, "what_if": WHAT_IF}.items():
        assert schema.equals(without_comments(commented[name]), check_metadata=True)
        assert list(_columns(schema)) == [(column, kind, "") for column, kind, _ in _columns(commented[name])]


def test_truth_has_columns_of_outcome_tables() -> None:
    truth = {name for name, schema in TRUTH.items() if schema in (TABLES[ended] for ended in ENDS)}
    assert truth == {f"truth_{ended}" for ended in ENDS}
    assert truth <= pages.words_in_code(PAGE)


def test_page_has_every_invariant() -> None:
    (table,) = (table for table in pages.tables(PAGE) if table.columns[0] == "invariant")
    invariants = [row["invariant"] for row in table.rows]
    assert {name for named in audit.INVARIANTS.values() for name in named.values()} <= {*invariants}
    source = inspect.getsource(audit)
    assert [name for name in invariants if f'"{name}"' not in source] == []
    assert len(invariants) == len(set(invariants)) == 8

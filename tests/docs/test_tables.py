"""docs/tables.md has every table with every column and its type, no other, and every law of `audit`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from purgatory_udf.answers import audit
from purgatory_udf.contract.metrics_tables import METRICS
from purgatory_udf.contract.tables import ENDS, TABLES, TRUTH, TRUTH_REQUESTS, WHAT_IF
from tests.docs import pages

PAGE = pages.text("docs/tables.md")
SCHEMAS: dict[str, pa.Schema] = {**TABLES, **METRICS, "what_if": WHAT_IF, "truth_requests": TRUTH_REQUESTS}
COLUMNS = ("column", "type", "meaning")
SAID = {
    table.headings[-1].strip("`"): [(row["column"].strip("`"), row["type"]) for row in table.rows]
    for table in pages.tables(PAGE)
    if table.columns == COLUMNS
}


def _word(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_word(kind.value_type)}"
    words = {pa.string(): "text", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "bool"}
    return "objects" if pa.types.is_struct(kind) else "time" if pa.types.is_timestamp(kind) else words[kind]


def _columns(fields: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in fields:
        yield prefix + field.name, _word(field.type)
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            yield from _columns(field.type.value_type, f"{prefix}{field.name}[].")


def test_every_table_is_there_and_no_other() -> None:
    assert set(SAID) == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_table_has_the_columns_that_the_page_says_in_their_order(name: str) -> None:
    assert SAID[name] == list(_columns(SCHEMAS[name]))


def test_the_truth_has_the_columns_of_what_it_is_held_against() -> None:
    alike = {name for name, schema in TRUTH.items() if schema in (TABLES[ended] for ended in ENDS)}
    assert alike == {f"truth_{ended}" for ended in ENDS}
    assert alike <= pages.words_in_code(PAGE)


def test_every_law_is_there() -> None:
    laws = [row["law"] for table in pages.tables(PAGE) if table.columns[0] == "law" for row in table.rows]
    assert laws == re.findall(r"^([A-Z])  ", audit.__doc__ or "", re.MULTILINE)
    assert len(laws) > 5

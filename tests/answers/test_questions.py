"""The queries of docs/questions.md return the same rows in Spark and DuckDB, and the rows that the page shows."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.contract import read_row
from tests.docs import pages
from tests.support.delta_lake import Lake
from tests.support.outcome_folder import write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = pages.text("docs/questions.md")
QUESTIONS = re.findall(r"^## (\d+)\. ([^\n]+)\n[^#]*?```sql\n(.*?);\n```", PAGE, re.DOTALL | re.MULTILINE)
# Spark executes these in each run, and the other ones by night; DuckDB always executes all of them.
DAILY = ("1", "4", "7", "10")
VIEWS = ("completions", "expirations", "watches", "purgatory_gauges", "group_transitions")


@pytest.fixture(scope="module")
def views(spark: SparkSession, story_folder: Path) -> SparkSession:
    for name in VIEWS:
        spark.read.format("delta").load(str(story_folder / name)).createOrReplaceTempView(name)
    return spark


@pytest.fixture(scope="module")
def sample_lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lake]:
    """Replays of the two traces of the page."""
    lakes = {}
    for trace in ("conf/sample/trace.jsonl", "docs/traces/group.jsonl"):
        lines = (json.loads(line) for line in pages.text(trace).splitlines())
        folder = tmp_path_factory.mktemp("replayed")
        write_folder(folder, [{**read_row(line), "seq": seq} for seq, line in enumerate(lines)])
        lakes[trace] = Lake(folder)
    return lakes


def test_page_has_ten_questions() -> None:
    assert [int(number) for number, _, _ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(sql, id=title, marks=[] if number in DAILY else [pytest.mark.nightly])
        for number, title, sql in QUESTIONS
    ],
)
def test_spark_and_duckdb_return_same_rows(sql: str, views: SparkSession, story_folder: Path) -> None:
    from_spark = [_plain(tuple(row)) for row in views.sql(sql).collect()]
    from_duckdb = [_plain(row) for row in Lake(story_folder).rows(sql)]
    assert from_spark == from_duckdb
    assert from_spark != []


@pytest.mark.parametrize(("number", "title", "sql"), QUESTIONS, ids=[title for _, title, _ in QUESTIONS])
def test_page_shows_the_first_rows(number: str, title: str, sql: str, sample_lakes: dict[str, Lake]) -> None:
    (table,) = (table for table in pages.tables(PAGE) if table.headings[-1] == f"{number}. {title}")
    shown = [tuple(row.values()) for row in table.rows]
    is_cut = shown[-1][0] == "…"
    trace = "docs/traces/group.jsonl" if "group_transitions" in sql else "conf/sample/trace.jsonl"
    rows = [tuple(_shown(value) for value in row) for row in sample_lakes[trace].rows(sql)]
    assert rows[: len(shown) - 1] == shown[:-1] if is_cut else rows == shown
    assert is_cut == (len(rows) > len(shown))


def _shown(value: Any) -> str:
    if _is_time(value):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{round(value, 3):g}" if isinstance(value, float | Decimal) else str(value)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return decimals and doubles as rounded numbers, and times as text, independent of the engine."""
    return tuple(
        round(float(value), 6) if isinstance(value, float | Decimal) else str(value)[:19] if _is_time(value) else value
        for value in row
    )


def _is_time(value: Any) -> bool:
    return hasattr(value, "isoformat")

"""The ten questions of docs/questions.md, asked in Spark SQL and in DuckDB: the same answers, and none is empty."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")
_BLOCK = re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)
QUESTIONS = re.findall(r"-- (\d+)\. ([^\n]+)\n(.*?);\n", _BLOCK[1] if _BLOCK else "", re.DOTALL)
VIEWS = ("completions", "expirations", "watches", "purgatory_gauges", "group_transitions")


@pytest.fixture(scope="module")
def views(spark: SparkSession, story_folder: Path) -> SparkSession:
    for name in VIEWS:
        spark.read.format("delta").load(str(story_folder / name)).createOrReplaceTempView(name)
    return spark


def test_there_are_ten() -> None:
    assert [int(number) for number, _, _ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize("sql", [sql for *_, sql in QUESTIONS], ids=[asked for _, asked, _ in QUESTIONS])
def test_spark_and_duckdb_answer_alike(sql: str, views: SparkSession, story_folder: Path) -> None:
    from_spark = [_plain(tuple(row)) for row in views.sql(sql).collect()]
    from_duckdb = [_plain(row) for row in Lake(story_folder).rows(sql)]
    assert from_spark == from_duckdb
    assert from_spark != []


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Decimals and doubles of either engine as rounded numbers; times as their text."""
    return tuple(
        round(float(value), 6) if isinstance(value, float | Decimal) else str(value)[:19] if _is_time(value) else value
        for value in row
    )


def _is_time(value: Any) -> bool:
    return hasattr(value, "isoformat")

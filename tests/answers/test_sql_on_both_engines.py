"""Every query of `answers/sql` returns the same rows in DuckDB and in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.answers import run_tables
from purgatory_udf.answers.run_tables import RunTables, sql_file
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.sql_database import parameters_of
from purgatory_udf.launch.spark_session import session_for
from purgatory_udf.rules.purgatory.clock import STEP_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL = Path(run_tables.__file__).parent / "sql"
NAMES = sorted(file.relative_to(SQL).as_posix().removesuffix(".sql") for file in SQL.rglob("*.sql"))
# A value for each parameter of any query.
PARAMETERS: dict[str, Any] = {
    "window_ms": 500,
    "step_ms": STEP_MS,
    "bytes_per_watch": 184,
    "by_broker": True,
    "by_topic": True,
    "by_partition": True,
    "by_client": True,
    "by_group": True,
}


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, story_folder: Path) -> RunTables:
    return RunTables(spark, str(story_folder))


@pytest.fixture(scope="module")
def by_duckdb(story_folder: Path) -> RunTables:
    with locally():
        return RunTables(session_for("tests"), str(story_folder))


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_return_the_same_rows(name: str, by_spark: RunTables, by_duckdb: RunTables) -> None:
    in_spark = by_spark.query(name, **PARAMETERS)
    with locally():
        in_duckdb = by_duckdb.query(name, **PARAMETERS)
    assert in_duckdb.column_names == in_spark.column_names
    assert _rows(name, in_duckdb) == _rows(name, in_spark)


def _rows(name: str, table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    is_ordered = "\nORDER BY" in sql_file(name).text
    return rows if is_ordered else sorted(rows, key=repr)


@pytest.mark.parametrize("name", NAMES)
def test_header_explains_the_query(name: str, story_folder: Path) -> None:
    """It says what the query answers, what it reads, and what its parameters mean."""
    text = sql_file(name).text
    header = text.partition("\n\n")[0]
    assert all(line.startswith("--") for line in header.splitlines())
    assert {f":{parameter}" for parameter in parameters_of(text)} == {
        word.rstrip(",") for word in header.split() if word.startswith(":")
    }
    with locally():
        # Nothing but what the header lists is available to the query.
        RunTables(session_for("tests"), str(story_folder)).query(name, **PARAMETERS)

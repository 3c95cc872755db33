"""Run a query of `answers/sql` on given rows, with each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from purgatory_udf.answers.run_tables import sql_file
from purgatory_udf.backend.sql_database import DuckDatabase, SparkDatabase, SqlDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Query, rows of the tables and views that it reads, parameters. Other views are computed from the given rows.
RunQuery = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.nightly])])
def run_query(request: pytest.FixtureRequest) -> RunQuery:
    """A function that runs a query with one of the engines."""
    if request.param == "duckdb":
        return partial(_run, DuckDatabase())
    spark: SparkSession = request.getfixturevalue("spark")
    return partial(_run, SparkDatabase(spark))


def _run(database: SqlDatabase, name: str, given: Mapping[str, pa.Table], **parameters: Any) -> list[dict[str, Any]]:
    _add(database, sql_file(name).reads, given)
    rows: list[dict[str, Any]] = database.query(sql_file(name).text, parameters).to_pylist()
    return rows


def _add(database: SqlDatabase, names: Iterable[str], given: Mapping[str, pa.Table]) -> None:
    for name in names:
        if name in given:
            database.add_rows(name, given[name])
        else:
            view = sql_file(f"views/{name}")
            _add(database, view.reads, given)
            database.add_view(name, view.text)

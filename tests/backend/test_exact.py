"""Weighted percentiles in DuckDB, compared with known values."""

from __future__ import annotations

import duckdb
import pytest

from purgatory_udf.backend.local import duckdb_connection

# 1 1 2 2 2 10, unordered. Values with frequency 0 and nulls do not count.
TIMES = "[{'value': 10, 'times': 1}, {'value': 1, 'times': 2}, {'value': 99, 'times': 0}, \
{'value': NULL, 'times': 5}, {'value': 2, 'times': 3}]"
EMPTY = ["NULL", "[]", "[{'value': NULL, 'times': 3}]", "[{'value': 7, 'times': NULL}]"]


def percentiles(share: float, *lists: str) -> list[float | None]:
    """Return the percentile of each list, from one query."""
    connection = duckdb.connect()
    duckdb_connection.register(connection)
    rows = ", ".join(f"({number}, {values})" for number, values in enumerate(lists))
    query = f"SELECT spark_percentile(v, {share}) FROM (VALUES {rows}) AS t(n, v) ORDER BY n"
    return [quantile for (quantile,) in connection.sql(query).fetchall()]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.75, 2.0), (0.9, 6.0), (1.0, 10.0)])
def test_percentile_is_weighted_and_interpolated(share: float, expected: float) -> None:
    assert percentiles(share, TIMES) == [expected]


def test_percentile_of_no_values_is_null() -> None:
    assert percentiles(0.5, EMPTY[0], TIMES, *EMPTY[1:], TIMES) == [None, 2.0, None, None, None, 2.0]

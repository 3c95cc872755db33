"""What is worked out here in Spark's place, held against what is known of it."""

from __future__ import annotations

import duckdb
import pytest

from purgatory_udf.backend.local import duckdb_connection

# 1 1 2 2 2 10, in no order; what is there no time does not count, nor what is nothing.
TIMES = "[{'value': 10, 'times': 1}, {'value': 1, 'times': 2}, {'value': 99, 'times': 0}, \
{'value': NULL, 'times': 5}, {'value': 2, 'times': 3}]"
NOTHING = ["NULL", "[]", "[{'value': NULL, 'times': 3}]", "[{'value': 7, 'times': NULL}]"]


def percentiles(share: float, *lists: str) -> list[float | None]:
    """Of all lists at once, as groups of a query come."""
    connection = duckdb.connect()
    duckdb_connection.register(connection)
    rows = ", ".join(f"({number}, {values})" for number, values in enumerate(lists))
    asked = f"SELECT spark_percentile(v, {share}) FROM (VALUES {rows}) AS t(n, v) ORDER BY n"
    return [quantile for (quantile,) in connection.sql(asked).fetchall()]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.75, 2.0), (0.9, 6.0), (1.0, 10.0)])
def test_a_percentile_counts_values_as_often_as_they_are_there_and_lies_between_neighbours(
    share: float, expected: float
) -> None:
    assert percentiles(share, TIMES) == [expected]


def test_of_nothing_there_is_no_percentile_and_beside_it_there_is() -> None:
    assert percentiles(0.5, NOTHING[0], TIMES, *NOTHING[1:], TIMES) == [None, 2.0, None, None, None, 2.0]

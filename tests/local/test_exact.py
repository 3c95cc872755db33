"""What is worked out here in Spark's place, held against what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.local.exact import percentile

# 1 1 2 2 2 10, in no order; what is there no time does not count, nor what is nothing.
TIMES: list[tuple[float | None, int]] = [(10, 1), (1, 2), (99, 0), (None, 5), (2, 3)]


def counted(times: list[tuple[float | None, int]]) -> list[dict[str, Any]]:
    return [{"value": value, "times": n} for value, n in times]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.75, 2.0), (0.9, 6.0), (1.0, 10.0)])
def test_a_percentile_counts_values_as_often_as_they_are_there_and_lies_between_neighbours(
    share: float, expected: float
) -> None:
    assert percentile(counted(TIMES), share) == expected


def test_of_nothing_there_is_no_percentile() -> None:
    assert [percentile(values, 0.5) for values in (None, [], counted([(None, 3)]))] == [None] * 3

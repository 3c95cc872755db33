"""The same operations, answers and transitions as the reference, however a trace is cut into batches."""

from __future__ import annotations

from batches import in_batches, reference_of
from group_strategies import GroupTraffic, group_traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory_udf.groups.step import WORTH_COLUMNS


@settings(max_examples=40, deadline=None)
@given(group_traffic(), st.lists(st.integers(1, 80), max_size=8), st.sampled_from((1, 3, WORTH_COLUMNS)))
def test_random_cuts_into_batches_change_nothing(traffic: GroupTraffic, cuts: list[int], worth_columns: int) -> None:
    batches = in_batches(traffic.events, traffic.config, cuts, worth_columns)
    expected = reference_of(traffic.events, traffic.config)
    assert {key: told.in_order() for key, told in batches.told.items()} == {
        key: told.in_order() for key, told in expected.items()
    }

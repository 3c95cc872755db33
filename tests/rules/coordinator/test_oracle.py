"""The coordinator against Kafka 3.9's own: every answer, state change and removal, to the millisecond."""

from __future__ import annotations

import pytest

from purgatory_udf.rules.reference.reference_replay import replay
from tests.support import oracle_groups
from tests.support.oracle_groups import GroupTrace

CASES = oracle_groups.cases()


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_hand_made_case(case: GroupTrace) -> None:
    assert _differences(case) == []


@pytest.mark.parametrize("name", oracle_groups.names())
def test_recorded_trace(name: str) -> None:
    assert _differences(oracle_groups.load(name)) == []


def _differences(trace: GroupTrace) -> list[str]:
    result = replay(trace.events, trace.config)
    assert result.open == [], "a drained trace leaves nothing open"
    return oracle_groups.differences(trace.rows, oracle_groups.rows(trace.events, result.groups))

"""Batched groups against Kafka 3.9's own answers, state changes and removals."""

from __future__ import annotations

import pytest

from tests.rules.groups.batches import Batches, in_batches, journal_of, reference_of
from tests.support import oracle_groups
from tests.support.oracle_groups import GroupTrace

CASES = oracle_groups.cases()
# Every batch serializes every group, so long traces have at most `_MOST` batches.
_LEAST, _MOST = 400, 12


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_hand_made_case_event_by_event(case: GroupTrace) -> None:
    assert _differences(case, in_batches(case.events, case.config, range(len(case.events)))) == []


@pytest.mark.parametrize("name", oracle_groups.names())
def test_recorded_trace_in_batches(name: str) -> None:
    trace = oracle_groups.load(name)
    size = max(_LEAST, len(trace.events) // _MOST)
    assert _differences(trace, in_batches(trace.events, trace.config, range(0, len(trace.events), size))) == []


@pytest.mark.parametrize("name", ["slow-1", "static-1"])
def test_operations_of_recorded_trace_match_reference(name: str) -> None:
    trace = oracle_groups.load(name)
    batches = in_batches(trace.events, trace.config, range(0, len(trace.events), 1000))
    assert {key: record.in_order() for key, record in batches.records.items()} == {
        key: record.in_order() for key, record in reference_of(trace.events, trace.config).items()
    }


def _differences(trace: GroupTrace, batches: Batches) -> list[str]:
    assert [record.open for record in batches.records.values() if record.open] == [], (
        "a drained trace leaves nothing open"
    )
    return oracle_groups.differences(trace.rows, oracle_groups.rows(trace.events, journal_of(batches)))

"""Batched groups against Kafka's own answers, state changes and removals."""

from __future__ import annotations

import pytest

from tests.rules.groups.batches import Batches, in_batches, journal_of, reference_of
from tests.support import oracle_groups
from tests.support.oracle_groups import NEW, OLD, GroupTrace, Row

CASES = [*oracle_groups.cases(OLD), *oracle_groups.cases(NEW)]
TRACES = [(folder, name) for folder in (OLD, NEW) for name in oracle_groups.names(folder) if name != "mixed-1"]
# The slowest ones in batches run nightly; without batches, all of them run in `tests/rules/coordinator`.
SLOWEST = {(OLD, "small-1"), (NEW, "csmall-1")}
# Every batch serializes every group, so long traces have at most `_MOST` batches.
_LEAST, _MOST = 400, 12


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_hand_made_case_event_by_event(case: GroupTrace) -> None:
    assert _differences(case, in_batches(case.events, case.config, range(len(case.events)))) == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [pytest.param(*each, marks=[pytest.mark.nightly] if each in SLOWEST else []) for each in TRACES],
)
def test_recorded_trace_in_batches(folder: str, name: str) -> None:
    trace = oracle_groups.load(name, folder)
    size = max(_LEAST, len(trace.events) // _MOST)
    assert _differences(trace, in_batches(trace.events, trace.config, range(0, len(trace.events), size))) == []


@pytest.mark.parametrize(
    ("folder", "name", "size"),
    [
        (OLD, "slow-1", 1000),
        (OLD, "static-1", 1000),
        (NEW, "classic-special-1", 1000),
        (NEW, "ctiny-2", 100),
        (NEW, "cspecial-1", 1000),
        (NEW, "mixed-1", 100),
    ],
)
def test_operations_of_recorded_trace_match_reference(folder: str, name: str, size: int) -> None:
    trace = oracle_groups.load(name, folder)
    batches = in_batches(trace.events, trace.config, range(0, len(trace.events), size))
    assert {key: record.in_order() for key, record in batches.records.items()} == {
        key: record.in_order() for key, record in reference_of(trace.events, trace.config).items()
    }


def _differences(trace: GroupTrace, batches: Batches) -> list[str]:
    assert [record.open for record in batches.records.values() if record.open] == [], (
        "a drained trace leaves nothing open"
    )
    expected, actual = trace.rows, oracle_groups.rows(trace, journal_of(batches))
    if trace.config.group.commit_delay_ms:
        # Answers wait for records of other groups, too. A batch of one group does not know these.
        expected, actual = _without_answer_times(expected), _without_answer_times(actual)
    return oracle_groups.differences(expected, actual)


def _without_answer_times(rows: list[Row]) -> list[Row]:
    return [("R", "-", *row[2:]) if row[0] == "R" else row for row in rows]

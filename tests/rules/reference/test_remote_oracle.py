"""Requests of tiered partitions against Kafka's own classes: every answer, meter and gauge has to be equal."""

from __future__ import annotations

import pytest

from purgatory_udf.rules.reference.reference_replay import replay
from tests.support import remote_traces
from tests.support.remote_traces import RemoteTrace

CASES = remote_traces.cases()


@pytest.mark.parametrize(("title", "trace"), CASES, ids=[title for title, _ in CASES])
def test_hand_made_case(title: str, trace: RemoteTrace) -> None:
    outcomes = replay(trace.events, trace.config).outcomes
    assert remote_traces.rows_of(outcomes) == trace.rows
    assert remote_traces.expirations_of(outcomes) == trace.expirations


@pytest.mark.parametrize("name", remote_traces.names())
def test_recorded_trace(name: str) -> None:
    trace = remote_traces.load(name)
    result = replay(trace.events, trace.config)
    assert remote_traces.rows_of(result.outcomes) == trace.rows
    assert remote_traces.expirations_of(result.outcomes) == trace.expirations
    assert remote_traces.readings_of(result.gauges, [reading[0] for reading in trace.gauges]) == trace.gauges
    assert result.open == []

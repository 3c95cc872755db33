"""The reference against Kafka's own classes: every recorded outcome and gauge has to be equal."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from tests.support import oracle_traces
from tests.support.oracle_traces import OracleTrace

CASES = oracle_traces.cases()


def config_of(trace: OracleTrace) -> Config:
    interval = {"purge_interval": trace.purge_interval}
    return Config.model_validate({"produce": interval, "fetch": interval | {"max_bytes": 2**31 - 1}})


@pytest.mark.parametrize(("title", "trace"), CASES, ids=[title for title, _ in CASES])
def test_hand_made_case(title: str, trace: OracleTrace) -> None:
    assert trace.rows(replay(trace.events, config_of(trace)).outcomes) == trace.outcomes


# Traces that take longest. The engine, which the default tests compare with all recorded traces, is quicker.
NIGHTLY = ("small-1", "wide-1", "watchers-1")


def _marked(name: str) -> Any:
    return pytest.param(
        name, marks=[pytest.mark.long] * oracle_traces.is_large(name) + [pytest.mark.nightly] * (name in NIGHTLY)
    )


@pytest.mark.parametrize("name", [_marked(name) for name in oracle_traces.names()])
def test_recorded_trace(name: str) -> None:
    trace = oracle_traces.load(name)
    result = replay(trace.events, config_of(trace))
    assert trace.rows(result.outcomes) == trace.outcomes
    assert trace.readings(result.gauges) == trace.gauges
    assert result.open == []

"""The columnar core gives Kafka's own answers: kind of outcome, end, trigger, statuses and bytes of every operation."""

from __future__ import annotations

import pytest

from purgatory_udf.columnar.engine import Engine, event_table, replay
from purgatory_udf.columnar.outcome_rows import outcomes_of
from purgatory_udf.config import Config
from tests import oracle_traces


@pytest.mark.parametrize("name", oracle_traces.names())
def test_every_operation_ends_as_in_kafka(name: str) -> None:
    trace = oracle_traces.load(name)
    outcomes = outcomes_of(*replay([event_table(trace.events)], Engine(Config())))
    assert trace.rows(outcomes) == trace.outcomes


@pytest.mark.parametrize(
    ("title", "trace"), oracle_traces.cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_corner_ends_as_in_kafka(title: str, trace: oracle_traces.OracleTrace) -> None:
    outcomes = outcomes_of(*replay([event_table(trace.events)], Engine(Config())))
    assert trace.rows(outcomes) == trace.outcomes

"""The engine against Kafka's own answers to requests of tiered partitions, in any batches and with any grouping."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pyarrow as pa
import pytest

from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.key_shards import Grouping, by_broker, by_partition, by_shard
from purgatory_udf.rules.engine.loop.engine_state import Decisions
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.purgatory.clock import gauge_changes
from tests.rules.engine.loop.loop_gauges import gauges_of
from tests.support import remote_traces
from tests.support.outcome_rows import outcomes_of
from tests.support.remote_traces import PURGATORIES, RemoteTrace


def _events_of(trace: RemoteTrace) -> pa.Table:
    return event_table(sorted(trace.events, key=lambda event: (event["time_us"], event["seq"])))


def _decide(
    trace: RemoteTrace, table: pa.Table, grouping: Grouping = by_broker, batch: int | None = None
) -> list[Decisions]:
    start_ms = min(event["time_us"] for event in trace.events) // 1000
    engine = Engine(trace.config, start_ms, grouping, serialize=True)
    borders = [*range(0, len(table), batch or len(table)), len(table)]
    decided = [each for a, b in pairwise(borders) for each in engine.feed(table.slice(a, b - a))]
    return [*decided, *engine.drain()]


def _assert_equals_kafka(trace: RemoteTrace, decided: list[Decisions]) -> None:
    tables = Tables.of(decided)
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert remote_traces.rows_of(outcomes) == trace.rows
    # A completion has no fetcher in the tables, so this counts expirations only.
    assert remote_traces.expirations_of(outcomes) == trace.expirations


@pytest.mark.parametrize(
    ("title", "trace"), remote_traces.cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_hand_made_case(title: str, trace: RemoteTrace) -> None:
    _assert_equals_kafka(trace, _decide(trace, _events_of(trace)))


def _marks(name: str, grouping: str, batch: int | None) -> list[pytest.MarkDecorator]:
    """Leave the slowest cases to the nightly tests."""
    slowest = {"small-1", "lists-1", "special-1", "ties-1"}
    return [pytest.mark.nightly] if name in slowest and grouping != "broker" and batch else []


_GROUPINGS = {"broker": by_broker, "partition": by_partition, "shard": by_shard(3)}
_RECORDED = [
    pytest.param(name, grouping, batch, id=f"{name}-{of}-{batch}", marks=_marks(name, of, batch))
    for name in remote_traces.names()
    for of, grouping in _GROUPINGS.items()
    for batch in (None, 100)
]


@cache
def _recorded(name: str) -> tuple[RemoteTrace, pa.Table, list[Gauge]]:
    """Return a trace, its events as a table, and Kafka's gauges."""
    trace = remote_traces.load(name)
    kafka = [
        Gauge(0, purgatory, at_ms, values[2 * nth], values[2 * nth + 1], 0)
        for at_ms, *values in trace.gauges
        for nth, purgatory in enumerate(PURGATORIES)
    ]
    return trace, _events_of(trace), _sorted(gauge_changes(kafka))


@pytest.mark.parametrize(("name", "grouping", "batch"), _RECORDED)
def test_recorded_trace(name: str, grouping: Grouping, batch: int | None) -> None:
    trace, table, kafka = _recorded(name)
    decided = _decide(trace, table, grouping, batch)
    _assert_equals_kafka(trace, decided)
    readings = [
        Gauge(each.broker, each.purgatory, each.at_ms, each.watched, each.delayed, 0)
        for each in gauges_of(decided, trace.gauges[-1][0])
    ]
    assert _sorted(gauge_changes(readings)) == kafka


def _sorted(gauges: list[Gauge]) -> list[Gauge]:
    return sorted(gauges, key=lambda gauge: (gauge.at_ms, gauge.purgatory))

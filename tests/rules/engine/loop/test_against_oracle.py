"""The engine against recordings of Kafka's own classes: outcome, end, trigger, statuses and bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.key_shards import Grouping, by_broker, by_partition, by_shard
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table, replay
from purgatory_udf.rules.purgatory.clock import gauge_changes
from tests.rules.engine.loop.loop_gauges import gauges_of
from tests.support import oracle_traces
from tests.support.outcome_rows import outcomes_of


def _rows(trace: oracle_traces.OracleTrace, engine: Engine, batch: int | None = None) -> list[tuple[str, ...]]:
    table = event_table(trace.events)
    borders = [*range(0, len(table), batch or len(table)), len(table)]
    tables = replay([table.slice(begin, end - begin) for begin, end in pairwise(borders)], engine)
    return trace.rows(outcomes_of(tables.completions, tables.expirations, tables.cancellations))


@pytest.mark.parametrize("name", oracle_traces.names())
def test_outcomes_and_gauges_equal_kafkas(name: str) -> None:
    trace = oracle_traces.load(name)
    interval = {"purge_interval": trace.purge_interval}
    config = Config.model_validate({"produce": interval, "fetch": interval | {"max_bytes": INT32_MAX}})
    engine = Engine(config, trace_start_ms=trace.events[0]["time_us"] // 1000, serialize=True)
    decided = [*engine.feed(event_table(trace.events)), *engine.drain()]
    tables = Tables.of(decided)
    assert trace.rows(outcomes_of(tables.completions, tables.expirations, tables.cancellations)) == trace.outcomes
    kafka = [Gauge(0, purgatory, at, watched, delayed, 0) for at, purgatory, watched, delayed in trace.gauges]
    readings = _without_purged(gauges_of(decided, trace.gauges[-1][0]))
    assert trace.readings(readings) == trace.readings(gauge_changes(kafka))


def _without_purged(gauges: list[Gauge]) -> list[Gauge]:
    """Leave out readings in which only `purged` changed, which Kafka does not report."""
    return gauge_changes(
        [Gauge(gauge.broker, gauge.purgatory, gauge.at_ms, gauge.watched, gauge.delayed, 0) for gauge in gauges]
    )


@pytest.mark.parametrize("grouping", [by_broker, by_partition, by_shard(3)], ids=["broker", "partition", "shard"])
@pytest.mark.parametrize("name", [name for name in oracle_traces.names() if name.startswith("tiny")])
def test_batches_and_groupings_change_no_outcome(name: str, grouping: Grouping) -> None:
    trace = oracle_traces.load(name)
    engine = Engine(Config(), grouping=grouping, serialize=True)
    assert _rows(trace, engine, batch=200) == trace.outcomes


@pytest.mark.parametrize(
    ("title", "trace"), oracle_traces.cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_corner_cases_equal_kafkas(title: str, trace: oracle_traces.OracleTrace) -> None:
    assert _rows(trace, Engine(Config())) == trace.outcomes

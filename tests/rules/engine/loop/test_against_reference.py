"""The engine against the reference on random traces, in any batches and with any grouping of keys."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.engine.key_shards import by_broker, by_partition, by_shard
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.purgatory.clock import Pauses, gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay
from purgatory_udf.rules.reference.reference_replay import replay as reference_replay
from tests.rules.engine.loop.loop_gauges import gauges_of
from tests.support import trace_strategies
from tests.support.examples import examples
from tests.support.outcome_rows import outcomes_of

Event = dict[str, Any]

_MANY = examples(50)
_TIERED = trace_strategies.Shape(tiered=True)
_SOME = examples(12)


def drained(events: list[Event], config: Config) -> Replay:
    return reference_replay(events, config.model_copy(update={"drain": True}))


def reference(events: list[Event], config: Config) -> list[Outcome]:
    """Return the drained reference's outcomes, without what the tables do not hold."""
    return as_in_tables(drained(events, config))


def as_in_tables(replayed: Replay) -> list[Outcome]:
    kept = [
        outcome if outcome.expired or outcome.cancelled else replace(outcome, fetcher=None)
        for outcome in replayed.outcomes
    ]
    return sorted(kept, key=lambda outcome: outcome.operation_id)


def loop(batches: list[pa.Table], engine: Engine) -> list[Outcome]:
    tables = loop_replay(batches, engine)
    return outcomes_of(tables.completions, tables.expirations, tables.cancellations)


def batches_of(events: list[Event], chooser: Random) -> list[pa.Table]:
    """Cut the trace between some of its milliseconds."""
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    table = event_table(ordered)
    ms = [event["time_us"] // 1000 for event in ordered]
    borders = [row for row in range(1, len(ms)) if ms[row] != ms[row - 1] and chooser.random() < 0.3]
    return [table.slice(a, b - a) for a, b in zip([0, *borders], [*borders, len(ms)], strict=True)]


@_MANY
@given(trace_strategies.traces(), trace_strategies.configs())
def test_one_call_equals_the_reference(events: list[Event], config: Config) -> None:
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    engine = Engine(config, pauses=Pauses.from_events(events))
    assert loop([event_table(ordered)], engine) == reference(events, config)


@_MANY
@given(trace_strategies.traces(_TIERED), trace_strategies.configs())
def test_one_call_over_tiered_partitions_equals_reference(events: list[Event], config: Config) -> None:
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    engine = Engine(config, pauses=Pauses.from_events(events))
    assert loop([event_table(ordered)], engine) == reference(events, config)


@_SOME
@given(
    st.one_of(trace_strategies.traces(), trace_strategies.traces(_TIERED)),
    trace_strategies.configs(),
    st.randoms(use_true_random=False),
)
def test_batches_and_groupings_change_no_table(events: list[Event], config: Config, chooser: Random) -> None:
    expected = drained(events, config)
    began_ms = min(event["time_us"] for event in events) // 1000
    watches = []
    for grouping in (by_broker, by_partition, by_shard(2)):
        engine = Engine(config, began_ms, grouping, serialize=True, pauses=Pauses.from_events(events))
        decided = [each for batch in batches_of(events, chooser) for each in engine.feed(batch)] + engine.drain()
        tables = Tables.of(decided)
        assert outcomes_of(tables.completions, tables.expirations, tables.cancellations) == as_in_tables(expected)
        assert gauges_of(decided, expected.end_ms) == gauge_changes(expected.gauges)
        order = [(name, "ascending") for name in ("operation_id", "topic", "partition")]
        watches.append(tables.watches.sort_by(order))
    assert watches[0] == watches[1] == watches[2]

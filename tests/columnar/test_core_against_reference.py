"""The columnar core ends every operation as the reference does, however the trace is cut and its keys are grouped."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory_udf.columnar.engine import Engine, event_table
from purgatory_udf.columnar.engine import replay as columnar_replay
from purgatory_udf.columnar.outcome_rows import outcomes_of
from purgatory_udf.config import Config
from purgatory_udf.outcomes import Outcome
from purgatory_udf.reference.replay import replay as reference_replay
from tests import trace_strategies

Event = dict[str, Any]

_MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def reference(events: list[Event], config: Config) -> list[Outcome]:
    """What the reference says, drained, with what the tables do not hold left out."""
    drained = config.model_copy(update={"drain": True})
    outcomes = reference_replay(events, drained).outcomes
    kept = [outcome if outcome.expired else replace(outcome, fetcher=None) for outcome in outcomes]
    return sorted(kept, key=lambda outcome: outcome.operation_id)


def core(batches: list[pa.Table], engine: Engine) -> list[Outcome]:
    return outcomes_of(*columnar_replay(batches, engine))


def batches_of(events: list[Event], chooser: Random) -> list[pa.Table]:
    """The trace cut at some of its millisecond borders."""
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    table = event_table(ordered)
    ms = [event["time_us"] // 1000 for event in ordered]
    borders = [row for row in range(1, len(ms)) if ms[row] != ms[row - 1] and chooser.random() < 0.3]
    return [table.slice(a, b - a) for a, b in zip([0, *borders], [*borders, len(ms)], strict=True)]


@_MANY
@given(trace_strategies.traces(), trace_strategies.configs())
def test_one_call_over_all_keys_gives_the_references_outcomes(events: list[Event], config: Config) -> None:
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    assert core([event_table(ordered)], Engine(config)) == reference(events, config)


@_MANY
@given(trace_strategies.traces(), trace_strategies.configs(), st.randoms(use_true_random=False))
def test_cuts_groups_and_buckets_change_no_outcome(events: list[Event], config: Config, chooser: Random) -> None:
    engine = Engine(config, groups=chooser.randint(1, 6), buckets=chooser.randint(1, 3), through_bytes=True)
    assert core(batches_of(events, chooser), engine) == reference(events, config)

"""The loop gives Kafka's own answers: kind of outcome, end, trigger, statuses and bytes of every operation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from purgatory_udf.config import Config
from purgatory_udf.loop.engine import Engine, event_table, replay
from purgatory_udf.loop.grouping import GroupOf, by_broker, by_partition, by_shard
from tests import oracle_traces
from tests.outcome_rows import outcomes_of


def _rows(trace: oracle_traces.OracleTrace, engine: Engine, batch: int | None = None) -> list[tuple[str, ...]]:
    table = event_table(trace.events)
    borders = [*range(0, len(table), batch or len(table)), len(table)]
    tables = replay([table.slice(begin, end - begin) for begin, end in pairwise(borders)], engine)
    return trace.rows(outcomes_of(tables.completions, tables.expirations))


@pytest.mark.parametrize("name", oracle_traces.names())
def test_every_operation_ends_as_in_kafka(name: str) -> None:
    trace = oracle_traces.load(name)
    assert _rows(trace, Engine(Config())) == trace.outcomes


@pytest.mark.parametrize("grouping", [by_broker, by_partition, by_shard(3)], ids=["broker", "partition", "shard"])
@pytest.mark.parametrize("name", [name for name in oracle_traces.names() if name.startswith("tiny")])
def test_batches_and_groupings_change_no_answer(name: str, grouping: GroupOf) -> None:
    trace = oracle_traces.load(name)
    engine = Engine(Config(), grouping=grouping, through_bytes=True)
    assert _rows(trace, engine, batch=100) == trace.outcomes


@pytest.mark.parametrize(
    ("title", "trace"), oracle_traces.cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_corner_ends_as_in_kafka(title: str, trace: oracle_traces.OracleTrace) -> None:
    assert _rows(trace, Engine(Config())) == trace.outcomes

"""Eighty groups of up to 50 members: batches, shards and a repeated batch do not change the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.groups_trace import groups_trace
from purgatory_udf.common.configuration import INT32_MAX, Config, load_config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.stateful_adapter import CLOCK, Plan, input_chunk_function, state_function
from tests.streaming.stateful_operator import StatefulOperator
from tests.support.outcome_rows import outcomes_of

pytestmark = pytest.mark.long

Rows = list[tuple[Any, int, bytes]]


def batches(events: pa.Table, rules: GroupRules, per_batch: int) -> Iterator[Rows]:
    """Yield batches cut between milliseconds, then the row that drains the clock, and an empty batch."""
    at, ms = 0, [us // 1000 for us in events["time_us"].to_pylist()]
    while at < len(ms):
        end = min(at + per_batch, len(ms))
        while end < len(ms) and ms[end] == ms[end - 1]:
            end += 1
        packed = pa.Table.from_batches(list(input_chunk_function(rules)(iter(events.slice(at, end - at).to_batches()))))
        times = packed["event_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        yield list(zip(packed["group"].to_pylist(), times, packed["payload"].to_pylist(), strict=True))
        at = end
    yield [(CLOCK, (ms[-1] + INT32_MAX + 2000) * 1000, b"")]
    yield []


def replayed(events: pa.Table, config: Config, per_batch: int, kill: int | None = None) -> dict[str, pa.Table]:
    """Return the sorted tables. The results of batch `kill` are lost, and the batch is repeated."""
    end_us = events["time_us"][-1].as_py()
    rules = GroupRules(Plan("run", False, end_us), config)
    groups = StatefulOperator(state_function(rules), delay_ms=1)
    chunks: list[tuple[Any, ...]] = []
    for number, rows in enumerate(batches(events, rules, per_batch)):
        before = groups.values.copy(), groups.timers.copy(), groups.latest_us
        returned = groups.batch(rows)
        if number == kill:
            groups.values, groups.timers, groups.latest_us = before
            returned = groups.batch(rows)
        chunks += returned
        groups.advance()
    names = ("completions", "expirations", "group_transitions")
    payloads = {name: [pa.py_buffer(payload) for table, *_, payload in chunks if table == name] for name in names}
    tables = {name: pa.Table.from_batches(rules.decode_table(name, payloads[name])) for name in names}
    order = {"group_transitions": ["group", "at", "generation", "to_state"]}
    return {
        name: table.sort_by([(column, "ascending") for column in order.get(name, ["operation_id"])])
        for name, table in tables.items()
    }


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return groups_trace(80, seconds=45).events


def test_batches_shards_and_repeated_batch_change_nothing(events: pa.Table) -> None:
    shards = load_config(None, ["grouping=shard", "grouping_shards=7"])
    expected = replayed(events, shards, per_batch=8_000)
    assert {name: table.num_rows for name, table in expected.items()} == {
        "completions": 27_133,
        "expirations": 2248,
        "group_transitions": 511,
    }
    assert replayed(events, load_config(None, []), per_batch=12_000, kill=1) == expected


def test_many_groups_match_reference() -> None:
    events = groups_trace(12, seconds=45).events
    tables = replayed(events, load_config(None, ["grouping=shard", "grouping_shards=3"]), per_batch=200)
    expected = replay(events.to_pylist(), Config())
    assert outcomes_of(tables["completions"], tables["expirations"]) == sorted(
        expected.outcomes, key=lambda outcome: outcome.operation_id
    )
    assert {answer.error for answer in expected.groups.answers} == {
        "NONE",
        "MEMBER_ID_REQUIRED",
        "REBALANCE_IN_PROGRESS",
    }

"""The stateful adapter: outcomes do not depend on batches, grouping, chunks or allowed disorder."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.rules.engine.loop.engine_state import EngineSettings
from purgatory_udf.rules.engine.partition_engine import event_table, purge_intervals
from purgatory_udf.rules.purgatory.clock import Pauses, gauge_changes
from purgatory_udf.streaming.batch_sink import table_unpacker
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.partition_rules import OperationScope, PartitionRules
from purgatory_udf.streaming.stateful_adapter import (
    CLOCK,
    STATUS,
    TICK_FORMAT,
    WAITS,
    Plan,
    Scalars,
    closing_ms,
    decode_ticks,
    input_chunk_function,
    rows_until,
    state_function,
)
from tests.rules.engine.loop.loop_gauges import gauges_in, loop_gauges
from tests.rules.engine.loop.test_against_reference import Event, drained, reference
from tests.streaming.stateful_operator import StatefulOperator
from tests.support import trace_strategies
from tests.support.examples import examples
from tests.support.outcome_rows import outcomes_of

Row = tuple[Any, ...]

BY_BROKER = Config(grouping="broker")

_SOME = examples(10)


def stream(batches: list[list[Event]], config: Config, chunk: int = 10_000) -> tuple[list[Outcome], StatefulOperator]:
    """Run the query, or both queries, over these batches and the drain row. Return the outcomes and the first query."""
    rules, chunks, query = _run_queries(batches, config, chunk)
    return outcomes_of(*(_table(rules, name, chunks) for name in ENDS)), query


def _run_queries(
    batches: list[list[Event]], config: Config, chunk: int
) -> tuple[PartitionRules, list[Row], StatefulOperator]:
    """Do the same, and return the rules, the output rows and the first query."""
    events = [event for batch in batches for event in batch]
    end_us = max(event["time_us"] for event in events) + (INT32_MAX + 2000) * 1000
    start_ms = min(event["time_us"] for event in events) // 1000
    limits = EngineSettings(purge_intervals(config), start_ms, pauses=Pauses.from_events(events))
    rules = PartitionRules(Plan("run", config.max_disorder_ms > 0, None), config, limits)
    chunks: list[Row] = []
    queries = []
    for each in _queries(rules):
        groups = StatefulOperator(state_function(each), delay_ms=config.max_disorder_ms + 1, chunk=chunk)
        queries.append(groups)
        for batch in [*batches, None, []]:
            chunks += groups.batch([(CLOCK, end_us, b"")] if batch is None else _input_rows(batch, each))
            groups.advance()
        assert groups.dropped == 0
        assert all(value[0] == 0 for value in groups.values.values()), "watches are open after the drain row"
        assert not groups.timers, "timeouts are left after the drain row"
    return rules, chunks, queries[0]


def _queries(rules: PartitionRules) -> list[PartitionRules]:
    """Return the rules of each query: one if groups are brokers, else one for whole and one for split operations."""
    if rules.config.grouping == "broker":
        return [rules]
    return [replace(rules, scope=scope) for scope in (OperationScope.WHOLE, OperationScope.SPLIT)]


def _input_rows(batch: list[Event], rules: PartitionRules) -> list[Row]:
    if not batch:
        return []
    chunks = pa.Table.from_batches(list(input_chunk_function(rules)(iter(event_table(batch).to_batches()))))
    times = chunks["event_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    return list(zip(chunks["group"].to_pylist(), times, chunks["payload"].to_pylist(), strict=True))


def _table(rules: PartitionRules, name: str, rows: list[Row]) -> pa.Table:
    payloads = pa.array([payload for table, _, _, _, payload in rows if table == name], pa.binary())
    batches = table_unpacker(rules, name, None)(iter([pa.RecordBatch.from_arrays([payloads], ["payload"])]))
    return pa.Table.from_batches(list(batches), schema=rules.schema(name))


def _sorted(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event["time_us"], event["seq"]))


def _cut(events: list[Event], chooser: Random, whole_ms: bool) -> list[list[Event]]:
    batches: list[list[Event]] = [[]]
    for event in events:
        last = batches[-1][-1] if batches[-1] else None
        may_cut = last is not None and (not whole_ms or last["time_us"] // 1000 != event["time_us"] // 1000)
        if may_cut and chooser.random() < 0.25:
            batches.append([])
        batches[-1].append(event)
    return batches


@_SOME
@given(trace_strategies.traces(), trace_strategies.configs(), st.randoms(use_true_random=False))
def test_batches_and_grouping_change_no_outcome(events: list[Event], config: Config, chooser: Random) -> None:
    grouping = {"grouping": chooser.choice(["partition", "shard", "broker"]), "grouping_shards": 2}
    chosen = Config.model_validate({**config.model_dump(), **grouping})
    batches = _cut(_sorted(events), chooser, whole_ms=True)
    outcomes, _ = stream(batches, chosen, chunk=chooser.choice([1, 2, 10_000]))
    assert outcomes == reference(events, config)


@_SOME
@given(trace_strategies.traces(), trace_strategies.configs(), st.randoms(use_true_random=False))
def test_batches_and_grouping_change_no_gauge(events: list[Event], config: Config, chooser: Random) -> None:
    """Brokers without open operations have readings after their last event, too."""
    grouping = {"grouping": chooser.choice(["partition", "shard", "broker"]), "grouping_shards": 2}
    chosen = Config.model_validate({**config.model_dump(), **grouping})
    rules, chunks, _ = _run_queries(_cut(_sorted(events), chooser, whole_ms=True), chosen, 10_000)
    expected = drained(events, config)
    assert gauges_in(_table(rules, "purgatory_gauges", chunks), expected.end_ms) == gauge_changes(expected.gauges)


@_SOME
@given(trace_strategies.traces(), trace_strategies.configs(), st.randoms(use_true_random=False))
def test_allowed_disorder_changes_no_outcome(events: list[Event], config: Config, chooser: Random) -> None:
    allowed_ms = chooser.choice([1, 5, 50, 1000])
    grouping = chooser.choice(["partition", "shard", "broker"])
    changed = {"max_disorder_ms": allowed_ms, "grouping": grouping, "grouping_shards": 2}
    chosen = Config.model_validate({**config.model_dump(), **changed})
    shuffled = sorted(events, key=lambda event: event["time_us"] + chooser.random() * allowed_ms * 1000)
    outcomes, _ = stream(_cut(shuffled, chooser, whole_ms=False), chosen)
    assert outcomes == reference(events, config)


def _fetch(seq: int, us: int, wait: int) -> Event:
    partition = {"topic": "t", "partition": 0, "fetch_offset": 5, "max_bytes": 100}
    return {
        "time_us": us, "seq": seq, "broker": 1, "type": "fetch", "request_id": f"f{seq}", "client_id": "c",
        "replica_id": -1, "max_wait_ms": wait, "min_bytes": 1, "max_bytes": 100, "isolation": "read_uncommitted",
        "partitions": [partition],
    }  # fmt: skip


def _change(seq: int, us: int, change: str, offset: int) -> Event:
    where = {"time_us": us, "seq": seq, "broker": 1, "type": "partition", "topic": "t", "partition": 0}
    return where | {"change": change, "offset": offset}


def test_due_operation_expires_before_new_data() -> None:
    appended = _change(3, 9_000_000, "log_end", 6) | {"bytes": 10}
    batches = [[_fetch(1, 1_000_000, 100)], [_fetch(2, 8_000_000, 5_000)]]
    outcomes, _ = stream([*batches, [appended, _change(4, 9_000_000, "high_watermark", 6)]], BY_BROKER)
    ends = [(outcome.request_id, outcome.expired, outcome.ended_us) for outcome in outcomes]
    assert ends == [("f1", True, 1_100_000), ("f2", False, 9_000_000)]


def test_group_without_open_watches_gets_new_watches() -> None:
    outcomes, watches = stream([[_fetch(1, 1_000_000, 10)], [], [], [_fetch(2, 2_000_000, 10)]], BY_BROKER)
    assert [outcome.ended_us for outcome in outcomes] == [1_010_000, 2_010_000]
    assert watches.calls < 20


@_SOME
@given(trace_strategies.traces(), trace_strategies.configs(), st.randoms(use_true_random=False))
def test_followed_gauges_are_read_without_new_events(events: list[Event], config: Config, chooser: Random) -> None:
    """Two clock events an hour later are the only ones that advance the brokers' clocks."""
    grouping = {"grouping": chooser.choice(["partition", "shard", "broker"]), "grouping_shards": 2}
    chosen = Config.model_validate({**config.model_dump(), **grouping, "max_disorder_ms": 0})
    ordered = _sorted(events)
    end_us = ordered[-1]["time_us"]
    clocks = [{"type": "clock", "time_us": end_us + at * 1_000_000, "seq": 10**6 + at} for at in (3600, 3601)]
    batches = [*_cut(ordered, chooser, whole_ms=True), *([clock] for clock in clocks)]
    pauses = Pauses.from_events([*ordered, *clocks])
    limits = EngineSettings(purge_intervals(chosen), ordered[0]["time_us"] // 1000, pauses=pauses)
    rules = PartitionRules(Plan("run", False, None, is_followed=True), chosen, limits)
    rows = _follow(batches, rules)
    gauges = _table(rules, "purgatory_gauges", rows)
    by_end = [
        (row["broker"], row["purgatory"], row["at"], row["watched"], row["delayed"]) for row in gauges.to_pylist()
    ]
    expected = loop_gauges([*ordered, *clocks], chosen, clocks[0]["time_us"] // 1000)
    moments = [datetime.fromtimestamp(gauge.at_ms / 1000, UTC) for gauge in expected]
    assert sorted(by_end) == sorted(
        (gauge.broker, gauge.purgatory, moment, gauge.watched, gauge.delayed)
        for gauge, moment in zip(expected, moments, strict=True)
    )
    updates = [json.loads(payload) for table, _, _, _, payload in rows if table == STATUS]
    assert {count for table, _, _, count, _ in rows if table == STATUS} == {0}
    assert sum(update.get("events", 0) for update in updates) == len(events) + 2


@pytest.mark.parametrize(("allowed_ms", "clocks"), [(0, [10]), (50, [10, 20])])
def test_clock_event_expires_split_operation(allowed_ms: int, clocks: list[int]) -> None:
    """
    1 s ── a fetch of eight partitions, for 100 ms ── … ── 10 s ── a clock event, which has no partition
    """
    config = Config(grouping="partition", max_disorder_ms=allowed_ms)
    fetch = _fetch(1, 1_000_000, 100)
    fetch["partitions"] = [{**fetch["partitions"][0], "partition": number} for number in range(8)]
    ticks = [{"type": "clock", "time_us": at * 1_000_000, "seq": at} for at in clocks]
    limits = EngineSettings(purge_intervals(config), trace_start_ms=1000)
    rules = PartitionRules(Plan("run", allowed_ms > 0, None, is_followed=True), config, limits)
    rows = _follow([[fetch], *([clock] for clock in ticks)], rules)
    assert {count for table, _, _, count, _ in rows if table == STATUS} == {0}
    ended = _table(rules, "expirations", rows)
    assert list(zip(ended["operation_id"].to_pylist(), ended["wait_ms"].to_pylist(), strict=True)) == [(1, 100)]


def test_clock_group_reports_horizon_twice() -> None:
    """In the batch with events, and by a timeout when the watermark has passed the last of them."""
    tick = (CLOCK, 5_000_000, struct.pack(TICK_FORMAT, 3, 5_000_000))
    operator = StatefulOperator(state_function(GroupRules(Plan("run", False, None), Config())), delay_ms=1)
    first = operator.batch([tick])
    assert (operator.values, operator.timers) == ({CLOCK: (0, None, None, 0, b"", None)}, {CLOCK: 1})
    operator.advance()
    assert [first, operator.batch([])] == [[(WAITS, CLOCK, us, 0, b"")] for us in (0, 4_999_000)]
    assert (operator.values, operator.timers) == ({}, {})


def test_single_batch_needs_no_clock_timer() -> None:
    tick = (CLOCK, 5_000_000, struct.pack(TICK_FORMAT, 3, 5_000_000))
    plan = Plan("run", False, 5_000_000, is_one_batch=True)
    operator = StatefulOperator(state_function(GroupRules(plan, Config())), delay_ms=1)
    assert operator.batch([tick]) == [(WAITS, CLOCK, FOREVER // 1000 * 1000, 0, b"")]
    assert (operator.values, operator.timers) == ({}, {})


def test_groups_share_a_shard_unless_grouped_by_partition() -> None:
    beat = {"type": "heartbeat", "broker": 1, "member_id": "m", "generation": 1}
    events = event_table([beat | {"time_us": seq * 1000, "seq": seq, "group": f"g{seq}"} for seq in (1, 2, 3)])
    names = {
        by: [chunk.group for chunk in rules.split_by_group(events)]
        for by in ("partition", "broker")
        for rules in [GroupRules(Plan("run", False, None), Config(grouping=by, grouping_shards=1))]
    }
    assert (len(names["partition"]), len(names["broker"])) == (3, 1)


def test_stored_figures_describe_open_operations() -> None:
    limits = EngineSettings(purge_intervals(BY_BROKER), 1000)
    rules = PartitionRules(Plan("run", False, None), BY_BROKER, limits)
    state = rules.decode_state(None)
    assert rules.scalars(state) == Scalars(0, None, None, 0, FOREVER)
    (chunk,) = rules.split_by_group(event_table([_fetch(1, 1_000_900, 500)]))
    state, _ = rules.step(chunk.group, state, rules.decode_rows([chunk.payload]), 1001)
    assert rules.scalars(state) == Scalars(1, 1000, 1500, 1, 1200), "the next reading of the gauges"
    without_gauges = replace(rules, scope=OperationScope.WHOLE)
    assert without_gauges.scalars(state) == Scalars(1, 1000, 1500, 1, 1500)
    groups = GroupRules(Plan("run", False, None), Config())
    assert groups.scalars(groups.decode_state(None)) == Scalars(0, None, None, 0, FOREVER)


@pytest.mark.parametrize(
    ("has_disorder", "trace_end_us", "watermark_ms", "horizon_ms", "timer_ms"),
    [
        (False, None, 0, 5_000, 5_100),  # decided up to the event
        (True, None, 5_000, 5_000, 5_000),  # the event waits for the watermark
        (True, None, 4_000, 4_000, 5_000),
        (False, 4_999_999, 4_999, 5_000, 5_100),
        (False, 4_998_999, 4_999, FOREVER, None),  # the trace is complete
    ],
)
def test_call_decides_up_to_horizon(
    has_disorder: bool, trace_end_us: int | None, watermark_ms: int, horizon_ms: int, timer_ms: int | None
) -> None:
    """A fetch at 5 s waits for 100 ms."""
    plan = Plan("run", has_disorder, trace_end_us, is_followed=True)
    rules = PartitionRules(plan, BY_BROKER, EngineSettings(purge_intervals(BY_BROKER), 1000))
    operator = StatefulOperator(state_function(rules), delay_ms=1, watermark_ms=watermark_ms)
    rows = [row for row in _input_rows([_fetch(1, 5_000_900, 100)], rules) if row[0] != CLOCK]
    output = operator.batch(rows)
    expires = horizon_ms == FOREVER
    assert [row[0] for row in output if row[0] in ENDS] == (["expirations"] if expires else [])
    assert [row[2] for row in output if row[0] == STATUS] == [horizon_ms * 1000]
    ((open_, *_, waiting),) = operator.values.values()
    assert (open_, waiting is not None) == (0 if expires or has_disorder else 1, has_disorder)
    assert list(operator.timers.values()) == ([] if timer_ms is None else [timer_ms])


@pytest.mark.parametrize(
    ("last_us", "latest_us", "closing"),
    [
        (0, None, 200),
        (199_999, None, 200),
        (200_000, None, 400),
        (0, 400_999, 400),
        (0, 401_000, 600),
    ],
)
def test_last_reading_follows_last_end(last_us: int, latest_us: int | None, closing: int) -> None:
    assert closing_ms(last_us, latest_us) == closing


def test_rows_end_with_trace_except_ended_watches() -> None:
    """At 5.001 s. What would have expired later is still open at the end of a trace."""
    at = pa.array([5_001_999, 5_002_000, 5_002_000], pa.timestamp("us", "UTC"))
    watches = pa.RecordBatch.from_pydict({"ended_at": at, "status": ["expired", "expired", "satisfied"]})
    assert rows_until(watches, "watches", 5_001)["status"].to_pylist() == ["expired", "satisfied"]
    ends = pa.RecordBatch.from_pydict({"completed_at": at})
    assert len(rows_until(ends, "completions", 5_001)) == 1


def test_ticks_of_a_batch_are_added() -> None:
    assert decode_ticks([]) == (0, 0)
    assert decode_ticks([struct.pack(TICK_FORMAT, *tick) for tick in ((3, 9), (2, 7))]) == (5, 9)


def test_waits_are_reported_without_status_unless_followed() -> None:
    join = {"type": "join_group", "broker": 1, "group": "g", "client_id": "c", "session_timeout_ms": 6000}
    more = {"rebalance_timeout_ms": 6000, "protocols": ["range"], "time_us": 1000, "seq": 1, "member_id": ""}
    for is_followed in (False, True):
        rules = GroupRules(Plan("run", False, None, is_followed=is_followed), Config())
        (chunk,) = rules.split_by_group(event_table([join | more]))
        _, chunks = rules.step(chunk.group, rules.decode_state(None), rules.decode_rows([chunk.payload]), 2)
        reports = {
            each.table: (each.group, each.time_us, each.rows) for each in chunks if each.table in (WAITS, STATUS)
        }
        assert reports == {WAITS: ("", 0, 0)} | ({STATUS: ("", 0, 0)} if is_followed else {})


def test_status_of_consumer_groups_describes_changes_only() -> None:
    """The second member's join waits with the first; at 2 ms nothing changes."""
    join = {"type": "join_group", "broker": 1, "group": "g", "session_timeout_ms": 6000, "api_version": 3}
    more = {"rebalance_timeout_ms": 6000, "protocols": ["range"], "member_id": ""}
    rules = GroupRules(Plan("run", False, None, is_followed=True), Config())
    state, tables = rules.decode_state(None), []
    for seq, name in enumerate("ab", 1):
        names = {"client_id": name, "assigned_member_id": name, "time_us": 1000, "seq": seq}
        (chunk,) = rules.split_by_group(event_table([join | more | names]))
        state, chunks = rules.step(chunk.group, state, rules.decode_rows([chunk.payload]), 1)
        tables.append({each.table: each.payload for each in chunks})
    assert [set(each) for each in tables] == [{"group_transitions", WAITS, STATUS}, {WAITS, STATUS}]
    assert [json.loads(each[STATUS])["rebalances"]["1/g"]["members"] for each in tables] == [1, 2]
    assert list(rules.step(chunk.group, state, rules.decode_rows([]), 2)[1]) == []


@pytest.mark.parametrize("scope", [OperationScope.ALL, OperationScope.WHOLE, OperationScope.SPLIT])
def test_status_of_followed_group_has_its_horizon(scope: OperationScope) -> None:
    """The first of two queries sees only some keys of a broker, so it reports no purgatories."""
    limits = EngineSettings(purge_intervals(BY_BROKER), 1000)
    rules = PartitionRules(Plan("run", False, None, is_followed=True), BY_BROKER, limits, scope)
    (chunk,) = rules.split_by_group(event_table([_fetch(1, 1_000_900, 100)]))
    _, chunks = rules.step(chunk.group, rules.decode_state(None), rules.decode_rows([chunk.payload]), 1001)
    (status,) = (chunk for chunk in chunks if chunk.table == STATUS)
    assert (status.group, status.time_us, status.rows) == (chunk.group, 1_001_000, 0)
    assert ("purgatories" in json.loads(status.payload)) == (scope is not OperationScope.WHOLE)


def test_call_returns_all_tables() -> None:
    """Two fetches expire at 1.1009 and 2.1 s. The gauges change at 1.2 and 2.2 s."""
    rules = PartitionRules(Plan("run", False, None), BY_BROKER, EngineSettings(purge_intervals(BY_BROKER), 1000))
    (chunk,) = rules.split_by_group(event_table([_fetch(1, 1_000_900, 100), _fetch(2, 2_000_000, 100)]))
    _, chunks = rules.step(chunk.group, rules.decode_state(None), rules.decode_rows([chunk.payload]), FOREVER)
    assert [(each.table, each.group, each.time_us, each.rows) for each in chunks] == [
        ("expirations", "", 2_100_000, 2),
        ("watches", "", 0, 2),
        ("purgatory_gauges", "", 0, 2),
    ]


@pytest.mark.parametrize(
    ("scope", "counted"), [(OperationScope.ALL, True), (OperationScope.WHOLE, True), (OperationScope.SPLIT, False)]
)
def test_one_query_counts_followed_events(scope: OperationScope, counted: bool) -> None:
    limits = EngineSettings(purge_intervals(BY_BROKER), 1000)
    rules = PartitionRules(Plan("run", False, None, is_followed=True), BY_BROKER, limits, scope)
    counts = [(STATUS, CLOCK, 5_000_900, 0, b'{"events": 3}')] if counted else []
    assert list(rules.tick(3, 5_000_900, 4000)) == counts
    assert list(rules.tick(0, 5_000_900, 4000)) == []
    assert list(replace(rules, plan=Plan("run", False, None)).tick(3, 5_000_900, 4000)) == []


def _follow(batches: list[list[Event]], rules: PartitionRules) -> list[Row]:
    """Run the query, or both queries. After each batch Spark runs one without data, in which timeouts fire."""
    chunks: list[Row] = []
    for each in _queries(rules):
        groups = StatefulOperator(state_function(each), delay_ms=rules.config.max_disorder_ms + 1)
        for batch in batches:
            for rows in (_input_rows(batch, each), []):
                chunks += groups.batch(rows)
                groups.advance()
        assert groups.dropped == 0
    return chunks

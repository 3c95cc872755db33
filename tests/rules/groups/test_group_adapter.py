"""The coordinator in Spark's groups: batches, chunks and disorder do not change the tables."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.contract.outcome import Outcome, Transition
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.coordinator.coordinator_journal import StateChange
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.rules.groups.group_outcome_tables import SCHEMAS
from purgatory_udf.rules.purgatory.clock import Pauses
from purgatory_udf.streaming.batch_sink import table_unpacker
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.stateful_adapter import CLOCK, WAITS, Plan, input_chunk_function, state_function
from tests.rules.groups.batches import Event, reference_of
from tests.streaming.stateful_operator import StatefulOperator
from tests.support.examples import examples
from tests.support.group_strategies import GroupTraffic, group_traffic
from tests.support.group_timeline import GroupTimeline, operation_line
from tests.support.outcome_rows import outcomes_of

_SOME = examples(8)


def end_of(events: Iterable[Event]) -> int:
    return max(event["time_us"] for event in events)


Row = tuple[Any, ...]


def streamed(
    batches: list[list[Event]], config: Config, chunk: int = 10_000, gauge_state: GaugeState | None = None
) -> dict[str, pa.Table]:
    """Run the query over these batches, then the row that drains the clock."""
    events = [event for batch in batches for event in batch]
    end_us, pauses = end_of(events), Pauses.from_events(events)
    rules = GroupRules(Plan("run", config.max_disorder_ms > 0, end_us, pauses=pauses), config)
    return _tables(rules, _chunks(rules, [*batches, None, []], end_us, chunk, gauge_state), end_us)


def at_once(events: list[Event], config: Config, gauge_state: GaugeState | None = None) -> dict[str, pa.Table]:
    """Run the query over a batch that is known to be the whole trace."""
    end_us, pauses = end_of(events), Pauses.from_events(events)
    rules = GroupRules(Plan("run", config.max_disorder_ms > 0, end_us, is_one_batch=True, pauses=pauses), config)
    return _tables(rules, _chunks(rules, [events], end_us, 10_000, gauge_state), end_us)


def _chunks(
    rules: GroupRules, batches: Iterable[list[Event] | None], end_us: int, chunk: int, gauge_state: GaugeState | None
) -> list[Row]:
    groups = StatefulOperator(state_function(rules), delay_ms=rules.config.max_disorder_ms + 1, chunk=chunk)
    all_chunks: list[Row] = []
    for batch in batches:
        rows = [(CLOCK, end_us + (INT32_MAX + 2000) * 1000, b"")] if batch is None else _packed(batch, rules)
        chunks = groups.batch(rows)
        all_chunks += chunks
        waits = [(us, payload) for table, _, us, _, payload in chunks if table == WAITS]
        if gauge_state is not None and waits:
            gauge_state.advance([payload for _, payload in waits if payload], max(us for us, _ in waits) // 1000, "run")
        groups.advance()
    assert groups.dropped == 0
    assert not groups.timers, "no timer is left"
    return all_chunks


def _tables(rules: GroupRules, chunks: list[Row], end_us: int) -> dict[str, pa.Table]:
    tables = {}
    for name in SCHEMAS:
        payloads = pa.array([payload for table, *_, payload in chunks if table == name], pa.binary())
        unpack = table_unpacker(rules, name, None if rules.config.drain else end_us // 1000)
        rows = unpack(iter([pa.RecordBatch.from_arrays([payloads], ["payload"])]))
        tables[name] = pa.Table.from_batches(list(rows), schema=rules.schema(name))
    return tables


def _packed(batch: list[Event], rules: GroupRules) -> list[Row]:
    if not batch:
        return []
    events = pa.Table.from_pylist([{"broker": 0} | event for event in batch], schema=EVENTS)
    packed = pa.Table.from_batches(list(input_chunk_function(rules)(iter(events.to_batches()))))
    times = packed["event_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    return list(zip(packed["group"].to_pylist(), times, packed["payload"].to_pylist(), strict=True))


def transitions_of(rows: pa.Table) -> list[Transition]:
    """Return the transitions ordered by group, and within a group in the order of the rows."""
    changes = [
        Transition(
            group=row["group"],
            broker=row["broker"],
            at_us=at_us,
            from_state=row["from_state"],
            to_state=row["to_state"],
            reason=row["reason"],
            generation=row["generation"],
            members=tuple(row["members"]),
        )
        for row, at_us in zip(rows.to_pylist(), rows["at"].cast(pa.int64()).to_pylist(), strict=True)
    ]
    return sorted(changes, key=lambda change: (change.broker, change.group))


def expected(events: list[Event], config: Config) -> tuple[list[Outcome], list[Transition]]:
    records = reference_of(events, config)
    outcomes = sorted(
        (outcome for record in records.values() for outcome in record.outcomes),
        key=lambda outcome: outcome.operation_id,
    )
    changes = [
        entry.transition for record in records.values() for entry in record.journal if isinstance(entry, StateChange)
    ]
    return outcomes, sorted(changes, key=lambda change: (change.broker, change.group))


def decided_in(tables: dict[str, pa.Table]) -> tuple[list[Outcome], list[Transition]]:
    outcomes = outcomes_of(tables["completions"], tables["expirations"], tables["cancellations"])
    return outcomes, transitions_of(tables["group_transitions"])


def cut(events: list[Event], cuts: set[int]) -> list[list[Event]]:
    """Split the events into batches between milliseconds, as the staged files of a replay are."""
    batches: list[list[Event]] = [[]]
    for place, event in enumerate(events):
        if place in cuts and batches[-1] and batches[-1][-1]["time_us"] // 1000 < event["time_us"] // 1000:
            batches.append([])
        batches[-1].append(event)
    return batches


@_SOME
@given(group_traffic(), st.sets(st.integers(1, 80), max_size=8), st.sampled_from((1, 2, 10_000)))
def test_batches_and_chunks_change_nothing(traffic: GroupTraffic, cuts: set[int], chunk: int) -> None:
    tables = streamed(cut(traffic.events, cuts), traffic.config, chunk)
    assert decided_in(tables) == expected(traffic.events, traffic.config)
    assert decided_in(at_once(traffic.events, traffic.config)) == decided_in(tables)


@_SOME
@given(group_traffic(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_allowed_disorder_changes_nothing(traffic: GroupTraffic, disorder_ms: int, random: Random) -> None:
    config = traffic.config.model_copy(update={"max_disorder_ms": disorder_ms})
    late = sorted(traffic.events, key=lambda event: event["time_us"] + random.randint(0, disorder_ms * 1000))
    batches = [late[at : at + 7] for at in range(0, len(late), 7)]
    assert decided_in(streamed(batches, config)) == expected(traffic.events, config)


def test_event_waits_until_none_can_precede() -> None:
    """With a disorder of 5 ms, an event at 10,005 may be followed by others from 10,000 on."""
    group = GroupTimeline()
    group.until(10_005)
    group.join(10_000.9, "b")
    group.join(10_000.1, "a")
    config = Config.model_validate({"group": {"min_session_timeout_ms": 0}, "max_disorder_ms": 5})
    assert decided_in(streamed([[event] for event in group.events], config)) == expected(group.events, config)


@_SOME
@given(group_traffic())
def test_undrained_tables_end_with_trace(traffic: GroupTraffic) -> None:
    config = traffic.config.model_copy(update={"drain": False})
    still_open = [operation for record in reference_of(traffic.events, config).values() for operation in record.open]
    in_batches, all_at_once = (
        GaugeState(config.group.purge_interval, 0, end_of(traffic.events) // 1000, Pauses.from_events(traffic.events))
        for _ in range(2)
    )
    assert decided_in(streamed([traffic.events], config, gauge_state=in_batches)) == expected(traffic.events, config)
    assert decided_in(at_once(traffic.events, config, all_at_once)) == expected(traffic.events, config)
    for gauge_state in (in_batches, all_at_once):
        assert (gauge_state.left_open, gauge_state.open) == (len(still_open), 0)


def vanishing() -> GroupTimeline:
    """Return a group of a and b, stable from 6200 on, with the last heartbeats at 6500 and 7500.

    6500       7500        16500                 17500
    a          b           a's session expires:  b's session expires while the join waits for it:
                           a rebalance starts    no member is left
    """
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    group.heartbeat(6500, "a")
    group.heartbeat(7500, "b")
    return group


_VANISHED = [
    "heartbeat g-a: 6500 to 16500 of 16500, expired",
    "heartbeat g-b: 7500 to 17500 of 17500, expired",
    "join g: 16500 to 17500 of 21500, completed by no_members",
]
_TO_EMPTY = [
    (1000, "PreparingRebalance", ("a",)),
    (6000, "CompletingRebalance", ("a", "b")),
    (6200, "Stable", ("a", "b")),
    (16500, "PreparingRebalance", ("b",)),
    (17500, "Empty", ()),
]


@pytest.mark.parametrize("ticks", [[], [17_000, 40_000], list(range(8000, 40_000, 500))], ids=["none", "two", "many"])
def test_group_of_vanished_members_becomes_empty(ticks: list[int]) -> None:
    """The timers run at `clock` events, which belong to no group, or when the run drains."""
    group = vanishing()
    for ms in ticks:
        group.until(ms)
    config = Config.model_validate({"group": {"min_session_timeout_ms": 0}})
    tables = streamed(cut(group.events, set(range(len(group.events)))), config)
    outcomes, transitions = decided_in(tables)
    assert sorted(operation_line(outcome) for outcome in outcomes if outcome.ended_us > 7_500_000) == _VANISHED
    assert [(change.at_us // 1000, change.to_state, change.members) for change in transitions] == _TO_EMPTY
    assert set(tables["expirations"]["after_end"].to_pylist()) == ({False} if ticks else {False, True})

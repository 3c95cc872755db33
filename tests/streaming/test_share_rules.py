"""Share groups in a stream: tables equal the reference, for any batches, and in one process."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from jobs import explain, replay
from purgatory_udf.answers.audit import audit
from purgatory_udf.answers.metrics import MetricsOptions, write_metrics
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import INT32_MAX, Config, load_config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.rules.purgatory.clock import Pauses, gauge_changes
from purgatory_udf.rules.reference import reference_replay
from purgatory_udf.rules.reference.reference_replay import Replay, ShareReplay
from purgatory_udf.streaming.share_rules import DELIVERIES, ShareRules, pending_reason
from purgatory_udf.streaming.stateful_adapter import (
    CLOCK,
    STATUS,
    OutputChunk,
    Plan,
    Scalars,
    closing_ms,
    input_chunk_function,
    state_function,
)
from tests.streaming.stateful_operator import StatefulOperator
from tests.support import share_traces
from tests.support.examples import examples
from tests.support.outcome_rows import outcomes_of
from tests.support.share_timeline import ShareTimeline, dead_letter_timeline, error_timeline, sparse_timeline
from tests.support.share_traces import Event, ShareTrace

Row = dict[str, Any]
TABLES = (*ENDS, DELIVERIES, "purgatory_gauges")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def trace() -> ShareTrace:
    return share_traces.load("tiny-1")


@pytest.fixture(scope="module")
def expected(trace: ShareTrace) -> Replay:
    return reference_replay.replay(trace.events, trace.config)


@pytest.mark.parametrize("cuts", [0, 3, 40])
def test_tables_do_not_depend_on_batches(trace: ShareTrace, expected: Replay, cuts: int) -> None:
    tables = _stream(trace, _batches(trace.events, cuts))
    _assert_equal(tables, expected)


@pytest.mark.parametrize("cuts", [1, 7])
def test_errors_do_not_depend_on_batches(cuts: int) -> None:
    """Failed writes, refused sessions, session limits and reads of remote storage, also outside of the purgatory."""
    config = load_config(None, ["share.record_lock_duration_ms=1000", "share.max_sessions=4"])
    events = error_timeline().events
    trace = ShareTrace(events, config, [], [], {}, 0)
    expected = reference_replay.replay(events, config)
    rules = {"session_error", "session_limit", "min_bytes", "remote_reads"}
    assert {outcome.completed_by for outcome in expected.outcomes} >= rules
    assert any(outcome.fetcher == "remote_twice" for outcome in expected.outcomes)
    _assert_equal(_stream(trace, _batches(events, cuts)), expected)


@pytest.mark.parametrize("cuts", [1, 7])
@pytest.mark.parametrize("write_ms", ["null", "40"])
def test_dead_letters_do_not_depend_on_batches(cuts: int, write_ms: str) -> None:
    """A dead-letter queue, groups that become empty, and reads of states that fail."""
    settings = ["share.record_lock_duration_ms=300", "share.version=4.4", f"share.dead_letter_write_ms={write_ms}"]
    config = load_config(None, settings)
    events = dead_letter_timeline().events
    expected = reference_replay.replay(events, config)
    states = {(delivery.ended_by, delivery.state) for _, delivery in expected.deliveries}
    assert states >= {("rejected", "ARCHIVING"), ("lock_expired", "ARCHIVING"), ("accepted", "ACKNOWLEDGED")}
    errors = {part.error for outcome in expected.outcomes for part in outcome.partitions}
    assert errors == {"NONE", "COORDINATOR_NOT_AVAILABLE"}
    _assert_equal(_stream(ShareTrace(events, config, [], [], {}, 0), _batches(events, cuts)), expected)


def test_repeated_batch_has_same_rows_and_state() -> None:
    """After a crash, Spark repeats the last batch from the state before it."""
    rules = ShareRules(Plan("run", False, None), load_config(None, ["share.max_sessions=4"]), 0)
    state: bytes | None = None

    def step(rows: pa.Table, horizon_ms: int) -> tuple[list[OutputChunk], bytes]:
        replay, chunks = rules.step("shares", rules.decode_state(state), rows, horizon_ms)
        return list(chunks), rules.encode_state(replay)

    rows_of_tables = 0
    for batch in _batches(error_timeline().events, 9):
        (chunk,) = rules.split_by_group(share_traces.as_table(batch))
        rows, horizon_ms = rules.decode_rows([chunk.payload]), max(event["time_us"] for event in batch) // 1000
        chunks, following = step(rows, horizon_ms)
        assert step(rows, horizon_ms) == (chunks, following)
        state, rows_of_tables = following, rows_of_tables + sum(chunk.rows for chunk in chunks)
    assert rows_of_tables > 100


def test_disordered_events_are_decided_in_order(trace: ShareTrace, expected: Replay) -> None:
    config = trace.config.model_copy(update={"max_disorder_ms": 500})
    shuffled = sorted(trace.events, key=lambda event: (event["time_us"] // 400_000, event["seq"] % 7, event["seq"]))
    batches = [shuffled[at : at + 97] for at in range(0, len(shuffled), 97)]
    late = max(event["time_us"] for event in trace.events)
    assert batches[-1][-1]["time_us"] <= late
    _assert_equal(_stream(ShareTrace(trace.events, config, [], [], {}, 0), batches), expected)


@examples(12)
@given(st.randoms(use_true_random=False))
def test_last_readings_do_not_depend_on_batches(chooser: Random) -> None:
    """A broker without further events or timers has readings after its last event, too."""
    events = sparse_timeline(chooser).events
    settings = [f"share.purge_interval={chooser.choice([0, 1, 1000])}", "share.record_lock_duration_ms=1000"]
    trace = ShareTrace(events, load_config(None, settings), [], [], {}, 0)
    expected = reference_replay.replay(events, trace.config)
    for cuts in (0, chooser.randrange(len(events))):
        _assert_equal(_stream(trace, _batches(events, cuts)), expected)


def test_command_writes_all_tables(trace: ShareTrace, expected: Replay, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "events"), share_traces.as_table(trace.events))
    share = trace.config.share
    settings = [
        f"--set=share.{name}={getattr(share, name)}"
        for name in ("record_lock_duration_ms", "delivery_count_limit", "partition_max_record_locks")
    ]
    settings += [f"--set=share.{name}={getattr(share, name)}" for name in ("state_write_ms", "purge_interval", "reads")]
    settings += ["--set=fetch.cap_min_bytes=false", f"--set=fetch.max_bytes={INT32_MAX}"]
    words = ["--events", str(tmp_path / "events"), "--out", str(tmp_path), *settings]
    assert replay.main.status(words, open_local) == 0
    tables = {name: DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in TABLES}
    last_us = max(event["time_us"] for event in trace.events)
    # Locks on records may outlast the last operation, after which a run has no readings.
    end_ms = closing_ms(last_us, max(outcome.ended_us for outcome in expected.outcomes))
    _assert_equal(tables, expected, end_ms)
    assert [finding.invariant for finding in audit(LocalBackend(), str(tmp_path)) if finding.broken] == []
    marks = write_metrics(LocalBackend(), str(tmp_path), MetricsOptions()).sql(
        "SELECT mbean, sum(expired) AS marks FROM metrics_expires GROUP BY mbean"
    )
    meter = "kafka.server:type=DelayedShareFetchMetrics,name=ExpiresPerSec"
    assert marks.to_pylist() == [{"mbean": meter, "marks": trace.expirations}]


def test_second_expiration_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fetch that waits for remote storage after it has left its purgatory marks the meter twice."""
    events = [event | {"time_us": event["time_us"] + 1_000_000} for event in error_timeline().events]
    expected = reference_replay.replay(events, load_config(None, ["share.max_sessions=4"])).outcomes
    twice = [outcome for outcome in expected if outcome.fetcher == "remote_twice"]
    write_deltalake(str(tmp_path / "events"), share_traces.as_table(events))
    words = ["--events", str(tmp_path / "events"), "--out", str(tmp_path), "--set=share.max_sessions=4"]
    assert replay.main.status(words, open_local) == 0
    assert [finding.invariant for finding in audit(LocalBackend(), str(tmp_path)) if finding.broken] == []
    marks = write_metrics(LocalBackend(), str(tmp_path), MetricsOptions()).sql(
        "SELECT sum(expired) AS marks FROM metrics_expires WHERE mbean LIKE '%ShareFetch%'"
    )
    assert marks.to_pylist() == [{"marks": sum(outcome.expired for outcome in expected) + len(twice)}]
    capsys.readouterr()
    words = ["--out", str(tmp_path), "--request-id", str(twice[0].request_id)]
    assert explain.main.status(words, open_local) == 0
    assert "it expired in its purgatory and again later" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("locks", "waits_for", "lacks"),
    [
        (100, [0, 1], "t-1: no records, 12 held by m1 (and 1 more)"),
        (20, [0, 1], "t-1: 20 of 20 records in flight, 12 held by m1 (and 1 more)"),
        (100, [1], "t-1: no records, 12 held by m1"),
    ],
)
def test_status_names_holder_of_records(locks: int, waits_for: list[int], lacks: str) -> None:
    """m0 and m1 hold all records of partition 1, and none are in partition 0; m2 waits."""
    settings = {"group": "g", "auto_offset_reset": "earliest", "partition_max_record_locks": locks}
    place = {"topic": "t", "partition": 1, "type": "partition"}
    end = {**place, "change": "log_end", "offset": 20, "bytes": 2000, "batches": 1}
    events = [
        {"type": "share_group", **settings},
        *(end | {"offset": 8}, end, end | {"change": "high_watermark"}),
        end | {"partition": 0, "change": "high_watermark", "offset": 0},
    ]
    for member, numbers, most in (("m0", [1], 8), ("m1", [1], 100), ("m2", waits_for, 100)):
        limits = {"max_wait_ms": 5000, "min_bytes": 1, "max_bytes": 9999, "max_records": most}
        places = [{"topic": "t", "partition": number} for number in numbers]
        events.append({"type": "share_fetch", "group": "g", "member_id": member, **limits, "partitions": places})
    replay = ShareReplay(Config(), 0)
    replay.step((event | {"time_us": 1000 * seq, "seq": seq} for seq, event in enumerate(events, 1)), 10)
    assert [pending_reason(operation) for operation in replay.open.values()] == [lacks]


@pytest.mark.parametrize("is_followed", [False, True])
def test_call_describes_waiting_and_ended_fetches(is_followed: bool) -> None:
    """f1 and f2 wait for partitions 0 and 1: m0 holds 3 of 3 and 2 of 4 records, and has rejected the other two."""
    timeline = ShareTimeline().settings(5000, dead_letter_queue=True)
    for partition, end in enumerate((3, 4, 1)):
        timeline.append(5001, partition, end)
    timeline.fetch(5002, "f0", "m0", [0, 1]).acknowledge(5003, "a", "m0", 1, (0, 1), 3)
    timeline.fetch(5004.9, "f1", "m1", [0, 1], max_wait_ms=2000).fetch(5006, "f2", "m2", [0, 1], max_wait_ms=1800)
    timeline.fetch(5007, "f3", "m3", [2]).fetch(5008, "f4", "m4", [0], max_wait_ms=992)
    config = load_config(None, ["share.version=4.4", "share.dead_letter_write_ms=null"])
    rules = ShareRules(Plan("run", False, None, is_followed=is_followed), config, 5000)
    (chunk,) = rules.split_by_group(share_traces.as_table(timeline.events))
    replay, output = rules.step("shares", rules.decode_state(None), rules.decode_rows([chunk.payload]), 6050)
    chunks = {each.table: each for each in output}
    heads = {name: (each.group, each.time_us, each.rows) for name, each in chunks.items()}
    ends = {"completions": ("", 5_007_000, 2), "expirations": ("", 6_000_000, 1)}
    others = {DELIVERIES: ("", 0, 1), "purgatory_gauges": ("", 0, 2)}
    assert heads == ends | others | ({STATUS: ("shares", 6_050_000, 0)} if is_followed else {})
    assert rules.scalars(replay) == Scalars(2, 5004, 6806, 3, 6800)
    assert list(rules.tick(len(timeline.events), 5_008_000, 6050)) == []
    if not is_followed:
        return
    common = {"broker": 0, "purgatory": "ShareFetch"}
    lacks = "t-1: no records, 2 held by m0, 2 on their way to the dead-letter queue (and 1 more)"
    wait = {**common, "kind": "share_fetch", "key": "t-0", "lacks": lacks, "replicas": []}
    first = {"operation_id": 10, "request_id": "f1", "client_id": "m1", "since_us": 5_004_900, "deadline_ms": 7004}
    second = {"operation_id": 11, "request_id": "f2", "client_id": "m2", "since_us": 5_006_000, "deadline_ms": 6806}
    counts = {"completions": 2, "expirations": 1, "cancellations": 0, "expired": [[6, *common.values(), 1]]}
    gauges = {"open": 2, "purgatories": [[*common.values(), 10, 2]]}
    assert json.loads(chunks[STATUS].payload) == counts | gauges | {"oldest": [wait | first, wait | second]}


def test_fetch_of_follower_0_is_kept() -> None:
    """Of requests that change no share group, only time and broker are kept."""
    fetch = {"type": "fetch", "broker": 1, "max_wait_ms": 5, "min_bytes": 1, "max_bytes": 10, "partitions": []}
    events = [fetch | {"replica_id": number, "time_us": seq, "seq": seq} for seq, number in enumerate((0, -1), 1)]
    rules = ShareRules(Plan("run", False, None), Config(), 0)
    (chunk,) = rules.split_by_group(event_table(events))
    rows = rules.decode_rows([chunk.payload])
    assert (chunk.time_us, rows["seq"].to_pylist(), rows["replica_id"].to_pylist()) == (2, [1, 2], [0, None])


@pytest.mark.parametrize(
    ("ended_us", "trace_end_us", "after"),
    [(5_000_000, 5_000_999, False), (5_000_001, 5_000_999, True), (5_000_001, None, False)],
)
def test_lock_that_outlasts_trace_is_marked(ended_us: int, trace_end_us: int | None, after: bool) -> None:
    place = {"topic": "t", "partition": 0, "type": "partition", "offset": 1}
    limits = {"max_wait_ms": 50, "min_bytes": 1, "max_bytes": 9999, "max_records": 100}
    fetch = {"type": "share_fetch", "group": "g", "member_id": "m", **limits}
    events: list[Event] = [
        {"type": "share_group", "group": "g", "auto_offset_reset": "earliest", "record_lock_duration_ms": 1000},
        place | {"change": "log_end", "bytes": 100, "batches": 1},
        place | {"change": "high_watermark"},
        fetch | {"partitions": [{"topic": "t", "partition": 0}]},
        {
            "type": "share_acknowledge",
            "group": "g",
            "member_id": "m",
            "request_id": "a",
            "acknowledgements": [{"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 0, "types": [1]}],
        },
    ]
    times = (4_999_000,) * 4 + (ended_us,)
    rules = ShareRules(Plan("run", False, trace_end_us), Config(), 4_999)
    timed = [event | {"time_us": at, "seq": seq} for seq, (event, at) in enumerate(zip(events, times, strict=True), 1)]
    replay = ShareReplay(Config(), 4_999)
    _, chunks = rules.step("", replay, share_traces.as_table(timed), 6_000)
    (chunk,) = (chunk for chunk in chunks if chunk.table == DELIVERIES)
    (row,) = pa.Table.from_batches(rules.decode_table(DELIVERIES, [pa.py_buffer(chunk.payload)])).to_pylist()
    assert (chunk.time_us, chunk.rows) == (0, 1)
    assert (row["ended_by"], row["held_ms"], row["after_end"]) == ("accepted", 1, after)


def _batches(events: list[Event], cuts: int) -> list[list[Event]]:
    """Divide the events at random, but not within a millisecond."""
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    at = sorted(Random(cuts).sample(range(1, len(ordered)), cuts))
    times = [event["time_us"] // 1000 for event in ordered]
    bounds = sorted({0, len(ordered), *(times.index(times[cut]) for cut in at)})
    return [ordered[low:high] for low, high in pairwise(bounds)]


def _stream(trace: ShareTrace, batches: list[list[Event]]) -> dict[str, pa.Table]:
    """Run the query over the batches and the drain row."""
    start_us, end_us = (pick(event["time_us"] for event in trace.events) for pick in (min, max))
    disorder_ms = trace.config.max_disorder_ms
    plan = Plan("run", disorder_ms > 0, end_us, pauses=Pauses.from_events(trace.events))
    rules = ShareRules(plan, trace.config, start_us // 1000)
    operator = StatefulOperator(state_function(rules), delay_ms=disorder_ms + 1)
    chunks: list[tuple[Any, ...]] = []
    drain = [(CLOCK, end_us + (INT32_MAX + 2000) * 1000, b"")]
    for rows in [*(_input_rows(batch, rules) for batch in batches), drain, []]:
        chunks += operator.batch(rows)
        operator.advance()
    assert (operator.dropped, operator.timers) == (0, {})
    return {
        name: pa.Table.from_batches(
            list(rules.decode_table(name, (pa.py_buffer(payload) for table, *_, payload in chunks if table == name))),
            schema=rules.schema(name),
        )
        for name in TABLES
    }


def _input_rows(batch: list[Event], rules: ShareRules) -> list[tuple[str, int, bytes]]:
    events = share_traces.as_table(batch).select(rules.input_columns(event_table([]).column_names))
    chunks = pa.Table.from_batches(list(input_chunk_function(rules)(iter(events.to_batches()))))
    times = chunks["event_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    return list(zip(chunks["group"].to_pylist(), times, chunks["payload"].to_pylist(), strict=True))


def _assert_equal(tables: dict[str, pa.Table], expected: Replay, end_ms: int | None = None) -> None:
    """Compare all rows. Readings are compared up to `end_ms`, by default up to the end of the expected replay."""
    end_ms = expected.end_ms if end_ms is None else end_ms
    assert _outcomes(tables) == expected.outcomes
    assert _deliveries(tables[DELIVERIES]) == sorted(
        (broker, *(getattr(delivery, name) for name in delivery.__slots__)) for broker, delivery in expected.deliveries
    )
    gauges = [
        (row["broker"], row["purgatory"], _us(row["at"]) // 1000, row["watched"], row["delayed"], row["purged"])
        for row in tables["purgatory_gauges"].to_pylist()
        if row["purgatory"] == "ShareFetch" and _us(row["at"]) // 1000 <= end_ms
    ]
    assert sorted(gauges) == sorted(
        (gauge.broker, gauge.purgatory, gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged)
        for gauge in gauge_changes(expected.gauges)
        if gauge.purgatory == "ShareFetch" and gauge.at_ms <= end_ms
    )


def _outcomes(tables: dict[str, pa.Table]) -> list[Outcome]:
    return outcomes_of(*(tables[name] for name in ENDS))


def _deliveries(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("group", "topic", "partition", "first_offset", "last_offset", "delivery_count", "operation_id")
    more = ("request_id", "client_id", "member_id")
    return sorted(
        (
            row["broker"],
            *(row[name] for name in (*names, *more)),
            _us(row["acquired_at"]),
            _us(row["ended_at"]),
            row["ended_by"],
            row["state"],
        )
        for row in table.to_pylist()
    )


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)

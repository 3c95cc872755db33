"""The phase of a broker's timer, estimated from expired operations."""

from __future__ import annotations

import random
from statistics import stdev

import pyarrow as pa
import pytest

from purgatory_udf.answers.outcome_comparison import FEWEST, PARTS, phase_of, timer_phases
from tests.answers.fidelity.conftest import RunQuery

PHASE = 0.3


def _late(start: float, phase: float, asleep: float) -> float:
    """Return the lateness of an operation: the timer fires before the deadline, the reaper responds later."""
    return asleep + 0.1 - (start + phase) % 1


@pytest.mark.parametrize("phase", [0.0, 0.08, 0.3, 0.5, 0.72, 0.97])
def test_sawtooth_gives_the_phase(phase: float) -> None:
    estimate = phase_of([_late((part + 0.5) / PARTS, phase, asleep=0.5) for part in range(PARTS)])
    assert estimate is not None
    assert (estimate - phase + 0.5) % 1 - 0.5 == pytest.approx(0, abs=0.5 / PARTS)


def test_lateness_without_sawtooth_gives_no_phase() -> None:
    random_ = random.Random(7)
    assert phase_of([0.4 + random_.uniform(-0.2, 0.2) for _ in range(PARTS)]) is None
    assert phase_of([0.4] * PARTS) is None


def _expired() -> pa.Table:
    """Return pairs of four brokers.

    Broker 1 logs microseconds, broker 2 whole milliseconds. Broker 3 has too few pairs. The timer of broker 4 differs
    from Kafka's.
    """
    random_ = random.Random(11)
    columns: tuple[list[int], list[int], list[int], list[float]] = ([], [], [], [])
    for broker, operations in ((1, 2_000), (2, 2_000), (3, FEWEST - 1), (4, 2_000)):
        for _ in range(operations):
            start = random_.randrange(1_000_000_000)
            late = random_.random() if broker == 4 else _late(start / 1000, PHASE, asleep=random_.random())
            written = start + 500_200 + round(late * 1000)
            columns[0].append(broker)
            columns[1].append(start)
            columns[2].append(written // 1000 * 1000 if broker == 2 else written)
            columns[3].append(late)
    brokers, starts, ends, late_ms = columns
    time = pa.timestamp("us", "UTC")
    rows = {
        "operation_id": pa.array(range(len(brokers)), pa.int64()),
        "broker": pa.array(brokers, pa.int32()),
        "started_at": pa.array(starts, time),
        "written_at": pa.array(ends, time),
        "difference_ms": late_ms,
        "late_ms": late_ms,
        **dict.fromkeys(("recorded_outcome", "replayed_outcome"), ["expired"] * len(brokers)),
        **dict.fromkeys(("kind", "request_id"), [""] * len(brokers)),
        **dict.fromkeys(("recorded_ms", "replayed_ms"), [500.0] * len(brokers)),
        "agrees": [True] * len(brokers),
    }
    return pa.table(rows)


def test_phase_removes_the_sawtooth(run_query: RunQuery) -> None:
    """A phase needs enough operations, with times in microseconds."""
    given = {"operation_pairs": _expired()}
    estimates = timer_phases(run_query("fidelity/timer_parts", given, parts=PARTS))
    assert list(estimates) == [1]
    assert estimates[1] == pytest.approx(PHASE, abs=0.04)
    given["timer_phases"] = pa.table({"broker": pa.array([1], pa.int32()), "phase_ms": [estimates[1]]})
    rows = run_query("views/timed_pairs", given)
    spreads = {broker: stdev(row["late_ms"] for row in rows if row["broker"] == broker) for broker in (1, 2, 4)}
    # Broker 1 keeps the spread of the reaper's millisecond (0.29), plus operations that are assigned to the next
    # millisecond. Two such spreads together are 0.41.
    assert spreads[1] < 0.36 < 0.38 < spreads[2]
    assert spreads[4] == pytest.approx(0.29, abs=0.02)


def test_log_without_written_times_gives_no_phase(run_query: RunQuery) -> None:
    """The table of an early import lacks the column."""
    pairs = _expired()
    at = pairs.column_names.index("written_at")
    pairs = pairs.set_column(at, "written_at", pa.nulls(pairs.num_rows, pa.timestamp("us", "UTC")))
    rows = run_query("fidelity/timer_parts", {"operation_pairs": pairs}, parts=PARTS)
    assert {row["fine"] for row in rows} == {0}
    assert timer_phases(rows) == {}


def test_late_operations_exceed_their_deadlines(run_query: RunQuery) -> None:
    """Fetches that the broker answered 18,900 ms late, of which one is late in the replay as well, and others."""
    time = pa.timestamp("us", "UTC")
    numbers, start = pa.array([1, 2, 3, 4], pa.int64()), 1_772_442_000_000_000
    pairs = {
        "operation_id": numbers,
        "broker": pa.array([2] * 4, pa.int32()),
        "kind": ["consumer fetch", "consumer fetch", "produce acks=-1", "consumer fetch"],
        "recorded_ms": [19_400.0, 501.0, 40.0, 7_370.0],
        "replayed_ms": [500.0, 500.0, 40.0, 7_371.0],
    }
    ended = {
        "operation_id": numbers,
        "started_at": pa.array([start] * 4, time),
        "deadline": pa.array([start + ms * 1000 for ms in (500, 500, 30_000, 500)], time),
    }
    given = {"operation_pairs": pa.table(pairs), "ended": pa.table(ended)}
    names = ("kind", "operations", "recorded_max_ms", "replayed_max_ms", "late", "shown", "latest_ms")
    assert [
        tuple(row[name] for name in names) for row in run_query("metrics_command/recorded", given, late_ms=250)
    ] == [
        ("consumer fetch", 3, 19_400.0, 7_371.0, 2, 1, 18_900.0),
        ("produce acks=-1", 1, 40.0, 40.0, 0, 0, -29_960.0),
    ]

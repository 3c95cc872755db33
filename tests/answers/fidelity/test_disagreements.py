"""Circumstances of operations that ended differently in the replay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from purgatory_udf.contract.tables import COMPLETIONS, EVENTS, EXPIRATIONS, RECORDED
from tests.answers.fidelity.conftest import RunQuery


def _time(ms: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def _recorded(operation_id: int, outcome: str, start_ms: float, **fields: Any) -> dict[str, Any]:
    times = {"started_at": _time(start_ms), "recorded_remote_ms": 0.0, "recorded_local_ms": 1.0}
    response = {"recorded_outcome": outcome, "recorded_error": "NONE", "recorded_complete": True}
    return {"operation_id": operation_id, "broker": 1, "kind": "consumer fetch", **times, **response, **fields}


def _ended(operation_id: int, start_ms: float, end_ms: float, **fields: Any) -> dict[str, Any]:
    times = {"started_at": _time(start_ms), "completed_at": _time(end_ms), "deadline": _time(start_ms + 500)}
    wait = {"wait_ms": int(end_ms) - int(start_ms), "watched": end_ms > start_ms}
    return {"operation_id": operation_id, "broker": 1, "kind": "fetch", **times, **wait, **fields}


def _expired(operation_id: int, start_ms: float, wait_ms: int) -> dict[str, Any]:
    times = {"started_at": _time(start_ms), "expired_at": _time(int(start_ms) + wait_ms)}
    deadline = {"deadline": times["expired_at"], "wait_ms": wait_ms, "watched": wait_ms > 0}
    return {"operation_id": operation_id, "broker": 1, "kind": "fetch", **times, **deadline, "after_end": False}


def _tables(recorded: list[dict[str, Any]], completions: list[dict[str, Any]], *expired: Any) -> dict[str, pa.Table]:
    return {
        "events": EVENTS.empty_table(),
        "recorded": pa.Table.from_pylist(recorded, schema=RECORDED),
        "completions": pa.Table.from_pylist(completions, schema=COMPLETIONS),
        "expirations": pa.Table.from_pylist(list(expired), schema=EXPIRATIONS),
    }


def test_pair_has_outcomes_and_waits_of_both_sides(run_query: RunQuery) -> None:
    """A fetch that must not wait is answered at once. Groups are compared elsewhere."""
    given = _tables(
        [
            _recorded(1, "completed", 0.25, recorded_remote_ms=7.5),
            _recorded(2, "expired", 0.25, recorded_remote_ms=500.5),
            _recorded(3, "at_once", 0.25),
            _recorded(4, "completed", 0.25),
            _recorded(5, "at_once", 0.25, kind="heartbeat"),
        ],
        [_ended(1, 0.25, 6.75)],
        _expired(2, 0.25, 500),
        _expired(3, 0.25, 0),
    )
    pairs = run_query("views/operation_pairs", given)
    names = ("operation_id", "replayed_outcome", "replayed_ms", "difference_ms", "late_ms", "agrees")
    assert sorted(tuple(row[name] for name in names) for row in pairs) == [
        (1, "completed", 6.5, 1.0, None, True),
        (2, "expired", 500.0, 0.5, 0.5, True),
        (3, "at_once", 0.0, 0.0, None, True),
        (4, "none", None, None, None, False),
    ]


def test_deciding_partition_is_trigger_or_first_with_bytes(run_query: RunQuery) -> None:
    partitions = [
        {"topic": topic, "partition": number, "bytes": size}
        for topic, number, size in (("z", 0, 0), ("z", 1, None), ("y", 3, 10), ("a", 0, 10), ("y", 3, 10))
    ]
    given = _tables(
        [_recorded(operation_id, "expired", 0) for operation_id in range(1, 6)],
        [
            _ended(1, 0, 6, trigger="t-0", partitions=partitions),
            _ended(2, 0, 0, partitions=partitions),
            _ended(3, 0, 0, partitions=partitions[:2], key="k"),
            _ended(4, 0, 6, key="k"),
        ],
    )
    rows = run_query("views/disagreements", given)
    assert sorted((row["operation_id"], row["decided_by"], row["delay_ms"]) for row in rows) == [
        (1, "t-0", 500.0),
        (2, "y", 500.0),
        (3, "k", 500.0),
        (4, "k", 500.0),
        (5, None, None),
    ]


def test_handling_of_other_requests_is_found(run_query: RunQuery) -> None:
    """Broker 1 handles a produce from 10 to 20 ms. Times are exact to 0.5 ms."""
    handling = {"kind": "produce acks=1", "recorded_local_ms": 10.0}
    starts = {1: 9.4, 2: 9.5, 3: 15.0, 4: 20.5, 5: 20.6}
    given = _tables(
        [
            *(_recorded(operation_id, "completed", ms) for operation_id, ms in starts.items()),
            _recorded(6, "completed", 15.0, broker=2),
            _recorded(7, "at_once", 20.0, **handling),
            _recorded(8, "completed", 12.0, kind="consumer fetch", recorded_local_ms=10.0),
            _recorded(9, "at_once", 40.0, **handling),
        ],
        [_ended(7, 20.0, 20.0)],
    )
    rows = run_query("views/disagreements", given)
    # Operation 9, which was not replayed, is not inside its own handling.
    assert {row["operation_id"] for row in rows} == {1, 2, 3, 4, 5, 6, 8, 9}
    assert {row["operation_id"] for row in rows if row["in_handling"]} == {2, 3, 4, 8}


def test_agreeing_operations_have_no_cause(run_query: RunQuery) -> None:
    """The usual lateness of a broker is subtracted where both sides expired."""
    given = _tables(
        [
            *(_recorded(number, "expired", 0, recorded_remote_ms=500 + number / 4) for number in (1, 2, 3)),
            _recorded(4, "completed", 0, recorded_remote_ms=3.5),
            _recorded(5, "at_once", 0),
        ],
        [_ended(4, 0, 3), _ended(5, 0, 3)],
        *(_expired(number, 0, 500) for number in (1, 2, 3)),
    )
    given["timer_phases"] = pa.table({"broker": pa.array([], pa.int32()), "phase_ms": pa.array([], pa.float64())})
    rows = run_query("fidelity/operations", given)
    assert sorted((row["operation_id"], row["difference_ms"], row["agrees"], row["cause"]) for row in rows) == [
        (1, -0.25, True, None),
        (2, 0.0, True, None),
        (3, 0.25, True, None),
        (4, 0.5, True, None),
        (5, -3.0, False, "dated_apart"),
    ]

"""The watches of a fetch end with the fetch."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table


def _change(ms: int, change: str, partition: int = 0, **fields: Any) -> dict[str, Any]:
    where = {"broker": 1, "type": "partition", "topic": "t", "partition": partition, "change": change}
    return {"time_us": ms * 1000, **where, **fields}


def _watches(
    ending: list[dict[str, Any]], partitions: int = 2, known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the watches of a fetch of two partitions, or of the first only, with its deadline at 502 ms.

    `known` changes are reported before the fetch.
    """
    partitions_asked = [{"topic": "t", "partition": 0, "fetch_offset": 1, "max_bytes": 1000}]
    partitions_asked.append({"topic": "t", "partition": 1, "fetch_offset": 0, "max_bytes": 1000})
    fetch = {
        "time_us": 2000, "broker": 1, "type": "fetch", "replica_id": -1, "max_wait_ms": 500, "min_bytes": 100,
        "max_bytes": 1000, "partitions": partitions_asked[:partitions],
    }  # fmt: skip
    before = [_change(1, "log_end", offset=1, bytes=10), _change(1, "high_watermark", offset=1)]
    events = [event | {"seq": seq} for seq, event in enumerate([*before, *(known or []), fetch, *ending])]
    engine = Engine(Config())
    watches = Tables.of([*engine.feed(event_table(events)), *engine.drain()]).watches
    return sorted(watches.to_pylist(), key=lambda watch: int(watch["partition"]))


@pytest.mark.parametrize(
    ("ending", "ended_ms", "statuses"),
    [
        ([_change(50, "not_leader")], 50, ["forced", "satisfied"]),
        ([_change(60, "log_end", offset=2, bytes=100), _change(60, "high_watermark", offset=2)], 60, ["satisfied"] * 2),
        ([_change(70, "stopped", partition=1)], 70, ["cancelled"] * 2),
        ([], 502, ["expired"] * 2),
    ],
    ids=["leader moved", "enough bytes", "broker stopped", "deadline"],
)
def test_watches_end_with_their_fetch(ending: list[dict[str, Any]], ended_ms: int, statuses: list[str]) -> None:
    watches = _watches(ending)
    assert [watch["status"] for watch in watches] == statuses
    assert [watch["ended_at"].timestamp() for watch in watches] == [pytest.approx(ended_ms / 1000, abs=1e-9)] * 2
    assert [watch["started_at"].timestamp() for watch in watches] == [pytest.approx(0.002, abs=1e-9)] * 2


@pytest.mark.parametrize(("partitions", "increments"), [(2, [4, 1]), (1, [0])])
def test_increments_count_updates_of_wide_fetches(partitions: int, increments: list[int]) -> None:
    updates = [_change(60, "log_end", offset=2, bytes=10), _change(60, "high_watermark", offset=2)]
    updates += [_change(70, "log_end", 1, offset=1, bytes=10)]
    updates += [_change(80, "log_end", offset=9, bytes=100), _change(80, "high_watermark", offset=9)]
    assert [watch["increments"] for watch in _watches(updates, partitions)] == increments


_REPLICATED = [
    _change(1, "leader", leader_epoch=1, isr=[1, 2], min_isr=1),
    _change(1, "replica_end", replica_id=2, offset=1),
]


@pytest.mark.parametrize(
    ("change", "fields", "known", "increments"),
    [
        ("high_watermark", {"offset": 1}, [], 1),
        ("high_watermark", {"offset": 0}, [], 0),
        ("log_end", {"offset": 2, "bytes": 10}, [], 1),
        ("log_end", {"offset": 1, "bytes": 10}, [], 0),
        ("last_stable", {"offset": 1}, [], 1),
        ("last_stable", {"offset": 0}, [_change(1, "last_stable", offset=1)], 0),
        ("log_start", {"offset": 1}, [], 1),
        ("segment_roll", {"offset": 1}, [], 1),
        ("segment_roll", {"offset": 1}, [_change(1, "segment_roll", offset=1)], 0),
        ("truncate", {"offset": 0}, [], 1),
        ("truncate", {"offset": 9}, [], 0),
        ("throttled", {"replica_id": 3}, [], 1),
        ("unthrottled", {"replica_id": 3}, [_change(1, "throttled", replica_id=3)], 1),
        ("replica_end", {"replica_id": 2, "offset": 2}, [*_REPLICATED, _change(1, "log_end", offset=2, bytes=10)], 1),
        ("replica_end", {"replica_id": 2, "offset": 1}, _REPLICATED, 0),
        ("isr", {"isr": [1]}, [*_REPLICATED, _change(1, "log_end", offset=2, bytes=10)], 1),
        ("isr", {"isr": [1]}, _REPLICATED, 0),
        ("local_log_start", {"offset": 1}, [], 0),
        ("stopped", {}, [], 1),
        ("leader", {"leader_epoch": 1}, [], 1),
        ("offline", {}, [], 1),
    ],
)
def test_each_change_of_a_partition_is_one_increment(
    change: str, fields: dict[str, Any], known: list[dict[str, Any]], increments: int
) -> None:
    watches = _watches([_change(60, change, **fields)], known=known)
    assert [watch["increments"] for watch in watches] == [increments, 0]

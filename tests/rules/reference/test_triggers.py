"""The purgatories that each change checks. A check removes operations that have ended otherwise from the list.

One operation of each kind waits for `a` and `b` and expires at 100. The event under test is at 300. Each purgatory that
it checks for `a` then has one entry less.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.reference.timeline import Timeline

LEADER = 1


def checked(change: str, **fields: Any) -> set[str]:
    """Return the purgatories that a change of `a` checks, on a leader with a follower that has reached 4 of 9."""
    timeline = Timeline(broker=LEADER).change(1, "a", "leader", leader_epoch=1, isr=[LEADER, 2], min_isr=1)
    timeline.log_end(2, "a", 9, 90).change(3, "a", "replica_end", replica_id=2, offset=4)
    timeline.change(4, "a", "log_start", offset=1)
    timeline.produce(10, "p", 90, a=20, b=20).delete_records(10, "d", 90, a=20, b=20)
    timeline.fetch(10, "f", 90, 9999, {"a": 4, "b": 4})
    before = timeline.add(300, "clock").replay(drain=False).gauges
    timeline.change(300, "a", change, **fields)
    after = timeline.add(450, "clock").replay(drain=False).gauges
    read_before = {gauge.purgatory: gauge.watched for gauge in before if gauge.at_ms == 200}
    read_after = {gauge.purgatory: gauge.watched for gauge in after if gauge.at_ms == 400}
    assert read_before == {"Produce": 2, "Fetch": 2, "DeleteRecords": 2}
    return {name for name, watched in read_after.items() if watched == 1}


ALL = {"Produce", "Fetch", "DeleteRecords"}


# The produce at 10 has moved the log end to 20.
@pytest.mark.parametrize(
    ("change", "fields", "expected"),
    [
        pytest.param("log_end", {"offset": 21, "bytes": 10}, {"Fetch"}, id="an append that moves no watermark"),
        pytest.param("log_end", {"offset": 20, "bytes": 10}, set(), id="a log end that moves nothing"),
        pytest.param("high_watermark", {"offset": 5}, ALL, id="a rising high watermark"),
        pytest.param("high_watermark", {"offset": 4}, ALL, id="the same high watermark again"),
        pytest.param("high_watermark", {"offset": 3}, set(), id="a lower high watermark"),
        pytest.param("replica_end", {"replica_id": 2, "offset": 6}, ALL, id="progress that raises the watermark"),
        pytest.param("replica_end", {"replica_id": 3, "offset": 6}, set(), id="progress of one out of sync"),
        pytest.param("isr", {"isr": [1]}, ALL, id="a shrinking in-sync set that raises the watermark"),
        pytest.param("isr", {"isr": [1, 2, 3]}, set(), id="a growing in-sync set"),
        pytest.param("log_start", {"offset": 2}, {"DeleteRecords"}, id="a log start"),
        pytest.param("leader", {"leader_epoch": 2}, ALL, id="a leader"),
        pytest.param("online", {}, ALL, id="online"),
        pytest.param("not_leader", {}, ALL, id="not leader"),
        pytest.param("offline", {}, ALL, id="offline"),
        pytest.param("deleted", {}, ALL, id="deleted"),
        pytest.param("last_stable", {"offset": 4}, set(), id="a last stable offset"),
        pytest.param("segment_roll", {"offset": 20}, set(), id="a roll"),
        pytest.param("truncate", {"offset": 2}, set(), id="a truncation"),
    ],
)
def test_change_checks_purgatories(change: str, fields: dict[str, Any], expected: set[str]) -> None:
    assert checked(change, **fields) == expected


def test_append_raising_high_watermark_completes_fetch() -> None:
    timeline = Timeline(broker=LEADER).change(1, "a", "leader", leader_epoch=1, isr=[LEADER])
    timeline.fetch(10, "f", 1000, 1, {"a": 0}).log_end(20, "a", 5, 50)
    assert timeline.ends() == ["f completed 20 min_bytes a-0 a-0:50"]

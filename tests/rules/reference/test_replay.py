"""`replay`: order of events, draining, and open operations."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest
from purgatory_udf.rules.reference import reference_replay
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import REQUESTS, apply_change
from purgatory_udf.rules.reference.reference_replay import replay
from tests.rules.reference.timeline import Timeline
from tests.support.share_timeline import ShareTimeline


def test_events_are_sorted_by_time_and_seq() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5).high_watermark(20, "a", 5).produce(20, "q", 1000, a=9)
    timeline.high_watermark(20, "a", 9)
    assert replay(timeline.events[::-1], Config()).outcomes == timeline.replay().outcomes
    assert timeline.ends() == [
        "p completed 20 high_watermark a-0 a-0:NONE",
        "q completed 20 high_watermark a-0 a-0:NONE",
    ]


def test_undrained_replay_expires_up_to_last_event() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).produce(10, "q", 101, a=5).produce(110.9, "r", 0, a=5)
    result = timeline.replay(drain=False)
    assert [outcome.request_id for outcome in result.outcomes if outcome.expired] == ["p", "r"]
    assert result.open == [2]


def test_draining_expires_everything() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).produce(10, "q", 30_000, a=5).fetch(10, "f", 7, 1, {"a": 0})
    result = timeline.replay()
    assert [outcome.ended_us // 1000 for outcome in result.outcomes] == [110, 30_010, 17]
    assert result.open == []


def test_clock_event_only_advances_time() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).add(110, "clock")
    assert timeline.replay(drain=False).open == []


def test_empty_trace_has_no_outcomes() -> None:
    result = replay([], Config())
    assert (result.outcomes, result.open, result.gauges, result.transitions) == ([], [], [], [])


def test_optional_fields_have_defaults() -> None:
    change = {"time_us": 1000, "type": "partition", "topic": "t", "partition": 0}
    events = [
        change | {"seq": 1, "change": "log_end", "offset": 5},
        change | {"seq": 2, "change": "leader"},
        {
            "time_us": 2000, "seq": 3, "type": "fetch", "request_id": "f", "max_wait_ms": 10, "min_bytes": 1,
            "partitions": [{"topic": "t", "partition": 0, "fetch_offset": 0, "max_bytes": 100}],
        },
    ]  # fmt: skip
    (outcome,) = replay(events, Config()).outcomes
    assert (outcome.fetcher, outcome.broker, outcome.client_id, outcome.expired) == ("consumer", 0, None, True)


@pytest.mark.parametrize("kind", ["log_end", "produce"])
def test_replay_of_share_groups_forgets_old_batches(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(reference_replay, "RETAINED_BATCHES", 10)
    timeline = Timeline()
    for end in range(1, 26):
        if kind == "log_end":
            timeline.change(end, "a", "log_end", offset=end, bytes=100, batches=1)
        else:
            timeline.produce(end, "p", 500, a=end)
    replay = reference_replay.ShareReplay(Config(), 0)
    replay.step(timeline.events, None)
    log = replay.cluster.broker(0).replica(TopicPartition("a", 0)).log
    assert len(log) == 16
    ends = accumulate(100 if kind == "log_end" else 10 * end for end in range(1, 26))
    assert [log.position(offset) for offset in range(9, 26)] == [0, *list(ends)[9:]], "one batch below 10"


KEY = {"topic": "a", "partition": 0}
WAITING: dict[str, dict[str, Any]] = {
    "produce": {"acks": -1, "timeout_ms": 50, "partitions": [KEY | {"base_offset": 0, "last_offset": 4, "bytes": 9}]},
    "fetch": {"max_wait_ms": 50, "min_bytes": 1, "partitions": [KEY | {"fetch_offset": 0}]},
    "delete_records": {"timeout_ms": 50, "partitions": [KEY | {"offset": 3}]},
    "create_topics": {"timeout_ms": 50, "topics": [{"topic": "b", "partitions": 1}]},
    "list_offsets": {"timeout_ms": 50, "partitions": [KEY | {"timestamp": 0}]},
    "share_fetch": {"group": "g", "member_id": "m", "max_wait_ms": 50, "min_bytes": 1, "max_records": 9,
                    "partitions": [KEY]},
}  # fmt: skip


@pytest.mark.parametrize("kind", REQUESTS)
def test_request_is_answered_once(kind: str) -> None:
    """The simulation gets the answers by calls. A fetch of remote storage is answered by another operation."""
    cluster, answers = Cluster(Config(), 0), list[DelayedRequest]()
    if kind == "list_offsets":
        for change in ("log_end", "local_log_start"):
            apply_change(cluster, {**KEY, "time_us": 500, "change": change, "offset": 5})
    request: Any = REQUESTS[kind]
    operation = request(cluster, {**WAITING[kind], "type": kind, "time_us": 1000, "seq": 1}, answers.append)
    assert (operation.completed, answers) == (False, [])
    cluster.clock.advance_to(1000)
    assert (operation.ended_us, answers) == (51_000, [operation])


def test_step_of_gauges_follows_last_event_of_share_groups() -> None:
    """The fetch expires at once, after the reading of its time; its two keys still list it."""
    timeline = ShareTimeline().settings().append(1, 0, 0).fetch(200, "f", "m", [0], max_wait_ms=0)
    results = reference_replay.ShareReplay(Config(), 0).step(timeline.events, None)
    readings = [(each.at_ms, each.watched, each.delayed) for each in results.gauges if each.purgatory == "ShareFetch"]
    assert readings == [(400, 2, 0)]


def test_create_topics_is_shown_under_its_first_topic() -> None:
    (outcome,) = Timeline().create_topics(10, "c", 50, b=1, a=1).replay().outcomes
    assert outcome.key == "b"

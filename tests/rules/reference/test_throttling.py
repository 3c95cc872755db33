"""Replication quotas: every check of a follower's fetch evaluates `ReplicaManager.shouldLeaderThrottle`."""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from tests.rules.reference.timeline import Timeline, line
from tests.support.outcome_rows import outcomes_of


def ends(timeline: Timeline) -> list[str]:
    """Return the outcomes of the reference. The compiled loop has to agree."""
    tables = loop_replay([event_table(timeline.events)], Engine(Config()))
    lines = timeline.ends()
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [line(outcome) for outcome in outcomes] == lines
    return lines


def throttled(timeline: Timeline, ms: float, change: str = "throttled", replica_id: int = 2) -> Timeline:
    return timeline.change(ms, "a", change, replica_id=replica_id)


def test_quota_throttles_waiting_fetch() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 100, 1, {"a": 5})
    throttled(timeline, 20).log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f expired 110 timeout - a-0:0"]


def test_end_of_quota_is_seen_at_next_check() -> None:
    timeline = throttled(Timeline().log_end(1, "a", 5, 500), 2)
    timeline.follower(10, "f", 100, 1, {"a": 0})
    throttled(timeline, 20, "unthrottled").log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f completed 30 min_bytes a-0 a-0:600"]


def test_answer_ignores_ended_quota() -> None:
    timeline = throttled(Timeline().log_end(1, "a", 5, 500), 2)
    timeline.follower(10, "f", 100, 1, {"a": 0})
    throttled(timeline, 20, "unthrottled")
    assert ends(timeline) == ["f expired 110 timeout - a-0:500"]


def test_trace_overrides_throttled_flag_of_request() -> None:
    flagged = {"a": {"fetch_offset": 0, "throttled": True}}
    timeline = Timeline().log_end(1, "a", 5, 500)
    timeline.fetch(10, "before", 10, 1, flagged, replica_id=2)
    throttled(timeline, 30, "unthrottled").fetch(40, "after", 10, 1, flagged, replica_id=2)
    assert ends(timeline) == ["before expired 20 timeout - a-0:0", "after completed 40 min_bytes - a-0:500"]


def test_quota_applies_to_one_follower() -> None:
    timeline = throttled(Timeline().log_end(1, "a", 5, 500), 2, replica_id=3)
    timeline.follower(10, "f", 10, 1, {"a": 0}).fetch(10, "g", 10, 1, {"a": 0}, replica_id=3)
    assert ends(timeline) == ["f completed 10 min_bytes - a-0:500", "g expired 20 timeout - a-0:0"]


def test_new_segment_does_not_complete_throttled_fetch() -> None:
    """Case C excludes throttled replicas."""
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 100, 600, {"a": 0})
    throttled(timeline, 20).change(25, "a", "segment_roll", offset=5).log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f expired 110 timeout - a-0:0"]


def test_unthrottled_partitions_still_count() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).log_end(1, "b", 5, 500)
    timeline.follower(10, "f", 100, 150, {"a": 5, "b": 5})
    throttled(timeline, 20).log_end(30, "a", 6, 100).log_end(40, "b", 6, 100).log_end(50, "b", 7, 50)
    assert ends(timeline) == ["f completed 50 min_bytes b-0 a-0:0,b-0:150"]

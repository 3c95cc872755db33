"""Replication quotas: `ReplicaManager.shouldLeaderThrottle` is asked at every check of a follower's fetch."""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from tests.rules.reference.timeline import Timeline, line
from tests.support.outcome_rows import outcomes_of


def ends(timeline: Timeline) -> list[str]:
    """As the reference has them; the loop has the same."""
    tables = loop_replay([event_table(timeline.events)], Engine(Config()))
    lines = timeline.ends()
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [line(outcome) for outcome in outcomes] == lines
    return lines


def held_back(timeline: Timeline, ms: float, change: str = "throttled", replica_id: int = 2) -> Timeline:
    return timeline.change(ms, "a", change, replica_id=replica_id)


def test_a_fetch_that_waits_is_held_back_from_the_moment_of_the_quota() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 100, 1, {"a": 5})
    held_back(timeline, 20).log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f expired 110 timeout - a-0:0"]


def test_the_end_of_a_quota_wakes_nobody_and_is_seen_at_the_next_check() -> None:
    timeline = held_back(Timeline().log_end(1, "a", 5, 500), 2)
    timeline.follower(10, "f", 100, 1, {"a": 0})
    held_back(timeline, 20, "unthrottled").log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f completed 30 min_bytes a-0 a-0:600"]


def test_what_its_answer_holds_is_read_without_a_quota_that_is_over() -> None:
    timeline = held_back(Timeline().log_end(1, "a", 5, 500), 2)
    timeline.follower(10, "f", 100, 1, {"a": 0})
    held_back(timeline, 20, "unthrottled")
    assert ends(timeline) == ["f expired 110 timeout - a-0:500"]


def test_the_requests_word_counts_until_the_trace_has_one() -> None:
    said = {"a": {"fetch_offset": 0, "throttled": True}}
    timeline = Timeline().log_end(1, "a", 5, 500)
    timeline.fetch(10, "before", 10, 1, said, replica_id=2)
    held_back(timeline, 30, "unthrottled").fetch(40, "after", 10, 1, said, replica_id=2)
    assert ends(timeline) == ["before expired 20 timeout - a-0:0", "after completed 40 min_bytes - a-0:500"]


def test_a_quota_is_one_followers() -> None:
    timeline = held_back(Timeline().log_end(1, "a", 5, 500), 2, replica_id=3)
    timeline.follower(10, "f", 10, 1, {"a": 0}).fetch(10, "g", 10, 1, {"a": 0}, replica_id=3)
    assert ends(timeline) == ["f completed 10 min_bytes - a-0:500", "g expired 20 timeout - a-0:0"]


def test_a_new_segment_does_not_end_the_fetch_of_a_follower_that_is_held_back() -> None:
    """Case C asks for the quota as well."""
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 100, 600, {"a": 0})
    held_back(timeline, 20).change(25, "a", "segment_roll", offset=5).log_end(30, "a", 6, 100)
    assert ends(timeline) == ["f expired 110 timeout - a-0:0"]


def test_the_other_partitions_of_a_fetch_count_on() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).log_end(1, "b", 5, 500)
    timeline.follower(10, "f", 100, 150, {"a": 5, "b": 5})
    held_back(timeline, 20).log_end(30, "a", 6, 100).log_end(40, "b", 6, 100).log_end(50, "b", 7, 50)
    assert ends(timeline) == ["f completed 50 min_bytes b-0 a-0:0,b-0:150"]

"""DelayedCreateTopics: waiting for a leader of every partition of every topic, at any broker."""

from __future__ import annotations

import pytest

from tests.rules.reference.timeline import Timeline


def test_creation_waits_for_leader_of_every_partition() -> None:
    timeline = Timeline().create_topics(10, "c", 1000, a=2, b=1).change(20, "a-0", "leader")
    timeline.change(30, "b-0", "leader").change(40, "a-1", "leader")
    assert timeline.ends() == ["c completed 40 leaders a a:NONE,b:NONE"]


def test_leaders_at_other_brokers_count() -> None:
    timeline = Timeline(broker=2).change(5, "a-1", "leader")
    timeline.broker = 1
    timeline.create_topics(10, "c", 1000, a=2)
    timeline.broker = 3
    timeline.change(20, "a-0", "leader")
    (outcome,) = timeline.replay().outcomes
    assert timeline.ends() == ["c completed 20 leaders a a:NONE"]
    assert (outcome.broker, outcome.key, outcome.partitions[0].partition) == (1, "a", -1)


def test_creation_with_known_leaders_completes_on_arrival() -> None:
    timeline = Timeline().change(5, "a-0", "leader").create_topics(10, "c", 1000, a=1)
    assert timeline.ends() == ["c completed 10 leaders - a:NONE"]


def test_deleted_partition_has_no_leader() -> None:
    timeline = Timeline().change(5, "a-0", "leader").change(6, "a-0", "deleted").create_topics(10, "c", 100, a=1)
    timeline.change(20, "a-0", "online")
    assert timeline.ends() == ["c expired 110 timeout - a:REQUEST_TIMED_OUT"]


def test_settled_topic_stays_settled() -> None:
    timeline = Timeline().create_topics(10, "c", 1000, a=1, b=1).change(20, "a-0", "leader")
    timeline.change(25, "a-0", "deleted").change(30, "b-0", "leader")
    assert timeline.ends() == ["c completed 30 leaders b a:NONE,b:NONE"]


def test_creation_expires_with_unfinished_topics() -> None:
    timeline = Timeline().create_topics(10, "c", 100, a=2, b=1).change(20, "a-0", "leader").change(30, "b-0", "leader")
    timeline.change(110, "a-1", "leader")
    assert timeline.ends() == ["c expired 110 timeout - a:REQUEST_TIMED_OUT,b:NONE"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_creation_without_timeout_is_answered_at_once(timeout_ms: int) -> None:
    timeline = Timeline().change(5, "a-0", "leader").create_topics(10, "c", timeout_ms, a=1, b=1)
    timeline.create_topics(11, "d", timeout_ms, a=1)
    assert timeline.ends() == [
        "c completed 10 no_wait - a:NONE,b:REQUEST_TIMED_OUT",
        "d completed 11 no_wait - a:NONE",
    ]


def test_creation_of_no_topic_is_answered_at_once() -> None:
    assert Timeline().create_topics(10, "c", 0).ends() == ["c completed 10 empty - "]


def test_what_if_timeout_replaces_recorded_timeout() -> None:
    timeline = Timeline().create_topics(10, "c", 1000, a=1)
    assert timeline.ends(create_topics={"timeout_ms": 7}) == ["c expired 17 timeout - a:REQUEST_TIMED_OUT"]
    assert timeline.ends(create_topics={"timeout_ms": 0}) == ["c completed 10 no_wait - a:REQUEST_TIMED_OUT"]

"""The gauges that the loop reads: those of Kafka's own purgatory, of the reference, and corner by corner."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.key_shards import GroupOf, by_broker, by_partition, by_shard
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import replay
from tests.rules.engine.loop.loop_gauges import loop_gauges
from tests.rules.reference.timeline import Timeline
from tests.support import trace_strategies
from tests.support.examples import examples

Reading = tuple[int, int, int, int]


def readings(timeline: Timeline, purgatory: str = "Produce", last_ms: int = 10_000, **config: Any) -> list[Reading]:
    """(at, watched, delayed, purged) where that changed."""
    return [
        (gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged)
        for gauge in loop_gauges(timeline.events, Config.model_validate(config), last_ms)
        if gauge.purgatory == purgatory
    ]


# Against the reference.


@examples(20)
@given(
    events=trace_strategies.traces(),
    config=trace_strategies.configs(),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    grouping=st.sampled_from([by_broker, by_partition, by_shard(2)]),
)
def test_any_trace_has_the_gauges_of_the_reference(
    events: list[dict[str, Any]], config: Config, cuts: list[int], grouping: GroupOf
) -> None:
    expected = replay(events, config)
    assert loop_gauges(events, config, expected.end_ms, cuts, grouping) == gauge_changes(expected.gauges)


# Who leaves which list when.


def test_the_check_that_completes_an_operation_drops_it_from_the_list_that_it_walks_and_from_no_other() -> None:
    timeline = Timeline().produce(10, "p", 5_000, a=5, b=5).high_watermark(20, "b", 5).high_watermark(210, "a", 5)
    #   20: b's watermark settles only b   210: a's settles the rest, and the entry on b stays until b is checked
    timeline.high_watermark(410, "b", 6)
    assert readings(timeline) == [(200, 2, 1, 0), (400, 1, 0, 0), (600, 0, 0, 0)]


def test_a_list_walked_earlier_in_the_completing_event_keeps_its_entry() -> None:
    timeline = Timeline(broker=1)
    for name in "ab":
        timeline.change(1, name, "leader", isr=[1, 2]).log_end(2, name, 10)
    timeline.produce(10, "p", 5_000, a=5, b=5)
    #   the follower is told to have reached a, which is checked, then b, whose check completes p: a's list keeps it
    timeline.follower(20, "f", 0, 0, {"a": 5, "b": 5})
    assert readings(timeline) == [(200, 1, 0, 0)]


def test_an_expired_operation_stays_on_all_its_lists_until_each_is_walked() -> None:
    timeline = Timeline().produce(10, "p", 50, a=5, b=5).high_watermark(210, "a", 1).high_watermark(410, "b", 1)
    assert readings(timeline) == [(200, 2, 0, 0), (400, 1, 0, 0), (600, 0, 0, 0)]


def test_a_walk_in_the_millisecond_of_the_deadline_comes_after_the_expiration() -> None:
    timeline = Timeline().produce(10, "p", 50, a=5).high_watermark(60, "a", 1)
    assert readings(timeline) == []


def test_an_operation_without_delay_expires_after_the_checks_of_its_own_event() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", isr=[1]).produce(10, "p", 0, a=5, b=5)
    #   the append raises a's watermark, which is checked when p is already on the lists, but not yet expired
    assert readings(timeline) == [(200, 2, 0, 0)]


def test_a_partition_named_twice_is_one_entry() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5)
    timeline.events[0]["partitions"] *= 2
    assert readings(timeline) == [(200, 1, 0, 0)]


def test_operations_answered_on_arrival_are_on_no_list() -> None:
    timeline = Timeline().high_watermark(1, "a", 5).produce(10, "p", 500, a=5).produce(11, "q", 500, acks=1, b=5)
    assert readings(timeline) == []


# When purges happen.


def test_more_ends_than_the_interval_purge_at_the_next_wake_up() -> None:
    timeline = Timeline().produce(10, "p", 20, a=5, b=5).produce(10, "q", 30, a=5, c=5).produce(10, "r", 400, a=5)
    #   30: p has expired, 1 end, not more than the interval   40: q has, 2 > 1: four entries are purged, r's is alive
    assert readings(timeline, produce={"purge_interval": 1}) == [(200, 1, 1, 4), (600, 1, 0, 0)]


def test_without_a_bucket_the_reaper_wakes_200_ms_after_it_last_woke() -> None:
    timeline = Timeline().produce(1, "p", 25, a=5).produce(30, "q", 100_000, a=5, b=5)
    timeline.high_watermark(45, "b", 5).high_watermark(50, "a", 5)
    #   20, 26: buckets of p, which expires   50: q completes, and stays on b   226: the reaper wakes and purges it
    assert readings(timeline, produce={"purge_interval": 1}, last_ms=1_000) == [(200, 1, 0, 0), (400, 0, 0, 1)]


def test_a_bucket_that_had_begun_wakes_the_reaper_between_two_events_of_one_millisecond() -> None:
    timeline = Timeline().produce(1_005, "p", 0, a=5, b=5).high_watermark(1_005, "a", 5)
    #   the clock of the wheels lags: p is put into a bucket, which wakes the reaper at once, and it purges both entries
    assert readings(timeline, produce={"purge_interval": 0}) == [(1_200, 0, 0, 2)]


def test_a_wake_up_of_the_clock_comes_before_the_events_of_its_microsecond() -> None:
    timeline = Timeline(broker=1).change(0, "b", "leader", isr=[1]).produce(1, "p", 25, a=5)
    timeline.produce(30, "q", 100_000, a=5, b=5).high_watermark(50, "a", 5).produce(226, "r", 0, b=9, c=5)
    #   26: p expires and is purged   50: q completes, and stays on b
    #   226: the reaper wakes, 200 ms after 26, and purges q before r's append walks b; then r, which went into a bucket
    #        that had begun, wakes it again, and both its entries go
    assert readings(timeline, produce={"purge_interval": 0}) == [(200, 1, 0, 1), (400, 0, 0, 3)]


def test_each_purgatory_has_its_own_interval_and_each_broker_its_own_purgatories() -> None:
    timeline = Timeline(broker=1).produce(10, "p", 20, a=5).fetch(10, "f", 20, 1, {"a": 0})
    timeline.delete_records(10, "d", 20, a=5).create_topics(10, "t", 20, a=2)
    timeline.broker = 2
    timeline.produce(20, "q", 20, a=5)
    intervals = {"produce": {"purge_interval": 0}, "delete_records": {"purge_interval": 0}}
    assert loop_gauges(timeline.events, Config.model_validate(intervals), 1_000) == [
        Gauge(1, "DeleteRecords", 200, 0, 0, 1),
        Gauge(1, "Fetch", 200, 1, 0, 0),
        Gauge(1, "Produce", 200, 0, 0, 1),
        Gauge(1, "topic", 200, 1, 0, 0),
        Gauge(2, "Produce", 200, 0, 0, 1),
    ]


def test_a_leader_at_any_broker_walks_the_topic_s_list_at_every_broker() -> None:
    timeline = Timeline(broker=1).create_topics(10, "t", 50, a=2).create_topics(10, "u", 500, a=1, b=1)
    timeline.broker = 2
    timeline.change(210, "a", "leader").change(410, "b", "leader")
    #   60: t expires   210: its entry goes, u is not complete   410: u completes on b, and stays on a
    assert readings(timeline, "topic") == [(200, 3, 1, 0), (400, 2, 1, 0), (600, 1, 0, 0)]


# What is written.


def test_only_changed_steps_are_written_however_long_the_trace_pauses() -> None:
    day_ms = 86_400_000
    timeline = Timeline().produce(10, "p", 500, a=5).produce(1_000 * day_ms, "q", 500, a=5)
    assert readings(timeline, last_ms=1_001 * day_ms) == [
        (200, 1, 1, 0), (600, 1, 0, 0), (1_000 * day_ms + 200, 2, 1, 0), (1_000 * day_ms + 600, 2, 0, 0),
    ]  # fmt: skip


def test_steps_after_the_last_one_asked_for_are_not_written() -> None:
    timeline = Timeline().produce(10, "p", 500, a=5)
    assert readings(timeline, last_ms=400) == [(200, 1, 1, 0)]


def test_a_run_without_waiting_operations_has_no_gauges() -> None:
    assert loop_gauges(Timeline().high_watermark(1, "a", 5).events, Config(), 1_000) == []

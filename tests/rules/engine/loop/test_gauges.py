"""The engine's gauges: equal to the reference's on random traces, and in single cases."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.key_shards import Grouping, by_broker, by_partition, by_shard
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import replay
from tests.rules.engine.loop.loop_gauges import loop_gauges
from tests.rules.reference.timeline import Timeline
from tests.support import trace_strategies
from tests.support.examples import examples

Reading = tuple[int, int, int, int]


def readings(timeline: Timeline, purgatory: str = "Produce", last_ms: int = 10_000, **config: Any) -> list[Reading]:
    """Return (at, watched, delayed, purged) of the changed readings."""
    return [
        (gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged)
        for gauge in loop_gauges(timeline.events, Config.model_validate(config), last_ms)
        if gauge.purgatory == purgatory
    ]


@examples(20)
@given(
    events=trace_strategies.traces(),
    config=trace_strategies.configs(),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    grouping=st.sampled_from([by_broker, by_partition, by_shard(2)]),
)
def test_gauges_equal_the_reference(
    events: list[dict[str, Any]], config: Config, cuts: list[int], grouping: Grouping
) -> None:
    expected = replay(events, config)
    assert loop_gauges(events, config, expected.end_ms, cuts, grouping) == gauge_changes(expected.gauges)


# Entries of watcher lists.


def test_completion_removes_one_list_entry() -> None:
    """The walk that completes the operation removes its entry; other entries stay until their list is walked."""
    timeline = Timeline().produce(10, "p", 5_000, a=5, b=5).high_watermark(20, "b", 5).high_watermark(210, "a", 5)
    #   20: b's watermark settles b   210: a's settles the rest; the entry on b stays until the check at 410
    timeline.high_watermark(410, "b", 6)
    assert readings(timeline) == [(200, 2, 1, 0), (400, 1, 0, 0), (600, 0, 0, 0)]


def test_list_walked_before_completion_keeps_its_entry() -> None:
    """Both lists are walked by the event that completes the operation, but the first before it completes."""
    timeline = Timeline(broker=1)
    for name in "ab":
        timeline.change(1, name, "leader", isr=[1, 2]).log_end(2, name, 10)
    timeline.produce(10, "p", 5_000, a=5, b=5)
    #   20: a's log end is advanced and a is checked, then b, which completes p
    timeline.follower(20, "f", 0, 0, {"a": 5, "b": 5})
    assert readings(timeline) == [(200, 1, 0, 0)]


def test_expired_operation_stays_on_its_lists() -> None:
    """Its entry stays on each list until that list is walked."""
    timeline = Timeline().produce(10, "p", 50, a=5, b=5).high_watermark(210, "a", 1).high_watermark(410, "b", 1)
    assert readings(timeline) == [(200, 2, 0, 0), (400, 1, 0, 0), (600, 0, 0, 0)]


def test_expiration_precedes_walks_of_its_millisecond() -> None:
    timeline = Timeline().produce(10, "p", 50, a=5).high_watermark(60, "a", 1)
    assert readings(timeline) == []


def test_zero_timeout_expires_after_its_own_checks() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", isr=[1]).produce(10, "p", 0, a=5, b=5)
    #   10: the append raises a's high watermark; its check finds p on the lists, not expired yet
    assert readings(timeline) == [(200, 2, 0, 0)]


def test_partition_named_twice_is_one_entry() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5)
    timeline.events[0]["partitions"] *= 2
    assert readings(timeline) == [(200, 1, 0, 0)]


def test_completion_on_arrival_adds_no_entry() -> None:
    timeline = Timeline().high_watermark(1, "a", 5).produce(10, "p", 500, a=5).produce(11, "q", 500, acks=1, b=5)
    assert readings(timeline) == []


# Purges.


def test_purge_follows_when_interval_is_exceeded() -> None:
    timeline = Timeline().produce(10, "p", 20, a=5, b=5).produce(10, "q", 30, a=5, c=5).produce(10, "r", 400, a=5)
    #   30: p expires; 1 is not more than the interval   40: q expires; 2 > 1 purges 4 entries, and r's stays
    assert readings(timeline, produce={"purge_interval": 1}) == [(200, 1, 1, 4), (600, 1, 0, 0)]


def test_idle_reaper_wakes_after_200_ms() -> None:
    timeline = Timeline().produce(1, "p", 25, a=5).produce(30, "q", 100_000, a=5, b=5)
    timeline.high_watermark(45, "b", 5).high_watermark(50, "a", 5)
    #   20, 26: buckets of p, which expires   50: q completes; its entry on b stays   226: the reaper purges it
    assert readings(timeline, produce={"purge_interval": 1}, last_ms=1_000) == [(200, 1, 0, 0), (400, 0, 0, 1)]


def test_overdue_bucket_wakes_the_reaper_at_once() -> None:
    timeline = Timeline().produce(1_005, "p", 0, a=5, b=5).high_watermark(1_005, "a", 5)
    #   the wheels' clock lags, so p gets into a bucket that is due: the reaper wakes at once and purges both entries
    assert readings(timeline, produce={"purge_interval": 0}) == [(1_200, 0, 0, 2)]


def test_reaper_does_not_wake_before_the_operation_came() -> None:
    timeline = Timeline().high_watermark(1, "a", 1).produce(8_195, "p", 5_000, a=5, b=5)
    timeline.high_watermark(8_300, "b", 5).high_watermark(8_390, "a", 5)
    #   p gets into the bucket of 8000 to 16000, so the reaper wakes at 8195, and next at 8395: it purges the entry on b
    assert readings(timeline, produce={"purge_interval": 0}) == [(8_200, 2, 1, 0), (8_400, 0, 0, 1)]


def test_reaper_keeps_its_rhythm_while_idle() -> None:
    timeline = Timeline().produce(1, "p", 25, a=5).produce(60_030, "q", 100_000, a=5, b=5)
    timeline.high_watermark(60_045, "b", 5).high_watermark(60_050, "a", 5)
    #   26: p expires, and the reaper wakes every 200 ms from there   60050: q's entry replaces that of p, which is
    #   walked   60226: the reaper purges it
    assert readings(timeline, produce={"purge_interval": 1}, last_ms=61_000) == [(200, 1, 0, 0), (60_400, 0, 0, 1)]


def test_wake_up_precedes_events_of_its_microsecond() -> None:
    timeline = Timeline(broker=1).change(0, "b", "leader", isr=[1]).produce(1, "p", 25, a=5)
    timeline.produce(30, "q", 100_000, a=5, b=5).high_watermark(50, "a", 5).produce(226, "r", 0, b=9, c=5)
    #   26: p expires and is purged   50: q completes; its entry on b stays
    #   226: the reaper wakes, 200 ms after 26, purges q before r's append walks b; r gets into a bucket that is due,
    #        which wakes the reaper again: it purges both entries of r
    assert readings(timeline, produce={"purge_interval": 0}) == [(200, 1, 0, 1), (400, 0, 0, 3)]


def test_purgatories_are_separate() -> None:
    """Each broker has one per kind, with a separate purge interval."""
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


def test_new_leader_walks_lists_of_all_brokers() -> None:
    timeline = Timeline(broker=1).create_topics(10, "t", 50, a=2).create_topics(10, "u", 500, a=1, b=1)
    timeline.broker = 2
    timeline.change(210, "a", "leader").change(410, "b", "leader")
    #   60: t expires   210: its entry is removed; u waits for b   410: u completes; its entry on a stays
    assert readings(timeline, "topic") == [(200, 3, 1, 0), (400, 2, 1, 0), (600, 1, 0, 0)]


# Readings.


def test_pauses_have_no_readings() -> None:
    day_ms = 86_400_000
    timeline = Timeline().produce(10, "p", 500, a=5).produce(1_000 * day_ms, "q", 500, a=5)
    assert readings(timeline, last_ms=1_001 * day_ms) == [
        (200, 1, 1, 0), (600, 1, 0, 0), (1_000 * day_ms + 200, 2, 1, 0), (1_000 * day_ms + 600, 2, 0, 0),
    ]  # fmt: skip


def test_readings_end_at_the_given_time() -> None:
    timeline = Timeline().produce(10, "p", 500, a=5)
    assert readings(timeline, last_ms=400) == [(200, 1, 1, 0)]


def test_no_waiting_operation_means_no_readings() -> None:
    assert loop_gauges(Timeline().high_watermark(1, "a", 5).events, Config(), 1_000) == []

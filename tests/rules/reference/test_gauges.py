"""The gauges: when they are read, and their values."""

from __future__ import annotations

from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay
from tests.rules.reference.timeline import Timeline

Reading = tuple[int, int, int, int]


def readings(result: Replay, purgatory: str = "Produce") -> list[Reading]:
    """Return time, watched, delayed and purged of each reading."""
    return [
        (gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged)
        for gauge in result.gauges
        if gauge.purgatory == purgatory
    ]


def test_gauge_steps_cover_trace() -> None:
    """Steps last from the first event, rounded down to a step, to the end of the last operation."""
    timeline = Timeline().produce(1_350, "p", 500, a=5, b=5).produce(1_450, "q", 10, a=5)
    #   1400: p is on two lists   1600: q has expired and is still listed   2000: p has expired, too
    assert readings(timeline.replay()) == [(1400, 2, 1, 0), (1600, 3, 1, 0), (1800, 3, 1, 0), (2000, 3, 0, 0)]


def test_step_follows_expirations_and_precedes_events() -> None:
    timeline = Timeline().produce(10, "p", 190, a=5).produce(200, "q", 100, a=5)
    assert readings(timeline.replay()) == [(200, 1, 0, 0), (400, 2, 0, 0)]


def test_expiration_at_step_ends_gauges() -> None:
    assert readings(Timeline().produce(10, "p", 390, a=5).replay()) == [(200, 1, 1, 0), (400, 1, 0, 0)]


def test_last_event_is_followed_by_step() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5).high_watermark(200, "a", 5)
    assert readings(timeline.replay()) == [(200, 1, 1, 0), (400, 0, 0, 0)]


def test_undrained_gauges_end_with_trace() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5).add(450, "clock")
    assert readings(timeline.replay(drain=False)) == [(200, 1, 1, 0), (400, 1, 1, 0)]


def test_unused_purgatories_have_no_gauges() -> None:
    timeline = Timeline(broker=7).high_watermark(5, "a", 5).produce(10, "p", 100, a=5).fetch(11, "f", 100, 1, {"a": 0})
    assert timeline.replay().gauges == [Gauge(7, "Fetch", 200, 1, 0, 0)]


def test_late_broker_has_gauges_from_start() -> None:
    timeline = Timeline(broker=1).produce(10, "p", 10, a=5)
    timeline.broker = 2
    timeline.produce(410, "q", 10, a=5)
    gauges = timeline.replay().gauges
    assert [(gauge.broker, gauge.at_ms, gauge.watched) for gauge in gauges] == [
        (1, 200, 1), (2, 200, 0), (1, 400, 1), (2, 400, 0), (1, 600, 1), (2, 600, 1),
    ]  # fmt: skip


def test_purge_is_counted_at_next_step() -> None:
    timeline = Timeline().produce(10, "p", 20, a=5, b=5).produce(10, "q", 30, a=5, c=5)
    #   30: p has expired, 1 is not more than the interval   40: q has expired, 2 > 1: purge
    assert readings(timeline.replay(produce={"purge_interval": 1})) == [(200, 0, 0, 4)]
    assert readings(timeline.replay(produce={"purge_interval": 2})) == [(200, 4, 0, 0)]


def test_delete_records_purge_interval_is_one() -> None:
    timeline = Timeline().delete_records(10, "d", 20, a=5).delete_records(50, "e", 20, a=5).add(450, "clock")
    assert readings(timeline.replay(), "DeleteRecords") == [(200, 0, 0, 2), (400, 0, 0, 0), (600, 0, 0, 0)]


def test_pause_of_years_is_skipped() -> None:
    year_ms = 365 * 24 * 3_600_000
    timeline = Timeline().produce(10, "p", 500, a=5, b=5).produce(20, "q", 30, a=5)
    timeline.produce(3 * year_ms + 10, "r", 100, b=9)
    result = timeline.replay(produce={"purge_interval": 1})
    (series,) = [series for series in result.series if series.purgatory.used]
    assert timeline.ends(produce={"purge_interval": 1})[2].startswith(f"r expired {3 * year_ms + 110:g} timeout")
    assert [(gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged) for gauge in series.changes] == [
        (200, 3, 1, 0),
        (600, 0, 0, 3),
        (800, 0, 0, 0),
        (3 * year_ms + 200, 1, 0, 0),
    ]


def test_gauge_changes_drops_equal_readings() -> None:
    timeline = Timeline().produce(250, "p", 1000, a=5).high_watermark(810, "a", 5).add(1450, "clock")
    result = timeline.replay()
    assert [gauge.at_ms for gauge in result.gauges] == [400, 600, 800, 1000, 1200, 1400, 1600]
    assert [(gauge.at_ms, gauge.delayed) for gauge in gauge_changes(result.gauges)] == [(400, 1), (1000, 0)]


def test_gauge_changes_retains_purges() -> None:
    same = [Gauge(0, "Fetch", 200, 0, 0, 0), Gauge(0, "Fetch", 400, 0, 0, 2), Gauge(0, "Fetch", 600, 0, 0, 0)]
    assert gauge_changes(same) == [same[1]]

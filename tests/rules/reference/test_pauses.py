"""A broker stands still: none of its timers fires until it resumes, and overdue operations expire then.

`SystemTimer` and the reapers (`ExpiredOperationReaper`) use a clock that continues while the threads of the process do
not run. The reaper that resumes takes all overdue buckets in one turn, in order of their time.
"""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.purgatory.clock import Pause, Pauses, gauge_changes
from tests.rules.engine.loop.loop_gauges import loop_gauges
from tests.rules.reference.timeline import Timeline, line
from tests.support.outcome_rows import outcomes_of


def ends(timeline: Timeline) -> list[str]:
    """Return the outcomes of the reference. The compiled loop has to agree, in its gauges as well."""
    engine = Engine(Config(), pauses=Pauses.from_events(timeline.events))
    tables = loop_replay([event_table(timeline.events)], engine)
    replayed = timeline.replay()
    lines = [line(outcome) for outcome in replayed.outcomes]
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [line(outcome) for outcome in outcomes] == lines
    assert loop_gauges(timeline.events, Config(), replayed.end_ms) == gauge_changes(replayed.gauges)
    return lines


def waiting() -> Timeline:
    """Return a timeline of two fetches with deadlines at 520 and 610."""
    return Timeline().log_end(1, "a", 5, 50).fetch(20, "c", 500, 1, {"a": 5}).follower(110, "f", 500, 1, {"a": 5})


def test_overdue_operations_expire_on_resume() -> None:
    timeline = waiting().add(300, "paused").add(7004.1, "resumed")
    assert ends(timeline) == ["c expired 7004 timeout - a-0:0", "f expired 7004 timeout - a-0:0"]


def test_request_before_resume_completes_overdue_operation() -> None:
    """A handler thread was faster than the reaper: the append completes the follower's fetch, 6.4 s too late."""
    timeline = waiting().add(300, "paused").log_end(7001.7, "a", 6, 10).add(7004.1, "resumed")
    timeline.high_watermark(7005, "a", 6)
    assert ends(timeline) == ["c expired 7004 timeout - a-0:0", "f completed 7001.7 min_bytes a-0 a-0:10"]


def test_overdue_operations_expire_before_requests_of_their_millisecond() -> None:
    timeline = waiting().add(300, "paused").log_end(7004, "a", 6, 10).add(7004.9, "resumed")
    assert ends(timeline)[1] == "f expired 7004 timeout - a-0:0"


def test_deadline_outside_of_pause_is_kept() -> None:
    """520 is before the pause, and 610 is the millisecond in which it begins: expiration wins ties."""
    timeline = waiting().add(610.5, "paused").add(900, "resumed").fetch(905, "late", 40, 1, {"a": 5})
    assert ends(timeline) == [
        "c expired 520 timeout - a-0:0",
        "f expired 610 timeout - a-0:0",
        "late expired 945 timeout - a-0:0",
    ]


def test_other_brokers_expire_meanwhile() -> None:
    timeline = waiting().add(300, "paused", broker=1).add(7000, "resumed", broker=1)
    assert ends(timeline)[0] == "c expired 520 timeout - a-0:0"


def test_pause_without_end_lasts_as_long_as_trace() -> None:
    timeline = waiting().add(300, "paused").add(400, "paused").add(2000.5, "clock")
    assert ends(timeline) == ["c expired 2001 timeout - a-0:0", "f expired 2001 timeout - a-0:0"]


def test_purge_waits_for_resume() -> None:
    """The reaper's wake-ups at 400 and 600 are due while the broker stands still; the next one is 200 ms after 710."""
    timeline = Timeline().log_end(1, "a", 5, 50).add(300, "paused")
    for number in range(2):
        timeline.fetch(310 + number, f"c{number}", 5000, 1, {"a": 5, "b": 5})
    timeline.log_end(320, "a", 6, 10).high_watermark(320, "a", 6).add(710, "resumed").add(2000, "clock")
    replayed = timeline.replay(fetch={"purge_interval": 1})
    readings = [(gauge.at_ms, gauge.watched, gauge.purged) for gauge in gauge_changes(replayed.gauges)]
    assert readings == [(400, 2, 0), (800, 0, 2)]


def test_pauses_are_pairs_of_events_of_one_broker() -> None:
    """A broker that is paused already, or not paused, ignores the event. The last pause has no end."""
    timeline = Timeline(broker=2).add(10, "resumed").add(20.9, "paused").add(25, "paused").add(30, "resumed")
    timeline.add(40, "paused").add(50, "clock")
    assert list(Pauses.from_events(timeline.events)) == [Pause(2, 20, 30), Pause(2, 40, 51)]

"""A broker stops: the operations in its purgatories are cancelled and never answered.

`BrokerServer.shutdown` first calls `SocketServer.stopProcessingRequests`, which disconnects clients.
`DelayedOperationPurgatory.shutdown` stops reaper and timer and completes nothing. A new process reads the log and the
high watermark checkpoint from disk, has no follower state (`Partition.makeLeader` resets it), and leads nothing until
the controller makes it a leader.
"""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.purgatory.clock import gauge_changes
from tests.rules.engine.loop.loop_gauges import loop_gauges
from tests.rules.reference.timeline import Timeline, line
from tests.support.outcome_rows import outcomes_of


def ends(timeline: Timeline) -> list[str]:
    """Return the outcomes of the reference. The compiled loop has to agree."""
    tables = loop_replay([event_table(timeline.events)], Engine(Config()))
    lines = timeline.ends()
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [line(outcome) for outcome in outcomes] == lines
    return lines


def led(*partitions: str) -> Timeline:
    timeline = Timeline()
    for name in partitions:
        timeline.log_end(1, name, 5, 500).high_watermark(1, name, 5)
    return timeline


def stopped(timeline: Timeline, ms: float, *partitions: str) -> Timeline:
    for name in partitions:
        timeline.change(ms, name, "stopped")
    return timeline


def test_stop_cancels_operations_of_partition() -> None:
    timeline = led("a").produce(10, "p", 100, a=6).fetch(10, "c", 100, 1, {"a": 5}).follower(10, "f", 100, 1, {"a": 6})
    timeline.delete_records(10, "d", 100, a=3)
    assert ends(stopped(timeline, 50, "a")) == [
        "p cancelled 50 broker_stopped a-0 a-0:-",
        "c cancelled 50 broker_stopped a-0 a-0:-",
        "f cancelled 50 broker_stopped a-0 a-0:-",
        "d cancelled 50 broker_stopped a-0 a-0:-",
    ]
    fetches = [outcome for outcome in timeline.replay().outcomes if outcome.kind == "fetch"]
    assert [(part.error, part.bytes) for fetch in fetches for part in fetch.partitions] == [(None, 0)] * 2


def test_stopped_broker_forgets_reads_of_remote_storage() -> None:
    """The result of such a read checks nothing: the expired fetch of the next process stays on its list."""
    timeline = led("a").change(2, "a", "local_log_start", offset=5).fetch(10, "r", 100, 1, {"a": 2})
    stopped(timeline, 50, "a").change(60, "a", "leader").fetch(70, "s", 100, 1, {"a": 2})
    timeline.add(220, "remote_read", request_id="r", topic="a", partition=0, bytes=300).add(700, "clock")
    replay = timeline.replay(remote_fetch={"max_wait_ms": 100, "purge_interval": 10})
    assert [line(outcome) for outcome in replay.outcomes] == [
        "r cancelled 50 broker_stopped a-0 a-0:-",
        "s expired 170 timeout - a-0:NONE",
    ]
    gauges = [each for each in replay.gauges if each.purgatory == "RemoteFetch" and each.watched]
    assert [each.at_ms for each in gauges] == [200, 400, 600, 800]


def test_settled_partition_retains_its_answer() -> None:
    timeline = led("a", "b").produce(10, "p", 100, a=6, b=6).high_watermark(20, "a", 6)
    assert ends(stopped(timeline, 50, "a", "b")) == ["p cancelled 50 broker_stopped b-0 a-0:NONE,b-0:-"]


def test_request_without_pending_partition_continues() -> None:
    """A `stopped` event affects one partition. A stop of the broker has one for each."""
    timeline = led("a", "b").produce(10, "p", 100, a=6, b=6).high_watermark(20, "a", 6)
    assert ends(stopped(timeline, 50, "a").high_watermark(60, "b", 6)) == [
        "p completed 60 high_watermark b-0 a-0:NONE,b-0:NONE"
    ]


def test_first_stopped_partition_is_trigger() -> None:
    timeline = led("a", "b").fetch(10, "c", 100, 1, {"a": 5, "b": 5})
    assert ends(stopped(timeline, 50, "b", "a")) == ["c cancelled 50 broker_stopped b-0 a-0:-,b-0:-"]


def test_expiration_wins_tie_with_stop() -> None:
    timeline = led("a").fetch(10, "c", 40, 1, {"a": 5})
    assert ends(stopped(timeline, 50, "a")) == ["c expired 50 timeout - a-0:0"]


def test_restarted_broker_leads_nothing() -> None:
    timeline = stopped(led("a"), 50, "a").fetch(60, "early", 100, 1, {"a": 5})
    timeline.change(70, "a", "leader", leader_epoch=3).fetch(80, "c", 100, 1, {"a": 4}).fetch(80, "d", 10, 1, {"a": 5})
    assert ends(timeline) == [
        "early completed 60 not_leader - a-0:NOT_LEADER_OR_FOLLOWER",
        # The log and the high watermark survive.
        "c completed 80 min_bytes - a-0:500",
        "d expired 90 timeout - a-0:0",
    ]


def test_restarted_broker_forgets_followers() -> None:
    """A new leader resets its followers (`Partition.makeLeader`): the watermark waits until each has fetched."""
    timeline = Timeline().change(1, "a", "leader", leader_epoch=1, isr=[0, 2], min_isr=1).log_end(2, "a", 5, 500)
    timeline.change(3, "a", "replica_end", replica_id=2, offset=9)
    stopped(timeline, 50, "a").change(60, "a", "leader", leader_epoch=2, isr=[0, 2])
    timeline.produce(70, "p", 100, a=6).change(80, "a", "replica_end", replica_id=2, offset=6)
    assert ends(timeline) == ["p completed 80 high_watermark a-0 a-0:NONE"]


def test_stop_resets_gauges() -> None:
    timeline = led("a", "b").fetch(10, "dead", 60, 1, {"a": 5, "b": 5}).fetch(20, "c", 900, 900, {"a": 5, "b": 5})
    timeline.produce(30, "p", 900, a=6, b=6).high_watermark(210, "a", 6)
    stopped(timeline, 300, "a", "b").add(500, "clock")
    gauges = [
        (gauge.purgatory, gauge.at_ms, gauge.watched, gauge.delayed, gauge.purged)
        for gauge in gauge_changes(timeline.replay().gauges)
    ]
    # Both entries of the expired fetch are still listed at 200; the check by the watermark removes one.
    assert gauges == [
        ("Fetch", 200, 4, 1, 0),
        ("Produce", 200, 2, 1, 0),
        ("Fetch", 400, 0, 0, 0),
        ("Produce", 400, 0, 0, 0),
    ]
    assert loop_gauges(timeline.events, Config(), 500) == gauge_changes(timeline.replay().gauges)


def test_stop_resets_purge_estimate() -> None:
    """Operations of the old process do not count towards the next purge (`DelayedOperationPurgatory.advanceClock`)."""
    timeline = led("a")
    for number in range(3):
        timeline.fetch(10, f"old-{number}", 5, 1, {"a": 5})
    stopped(timeline, 50, "a").change(60, "a", "leader", leader_epoch=2)
    timeline.fetch(70, "new", 5, 1, {"a": 5}).add(500, "clock")
    config = Config.model_validate({"fetch": {"purge_interval": 3}})
    gauges = gauge_changes(timeline.replay(fetch={"purge_interval": 3}).gauges)
    assert [(gauge.at_ms, gauge.watched, gauge.purged) for gauge in gauges] == [(200, 1, 0)]
    assert loop_gauges(timeline.events, config, 500) == gauges


def test_stop_cancels_topic_creations() -> None:
    """A stop of any partition of the topic cancels the creation; the broker need not have a replica."""
    timeline = Timeline(broker=1).create_topics(10, "here", 1000, a=2, b=1).create_topics(10, "other", 1000, b=1)
    timeline.broker = 2
    timeline.create_topics(10, "there", 1000, a=2).change(20, "a-0", "leader")
    timeline.broker = 1
    timeline.change(50, "a-0", "stopped")
    timeline.broker = 2
    assert ends(timeline.change(60, "a-1", "leader").change(70, "b-0", "leader")) == [
        "here cancelled 50 broker_stopped a a:-,b:-",
        "other completed 70 leaders b b:NONE",
        "there completed 60 leaders a a:NONE",
    ]


def test_stop_ignores_topic_with_leaders() -> None:
    timeline = Timeline().create_topics(10, "c", 1000, a=1, b=1).change(20, "a-0", "leader")
    assert ends(timeline.change(50, "a-0", "stopped").change(60, "b-0", "leader")) == [
        "c completed 60 leaders b a:NONE,b:NONE"
    ]


def test_stop_resets_topic_gauges() -> None:
    timeline = Timeline()
    for broker in (1, 2):
        timeline.broker = broker
        timeline.create_topics(10, "dead", 50, a=1, b=1).create_topics(10, "c", 900, a=1)
    timeline.broker = 1
    timeline.change(210, "a-0", "stopped").change(210, "b-0", "stopped").add(500, "clock")
    gauges = gauge_changes(timeline.replay().gauges)
    assert [(gauge.broker, gauge.at_ms, gauge.watched, gauge.delayed) for gauge in gauges] == [
        (1, 200, 3, 1),
        (2, 200, 3, 1),
        (1, 400, 0, 0),
        (2, 1000, 3, 0),
    ]
    assert loop_gauges(timeline.events, Config(), 1000) == gauges

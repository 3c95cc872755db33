"""Traces that together reach every branch of the event loop; `.ci/branches` measures that without compilation.

Random traces of fixed seeds reach most branches. The others are written by hand, each for a case that is rare in random
traces.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.key_shards import Grouping, by_broker, by_partition
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.purgatory.clock import Pauses, gauge_changes
from tests.rules.engine.loop.loop_gauges import gauges_of
from tests.rules.engine.loop.test_against_reference import as_in_tables, drained
from tests.support import trace_strategies
from tests.support.outcome_rows import outcomes_of

Event = dict[str, Any]

_FREQUENT_PURGES = {kind: {"purge_interval": 1} for kind in ("produce", "fetch", "delete_records", "create_topics")}
_CONFIGS = [Config(), Config.model_validate(_FREQUENT_PURGES)]


def _assert_equals_reference(events: list[Event], config: Config, batch: int, grouping: Grouping) -> None:
    expected = drained(events, config)
    start_ms, pauses = min(event["time_us"] for event in events) // 1000, Pauses.from_events(events)
    engine = Engine(config, start_ms, grouping, serialize=True, pauses=pauses)
    table = event_table(events)
    borders = [*range(0, len(table), batch), len(table)]
    decided = [each for a, b in pairwise(borders) for each in engine.feed(table.slice(a, b - a))] + engine.drain()
    tables = Tables.of(decided)
    assert outcomes_of(tables.completions, tables.expirations, tables.cancellations) == as_in_tables(expected)
    assert gauges_of(decided, expected.end_ms) == gauge_changes(expected.gauges)


class _Trace:
    """Builds a trace of broker 0 and topic `t`, with one event per millisecond."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def at(self, ms: int) -> _Trace:
        self._add({"type": "clock"})
        self.events[-1]["time_us"] = ms * 1000
        return self

    def stop(self, broker: int, until_ms: int) -> _Trace:
        """Let a broker stand still."""
        self._add({"type": "paused", "broker": broker})
        return self._add({"type": "resumed", "broker": broker, "time_us": until_ms * 1000})

    def change(self, partition: int, change: str, offset: int | None = None, **more: Any) -> _Trace:
        at_offset = {} if offset is None else {"offset": offset}
        return self._add(
            {"type": "partition", "topic": "t", "partition": partition, "change": change} | at_offset | more
        )

    def batches(self, partition: int, ends: range, size: int = 100) -> _Trace:
        for end in ends:
            self.change(partition, "log_end", end, bytes=size, batches=1)
        return self

    def produce(self, ends: dict[int, int], timeout_ms: int = 500, errors: dict[int, str] | None = None) -> _Trace:
        parts = [
            {"topic": "t", "partition": p, "base_offset": e - 1, "last_offset": e - 1, "bytes": 100}
            for p, e in ends.items()
        ]
        parts += [{"topic": "t", "partition": p, "error": error} for p, error in (errors or {}).items()]
        return self._add({"type": "produce", "acks": -1, "timeout_ms": timeout_ms, "partitions": parts})

    def fetch(
        self, offsets: list[tuple[int, int]], min_bytes: int, redirected: int | None = None, **more: Any
    ) -> _Trace:
        """Add a fetch of (partition, offset) pairs; `redirected` is to be read from a preferred replica."""
        parts: list[Event] = [
            {"topic": "t", "partition": p, "fetch_offset": offset, "max_bytes": 10_000}
            | ({"preferred_replica": 2} if p == redirected else {})
            for p, offset in offsets
        ]
        event = {"type": "fetch", "replica_id": -1, "max_wait_ms": 500, "min_bytes": min_bytes, "max_bytes": 1 << 20}
        return self._add(event | {"isolation": "read_uncommitted", "partitions": parts} | more)

    def delete(self, partition: int, before: int) -> _Trace:
        partitions = [{"topic": "t", "partition": partition, "offset": before}]
        return self._add({"type": "delete_records", "timeout_ms": 500, "partitions": partitions})

    def create(self, topic: str, timeout_ms: int, broker: int = 0, partitions: int = 1) -> _Trace:
        topics = [{"topic": topic, "partitions": partitions}]
        return self._add({"type": "create_topics", "timeout_ms": timeout_ms, "topics": topics, "broker": broker})

    def _add(self, event: Event) -> _Trace:
        last_us = self.events[-1]["time_us"] if self.events else 0
        seq = len(self.events) + 1
        self.events.append({"time_us": last_us + 1000, "seq": seq, "broker": 0, "request_id": f"r{seq}"} | event)
        return self


# With the leader alone in sync, every append advances the high watermark.
_ALONE: dict[str, Any] = {"leader_epoch": 1, "isr": [0], "min_isr": 1}
_WITH_A_FOLLOWER: dict[str, Any] = {"leader_epoch": 1, "isr": [0, 1], "min_isr": 1}


def _sole_leaders(partitions: int = 2) -> _Trace:
    trace = _Trace()
    for partition in range(partitions):
        trace.change(partition, "leader", **_ALONE).change(partition, "log_end", 0)
    return trace


def _leaders_with_batches() -> _Trace:
    trace = _sole_leaders()
    for partition in (0, 1):
        trace.batches(partition, range(1, 9))
    return trace


CASES = {
    "produce to both partitions: the first checked triggers the fetch": (
        _sole_leaders().fetch([(1, 0), (0, 0)], min_bytes=200).produce({0: 1, 1: 1})
    ),
    "counted fetch: completed by a produce's second partition, triggered by its first": (
        _leaders_with_batches().fetch([(0, 8), (1, 8)], min_bytes=150).produce({0: 9, 1: 9})
    ),
    "counted fetch: enough of one partition, but the same produce enters a new segment of another": (
        _leaders_with_batches().fetch([(0, 8), (1, 8)], min_bytes=50).change(1, "segment_roll", 8).produce({0: 9, 1: 9})
    ),
    "produce to three partitions: the fetch leaves all lists": (
        _sole_leaders(3).fetch([(2, 0), (1, 0), (0, 0)], min_bytes=300).produce({0: 1, 1: 1, 2: 1}).at(700)
    ),
    "trigger is not a partition of the previous produce": (
        _sole_leaders(4)
        .produce({2: 1, 3: 1}).fetch([(2, 1), (0, 0), (1, 0)], min_bytes=200).produce({0: 1, 1: 1})
    ),
    "enough partitions for prefetching keys": (
        _sole_leaders(130).fetch([(129, 0), (3, 0)], min_bytes=100).produce({129: 1})
    ),
    "timeouts of minutes and hours": (
        _sole_leaders()
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=400_000).fetch([(0, 0)], min_bytes=10, max_wait_ms=9_000_000)
        .produce({1: 4}, timeout_ms=3_200_000).change(1, "leader", **_WITH_A_FOLLOWER)
        .produce({1: 5}, timeout_ms=500_000)
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=70_000).at(500_000)
    ),
    "log truncated twice within its only batch": (
        _Trace().change(0, "log_end", 9, bytes=100).change(0, "truncate", 5).change(0, "truncate", 3)
        .change(0, "high_watermark", 3).fetch([(0, 0)], min_bytes=1)
    ),
    "fetch names a partition twice": _sole_leaders().fetch([(0, 0), (0, 0)], min_bytes=300).produce({0: 1}),
    "expired fetch that names a partition twice is one dead entry": (
        _sole_leaders().fetch([(0, 0), (0, 0), (1, 0)], min_bytes=300, max_wait_ms=5).at(300).produce({0: 1}).at(600)
    ),
    "another produce settles both partitions of a truncated produce": (
        _Trace()
        .change(0, "leader", **_WITH_A_FOLLOWER).change(0, "log_end", 0).change(0, "replica_end", 0, replica_id=1)
        .change(1, "leader", **_WITH_A_FOLLOWER).change(1, "log_end", 0).change(1, "replica_end", 0, replica_id=1)
        .produce({1: 4, 0: 4})
        .change(0, "truncate", 1).change(1, "truncate", 1)
        .change(0, "replica_end", 20, replica_id=1).change(1, "replica_end", 20, replica_id=1)
        .produce({0: 6, 1: 6})
    ),
    "counted fetch up to the last stable offset, completed by any check": (
        _Trace()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .change(0, "last_stable", 2).change(1, "last_stable", 2)
        .fetch([(0, 2), (1, 2)], min_bytes=250, isolation="read_committed")
        .change(0, "last_stable", 4).change(1, "last_stable", 5)
        .change(0, "high_watermark", 5)
    ),
    "counted fetch up to the high watermark": (
        _Trace()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .change(0, "high_watermark", 2).change(1, "high_watermark", 2)
        .fetch([(0, 2), (1, 2)], min_bytes=250)
        .change(0, "high_watermark", 4).change(1, "high_watermark", 5)
    ),
    "two counted followers: one expires, one completes": (
        _Trace()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=1)
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=2, max_wait_ms=5)
        .at(50).batches(0, range(9, 11)).batches(1, range(9, 11))
    ),
    "delete-records up to an unknown high watermark": (
        _Trace().change(0, "log_start", 0).delete(0, -1).delete(0, 1).change(0, "log_start", 1)
    ),
    "last stable offset enters a new segment; a check of another partition completes the fetch": (
        _leaders_with_batches().change(0, "last_stable", 8).change(1, "last_stable", 8)
        .fetch([(0, 8), (1, 8)], min_bytes=5_000, isolation="read_committed")
        .change(0, "segment_roll", 8).change(0, "log_end", 9, bytes=100).change(0, "last_stable", 9)
        .change(1, "log_end", 9, bytes=100)
    ),
    "create-topics without a timeout": _Trace().create("t", 0).change(0, "leader", leader_epoch=1).create("t", 0),
    "high watermark of an otherwise unknown log": (
        _Trace()
        .change(0, "high_watermark", 5)
        .fetch([(0, 5)], min_bytes=100)
        .change(0, "log_end", 5, bytes=500).change(0, "high_watermark", 5)
        .change(0, "log_end", 9, bytes=500).change(0, "high_watermark", 9)
    ),
    "fetch offset on a later segment than the high watermark": (
        _Trace().batches(0, range(1, 9)).change(0, "high_watermark", 6).change(0, "segment_roll", 4)
        .fetch([(0, 4)], min_bytes=1)
    ),
    "one of two waiting followers is throttled": (
        _Trace()
        .batches(0, range(1, 9))
        .fetch([(0, 8)], min_bytes=1, replica_id=1).fetch([(0, 8)], min_bytes=1, replica_id=2)
        .change(0, "throttled", replica_id=1).change(0, "log_end", 9, bytes=100)
    ),
    "a throttled follower's next fetch is throttled as well": (
        _leaders_with_batches()
        .change(0, "throttled", replica_id=1)
        .fetch([(0, 8), (1, 8)], min_bytes=1, replica_id=1).fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=2)
        .change(0, "log_end", 9, bytes=100).change(1, "log_end", 9, bytes=100).change(0, "log_end", 10, bytes=100)
    ),
    "fetch offset beyond the end, with a throttled partition behind it": (
        _leaders_with_batches().change(1, "throttled", replica_id=1).fetch([(0, 99), (1, 7)], min_bytes=1, replica_id=1)
    ),
    "consumer redirected to a preferred replica for one partition": (
        _leaders_with_batches().fetch([(0, 4), (1, 7)], min_bytes=5_000, redirected=0)
    ),
    "broker stops: indexed and fully checked fetches, and a half-settled produce": (
        _Trace()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .fetch([(0, 8), (1, 8)], min_bytes=5_000, replica_id=1).fetch([(1, 8)], min_bytes=1, replica_id=2)
        .change(0, "segment_roll", 8)
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=3).fetch([(0, 9), (0, 9)], min_bytes=1)
        .produce({0: 9, 1: 9}).change(0, "high_watermark", 9)
        .change(0, "stopped").change(1, "stopped").change(1, "stopped")
        .at(300).change(0, "leader").fetch([(0, 9)], min_bytes=1).change(0, "stopped")
    ),
    "broker stops: create-topics there, dead entries, and create-topics at other brokers": (
        _Trace()
        .create("t", 5).create("t", 5, broker=1).at(900)
        .create("t", 900).create("t", 900, broker=1).create("t", 900, broker=2).create("u", 900).produce({1: 9})
        .change(0, "stopped").create("t", 300).change(0, "stopped").at(1500).change(0, "leader")
    ),
    "purged dead watchers of a topic are not removed again by a stop": (
        _Trace().create("t", 5).create("u", 5).at(900).create("u", 300).at(1100).change(0, "stopped").at(3000)
    ),
    "purged dead watchers of a topic are not removed again by a leader": (
        _Trace()
        .create("t", 5).create("u", 5).at(900).create("u", 300).at(1100).change(0, "leader", leader_epoch=1).at(3000)
    ),
    "create-topics of a topic that was deleted after it had a leader": (
        _Trace().change(0, "leader", leader_epoch=1).create("t", 300).change(0, "deleted").create("t", 300).at(900)
    ),
    "two fetches in a bucket of the timer: the earlier completes, the later expires": (
        _sole_leaders().fetch([(0, 0)], min_bytes=10).at(4).fetch([(1, 0)], min_bytes=10, max_wait_ms=501)
        .produce({0: 1}).at(900)
    ),
    "a later deadline is in a lower slot of the timer's wheel": (
        _Trace()
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=5).at(8)
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=9).fetch([(0, 0)], min_bytes=10, max_wait_ms=12).at(900)
    ),
    "three produces that wait for one partition complete one after the other": (
        _Trace()
        .change(0, "leader", **_WITH_A_FOLLOWER).change(0, "log_end", 0).change(0, "replica_end", 0, replica_id=1)
        .produce({0: 1}).produce({0: 2}).produce({0: 3})
        .change(0, "replica_end", 1, replica_id=1).change(0, "replica_end", 2, replica_id=1)
        .change(0, "replica_end", 3, replica_id=1)
    ),
    "recorded errors of produces that still wait": (
        _Trace()
        .change(0, "leader", **_WITH_A_FOLLOWER).change(0, "log_end", 0).change(0, "replica_end", 0, replica_id=1)
        .produce({0: 1}, errors={1: "FENCED_LEADER_EPOCH"}).produce({0: 2}, errors={1: "INVALID_RECORD"})
        .produce({0: 3}, errors={2: "CORRUPT_MESSAGE"})
        .change(0, "replica_end", 1, replica_id=1).change(0, "replica_end", 3, replica_id=1)
    ),
    "a topic has lost the leader of its first partition when another gets one": (
        _Trace().change(0, "leader", **_ALONE).change(0, "deleted").change(1, "leader", **_ALONE)
        .create("t", 100, partitions=2).at(200)
    ),
    "a throttled follower gets nothing from before its fetch": (
        _leaders_with_batches().change(0, "throttled", replica_id=1).fetch([(0, 7)], min_bytes=1, replica_id=1)
    ),
    "fetch below the first segment roll, which is later than the high watermark": (
        _Trace().batches(0, range(1, 9)).change(0, "high_watermark", 6).change(0, "segment_roll", 8)
        .fetch([(0, 4)], min_bytes=150)
    ),
    "segment roll of one partition; a fetch of another waits on its second segment": (
        _sole_leaders().batches(0, range(1, 9)).batches(1, range(1, 5)).change(1, "segment_roll", 4)
        .batches(1, range(5, 9)).change(0, "segment_roll", 8).fetch([(1, 5)], min_bytes=450)
        .batches(1, range(9, 11))
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("grouping", "config"),
    [
        pytest.param(by_broker, _CONFIGS[0], id="by_broker-default purge interval"),
        pytest.param(by_partition, _CONFIGS[1], id="by_partition-purge interval 1"),
        pytest.param(by_broker, _CONFIGS[1], id="by_broker-purge interval 1", marks=pytest.mark.nightly),
        pytest.param(by_partition, _CONFIGS[0], id="by_partition-default purge interval", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("trace", CASES.values(), ids=CASES)
def test_case_equals_the_reference(trace: _Trace, grouping: Grouping, config: Config) -> None:
    _assert_equals_reference(trace.events, config, batch=len(trace.events), grouping=grouping)


def _large(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.nightly] if name == "enough partitions for prefetching keys" else []


@pytest.mark.parametrize("trace", [pytest.param(CASES[name], id=name, marks=_large(name)) for name in CASES])
def test_case_in_single_event_batches(trace: _Trace) -> None:
    _assert_equals_reference(trace.events, Config(), batch=1, grouping=by_broker)


# After 1 produce, the last one has the number that the settling produce had among the first call's produces; after 20,
# the number that it had among all events.
@pytest.mark.parametrize("before", [0, 1, 2, 20])
def test_settling_produce_is_of_the_same_call(before: int) -> None:
    """A produce of four partitions is settled by several events in two calls; the last event determines its rule.

    In the first call another produce settles the last partition, and a high watermark the third, with too few replicas
    in sync. In the second call a produce settles the first two, after `before` other produces.
    """
    trace = _Trace()
    for partition in (0, 1, 3):
        trace.change(partition, "leader", **_WITH_A_FOLLOWER).change(partition, "log_end", 0)
    trace.change(2, "leader", leader_epoch=1, isr=[0], min_isr=2).change(2, "log_end", 0)
    for partition in (4, 5):
        trace.change(partition, "leader", **_ALONE).change(partition, "log_end", 0)
    trace.produce(dict.fromkeys(range(4), 10), timeout_ms=60_000)
    for partition in (0, 1, 3):
        trace.change(partition, "truncate", 5).change(partition, "isr", isr=[0])
    trace.produce({3: 12, 4: 12}).change(2, "high_watermark", 10)
    first = len(trace.events)
    for end in range(20, 20 + before):
        trace.produce({5: end})
    trace.produce({0: 12, 1: 12})
    engine = Engine(Config(), trace.events[0]["time_us"] // 1000)
    table = event_table(trace.events)
    decided = [*engine.feed(table.slice(0, first)), *engine.feed(table.slice(first)), *engine.drain()]
    tables = Tables.of(decided)
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert outcomes == as_in_tables(drained(trace.events, Config()))
    assert outcomes[0].completed_by == "high_watermark"


def test_stale_watermark_of_an_earlier_call() -> None:
    """A fetch at a high watermark whose position was set before the log was known; another call has its fetch."""
    trace = _Trace().change(0, "high_watermark", 5).change(0, "log_end", 5, bytes=500, batches=1)
    trace.fetch([(0, 5)], min_bytes=100).change(0, "log_end", 9, bytes=400, batches=1).change(0, "high_watermark", 9)
    _assert_equals_reference(trace.at(9).events, Config(), batch=2, grouping=by_broker)
    _assert_equals_reference([{**trace.events[0], "time_us": 0}, *trace.events], Config(), batch=3, grouping=by_broker)


@pytest.mark.parametrize("until_ms", [4_090, 4_130, 4_170])
def test_idle_broker_that_stands_still_purges_later(until_ms: int) -> None:
    """The reaper wakes every 200 ms, counted from the end of the pause."""
    trace = _Trace()
    for partition in (0, 1):
        trace.change(partition, "leader", **_WITH_A_FOLLOWER).change(partition, "log_end", 0)
    trace.produce({0: 1, 1: 1}, 60_000).produce({0: 2, 1: 2}, 60_000).at(3_000).stop(0, until_ms)
    for partition in (0, 1):
        trace.change(partition, "replica_end", 2, replica_id=1)
    trace.at(9_000).stop(1, 10_000)
    _assert_equals_reference(trace.events, _CONFIGS[1], batch=len(trace.events), grouping=by_broker)


def test_old_first_batch_exceeds_the_limit() -> None:
    """Kafka returns a whole first batch despite the limit, which a batch larger than `smallest_limit` allows."""
    trace = _Trace().batches(0, range(1, 9)).change(0, "high_watermark", 8).fetch([(0, 0)], min_bytes=1)
    trace.events[-1]["partitions"][0]["max_bytes"] = 50
    carried = []
    for smallest in (50, 100):
        decided = Engine(Config(), retain_bytes=150, smallest_limit=smallest).feed(event_table(trace.events))
        carried += [answered for each in decided for answered in each.operations["answered_bytes"].tolist()]
    assert carried == [100, 50], "no fetch may have a limit below `smallest_limit`"


def test_oversized_first_batch_leaves_no_negative_limit() -> None:
    """It leaves 0 bytes for the next partition, even if batches may have been merged there."""
    trace = _Trace()
    for partition in (0, 1):
        trace.batches(partition, range(1, 9)).change(partition, "high_watermark", 8)
    trace.fetch([(0, 7), (1, 0)], min_bytes=1)
    trace.events[-1]["max_bytes"] = 60
    decided = Engine(Config(), retain_bytes=150, smallest_limit=100).feed(event_table(trace.events))
    assert [answered for each in decided for answered in each.operations["answered_bytes"].tolist()] == [100]


def test_only_readable_segments_are_kept() -> None:
    """Segments below the log start are dropped, except the last of them."""
    trace = _Trace()
    for base in (8, 16, 24):
        trace.batches(0, range(base - 7, base + 1)).change(0, "segment_roll", base)
    engine = Engine(Config(), retain_bytes=150, smallest_limit=100)
    trace.batches(0, range(25, 26)).change(0, "high_watermark", 25).change(0, "log_start", 23)
    engine.feed(event_table(trace.events))
    (state,) = engine.states.values()
    assert state.rolls["base"].tolist() == [16, 24]


def test_batch_at_the_log_start_is_merged() -> None:
    """The first batch of a segment stays only if the segment starts above the log start."""
    kept = []
    for log_start in (8, 7):
        trace = _Trace().batches(0, range(1, 9)).change(0, "segment_roll", 8).batches(0, range(9, 17))
        engine = Engine(Config(), retain_bytes=150, smallest_limit=100)
        trace.change(0, "high_watermark", 16).change(0, "log_start", log_start)
        engine.feed(event_table(trace.events))
        (state,) = engine.states.values()
        kept.append(state.batches["end"].tolist())
    assert kept == [[15, 16], [7, 8, 9, 15, 16]]


def test_oversized_batch_keeps_start_and_end() -> None:
    trace = _Trace().batches(0, range(1, 4)).batches(0, range(4, 5), size=500).batches(0, range(5, 21))
    engine = Engine(Config(), retain_bytes=300, smallest_limit=300)
    engine.feed(event_table(trace.change(0, "high_watermark", 20).events))
    (state,) = engine.states.values()
    # Its predecessor, itself, its successor (which does not end where the next record starts), and batches in reach.
    assert state.batches["encoded_start"].tolist() == [200, 300, ~800, 2100, 2200, 2300]
    fed = len(trace.events)
    trace.fetch([(0, 3)], min_bytes=1, max_bytes=400).fetch([(0, 4)], min_bytes=1, max_bytes=400)
    answered = [
        answered
        for each in engine.feed(event_table(trace.events[fed:]))
        for answered in each.operations["answered_bytes"]
    ]
    assert answered == [500, 400]
    assert state.batches["encoded_start"].tolist() == [200, 300, ~800, 2100, 2200, 2300]
    fed = len(trace.events)
    trace.batches(0, range(21, 31)).change(0, "high_watermark", 30)
    engine.feed(event_table(trace.events[fed:]))
    assert state.batches["encoded_start"].tolist() == [200, 300, ~800, 3100, 3200, 3300]


def test_batches_without_bytes_are_merged() -> None:
    trace = _Trace().change(0, "log_end", 0).batches(0, range(1, 3))
    trace.change(0, "log_end", 9, bytes=0).change(0, "log_end", 12, bytes=0).batches(0, range(13, 15))
    engine = Engine(Config())
    engine.feed(event_table(trace.events))
    (state,) = engine.states.values()
    starts = state.batches["encoded_start"]
    assert (starts ^ (starts >> 63)).tolist() == [0, 100, 200, 300]
    fed = len(trace.events)
    engine.feed(event_table(trace.change(0, "log_end", 20, bytes=0).change(0, "log_end", 22, bytes=0).events[fed:]))
    assert state.batches["end"].tolist()[-2:] == [14, 22], "the last batch stays, even without bytes"


@pytest.mark.parametrize("seed", range(40))
def test_random_trace_equals_the_reference(seed: int) -> None:
    events = trace_strategies.seeded(seed, trace_strategies.Shape(events=120))
    _assert_equals_reference(events, _CONFIGS[seed % 2], batch=200, grouping=by_broker)


@pytest.mark.parametrize("seed", range(40, 44))
def test_random_trace_in_batches_by_partition(seed: int) -> None:
    events = trace_strategies.seeded(seed)
    _assert_equals_reference(events, _CONFIGS[seed % 2], batch=20, grouping=by_partition)


_REMOTE = [
    Config.model_validate({"remote_fetch": {"max_wait_ms": 40}, "list_offsets": {"request_timeout_ms": 40}}),
    Config.model_validate({"remote_fetch": {"max_wait_ms": None, "reads": "first", "purge_interval": 1}}),
]


# Uncompiled, a seed takes a second or more; these reach every branch.
_TIERED_SEEDS: list[Any] = [0, 9, 23, 31, 36, 46]
if os.environ.get("NUMBA_DISABLE_JIT") != "1":
    _TIERED_SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(10, 60))]


@pytest.mark.parametrize("grouping", [by_broker, by_partition])
@pytest.mark.parametrize("seed", _TIERED_SEEDS)
def test_tiered_trace_equals_the_reference(seed: int, grouping: Grouping) -> None:
    events = trace_strategies.seeded(seed, trace_strategies.Shape((1,), 2, events=200, tiered=True))
    _assert_equals_reference(events, _REMOTE[seed % 2], batch=(20, 400)[seed % 3 == 0], grouping=grouping)


def _tiered_partition() -> _Trace:
    """Return two led partitions of ten batches; the first five batches of partition 0 are only in remote storage."""
    trace = _sole_leaders()
    for partition in (0, 1):
        trace.batches(partition, range(1, 11))
    return trace.change(0, "local_log_start", 5)


def _lookup_of_both(trace: _Trace) -> _Trace:
    parts = [{"topic": "t", "partition": partition, "timestamp": 7} for partition in (0, 1)]
    return trace._add({"type": "list_offsets", "timeout_ms": 500, "isolation": "read_uncommitted", "partitions": parts})


_RARE_TIERED = {
    # The exhausted quota allows no read, so the fetch is an ordinary one, and case C completes it.
    "older segment without a read": _tiered_partition()
    ._add({"type": "remote_quota", "exhausted": True})
    .change(1, "segment_roll", 10)
    .batches(1, range(11, 13))
    .fetch([(0, 2), (1, 4)], 100_000),
    # A waiting fetch becomes one of a tiered offset: its answer leaves no bytes for the other partition, unless the
    # quota is exhausted.
    "waiting fetch turns remote": _sole_leaders()
    .fetch([(0, 0), (1, 0)], 450, max_bytes=250)
    .batches(0, range(1, 3))
    .change(0, "local_log_start", 2)
    .batches(1, range(1, 5)),
    "waiting fetch turns remote, without a quota": _sole_leaders()
    .fetch([(0, 0), (1, 0)], 450, max_bytes=250)
    .batches(0, range(1, 3))
    .change(0, "local_log_start", 2)
    ._add({"type": "remote_quota", "exhausted": True})
    .batches(1, range(1, 5)),
    # Enough bytes precede the preferred replica as the reason.
    "redirected without a read": _tiered_partition()
    ._add({"type": "remote_quota", "exhausted": True})
    .fetch([(0, 2), (1, 4)], 100, redirected=0),
    # The second local partition's first batch does not fit, so bytes are left for the remote read.
    "local partitions first": _sole_leaders(3)
    .batches(0, range(1, 11))
    .batches(1, range(1, 11))
    .batches(2, range(1, 11))
    .change(0, "local_log_start", 5)
    .fetch([(1, 9), (2, 9), (0, 2)], 1, max_bytes=150),
    # The stop cancels a remote fetch that reads one of its partitions locally.
    "stop with a local partition": _tiered_partition().fetch([(0, 2), (1, 4)], 1).change(0, "stopped"),
    # The lookup of partition 0 is answered already when the broker stops, so that of partition 1 continues.
    "stop after the answer": _lookup_of_both(_tiered_partition().change(1, "local_log_start", 5))
    .change(0, "not_leader")
    .change(0, "stopped"),
}


@pytest.mark.parametrize("grouping", [by_broker, by_partition])
@pytest.mark.parametrize("reads", ["all", "first"])
@pytest.mark.parametrize("name", _RARE_TIERED)
def test_rare_tiered_trace_equals_the_reference(name: str, reads: str, grouping: Grouping) -> None:
    config = Config.model_validate({"remote_fetch": {"reads": reads}})
    _assert_equals_reference(_RARE_TIERED[name].events, config, batch=400, grouping=grouping)

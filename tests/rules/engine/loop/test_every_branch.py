"""Traces that together reach every branch of the loop's rules: `.ci/branches` runs them uncompiled, and counts.

Random ones from fixed seeds reach most; the others are made by hand, each for a corner that chance hardly meets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.key_shards import GroupOf, by_broker, by_partition
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.purgatory.clock import gauge_changes
from tests.rules.engine.loop.loop_gauges import gauges_of
from tests.rules.engine.loop.test_against_reference import as_in_tables, drained
from tests.support import trace_strategies
from tests.support.outcome_rows import outcomes_of

Event = dict[str, Any]

_OFTEN_PURGED = {kind: {"purge_interval": 1} for kind in ("produce", "fetch", "delete_records", "create_topics")}
_CONFIGS = [Config(), Config.model_validate(_OFTEN_PURGED)]


def _same_as_the_reference(events: list[Event], config: Config, batch: int, grouping: GroupOf) -> None:
    expected = drained(events, config)
    engine = Engine(config, min(event["time_us"] for event in events) // 1000, grouping, through_bytes=True)
    table = event_table(events)
    borders = [*range(0, len(table), batch), len(table)]
    decided = [each for a, b in pairwise(borders) for each in engine.feed(table.slice(a, b - a))] + engine.drain()
    tables = Tables.of(decided)
    assert outcomes_of(tables.completions, tables.expirations, tables.cancellations) == as_in_tables(expected)
    assert gauges_of(decided, expected.end_ms) == gauge_changes(expected.gauges)


class _Story:
    """Events one millisecond after the other, of broker 0, topic `t`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def at(self, ms: int) -> _Story:
        self._add({"type": "clock"})
        self.events[-1]["time_us"] = ms * 1000
        return self

    def change(self, partition: int, change: str, offset: int | None = None, **more: Any) -> _Story:
        at_offset = {} if offset is None else {"offset": offset}
        return self._add(
            {"type": "partition", "topic": "t", "partition": partition, "change": change} | at_offset | more
        )

    def batches(self, partition: int, ends: range, size: int = 100) -> _Story:
        for end in ends:
            self.change(partition, "log_end", end, bytes=size, batches=1)
        return self

    def produce(self, ends: dict[int, int], timeout_ms: int = 500) -> _Story:
        parts = [
            {"topic": "t", "partition": p, "base_offset": e - 1, "last_offset": e - 1, "bytes": 100}
            for p, e in ends.items()
        ]
        return self._add({"type": "produce", "acks": -1, "timeout_ms": timeout_ms, "partitions": parts})

    def fetch(self, asked: list[tuple[int, int]], min_bytes: int, elsewhere: int | None = None, **more: Any) -> _Story:
        """`elsewhere`: the partition that is to be read from another replica."""
        parts: list[Event] = [
            {"topic": "t", "partition": p, "fetch_offset": offset, "max_bytes": 10_000}
            | ({"preferred_replica": 2} if p == elsewhere else {})
            for p, offset in asked
        ]
        event = {"type": "fetch", "replica_id": -1, "max_wait_ms": 500, "min_bytes": min_bytes, "max_bytes": 1 << 20}
        return self._add(event | {"isolation": "read_uncommitted", "partitions": parts} | more)

    def delete(self, partition: int, before: int) -> _Story:
        asked = [{"topic": "t", "partition": partition, "offset": before}]
        return self._add({"type": "delete_records", "timeout_ms": 500, "partitions": asked})

    def create(self, topic: str, timeout_ms: int, broker: int = 0) -> _Story:
        topics = [{"topic": topic, "partitions": 1}]
        return self._add({"type": "create_topics", "timeout_ms": timeout_ms, "topics": topics, "broker": broker})

    def _add(self, event: Event) -> _Story:
        last_us = self.events[-1]["time_us"] if self.events else 0
        seq = len(self.events) + 1
        self.events.append({"time_us": last_us + 1000, "seq": seq, "broker": 0, "request_id": f"r{seq}"} | event)
        return self


# A leader that is alone in sync: every append moves the high watermark at once.
_ALONE: dict[str, Any] = {"leader_epoch": 1, "isr": [0], "min_isr": 1}
_WITH_A_FOLLOWER: dict[str, Any] = {"leader_epoch": 1, "isr": [0, 1], "min_isr": 1}


def _sole_leaders(partitions: int = 2) -> _Story:
    story = _Story()
    for partition in range(partitions):
        story.change(partition, "leader", **_ALONE).change(partition, "log_end", 0)
    return story


def _led_with_batches() -> _Story:
    story = _sole_leaders()
    for partition in (0, 1):
        story.batches(partition, range(1, 9))
    return story


STORIES = {
    "a fetch that a produce to both of its partitions completes was triggered by the first that was checked": (
        _sole_leaders().fetch([(1, 0), (0, 0)], min_bytes=200).produce({0: 1, 1: 1})
    ),
    "a fetch whose bytes are counted is completed by the second of a produce's partitions, triggered by the first": (
        _led_with_batches().fetch([(0, 8), (1, 8)], min_bytes=150).produce({0: 9, 1: 9})
    ),
    "a fetch whose bytes are counted has enough of one partition, but the same produce took another to a new segment": (
        _led_with_batches().fetch([(0, 8), (1, 8)], min_bytes=50).change(1, "segment_roll", 8).produce({0: 9, 1: 9})
    ),
    "a fetch that a produce to its three partitions completes is on none of their lists": (
        _sole_leaders(3).fetch([(2, 0), (1, 0), (0, 0)], min_bytes=300).produce({0: 1, 1: 1, 2: 1}).at(700)
    ),
    "a fetch that a produce completes was not triggered by a partition of the produce before it": (
        _sole_leaders(4)
        .produce({2: 1, 3: 1}).fetch([(2, 1), (0, 0), (1, 0)], min_bytes=200).produce({0: 1, 1: 1})
    ),
    "so many partitions that keys of events to come are brought near": (
        _sole_leaders(130).fetch([(129, 0), (3, 0)], min_bytes=100).produce({129: 1})
    ),
    "time-outs of minutes and hours": (
        _sole_leaders()
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=400_000).fetch([(0, 0)], min_bytes=10, max_wait_ms=9_000_000)
        .produce({1: 4}, timeout_ms=3_200_000).change(1, "leader", **_WITH_A_FOLLOWER)
        .produce({1: 5}, timeout_ms=500_000)
        .fetch([(0, 0)], min_bytes=10, max_wait_ms=70_000).at(500_000)
    ),
    "a log that was cut back within its only batch is cut back again": (
        _Story().change(0, "log_end", 9, bytes=100).change(0, "truncate", 5).change(0, "truncate", 3)
        .change(0, "high_watermark", 3).fetch([(0, 0)], min_bytes=1)
    ),
    "a fetch that names a partition twice": _sole_leaders().fetch([(0, 0), (0, 0)], min_bytes=300).produce({0: 1}),
    "a fetch that names a partition twice is one of its list's dead, until that is walked": (
        _sole_leaders().fetch([(0, 0), (0, 0), (1, 0)], min_bytes=300, max_wait_ms=5).at(300).produce({0: 1}).at(600)
    ),
    "another's produce settles both partitions of a produce whose records were truncated": (
        _Story()
        .change(0, "leader", **_WITH_A_FOLLOWER).change(0, "log_end", 0).change(0, "replica_end", 0, replica_id=1)
        .change(1, "leader", **_WITH_A_FOLLOWER).change(1, "log_end", 0).change(1, "replica_end", 0, replica_id=1)
        .produce({1: 4, 0: 4})
        .change(0, "truncate", 1).change(1, "truncate", 1)
        .change(0, "replica_end", 20, replica_id=1).change(1, "replica_end", 20, replica_id=1)
        .produce({0: 6, 1: 6})
    ),
    "bytes are counted up to a last stable offset that rises unseen, until any check completes the fetch": (
        _Story()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .change(0, "last_stable", 2).change(1, "last_stable", 2)
        .fetch([(0, 2), (1, 2)], min_bytes=250, isolation="read_committed")
        .change(0, "last_stable", 4).change(1, "last_stable", 5)
        .change(0, "high_watermark", 5)
    ),
    "bytes are counted up to a high watermark": (
        _Story()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .change(0, "high_watermark", 2).change(1, "high_watermark", 2)
        .fetch([(0, 2), (1, 2)], min_bytes=250)
        .change(0, "high_watermark", 4).change(1, "high_watermark", 5)
    ),
    "of two followers whose bytes are counted, one gives up and the other has enough": (
        _Story()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=1)
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=2, max_wait_ms=5)
        .at(50).batches(0, range(9, 11)).batches(1, range(9, 11))
    ),
    "everything below a high watermark that is not known is deleted where a log starts at 0": (
        _Story().change(0, "log_start", 0).delete(0, -1).delete(0, 1).change(0, "log_start", 1)
    ),
    "a last stable offset rises unseen into a new segment, and a check of another partition completes the fetch": (
        _led_with_batches().change(0, "last_stable", 8).change(1, "last_stable", 8)
        .fetch([(0, 8), (1, 8)], min_bytes=5_000, isolation="read_committed")
        .change(0, "segment_roll", 8).change(0, "log_end", 9, bytes=100).change(0, "last_stable", 9)
        .change(1, "log_end", 9, bytes=100)
    ),
    "topics that nobody waits for": _Story().create("t", 0).change(0, "leader", leader_epoch=1).create("t", 0),
    "a high watermark of a log of which nothing else is known yet": (
        _Story()
        .change(0, "high_watermark", 5)
        .fetch([(0, 5)], min_bytes=100)
        .change(0, "log_end", 5, bytes=500).change(0, "high_watermark", 5)
        .change(0, "log_end", 9, bytes=500).change(0, "high_watermark", 9)
    ),
    "a read that begins on a later segment than the high watermark was said to be on": (
        _Story().batches(0, range(1, 9)).change(0, "high_watermark", 6).change(0, "segment_roll", 4)
        .fetch([(0, 4)], min_bytes=1)
    ),
    "a follower that waits is held back, and another is not": (
        _Story()
        .batches(0, range(1, 9))
        .fetch([(0, 8)], min_bytes=1, replica_id=1).fetch([(0, 8)], min_bytes=1, replica_id=2)
        .change(0, "throttled", replica_id=1).change(0, "log_end", 9, bytes=100)
    ),
    "a follower's next fetch is held back on a partition, too, and carries nothing of it; another's is not": (
        _led_with_batches()
        .change(0, "throttled", replica_id=1)
        .fetch([(0, 8), (1, 8)], min_bytes=1, replica_id=1).fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=2)
        .change(0, "log_end", 9, bytes=100).change(1, "log_end", 9, bytes=100).change(0, "log_end", 10, bytes=100)
    ),
    "a fetch begins beyond the end of one partition, and on the one behind it the follower is held back": (
        _led_with_batches().change(1, "throttled", replica_id=1).fetch([(0, 99), (1, 7)], min_bytes=1, replica_id=1)
    ),
    "a consumer that is told to read one of its partitions elsewhere is given nothing of that": (
        _led_with_batches().fetch([(0, 4), (1, 7)], min_bytes=5_000, elsewhere=0)
    ),
    "a broker stops where fetches of one and two partitions wait, odd ones too, and a produce that is half done": (
        _Story()
        .batches(0, range(1, 9)).batches(1, range(1, 9))
        .fetch([(0, 8), (1, 8)], min_bytes=5_000, replica_id=1).fetch([(1, 8)], min_bytes=1, replica_id=2)
        .change(0, "segment_roll", 8)
        .fetch([(0, 8), (1, 8)], min_bytes=250, replica_id=3).fetch([(0, 9), (0, 9)], min_bytes=1)
        .produce({0: 9, 1: 9}).change(0, "high_watermark", 9)
        .change(0, "stopped").change(1, "stopped").change(1, "stopped")
        .at(300).change(0, "leader").fetch([(0, 9)], min_bytes=1).change(0, "stopped")
    ),
    "a broker stops where creations wait, and some have ended unnoticed; others wait at other brokers": (
        _Story()
        .create("t", 5).create("t", 5, broker=1).at(900)
        .create("t", 900).create("t", 900, broker=1).create("t", 900, broker=2).create("u", 900).produce({1: 9})
        .change(0, "stopped").create("t", 300).change(0, "stopped").at(1500).change(0, "leader")
    ),
    "dead watchers of a topic that a purge has taken are not taken again by its broker's stop": (
        _Story().create("t", 5).create("u", 5).at(900).create("u", 300).at(1100).change(0, "stopped").at(3000)
    ),
    "dead watchers of a topic that a purge has taken are not taken again by its leader": (
        _Story()
        .create("t", 5).create("u", 5).at(900).create("u", 300).at(1100).change(0, "leader", leader_epoch=1).at(3000)
    ),
}  # fmt: skip


@pytest.mark.parametrize("config", _CONFIGS, ids=["purged seldom", "purged often"])
@pytest.mark.parametrize("grouping", [by_broker, by_partition])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_ends_as_in_the_reference(story: _Story, grouping: GroupOf, config: Config) -> None:
    _same_as_the_reference(story.events, config, batch=len(story.events), grouping=grouping)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_that_is_told_event_by_event_ends_no_otherwise(story: _Story) -> None:
    _same_as_the_reference(story.events, Config(), batch=1, grouping=by_broker)


# Both calls' events have the same number after one produce, if produces are counted, or 20, if all events are.
@pytest.mark.parametrize("before", [0, 1, 2, 20])
def test_what_settled_a_part_in_an_earlier_call_is_no_event_of_this_one(before: int) -> None:
    """A produce of four partitions: another produce settles the last, a watermark the third, too few being in sync, and
    one more, in the second call and after so many others, the first two. It is called what these were."""
    story = _Story()
    for partition in (0, 1, 3):
        story.change(partition, "leader", **_WITH_A_FOLLOWER).change(partition, "log_end", 0)
    story.change(2, "leader", leader_epoch=1, isr=[0], min_isr=2).change(2, "log_end", 0)
    for partition in (4, 5):
        story.change(partition, "leader", **_ALONE).change(partition, "log_end", 0)
    story.produce(dict.fromkeys(range(4), 10), timeout_ms=60_000)
    for partition in (0, 1, 3):
        story.change(partition, "truncate", 5).change(partition, "isr", isr=[0])
    story.produce({3: 12, 4: 12}).change(2, "high_watermark", 10)
    first = len(story.events)
    for end in range(20, 20 + before):
        story.produce({5: end})
    story.produce({0: 12, 1: 12})
    engine = Engine(Config(), story.events[0]["time_us"] // 1000)
    table = event_table(story.events)
    decided = [*engine.feed(table.slice(0, first)), *engine.feed(table.slice(first)), *engine.drain()]
    tables = Tables.of(decided)
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert outcomes == as_in_tables(drained(story.events, Config()))
    assert outcomes[0].completed_by == "high_watermark"


def test_of_a_batch_too_far_behind_to_be_known_by_itself_an_answer_carries_as_much_as_the_limit() -> None:
    """Kafka's first batch comes whole, whatever the limit; batches that far behind may have been merged."""
    story = _Story().batches(0, range(1, 9)).change(0, "high_watermark", 8).fetch([(0, 0)], min_bytes=1)
    story.events[-1]["partitions"][0]["max_bytes"] = 50
    carried = []
    for retained in (150, 1_000):
        decided = Engine(Config(), retain_bytes=retained).feed(event_table(story.events))
        carried += [answered for each in decided for answered in each.operations["answered"].tolist()]
    assert carried == [50, 100]


def test_behind_a_first_batch_that_is_larger_than_the_limit_such_a_batch_takes_nothing_back() -> None:
    story = _Story()
    for partition in (0, 1):
        story.batches(partition, range(1, 9)).change(partition, "high_watermark", 8)
    story.fetch([(0, 7), (1, 0)], min_bytes=1)
    story.events[-1]["max_bytes"] = 60
    decided = Engine(Config(), retain_bytes=150).feed(event_table(story.events))
    assert [answered for each in decided for answered in each.operations["answered"].tolist()] == [100]


def test_segments_that_lie_too_far_behind_are_forgotten_but_the_last_of_them() -> None:
    story = _Story()
    for base in (8, 16, 24):
        story.batches(0, range(base - 7, base + 1)).change(0, "segment_roll", base)
    engine = Engine(Config(), retain_bytes=150)
    engine.feed(event_table(story.batches(0, range(25, 26)).change(0, "high_watermark", 25).events))
    (state,) = engine.states.values()
    assert state.rolls["base"].tolist() == [16, 24]


def test_of_a_batch_larger_than_any_fetch_it_stays_known_where_it_begins_and_where_it_ends() -> None:
    story = _Story().batches(0, range(1, 4)).batches(0, range(4, 5), size=500).batches(0, range(5, 21))
    engine = Engine(Config(), retain_bytes=300)
    engine.feed(event_table(story.change(0, "high_watermark", 20).events))
    (state,) = engine.states.values()
    # The one before it, itself, the one behind it (which does not end where the next begins), and what is near.
    assert state.batches["turned"].tolist() == [200, 300, ~800, 2100, 2200, 2300]
    told = len(story.events)
    story.fetch([(0, 3)], min_bytes=1, max_bytes=400).fetch([(0, 4)], min_bytes=1, max_bytes=400)
    answered = [
        answered for each in engine.feed(event_table(story.events[told:])) for answered in each.operations["answered"]
    ]
    assert answered == [500, 400]
    assert state.batches["turned"].tolist() == [200, 300, ~800, 2100, 2200, 2300]
    told = len(story.events)
    story.batches(0, range(21, 31)).change(0, "high_watermark", 30)
    engine.feed(event_table(story.events[told:]))
    assert state.batches["turned"].tolist() == [200, 300, ~800, 3100, 3200, 3300]


def test_of_batches_without_bytes_none_is_remembered_beside_another() -> None:
    story = _Story().change(0, "log_end", 0).batches(0, range(1, 3))
    story.change(0, "log_end", 9, bytes=0).change(0, "log_end", 12, bytes=0).batches(0, range(13, 15))
    engine = Engine(Config())
    engine.feed(event_table(story.events))
    (state,) = engine.states.values()
    begins = state.batches["turned"]
    assert (begins ^ (begins >> 63)).tolist() == [0, 100, 200, 300]


@pytest.mark.parametrize("seed", range(40))
def test_a_random_trace_ends_as_in_the_reference(seed: int) -> None:
    events = trace_strategies.seeded(seed, trace_strategies.Shape(events=120))
    _same_as_the_reference(events, _CONFIGS[seed % 2], batch=200, grouping=by_broker)


@pytest.mark.parametrize("seed", range(40, 44))
def test_so_it_does_in_batches_and_by_partition(seed: int) -> None:
    events = trace_strategies.seeded(seed)
    _same_as_the_reference(events, _CONFIGS[seed % 2], batch=20, grouping=by_partition)

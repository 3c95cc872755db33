"""The answer of a fetch: partitions in order, under a byte limit that shrinks with each read."""

from __future__ import annotations

from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import fetch
from tests.rules.reference.timeline import Timeline

BATCH = 100


def cluster() -> Cluster:
    """Return a cluster with partitions a, b and c of three batches of 100 bytes and two records each."""
    made = Cluster(Config(), 0)
    for topic in "abc":
        replica = made.broker(0).replica(TopicPartition(topic, 0))
        for end in (2, 4, 6):
            replica.append(end, BATCH, True)
    return made


def read(parts: dict[str, Any], max_bytes: int = 10_000, made: Cluster | None = None) -> list[tuple[int, int]]:
    made = made or cluster()
    (event,) = Timeline().fetch(1, "f", 10, 1, parts, replica_id=2, max_bytes=max_bytes).events
    return sizes(fetch(made, event))


def sizes(operation: Any) -> list[tuple[int, int]]:
    return [(each.bytes, each.next_offset) for each in operation.reads]


def test_partitions_are_read_in_order_up_to_limit() -> None:
    assert read({"a": 0, "b": 2, "c": 0}, max_bytes=550) == [(300, 6), (200, 6), (0, 0)]


def test_partition_has_its_own_limit() -> None:
    assert read({"a": {"fetch_offset": 0, "max_bytes": 250}, "b": 0}) == [(250, 4), (300, 6)]


def test_first_partition_with_data_returns_one_batch() -> None:
    assert read({"a": 6, "b": 0, "c": 0}, max_bytes=1) == [(0, 6), (100, 2), (0, 0)]
    assert read({"a": {"fetch_offset": 0, "max_bytes": 1}, "b": 0}, max_bytes=150) == [(100, 2), (0, 0)]


def test_partition_in_error_or_throttled_returns_nothing() -> None:
    assert read({"a": 99, "b": {"fetch_offset": 0, "throttled": True}, "c": 4}) == [(0, 99), (0, 0), (100, 6)]


def test_consumer_reads_to_high_watermark() -> None:
    made = cluster()
    made.broker(0).replica(TopicPartition("a", 0)).set_high_watermark(4)
    (event,) = Timeline().fetch(1, "f", 10, 1, {"a": 0, "b": 0}).events
    assert sizes(fetch(made, event)) == [(200, 4), (0, 0)]


def test_callback_is_called_when_fetch_expires() -> None:
    made = cluster()
    answered: list[Any] = []
    (event,) = Timeline().fetch(1, "f", 10, 500, {"a": 0}, replica_id=2).events
    waiting = fetch(made, event, answered.append)
    assert answered == []
    made.clock.advance_to(11)
    assert answered == [waiting]
    assert (waiting.expired, waiting.readable_bytes()) == (True, 300)

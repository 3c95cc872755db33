"""Partition assignors, and consumers that poll with a timeout of 0.

Kafka: `RangeAssignor.assign`, `RoundRobinAssignor.assign`; `GroupMetadata.selectProtocol` selects a group's protocol.
`KafkaConsumer.poll(0)` returns the records that have arrived and sends the next fetches, without waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.fetchers import assign_ranges, assign_round_robin
from purgatory_udf.simulation.scenario import Scenario
from tests.simulation.test_clients import events, run_scenario

THREE = [TopicPartition(topic, at) for topic in ("u", "t") for at in range(3)]
TWO_TOPICS = [{"name": "t", "partitions": 3}, {"name": "u", "partitions": 3}]


def _named(keys: Iterable[TopicPartition]) -> list[str]:
    return [str(key) for key in keys]


def test_range_and_round_robin_assignments() -> None:
    ranges, round_robin = (assign(THREE, ("b", "a")) for assign in (assign_ranges, assign_round_robin))
    assert {member: _named(keys) for member, keys in ranges.items()} == {
        "a": ["u-0", "u-1", "t-0", "t-1"],
        "b": ["u-2", "t-2"],
    }
    assert {member: _named(keys) for member, keys in round_robin.items()} == {
        "a": ["t-0", "t-2", "u-1"],
        "b": ["t-1", "u-0", "u-2"],
    }


def _read_by(simulated: SimulationResult, since_s: float) -> dict[str, set[str]]:
    began_us = simulated.events[0]["time_us"]
    read: dict[str, set[str]] = {}
    for event in events(simulated, "fetch", "reader"):
        if event["time_us"] - began_us > since_s * 1_000_000:
            keys = (f"{part['topic']}-{part['partition']}" for part in event["partitions"])
            read.setdefault(event["client_id"], set()).update(keys)
    return read


@pytest.mark.parametrize(
    ("second", "shares"),
    [(["roundrobin"], [3, 3]), (["range", "roundrobin"], [3, 3])],
    ids=["same list", "one supports range too"],
)
def test_group_uses_common_assignor(second: list[str], shares: list[int]) -> None:
    common = {"topics": ["t", "u"], "group": "g"}
    readers: list[dict[str, Any]] = [
        {"name": "reader-x", "assignors": ["roundrobin"], **common},
        {"name": "reader-y", "assignors": second, **common},
    ]
    by_reader = _read_by(run_scenario(8, topics=TWO_TOPICS, consumers=readers), since_s=6)
    assert sorted(map(len, by_reader.values())) == shares
    assert len(set().union(*by_reader.values())) == 6, "no partition is assigned twice"


def test_default_assignor_is_range() -> None:
    by_reader = _read_by(
        run_scenario(8, topics=TWO_TOPICS, consumers=[{"name": "reader", "count": 2, "topics": ["t", "u"]}]), 6
    )
    assert sorted(map(len, by_reader.values())) == [2, 4]


WRITER = {"name": "writer", "topics": ["orders"], "rate": 20}
POLLS = {"name": "reader", "topics": ["orders"], "start_within_s": 0, "reset": "earliest"}


def test_poll_zero_reads_all_records() -> None:
    """The fetches still wait at the broker."""
    waiting, polling = (
        run_scenario(8, producers=[WRITER], consumers=[{**POLLS, **more}])
        for more in ({}, {"poll_timeout_ms": 0, "idle_ms": 20})
    )
    for simulated in (waiting, polling):
        (reader,) = simulated.instances
        delivered = sum(producer.delivery.delivered for producer in simulated.producers)
        assert reader.records > 0.9 * delivered > 100
    fetches = [outcome for outcome in polling.truth.outcomes if outcome.fetcher == "consumer"]
    assert sum(outcome.watched for outcome in fetches) > 20, "poll(0) does not wait, but its fetches do"
    assert not any(
        outcome.kind == "heartbeat" and outcome.expired
        for outcome in polling.truth.outcomes
        if not _after(polling, outcome)
    )


def _after(simulated: SimulationResult, outcome: Any) -> bool:
    return bool(outcome.ended_us > simulated.events[-1]["time_us"])


def test_poll_timeout_zero_needs_idle_time() -> None:
    consumers = [{"name": "c", "topics": ["orders"], "poll_timeout_ms": 0}]
    with pytest.raises(ValueError, match="poll_timeout_ms 0 needs an idle_ms"):
        Scenario.model_validate({"shows": "x", "topics": [{"name": "orders"}], "consumers": consumers})
    with pytest.raises(ValueError, match="assignors"):
        Scenario.model_validate({"shows": "x", "consumers": [{"name": "c", "assign": {}, "assignors": []}]})
    assert ClosedLoop(Scenario.model_validate({"shows": "x", "duration_s": 1})).run().events == []

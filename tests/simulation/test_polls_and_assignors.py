"""How a group shares out its partitions, and consumers that poll without waiting.

Kafka: `RangeAssignor.assign`, `RoundRobinAssignor.assign`; a group's protocol is `GroupMetadata.selectProtocol`;
`KafkaConsumer.poll(0)` makes one round: what has come is handed over, what is missing is sent for, nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.consumer_fetcher import assign_ranges, assign_round_robin
from purgatory_udf.simulation.scenario import Scenario
from tests.simulation.test_clients import events, play

THREE = [TopicPartition(topic, at) for topic in ("u", "t") for at in range(3)]
TWO_TOPICS = [{"name": "t", "partitions": 3}, {"name": "u", "partitions": 3}]


def _named(keys: Iterable[TopicPartition]) -> list[str]:
    return [str(key) for key in keys]


def test_ranges_give_the_first_more_of_every_topic_and_turns_go_round_all_of_them() -> None:
    ranges, turns = (assign(THREE, ("b", "a")) for assign in (assign_ranges, assign_round_robin))
    assert {member: _named(keys) for member, keys in ranges.items()} == {
        "a": ["u-0", "u-1", "t-0", "t-1"],
        "b": ["u-2", "t-2"],
    }
    assert {member: _named(keys) for member, keys in turns.items()} == {
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
    ids=["all alike", "one knows another as well"],
)
def test_a_group_takes_the_assignor_that_all_its_members_know(second: list[str], shares: list[int]) -> None:
    common = {"topics": ["t", "u"], "group": "g"}
    readers: list[dict[str, Any]] = [
        {"name": "reader-x", "assignors": ["roundrobin"], **common},
        {"name": "reader-y", "assignors": second, **common},
    ]
    by_reader = _read_by(play(8, topics=TWO_TOPICS, consumers=readers), since_s=6)
    assert sorted(map(len, by_reader.values())) == shares
    assert len(set().union(*by_reader.values())) == 6, "each has its own"


def test_by_default_it_is_ranges() -> None:
    by_reader = _read_by(
        play(8, topics=TWO_TOPICS, consumers=[{"name": "reader", "count": 2, "topics": ["t", "u"]}]), 6
    )
    assert sorted(map(len, by_reader.values())) == [2, 4]


WRITER = {"name": "writer", "topics": ["orders"], "rate": 20}
POLLS = {"name": "reader", "topics": ["orders"], "start_within_s": 0, "reset": "earliest"}


def test_who_polls_without_waiting_reads_as_much_and_fetches_wait_at_the_broker_all_the_same() -> None:
    waiting, hasty = (
        play(8, producers=[WRITER], consumers=[{**POLLS, **more}])
        for more in ({}, {"poll_timeout_ms": 0, "idle_ms": 20})
    )
    for simulated in (waiting, hasty):
        (reader,) = simulated.instances
        delivered = sum(producer.delivery.delivered for producer in simulated.producers)
        assert reader.records > 0.9 * delivered > 100
    fetches = [outcome for outcome in hasty.truth.outcomes if outcome.fetcher == "consumer"]
    assert sum(outcome.watched for outcome in fetches) > 20, "poll(0) does not wait, its fetches do"
    assert not any(
        outcome.kind == "heartbeat" and outcome.expired
        for outcome in hasty.truth.outcomes
        if not _after(hasty, outcome)
    )


def _after(simulated: SimulationResult, outcome: Any) -> bool:
    return bool(outcome.ended_us > simulated.events[-1]["time_us"])


def test_polls_that_wait_for_nothing_need_something_between_them() -> None:
    consumers = [{"name": "c", "topics": ["orders"], "poll_timeout_ms": 0}]
    with pytest.raises(ValueError, match="poll_timeout_ms 0 needs an idle_ms"):
        Scenario.model_validate({"shows": "x", "topics": [{"name": "orders"}], "consumers": consumers})
    with pytest.raises(ValueError, match="assignors"):
        Scenario.model_validate({"shows": "x", "consumers": [{"name": "c", "assign": {}, "assignors": []}]})
    assert ClosedLoop(Scenario.model_validate({"shows": "x", "duration_s": 1})).run().events == []

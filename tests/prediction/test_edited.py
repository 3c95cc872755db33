"""A fitted scenario that somebody has edited: what counts, and what is refused because it would change nothing."""

from __future__ import annotations

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.plan_builder import build_plan
from purgatory_udf.simulation.scenario import Scenario
from tests.prediction.scenarios import small_scenario


def _edited(section: str, **changed: object) -> Scenario:
    """The first of the section with other values."""
    values = small_scenario().model_dump(exclude_unset=True)
    values[section][0] |= changed
    return Scenario.model_validate(values)


def test_more_of_a_client_is_a_count() -> None:
    assert [reader.client for reader in build_plan(_edited("consumers", count=3)).readers][1:] == ["c", "c#2", "c#3"]
    assert [producer.client for producer in build_plan(_edited("producers", count=2)).producers] == ["p", "p#2"]


def test_sizes_rates_and_records_are_those_of_the_file() -> None:
    (_, consumer) = build_plan(_edited("consumers", fetch_max_bytes=9000, max_partition_fetch_bytes=700)).readers
    assert (consumer.max_bytes, consumer.partition_max_bytes) == (9000, 700)
    (producer,) = build_plan(_edited("producers", rate=100, record_bytes=600, max_in_flight=1)).producers
    assert (producer.speed, set(producer.record_bytes), producer.max_in_flight) == (2, {600}, 1)


def test_other_partitions_are_read_of_those_who_lead_them() -> None:
    scenario = small_scenario().model_dump(exclude_unset=True)
    scenario["topics"][0]["partitions"] = 2
    scenario["fitted"]["partitions"].append({"topic": "t", "partition": 1, "replicas": [2, 1]})
    scenario["consumers"][0]["assign"] = {"t": [0, 1]}
    consumer = [reader for reader in build_plan(Scenario.model_validate(scenario)).readers if reader.replica < 0]
    assert [(reader.broker, reader.keys) for reader in consumer] == [(1, [0]), (2, [1])]


def test_a_producer_and_a_consumer_may_have_one_name() -> None:
    values = small_scenario().model_dump(exclude_unset=True)
    values["producers"][0]["name"] = "c"
    values["fitted"]["producers"] = {"c": values["fitted"]["producers"]["p"]}
    plan = build_plan(Scenario.model_validate(values))
    assert ([reader.client for reader in plan.readers], [producer.client for producer in plan.producers]) == (
        ["broker-2-fetcher-0", "c"],
        ["c"],
    )


@pytest.mark.parametrize(
    ("section", "changed", "said"),
    [
        (
            "consumers",
            {"isolation": "read_committed"},
            "consumers: c: isolation: a fitted scenario knows no such setting",
        ),
        ("consumers", {"assign": {"t": [4]}}, "consumers: c: t-4 is no partition of the recording"),
        ("consumers", {"name": "d"}, "consumers: d: nothing was fitted to it \\(there are c; more of one: count\\)"),
        ("producers", {"transaction_ms": 50}, "producers: p: transaction_ms: a fitted scenario knows no such setting"),
        ("producers", {"name": "q"}, "producers: q: nothing was fitted to it"),
    ],
)
def test_what_would_change_nothing_is_refused(section: str, changed: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_plan(_edited(section, **changed))


def test_incidents_are_for_made_up_clusters() -> None:
    values = small_scenario().model_dump(exclude_unset=True)
    values["incidents"] = [{"what": "stall-follower", "at_s": 1, "broker": 2, "for_s": 1}]
    with pytest.raises(UserError, match="incidents: a fitted scenario knows none"):
        build_plan(Scenario.model_validate(values))

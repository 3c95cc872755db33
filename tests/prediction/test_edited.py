"""Edited fitted scenarios: settings that take effect, and settings that are rejected because they would not."""

from __future__ import annotations

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.simulation_plan import build_plan
from purgatory_udf.simulation.scenario import Scenario
from tests.prediction.scenarios import small_scenario


def _edited(section: str, **changed: object) -> Scenario:
    """Return the scenario with changed values in the first entry of a section."""
    values = small_scenario().model_dump(exclude_unset=True)
    values[section][0] |= changed
    return Scenario.model_validate(values)


def test_count_copies_a_client() -> None:
    assert [reader.client for reader in build_plan(_edited("consumers", count=3)).readers][1:] == ["c", "c#2", "c#3"]
    assert [producer.client for producer in build_plan(_edited("producers", count=2)).producers] == ["p", "p#2"]


def test_edited_sizes_and_rates_take_effect() -> None:
    (_, consumer) = build_plan(_edited("consumers", fetch_max_bytes=9000, max_partition_fetch_bytes=700)).readers
    assert (consumer.max_bytes, consumer.partition_max_bytes) == (9000, 700)
    (producer,) = build_plan(_edited("producers", rate=100, record_bytes=600, max_in_flight=1)).producers
    assert (producer.speed, set(producer.record_bytes), producer.max_in_flight) == (2, {600}, 1)


def test_assigned_partitions_are_read_from_leaders() -> None:
    scenario = small_scenario().model_dump(exclude_unset=True)
    scenario["topics"][0]["partitions"] = 2
    scenario["fitted"]["partitions"].append({"topic": "t", "partition": 1, "replicas": [2, 1]})
    scenario["consumers"][0]["assign"] = {"t": [0, 1]}
    consumer = [reader for reader in build_plan(Scenario.model_validate(scenario)).readers if reader.replica < 0]
    assert [(reader.broker, reader.keys) for reader in consumer] == [(1, [0]), (2, [1])]


def test_producer_and_consumer_share_a_name() -> None:
    values = small_scenario().model_dump(exclude_unset=True)
    values["producers"][0]["name"] = "c"
    values["fitted"]["producers"] = {"c": values["fitted"]["producers"]["p"]}
    plan = build_plan(Scenario.model_validate(values))
    assert ([reader.client for reader in plan.readers], [producer.client for producer in plan.producers]) == (
        ["broker-2-fetcher-0", "c"],
        ["c"],
    )


@pytest.mark.parametrize(
    ("section", "changed", "message"),
    [
        (
            "consumers",
            {"isolation": "read_committed"},
            "consumers: c: isolation: not supported in a fitted scenario",
        ),
        ("consumers", {"assign": {"t": [4]}}, "consumers: c: assign: t-4 is not in the recording"),
        (
            "consumers",
            {"name": "d"},
            "consumers: d: not in the recording, which has c; to add copies of one, set its count",
        ),
        ("producers", {"transaction_ms": 50}, "producers: p: transaction_ms: not supported in a fitted scenario"),
        ("producers", {"name": "q"}, "producers: q: not in the recording"),
    ],
)
def test_setting_without_effect_is_rejected(section: str, changed: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_plan(_edited(section, **changed))


def test_incidents_are_rejected() -> None:
    values = small_scenario().model_dump(exclude_unset=True)
    values["incidents"] = [{"what": "stall-follower", "at_s": 1, "broker": 2, "for_s": 1}]
    with pytest.raises(UserError, match="incidents: a fitted scenario does not support this section"):
        build_plan(Scenario.model_validate(values))

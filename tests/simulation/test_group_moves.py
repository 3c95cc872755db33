"""A coordinator's broker crashes: another broker loads its groups with the stored members."""

from __future__ import annotations

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.scenario import Scenario

# Each broker coordinates one of three groups; broker 2 is down from 20 s to 25 s.
SCENARIO = Scenario.model_validate(
    {
        "shows": "A group's coordinator crashes.",
        "duration_s": 45,
        "topics": [{"name": "orders", "partitions": 3}],
        "producers": [{"name": "writer", "topics": ["orders"], "rate": 5}],
        "consumers": [
            {"name": name, "count": 2, "topics": ["orders"], "session_timeout_ms": 8000} for name in ("a", "b", "c")
        ],
        "incidents": [{"what": "crash-broker", "broker": 2, "at_s": 20, "for_s": 5}],
    }
)


@pytest.fixture(scope="module")
def crashed() -> SimulationResult:
    return ClosedLoop(SCENARIO).run()


def test_group_of_crashed_coordinator_is_loaded_elsewhere(
    crashed: SimulationResult,
) -> None:
    """It stays in its generation, without a rebalance."""
    (gone,) = [event for event in crashed.events if event["type"] == "group_stopped"]
    loaded = [event for event in crashed.events if event["type"] == "group_loaded"]
    assert gone["broker"] == 2
    assert {(event["group"], event["generation"]) for event in loaded} == {(gone["group"], loaded[0]["generation"])}
    assert len(loaded) == 2 and {event["broker"] for event in loaded} != {2}
    later = [
        (change.broker, change.from_state, change.to_state)
        for change in crashed.truth.transitions
        if change.group == gone["group"] and gone["time_us"] <= change.at_us <= crashed.events[-1]["time_us"]
    ]
    assert later == [(2, "Stable", "Dead"), (loaded[0]["broker"], "Dead", "Stable")]
    beats = [
        answer
        for answer in crashed.truth.groups.answers
        if answer.group == gone["group"] and answer.api == "heartbeat" and answer.at_us > loaded[0]["time_us"]
    ]
    assert len(beats) > 5 and {(beat.broker, beat.error) for beat in beats} == {(loaded[0]["broker"], "NONE")}


def test_other_groups_are_unaffected(crashed: SimulationResult) -> None:
    (gone,) = [event["group"] for event in crashed.events if event["type"] == "group_stopped"]
    crash_us, end_us = crashed.events[0]["time_us"] + 20_000_000, crashed.events[-1]["time_us"]
    assert [
        change for change in crashed.truth.transitions if change.group != gone and crash_us < change.at_us <= end_us
    ] == []


def test_replay_reproduces_group_transitions(crashed: SimulationResult) -> None:
    again = replay(crashed.events, Config())
    assert again.transitions == crashed.truth.transitions
    assert [outcome for outcome in again.outcomes if outcome.kind == "heartbeat"] == [
        outcome for outcome in crashed.truth.outcomes if outcome.kind == "heartbeat"
    ]


def test_waiting_heartbeats_are_cancelled_at_crash(crashed: SimulationResult) -> None:
    (gone,) = [event for event in crashed.events if event["type"] == "group_stopped"]
    cancelled = [outcome for outcome in crashed.truth.outcomes if outcome.cancelled and outcome.kind == "heartbeat"]
    assert [(outcome.broker, outcome.ended_us, outcome.completed_by) for outcome in cancelled] == [
        (2, gone["time_us"], "broker_stopped")
    ] * 2

"""A rolling restart of brokers: each hands over its partitions and groups, stops, and comes back.

Kafka: `BrokerServer.shutdown` waits until the controller has moved the broker's partitions (controlled shutdown).
Requests waiting there receive NOT_LEADER_OR_FOLLOWER or NOT_COORDINATOR. Requests that still wait when the process
stops get no response.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.scenario import Scenario
from tests.simulation.bundled_scenarios import seconds_since_start
from tests.support.outcome_rows import outcomes_of

# Broker 1 stops at 10 s, 2 at 17 s, 3 at 24 s, each for 3 s.
SCENARIO = Scenario.model_validate(
    {
        "shows": "Brokers restarted one by one.",
        "duration_s": 40,
        "topics": [{"name": "orders", "partitions": 6}],
        "producers": [{"name": "writer", "topics": ["orders"], "rate": 15}],
        "consumers": [{"name": name, "count": 2, "topics": ["orders"]} for name in ("a", "b", "c")],
        "incidents": [{"what": "rolling-restart", "brokers": [1, 2, 3], "at_s": 10, "down_s": 3, "gap_s": 4}],
    }
)
STOPS = {1: 10, 2: 17, 3: 24}


@pytest.fixture(scope="module")
def rolled() -> SimulationResult:
    return ClosedLoop(SCENARIO).run()


def test_broker_stops_without_leaderships(rolled: SimulationResult) -> None:
    changes = [event for event in rolled.events if event["type"] == "partition"]
    for broker, at in STOPS.items():
        its_events = [event for event in changes if event["broker"] == broker]
        stopped = [event for event in its_events if event["change"] == "stopped"]
        assert len(stopped) == 6 and len({event["time_us"] for event in stopped}) == 1
        assert at < seconds_since_start(rolled, stopped[0]["time_us"]) < at + 1
        before = {
            (event["topic"], event["partition"]): event["change"]
            for event in its_events
            if event["change"] in ("leader", "not_leader") and event["time_us"] < stopped[0]["time_us"]
        }
        assert set(before.values()) == {"not_leader"}, "it leads no partition when it stops"


def test_handover_completes_most_waits_before_stop(rolled: SimulationResult) -> None:
    notified = [
        outcome for outcome in rolled.truth.outcomes if outcome.completed_by == "not_leader" and outcome.watched
    ]
    cancelled = [outcome for outcome in rolled.truth.outcomes if outcome.cancelled]
    assert {outcome.broker for outcome in notified} == {1, 2, 3}
    assert len(cancelled) < len(notified)
    assert all(
        STOPS[outcome.broker] < seconds_since_start(rolled, outcome.ended_us) < STOPS[outcome.broker] + 1
        for outcome in cancelled
    )


def test_groups_move_and_no_record_is_lost(rolled: SimulationResult) -> None:
    moved = {event["broker"] for event in rolled.events if event["type"] == "group_unloaded"}
    assert moved == {1, 2, 3}
    delivery = [producer.delivery for producer in rolled.producers]
    assert sum(of_producer.lost for of_producer in delivery) == 0
    following = [
        event["replica_id"] for event in rolled.events if event["type"] == "fetch" and event["replica_id"] >= 0
    ]
    assert 3 in following[-20:], "broker 3 follows again"


def test_replay_reproduces_outcomes(rolled: SimulationResult) -> None:
    again = replay(rolled.events, Config())
    assert (again.outcomes, again.transitions) == (rolled.truth.outcomes, rolled.truth.transitions)
    tables = loop_replay([event_table(rolled.events)], Engine(Config()))
    requests = [outcome for outcome in rolled.truth.outcomes if outcome.kind in ("produce", "fetch")]
    expected = sorted(map(_as_in_tables, requests), key=lambda outcome: outcome.operation_id)
    assert outcomes_of(tables.completions, tables.expirations, tables.cancellations) == expected


def _as_in_tables(outcome: Outcome) -> Outcome:
    return outcome if outcome.expired or outcome.cancelled else replace(outcome, fetcher=None)


def test_unloaded_group_heartbeats_are_cancelled_at_stop(
    rolled: SimulationResult,
) -> None:
    left = [outcome for outcome in rolled.truth.outcomes if outcome.cancelled and outcome.kind == "heartbeat"]
    assert {outcome.broker for outcome in left} == {1, 2, 3}
    stops = {(event["broker"], event["time_us"]) for event in rolled.events if event["type"] == "group_stopped"}
    assert {(outcome.broker, outcome.ended_us) for outcome in left} <= stops


def test_admin_continues_after_broker_crash() -> None:
    scenario = Scenario.model_validate(
        {
            "shows": "Creations at a broker that crashes.",
            "duration_s": 12,
            "topic_creations": [{"every_ms": 400, "timeout_ms": 9000, "election": {"median_ms": 1500, "p75_ms": 1600}}],
            "incidents": [{"what": "crash-broker", "broker": 1, "at_s": 5, "for_s": 2}],
        }
    )
    crashed = ClosedLoop(scenario).run()
    (cut_off,) = [
        outcome for outcome in crashed.truth.outcomes if outcome.kind == "create_topics" and outcome.cancelled
    ]
    stops = {event["time_us"] for event in crashed.events if event.get("change") == "stopped"}
    assert (cut_off.broker, cut_off.completed_by, {cut_off.ended_us}) == (1, "broker_stopped", stops)
    later = [
        outcome
        for outcome in crashed.truth.outcomes
        if outcome.kind == "create_topics" and outcome.started_us > cut_off.ended_us
    ]
    # The last creation is still waiting when the simulation stops.
    assert [outcome.completed_by for outcome in later[:-1]] == ["leaders"] * 2
    assert replay(crashed.events, Config()).outcomes == crashed.truth.outcomes


def test_reads_of_remote_storage_survive_faults() -> None:
    """One reader per broker, a short queue, a moved leader, a crash and a freeze while consumers read tiered data."""
    consumers = {"name": "backfill", "count": 3, "assign": {"clicks": [0, 1, 2]}, "reset": "earliest"}
    scenario = Scenario.model_validate(
        {
            "shows": "Faults during reads of remote storage.",
            "duration_s": 5,
            "brokers": {
                "remote_read": {"median_ms": 120, "p75_ms": 300},
                "remote_reader_threads": 1,
                "remote_reader_max_pending": 2,
                "failure_detection_ms": 300,
            },
            "topics": [{"name": "clicks", "partitions": 3, "segment_bytes": 16_384, "local_retention_bytes": 32_768}],
            "producers": [{"name": "web", "count": 2, "topics": ["clicks"], "rate": 60, "record_bytes": 1000}],
            "consumers": [{**consumers, "start_after_s": 2, "commit": "never", "max_partition_fetch_bytes": 16_384}],
            "incidents": [
                {"what": "move-leader", "topic": "clicks", "partition": 0, "to": 2, "at_s": 2.8},
                {"what": "crash-broker", "broker": 3, "at_s": 3.2, "for_s": 0.5, "preferred_again_after_s": 0.3},
                {"what": "freeze-broker", "broker": 1, "at_s": 4.4, "for_s": 0.4},
            ],
        }
    )
    simulated = ClosedLoop(scenario).run()
    assert replay(simulated.events, Config()).outcomes == simulated.truth.outcomes
    ends = {
        (outcome.expired, outcome.completed_by, part.error)
        for outcome in simulated.truth.outcomes
        if outcome.kind == "remote_fetch"
        for part in outcome.partitions
    }
    assert {(True, "timeout", "NONE"), (False, "remote_reads", "NONE")} <= ends
    assert (False, "remote_reads", "UNKNOWN_SERVER_ERROR") in ends, "the queue was full"
    moved = [event["broker"] for event in simulated.events if event.get("change") == "local_log_start"]
    assert set(moved) == {1, 2, 3}
    looped = loop_replay([event_table(simulated.events)], Engine(Config()))
    core = outcomes_of(looped.completions, looped.expirations, looped.cancellations)
    assert core == sorted(map(_as_in_tables, simulated.truth.outcomes), key=lambda outcome: outcome.operation_id)


def test_restart_needs_consumer_or_brokers() -> None:
    with pytest.raises(ValueError, match="expected exactly one of consumer, brokers"):
        Scenario.model_validate({"shows": "x", "incidents": [{"what": "rolling-restart", "at_s": 1}]})
    with pytest.raises(ValueError, match="rolling-restart: no broker 7"):
        Scenario.model_validate({"shows": "x", "incidents": [{"what": "rolling-restart", "at_s": 1, "brokers": [7]}]})

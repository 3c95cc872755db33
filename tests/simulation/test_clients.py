"""Simulated clients: each test simulates a small scenario and checks its trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.purgatory.clock import PAUSE_EVENTS, Pauses
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.scenario import Scenario
from tests.support.oracle_groups import removals

WRITER = {"name": "writer", "topics": ["orders"], "rate": 20}


def run_scenario(seconds: float = 6, seed: int = 1, **parts: Any) -> SimulationResult:
    """Simulate brokers 1 to 3 and one topic of two partitions, unless `parts` has others."""
    topics = parts.pop("topics", [{"name": "orders", "partitions": 2}])
    scenario = {"shows": "A test.", "duration_s": seconds, "seed": seed, "topics": topics, **parts}
    return ClosedLoop(Scenario.model_validate(scenario)).run()


def events(simulated: SimulationResult, kind: str, client: str = "") -> list[dict[str, Any]]:
    return [
        event for event in simulated.events if event["type"] == kind and event.get("client_id", "").startswith(client)
    ]


def digest(simulated: SimulationResult) -> str:
    return sha256(repr(simulated.events).encode()).hexdigest()


EVERYTHING: dict[str, Any] = {
    "seconds": 4,
    "producers": [WRITER],
    "consumers": [{"name": "reader", "count": 2, "topics": ["orders"]}],
    "incidents": [{"what": "crash-broker", "broker": 2, "at_s": 2, "for_s": 2}],
}


def test_same_seed_gives_same_trace() -> None:
    traces = [digest(run_scenario(seed=seed, **EVERYTHING)) for seed in (1, 1, 2)]
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_trace_does_not_depend_on_hash_seed() -> None:
    """Iterating over a set would change the trace under another hash seed."""
    code = "from test_clients import EVERYTHING, digest, run_scenario; print(digest(run_scenario(**EVERYTHING)))"
    places = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest(run_scenario(**EVERYTHING))


def test_linger_and_batch_size_shape_requests() -> None:
    quick = run_scenario(seconds=3, producers=[{**WRITER, "rate": 120, "linger_ms": 0}])
    slow = run_scenario(seconds=3, producers=[{**WRITER, "rate": 120, "linger_ms": 200}])
    full = run_scenario(
        seconds=3, producers=[{**WRITER, "rate": 120, "linger_ms": 200, "batch_bytes": 1000, "record_bytes": 300}]
    )
    requests = [len(events(simulated, "produce")) for simulated in (quick, slow, full)]
    assert requests[1] < requests[0] / 3
    assert requests[1] < requests[2]
    sizes = {part["bytes"] for event in events(full, "produce") for part in event["partitions"]}
    assert max(sizes) <= 1000


@pytest.mark.parametrize(("acks", "sent"), [("all", -1), (0, 0), (1, 1)])
def test_acks_setting_is_sent(acks: object, sent: int) -> None:
    simulated = run_scenario(producers=[{**WRITER, "acks": acks}])
    assert {event["acks"] for event in events(simulated, "produce")} == {sent}
    (producer,) = simulated.producers
    assert producer.delivery.sent - producer.delivery.delivered <= 2
    assert producer.delivery.lost == 0


def test_timed_out_batches_are_retried_or_lost() -> None:
    """Broker 3 is stalled from the start, so no produce is ever acknowledged."""
    stall = {"what": "stall-follower", "broker": 3, "at_s": 0, "for_s": 60}
    writer = {**WRITER, "request_timeout_ms": 500}
    again = run_scenario(producers=[writer], incidents=[stall])
    never = run_scenario(producers=[{**writer, "retries": 0}], incidents=[stall])
    (retrying,), (giving_up,) = again.producers, never.producers
    assert (retrying.delivery.delivered, retrying.delivery.lost) == (0, 0)
    assert retrying.delivery.retried > 0
    assert giving_up.delivery.retried == 0
    assert giving_up.delivery.lost > 0


def test_max_in_flight_one_serializes_requests() -> None:
    simulated = run_scenario(seconds=2, producers=[{**WRITER, "rate": 300, "linger_ms": 0, "max_in_flight": 1}])
    by_broker: dict[int, list[Any]] = {}
    brokers = {event["seq"]: event["broker"] for event in simulated.events}
    for exchange in simulated.exchanges:
        if exchange.request.client_id == "writer-1" and exchange.operation_id is not None:
            by_broker.setdefault(brokers[exchange.operation_id], []).append(exchange)
    assert len(by_broker) == 2
    for exchanges in by_broker.values():
        assert all(earlier.received_us <= later.sent_us for earlier, later in pairwise(exchanges))


def test_only_subscriptions_join_groups() -> None:
    consumers = [
        {"name": "by-topics", "topics": ["orders"]},
        {"name": "by-pattern", "pattern": "ord.*"},
        {"name": "by-hand", "assign": {"orders": [1]}},
    ]
    simulated = run_scenario(consumers=consumers, producers=[WRITER])
    joined = {event["group"] for event in events(simulated, "join_group")}
    assert joined == {"by-topics", "by-pattern"}
    read = {
        client: {part["partition"] for event in events(simulated, "fetch", client) for part in event["partitions"]}
        for client in ("by-topics", "by-pattern", "by-hand")
    }
    assert read == {"by-topics": {0, 1}, "by-pattern": {0, 1}, "by-hand": {1}}


def test_reset_policy_sets_first_offset() -> None:
    consumers = [
        {"name": f"reader-{reset}", "assign": {"orders": [0]}, "reset": reset, "start_within_s": 0, "commit": "never"}
        for reset in ("earliest", "latest", "none")
    ]
    # The crash delays their real start until there are records.
    crash = [
        {"what": "crash-consumer", "consumer": f"reader-{reset}-1", "at_s": 0.001, "for_s": 3}
        for reset in ("earliest", "latest", "none")
    ]
    simulated = run_scenario(consumers=consumers, producers=[WRITER], incidents=crash)
    first = {
        name: events(simulated, "fetch", f"reader-{name}")[0]["partitions"][0]["fetch_offset"]
        for name in ("earliest", "latest")
    }
    assert first["earliest"] == 0
    assert first["latest"] > 10
    assert events(simulated, "fetch", "reader-none") == []
    (failed,) = (instance.runs[-1].failed for instance in simulated.instances if instance.client_id == "reader-none-1")
    assert failed == "no offset committed for orders-0 (reset: none)"


@pytest.mark.parametrize("commit", ["sync", "async", "automatic", "never"])
def test_restarted_consumer_resumes_at_commit(commit: str) -> None:
    """A closed consumer commits its positions if it auto-commits; without commits it starts from the beginning."""
    settings = {"commit": commit, "auto_commit_interval_ms": 500, "reset": "earliest", "start_within_s": 0}
    simulated = run_scenario(
        seconds=8,
        consumers=[{"name": "reader", "assign": {"orders": [0]}, **settings}],
        producers=[WRITER],
        incidents=[{"what": "rolling-restart", "consumer": "reader", "at_s": 4, "down_s": 1}],
    )
    offsets = [event["partitions"][0]["fetch_offset"] for event in events(simulated, "fetch", "reader")]
    restarts_from_zero = offsets.count(0) > 1 and offsets.index(0, 5) > 5
    assert restarts_from_zero == (commit == "never")
    assert bool(events(simulated, "offset_commit")) == (commit != "never")


def test_next_fetch_is_sent_before_processing() -> None:
    """Processing takes 200 ms per record; the next fetch leaves in the microsecond in which records arrive."""
    reader = {"name": "reader", "assign": {"orders": [0, 1]}, "process_us": 200_000, "start_within_s": 0}
    simulated = run_scenario(consumers=[reader], producers=[WRITER])
    fetches = [
        exchange
        for exchange in simulated.exchanges
        if exchange.request.client_id == "reader-1" and exchange.operation_id is not None
    ]
    at_once = {exchange.sent_us for exchange in fetches} & {exchange.received_us for exchange in fetches}
    assert at_once
    assert simulated.instances[0].records < 40, "at 5 records a second"


def test_crash_expires_dynamic_member_only() -> None:
    """A static member that returns within its session only gets a new member id."""
    settings = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 1000, "start_within_s": 0, "topics": ["orders"]}
    simulated = run_scenario(
        seconds=20,
        consumers=[{"name": "dynamic", **settings}, {"name": "static", "static_members": True, **settings}],
        incidents=[
            {"what": "crash-consumer", "consumer": "dynamic-1", "at_s": 5, "for_s": 2},
            {"what": "crash-consumer", "consumer": "static-1", "at_s": 5, "for_s": 2},
        ],
    )
    last_us = simulated.events[-1]["time_us"]
    removed = [(entry.group, entry.reason) for entry in removals(simulated.truth.groups) if entry.at_us <= last_us]
    assert sorted(removed) == [("dynamic", "session"), ("static", "replaced")]


def test_quota_delay_is_not_purgatory_time() -> None:
    simulated = run_scenario(
        seconds=15, producers=[{**WRITER, "rate": 100, "quota_bytes_per_second": 10_000, "acks": 1}]
    )
    throttled = [exchange for exchange in simulated.exchanges if exchange.throttle_ms]
    assert throttled
    for exchange in throttled:
        if exchange.received_us is not None:
            assert exchange.answered_us is not None
            assert exchange.received_us - exchange.answered_us >= exchange.throttle_ms * 1000
    waits = Counter(outcome.wait_ms for outcome in simulated.truth.outcomes if outcome.kind == "produce")
    assert waits == {0: len(events(simulated, "produce"))}


def test_replication_quota_throttles_out_of_sync_follower() -> None:
    simulated = run_scenario(
        seconds=20,
        brokers={
            "replica_lag_time_max_ms": 2000,
            "replication_quota": {"bytes_per_second": 2000, "topics": ["orders"]},
        },
        producers=[{**WRITER, "rate": 60}],
        incidents=[{"what": "stall-follower", "broker": 3, "at_s": 1, "for_s": 6}],
    )
    throttled = [
        (event["replica_id"], part["throttled"])
        for event in events(simulated, "fetch")
        for part in event["partitions"]
        if part["throttled"]
    ]
    assert throttled
    assert {replica for replica, _ in throttled} == {3}


def test_clients_follow_moved_leader() -> None:
    move = {"what": "move-leader", "topic": "orders", "partition": 0, "to": 2, "at_s": 2}
    reader = {"name": "reader", "assign": {"orders": [0]}, "start_within_s": 0}
    simulated = run_scenario(consumers=[reader], producers=[WRITER], incidents=[move])
    begins = simulated.events[0]["time_us"]
    brokers = [
        {
            event["broker"]
            for event in (*events(simulated, "produce"), *events(simulated, "fetch", "reader"))
            if any(part["partition"] == 0 for part in event["partitions"])
            and low < (event["time_us"] - begins) / 1e6 < high
        }
        for low, high in ((0, 2), (2.5, 6))
    ]
    assert brokers == [{1}, {2}]
    (producer,) = simulated.producers
    assert producer.delivery.lost == 0


def test_frozen_broker_handles_and_answers_nothing() -> None:
    freeze = {"what": "freeze-broker", "broker": 1, "at_s": 2, "for_s": 1.5}
    simulated = run_scenario(producers=[{**WRITER, "rate": 100}], incidents=[freeze])
    frozen = range(simulated.events[0]["time_us"] + 2_000_000, simulated.events[0]["time_us"] + 3_500_000)
    requests = [event for event in simulated.events if event["type"] in ("produce", "fetch")]
    assert [event for event in requests if event["broker"] == 1 and event["time_us"] in frozen] == []
    assert [event for event in requests if event.get("replica_id") == 1 and event["time_us"] in frozen] == []
    assert [event for event in requests if event["broker"] == 2 and event["time_us"] in frozen] != []
    brokers = {event["seq"]: event["broker"] for event in requests}
    received = [each.received_us for each in simulated.exchanges if brokers.get(each.operation_id or -1) == 1]
    # A response that left before the freeze may be received a little later.
    assert [time_us for time_us in received if time_us in frozen[100_000:]] == []
    pauses = [
        (event["type"], event["broker"], event["time_us"])
        for event in simulated.events
        if event["type"] in PAUSE_EVENTS
    ]
    assert pauses == [("paused", 1, frozen.start), ("resumed", 1, frozen.stop)]


def test_replay_reproduces_frozen_brokers() -> None:
    """Broker 1 freezes again while it stands still and when it resumes; broker 2 stands still at the end."""
    freezes: list[dict[str, Any]] = [
        {"broker": 1, "at_s": 1, "for_s": 1},
        {"broker": 1, "at_s": 1.5, "for_s": 1},
        {"broker": 1, "at_s": 2.5, "for_s": 0.7},
        {"broker": 2, "at_s": 3, "for_s": 20},
    ]
    simulated = run_scenario(
        producers=[{**WRITER, "rate": 60, "request_timeout_ms": 900}],
        consumers=[{"name": "reader", "count": 2, "topics": ["orders"]}],
        incidents=[{"what": "freeze-broker", **freeze} for freeze in freezes],
    )
    pauses = Pauses.from_events(simulated.events)
    lengths = [(pause.broker, pause.resumed_ms - pause.paused_ms) for pause in pauses]
    assert lengths == [(1, 1_500), (1, 700), (2, 2_999)]
    late = [each for each in simulated.truth.outcomes if each.expired and each.ended_us > each.deadline_us]
    assert {each.broker for each in late} == {1, 2}
    again = replay(simulated.events, Config())
    assert (again.outcomes, again.transitions) == (simulated.truth.outcomes, simulated.truth.transitions)

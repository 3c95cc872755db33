"""Brokers that stop and start: how the import detects this, and the events that it writes.

Kafka: `BrokerLifecycleManager` registers a process (BROKER_REGISTRATION), and requests a shutdown (BROKER_HEARTBEAT
with `wantShutDown`); `ReplicationControlManager.processBrokerHeartbeat` permits it (`shouldShutDown`) when the broker
no longer leads a partition. Times are milliseconds.
"""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import (
    FENCED,
    GIVEN,
    MAY_STOP,
    NEVER,
    REGISTERED,
    REGISTERED_AGAIN,
    STOPPING,
    UNFENCED,
    BrokerStop,
    ClusterMetadata,
    LifecycleEvent,
    PartitionChange,
    broker_stops,
    lifecycle_events_in,
)
from tests.sources.request_log import recordings
from tests.sources.request_log.log_lines import START_US, T, fetch_line, log_line, message, parse, us
from tests.sources.request_log.translate import context_of_log, translate

pytestmark = pytest.mark.long

LeadershipEvents = list[tuple[float, int, str]]


def _stops(*events: tuple[int, str]) -> list[tuple[int, int]]:
    return [(stop.at_us, stop.started_us) for stop in broker_stops(LifecycleEvent(at, 1, kind) for at, kind in events)]


def test_restarted_broker_stopped_when_fenced() -> None:
    assert _stops((1, REGISTERED), (2, UNFENCED), (30, FENCED), (50, REGISTERED), (52, UNFENCED)) == [(30, 50)]


def test_unseen_stop_is_dated_by_restart() -> None:
    assert _stops((50, REGISTERED_AGAIN)) == [(50, 50)]


def test_controlled_shutdown_stops_when_permitted() -> None:
    assert _stops((1, REGISTERED), (30, MAY_STOP), (50, REGISTERED_AGAIN), (70, MAY_STOP)) == [(30, 50), (70, NEVER)]
    assert _stops((1, REGISTERED), (20, STOPPING), (30, FENCED)) == [(30, NEVER)]


def test_unfenced_broker_has_not_stopped() -> None:
    assert _stops((1, REGISTERED), (2, UNFENCED), (30, FENCED), (40, UNFENCED), (60, FENCED)) == []


@pytest.mark.parametrize(
    ("previous", "error", "kinds"),
    [({}, 0, [REGISTERED]), ({"previousBrokerEpoch": 0}, 0, [REGISTERED_AGAIN]), ({}, 102, [])],
)
def test_accepted_registration_is_a_start(previous: dict[str, int], error: int, kinds: list[str]) -> None:
    (request,) = parse([log_line(9, message("BROKER_REGISTRATION", {"brokerId": 3, **previous}, {"errorCode": error}))])
    assert list(lifecycle_events_in(request)) == [LifecycleEvent(us(8), 3, kind) for kind in kinds]


def test_stops_of_brokers_are_in_time_order() -> None:
    assert broker_stops(
        [LifecycleEvent(9, 2, REGISTERED_AGAIN), LifecycleEvent(1, 1, REGISTERED), LifecycleEvent(5, 1, MAY_STOP)]
    ) == [
        BrokerStop(1, 5, NEVER),
        BrokerStop(2, 9, 9),
    ]


def _leadership_events(events: list[dict[str, Any]]) -> LeadershipEvents:
    return [
        ((event["time_us"] - START_US) / 1000, event["broker"], event["change"])
        for event in events
        if event["type"] == "partition" and event["change"] in ("leader", "not_leader", "online", "isr", "stopped")
    ]


# Broker 1 is the leader and broker 2 a follower; a consumer fetches twice.
LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
FETCHES = [fetch_line(at, {0: 10}, {0: 100}, client="reader", high_watermark=14) for at in (10, 900)]


def _given(*changes: PartitionChange, lifecycle: tuple[LifecycleEvent, ...] = ()) -> GivenMetadata:
    return GivenMetadata(
        {T: "t"}, ClusterMetadata(names={T: "t"}, changes=[LEADER, *changes], lifecycle=list(lifecycle))
    )


# The stop is assumed 150 ms after the broker was fenced (`SHUTDOWN_GRACE_US`).
DOWN = (
    LifecycleEvent(us(-9_000), 1, REGISTERED),
    LifecycleEvent(us(100), 1, FENCED),
    LifecycleEvent(us(500), 1, REGISTERED),
)


def test_restarted_broker_leads_again_without_successor() -> None:
    events = _leadership_events(translate(parse(FETCHES), _given(lifecycle=DOWN)).events)
    assert events[1:] == [(250.0, 1, "stopped"), (500.0, 1, "leader")]


def test_restarted_broker_leads_after_reelection() -> None:
    lost = PartitionChange(us(30), T, 0, GIVEN, 2, 1, (1, 2), (2,))
    again = PartitionChange(us(700), T, 0, GIVEN, 1, 2, (1, 2), (1, 2))
    events = _leadership_events(translate(parse(FETCHES), _given(lost, again, lifecycle=DOWN)).events)
    assert [(at, change) for at, broker, change in events[1:] if broker == 1] == [
        (90.0, "not_leader"),
        (250.0, "stopped"),
        (760.0, "leader"),
    ]


def test_stop_is_found_in_requests_alone() -> None:
    def controller_line(at: float, api: str, request: dict[str, Any], response: dict[str, Any]) -> str:
        return log_line(at, message(api, {"brokerId": 1, **request}, {"errorCode": 0, **response}, client="1"))

    log = [
        controller_line(100, "BROKER_HEARTBEAT", {"wantShutDown": True}, {"shouldShutDown": True}),
        controller_line(101, "BROKER_HEARTBEAT", {"wantShutDown": False}, {"shouldShutDown": False}),
        controller_line(500, "BROKER_REGISTRATION", {"previousBrokerEpoch": 7}, {"brokerEpoch": 9}),
        *FETCHES,
    ]
    stopped, started = [event[:2] for event in _leadership_events(translate(parse(log), _given()).events)[1:]]
    assert (stopped[1], started[1]) == (1, 1)
    assert 245 < stopped[0] <= 250 and 495 < started[0] <= 500


def test_stop_cancels_waiting_fetch() -> None:
    """The fetch is added to the events, because a request log has no line of a request without a response."""
    events = translate(parse(FETCHES), _given(lifecycle=DOWN)).events
    fetch = next(event for event in events if event["type"] == "fetch")
    waiting = {**fetch, "time_us": us(60), "seq": 10_000, "min_bytes": 1_000, "max_wait_ms": 300}
    (end,) = [outcome for outcome in replay([*events, waiting], Config()).outcomes if outcome.operation_id == 10_000]
    assert (end.cancelled, end.completed_by, (end.ended_us - START_US) / 1000) == (True, "broker_stopped", 250.0)


def test_log_and_metadata_agree_on_stops() -> None:
    """Brokers 1 and 3 restart one after the other; at the end, all brokers stop."""
    rolling = recordings.log("W7-rolling-k39")
    by_log = context_of_log(sorted(rolling, key=lambda request: request.start_us), GivenMetadata()).stops
    by_metadata = broker_stops(recordings.given("W7-rolling-k39").cluster.lifecycle)
    # The last three stops are those at the end of the recording.
    assert [stop.broker for stop in by_metadata[:2]] == [1, 3] and {stop.broker for stop in by_metadata[2:]} == {
        1,
        2,
        3,
    }
    assert len(by_log) == len(by_metadata) == 5
    for stop, other in zip(by_log[:2], by_metadata[:2], strict=True):
        assert stop.broker == other.broker
        assert abs(stop.at_us - other.at_us) < 100_000 and abs(stop.started_us - other.started_us) < 100_000
        responses = [line.answered_us for line in rolling if line.broker == stop.broker]
        assert not any(stop.at_us < at < stop.started_us for at in responses), "the broker was down"

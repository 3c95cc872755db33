"""Brokers that stop and start: who says so in a log, and what an import makes of it.

Kafka: `BrokerLifecycleManager` registers a process (BROKER_REGISTRATION), and asks whether it may stop (a
BROKER_HEARTBEAT with `wantShutDown`); `ReplicationControlManager.processBrokerHeartbeat` lets it (`shouldShutDown`)
once it leads nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_metadata import (
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
)
from tests.sources.request_log import recordings
from tests.sources.request_log.lines import START_US, T, body, fetched, requests, us, written
from tests.sources.request_log.translate import context_of, translate

pytestmark = pytest.mark.long

Said = list[tuple[float, int, str]]


def _stops(*signs: tuple[int, str]) -> list[tuple[int, int]]:
    return [(stop.at_us, stop.started_us) for stop in broker_stops(LifecycleEvent(at, 1, what) for at, what in signs)]


def test_a_process_that_registers_anew_had_stopped_when_it_was_given_up() -> None:
    assert _stops((1, REGISTERED), (2, UNFENCED), (30, FENCED), (50, REGISTERED), (52, UNFENCED)) == [(30, 50)]


def test_of_one_that_nobody_saw_stop_the_start_is_all_that_is_known() -> None:
    assert _stops((50, REGISTERED_AGAIN)) == [(50, 50)]


def test_one_that_was_told_to_stop_has_stopped_when_it_was_let_whether_it_comes_back_or_not() -> None:
    assert _stops((1, REGISTERED), (30, MAY_STOP), (50, REGISTERED_AGAIN), (70, MAY_STOP)) == [(30, 50), (70, NEVER)]
    assert _stops((1, REGISTERED), (20, STOPPING), (30, FENCED)) == [(30, NEVER)]


def test_one_that_only_stood_still_has_not_stopped() -> None:
    assert _stops((1, REGISTERED), (2, UNFENCED), (30, FENCED), (40, UNFENCED), (60, FENCED)) == []


def test_brokers_are_apart_and_come_in_the_order_of_time() -> None:
    assert broker_stops(
        [LifecycleEvent(9, 2, REGISTERED_AGAIN), LifecycleEvent(1, 1, REGISTERED), LifecycleEvent(5, 1, MAY_STOP)]
    ) == [
        BrokerStop(1, 5, NEVER),
        BrokerStop(2, 9, 9),
    ]


def _said(events: list[dict[str, Any]]) -> Said:
    return [
        ((event["time_us"] - START_US) / 1000, event["broker"], event["change"])
        for event in events
        if event["type"] == "partition" and event["change"] in ("leader", "not_leader", "online", "isr", "stopped")
    ]


# Broker 1 leads, 2 follows; a consumer asks now and then.
LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
ASKED = [fetched(at, {0: 10}, {0: 100}, client="reader", high_watermark=14) for at in (10, 900)]


def _given(*changes: PartitionChange, lifecycle: tuple[LifecycleEvent, ...] = ()) -> GivenMetadata:
    return GivenMetadata(
        {T: "t"}, ClusterMetadata(names={T: "t"}, changes=[LEADER, *changes], lifecycle=list(lifecycle))
    )


# A broker that may stop still answers for 150 ms at most (`supposed`).
DOWN = (
    LifecycleEvent(us(-9_000), 1, REGISTERED),
    LifecycleEvent(us(100), 1, FENCED),
    LifecycleEvent(us(500), 1, REGISTERED),
)


def test_who_led_before_leads_again_when_nobody_has_taken_over() -> None:
    said = _said(translate(requests(ASKED), _given(lifecycle=DOWN)).events)
    assert said[1:] == [(250.0, 1, "stopped"), (500.0, 1, "leader")]


def test_where_another_took_over_it_leads_when_it_is_told_so() -> None:
    lost = PartitionChange(us(30), T, 0, GIVEN, 2, 1, (1, 2), (2,))
    again = PartitionChange(us(700), T, 0, GIVEN, 1, 2, (1, 2), (1, 2))
    said = _said(translate(requests(ASKED), _given(lost, again, lifecycle=DOWN)).events)
    assert [(at, change) for at, broker, change in said[1:] if broker == 1] == [
        (90.0, "not_leader"),
        (250.0, "stopped"),
        (760.0, "leader"),
    ]


def test_a_log_says_it_without_any_file_beside_it() -> None:
    def by(at: float, api: str, asked: dict[str, Any], answered: dict[str, Any]) -> str:
        return written(at, body(api, {"brokerId": 1, **asked}, {"errorCode": 0, **answered}, client="1"))

    log = [
        by(100, "BROKER_HEARTBEAT", {"wantShutDown": True}, {"shouldShutDown": True}),
        by(101, "BROKER_HEARTBEAT", {"wantShutDown": False}, {"shouldShutDown": False}),
        by(500, "BROKER_REGISTRATION", {"previousBrokerEpoch": 7}, {"brokerEpoch": 9}),
        *ASKED,
    ]
    stopped, started = [said[:2] for said in _said(translate(requests(log), _given()).events)[1:]]
    assert (stopped[1], started[1]) == (1, 1)
    assert 245 < stopped[0] <= 250 and 495 < started[0] <= 500


def test_a_consumers_wait_at_the_stopped_broker_would_be_cancelled() -> None:
    """A request log has no line of it, for it was never answered; but a trace may."""
    events = translate(requests(ASKED), _given(lifecycle=DOWN)).events
    asked = next(event for event in events if event["type"] == "fetch")
    waits = {**asked, "time_us": us(60), "seq": 10_000, "min_bytes": 1_000, "max_wait_ms": 300}
    (end,) = [outcome for outcome in replay([*events, waits], Config()).outcomes if outcome.operation_id == 10_000]
    assert (end.cancelled, end.completed_by, (end.ended_us - START_US) / 1000) == (True, "broker_stopped", 250.0)


def test_a_recordings_log_and_its_metadata_say_the_same_stops() -> None:
    """Brokers 1 and 3 are stopped in order and come back; at the end all are."""
    rolling = recordings.log("W7-rolling-k39")
    by_log = context_of(sorted(rolling, key=lambda request: request.start_us), GivenMetadata()).stops
    by_metadata = broker_stops(recordings.given("W7-rolling-k39").cluster.lifecycle)
    # The last lines of all, of the heartbeats that let them stop, are those of the recording's end.
    assert [stop.broker for stop in by_metadata[:2]] == [1, 3] and {stop.broker for stop in by_metadata[2:]} == {
        1,
        2,
        3,
    }
    assert len(by_log) == len(by_metadata) == 5
    for stop, other in zip(by_log[:2], by_metadata[:2], strict=True):
        assert stop.broker == other.broker
        assert abs(stop.at_us - other.at_us) < 100_000 and abs(stop.started_us - other.started_us) < 100_000
        answered = [line.answered_us for line in rolling if line.broker == stop.broker]
        assert not any(stop.at_us < at < stop.started_us for at in answered), "it was not there"

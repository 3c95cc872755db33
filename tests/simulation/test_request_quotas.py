"""Request quotas and user quotas (KIP-124, KIP-55).

Kafka: `ClientRequestQuotaManager` counts the time of a broker's threads in percent of one thread; `.throttleTime` is
(rate - quota) / quota * window, at most the window of 1 s. `ClientQuotaManager` finds the quota of (user, client).
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.simulation.closed_loop import SimulationResult
from purgatory_udf.simulation.quotas import BrokerQuotas, QuotaEntity
from tests.simulation.test_clients import run_scenario

WRITER = {"name": "writer", "topics": ["orders"], "rate": 100, "acks": 1}


def test_thread_time_counts_over_window() -> None:
    """Each request takes 20 ms of a thread; 1 percent is 100 ms in the window of at least ten seconds."""
    quotas = BrokerQuotas({"c": QuotaEntity("c", 1.0)}, handling_us=20_000)
    # Five requests use up the quota. The sixth exceeds it by 20 percent: (12 - 10) / 10 * 10 s = 2 s, cut to 1 s.
    assert [quotas.request_throttle_ms("c", now_ms) for now_ms in range(0, 60, 10)] == [0, 0, 0, 0, 0, 1000]
    assert quotas.request_throttle_ms("another", 60) == 0


def test_small_excess_throttles_briefly() -> None:
    quotas = BrokerQuotas({"c": QuotaEntity("c", 1.0)}, handling_us=1_000)
    # The 101st millisecond exceeds the quota by 1 percent of ten seconds.
    assert [quotas.request_throttle_ms("c", 5) for _ in range(101)][-2:] == [0, 100]


def test_user_quota_is_shared() -> None:
    shared = BrokerQuotas({"a": QuotaEntity("u", 1.0), "b": QuotaEntity("u", 1.0)}, handling_us=60_000)
    separate = BrokerQuotas({"a": QuotaEntity("a", 1.0), "b": QuotaEntity("b", 1.0)}, handling_us=60_000)
    assert (shared.request_throttle_ms("a", 0), shared.request_throttle_ms("b", 0)) == (0, 1000)
    assert (separate.request_throttle_ms("a", 0), separate.request_throttle_ms("b", 0)) == (0, 0)
    assert [
        quotas.bandwidth_throttle_ms("produce", client, 100, 600, 0) for quotas in (shared, separate) for client in "ab"
    ] == [
        0,
        2000,
        0,
        0,
    ]


def _throttled(simulated: SimulationResult, client: str) -> list[int]:
    return [
        exchange.throttle_ms
        for exchange in simulated.exchanges
        if exchange.request.client_id.startswith(client) and exchange.throttle_ms
    ]


def test_only_exceeding_client_is_throttled() -> None:
    consumers = [{"name": "reader", "topics": ["orders"]}]
    brokers = {"handling_us": 1000}
    limited: dict[str, Any] = {**WRITER, "linger_ms": 0, "quota_request_percentage": 1.0}
    slowed = run_scenario(seconds=12, brokers=brokers, producers=[limited], consumers=consumers)
    assert len(_throttled(slowed, "writer")) > 5 and max(_throttled(slowed, "writer")) <= 1000
    assert _throttled(slowed, "reader") == []
    unlimited = run_scenario(seconds=12, brokers=brokers, producers=[{**WRITER, "linger_ms": 0}], consumers=consumers)
    assert _throttled(unlimited, "writer") == []


def test_request_throttle_is_not_purgatory_time() -> None:
    simulated = run_scenario(
        seconds=12, brokers={"handling_us": 1000}, producers=[{**WRITER, "quota_request_percentage": 0.5}]
    )
    late = {
        exchange.operation_id: exchange
        for exchange in simulated.exchanges
        if exchange.throttle_ms and exchange.received_us
    }
    assert len(late) > 5
    for exchange in late.values():
        assert exchange.answered_us is not None and exchange.received_us is not None
        assert exchange.received_us - exchange.answered_us >= exchange.throttle_ms * 1000
    assert {outcome.wait_ms for outcome in simulated.truth.outcomes if outcome.operation_id in late} == {0}, (
        "a produce with acks=1 does not wait"
    )

"""Replication quotas: which replicas are throttled, and when."""

from __future__ import annotations

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.quotas import ReplicationQuota

KEY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_quota_throttles_out_of_sync_replicas_above_rate() -> None:
    quota = ReplicationQuota(bytes_per_second=100, throttled=frozenset({KEY}))
    quota.record(100, now_ms=0)
    assert quota.is_throttled(KEY, in_sync=False, now_ms=10) is False, "a rate equal to the quota is allowed"
    quota.record(1, now_ms=20)
    assert quota.is_throttled(KEY, in_sync=False, now_ms=30) is True
    assert quota.is_throttled(KEY, in_sync=True, now_ms=30) is False
    assert quota.is_throttled(OTHER, in_sync=False, now_ms=30) is False


def test_rate_covers_last_eleven_seconds() -> None:
    quota = ReplicationQuota(bytes_per_second=100, throttled=frozenset({KEY}))
    quota.record(1000, now_ms=500)
    exceeded = [now_ms for now_ms in range(500, 12_500, 1000) if quota.is_exceeded(now_ms)]
    assert exceeded == [500, 1500, 2500, 3500, 4500, 5500, 6500, 7500, 8500, 9500]
    quota.record(1001, now_ms=12_000)
    assert quota.is_exceeded(12_000) is True, "bytes and time before the window do not count"


def test_quota_without_traffic_is_not_exceeded() -> None:
    assert ReplicationQuota(0, frozenset({KEY})).is_exceeded(0) is False

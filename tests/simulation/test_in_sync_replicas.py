"""In-sync replicas: leaving after replica.lag.time.max.ms, staying, and rejoining."""

from __future__ import annotations

from purgatory_udf.simulation.cluster_partitions import InSyncReplicas

LAG_MS = 30_000


def test_follower_without_fetches_leaves_isr() -> None:
    replicas = InSyncReplicas(1, [2, 3], now_ms=0)
    replicas.record_fetch(2, 10, leader_end=10, high_watermark=0, now_ms=5_000)
    assert (replicas.shrink(leader_end=20, now_ms=LAG_MS), replicas.isr) == (False, (1, 2, 3)), "the limit is inclusive"
    assert (replicas.shrink(leader_end=20, now_ms=LAG_MS + 1), replicas.isr) == (True, (1, 2))
    assert (replicas.shrink(leader_end=20, now_ms=5_000 + LAG_MS + 1), replicas.isr) == (True, (1,))


def test_caught_up_follower_stays_in_isr() -> None:
    replicas = InSyncReplicas(1, [2], now_ms=0)
    replicas.record_fetch(2, 10, leader_end=10, high_watermark=0, now_ms=5)
    assert replicas.shrink(leader_end=10, now_ms=10 * LAG_MS) is False


def test_follower_one_fetch_behind_stays_in_isr() -> None:
    """The leader appends continuously, so no fetch reaches its log end."""
    replicas = InSyncReplicas(1, [2], now_ms=0)
    for step in range(100):
        now_ms = 1000 * step
        replicas.record_fetch(2, 10 * step, leader_end=10 * step + 10, high_watermark=0, now_ms=now_ms)
        assert replicas.shrink(leader_end=10 * step + 10, now_ms=now_ms) is False


def test_lagging_follower_leaves_isr() -> None:
    replicas = InSyncReplicas(1, [2], now_ms=0)
    shrunk_at = []
    for step in range(100):
        now_ms = 1000 * step
        replicas.record_fetch(2, step, leader_end=10 * step + 10, high_watermark=0, now_ms=now_ms)
        if replicas.isr == (1, 2) and replicas.shrink(leader_end=10 * step + 10, now_ms=now_ms):
            shrunk_at.append(now_ms)
            break
    assert shrunk_at == [LAG_MS + 1000]


def test_follower_rejoins_isr_at_high_watermark() -> None:
    replicas = InSyncReplicas(1, [2, 3], now_ms=0)
    replicas.record_fetch(3, 50, leader_end=50, high_watermark=0, now_ms=LAG_MS)
    replicas.shrink(leader_end=60, now_ms=LAG_MS + 1)
    came_back = [
        replicas.record_fetch(2, offset, leader_end=60, high_watermark=50, now_ms=LAG_MS + offset)
        for offset in (30, 49, 50, 55)
    ]
    assert (came_back, replicas.isr) == ([False, False, True, False], (1, 3, 2))


def test_replica_lag_time_is_configurable() -> None:
    replicas = InSyncReplicas(1, [2], now_ms=0, lag_time_max_ms=10_000)
    assert [replicas.shrink(leader_end=1, now_ms=now_ms) for now_ms in (10_000, 10_001)] == [False, True]

"""Random scenarios with several known incidents, in sequence or overlapping, or none, for `benchmarks.diagnosis`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from benchmarks.simulated_incidents import (
    BROKERS,
    FIRST_S,
    SINGLE_SHAPES,
    Cluster,
    Injected,
    Trace,
    pause_again_and_again,
    shorten_sessions,
)


def _several(cluster: Cluster) -> Trace:
    """Return a trace with three incidents one after the other, in random order, of random victims."""
    random, at_s, injected = cluster.random, FIRST_S, []
    session_s = shorten_sessions(cluster)
    cluster.producers.append({"name": "bulk", "topics": ["orders"], "rate": random.uniform(5, 30)})
    cluster.brokers["append_bytes_per_second"] = random.uniform(5e6, 30e6)
    _add_distractors(cluster)
    for what in random.sample(("stall", "freeze", "slow", "move", "member", "bulk"), 3):
        at_s, broker = at_s + random.uniform(4, 6), random.randint(1, BROKERS)
        length_s = random.uniform(session_s + 2, session_s + 4) if what == "member" else random.uniform(2, 6)
        injected.append(_inject(cluster, what, at_s, length_s, broker))
        at_s += length_s
    cluster.duration_s = at_s + 5
    return cluster.trace(*injected)


def _overlapping(cluster: Cluster) -> Trace:
    """Return a trace in which two incidents of different kinds and victims overlap."""
    random = cluster.random
    session_s = shorten_sessions(cluster)
    cluster.producers.append({"name": "bulk", "topics": ["orders"], "rate": random.uniform(5, 30)})
    cluster.brokers["append_bytes_per_second"] = random.uniform(5e6, 30e6)
    _add_distractors(cluster)
    at_s, length_s = random.uniform(FIRST_S, 10), session_s + random.uniform(2, 4)
    first, second = random.sample(range(1, BROKERS + 1), 2)
    pair = random.choice((("stall", "member"), ("freeze", "stall"), ("stall", "move"), ("slow", "member")))
    injected = [
        _inject(cluster, pair[0], at_s, length_s - random.uniform(3, 4), first),
        _inject(cluster, pair[1], at_s + random.uniform(0, 2), length_s, second),
    ]
    cluster.duration_s = at_s + length_s + 8
    return cluster.trace(*injected)


def _inject(cluster: Cluster, what: str, at_s: float, length_s: float, broker: int) -> Injected:
    """Add an incident of one of several kinds to a cluster with a producer `bulk`."""
    match what:
        case "stall":
            cluster.add("stall-follower", at_s, broker=broker, for_s=length_s)
            return Injected(at_s, at_s + length_s, ("follower_stalled",), broker=broker)
        case "freeze":
            cluster.add("freeze-broker", at_s, broker=broker, for_s=length_s)
            return Injected(at_s, at_s + length_s, ("broker_frozen",), broker=broker)
        case "slow":
            pause_again_and_again(cluster, broker, at_s, length_s)
            return Injected(at_s, at_s + length_s, ("follower_slow",), broker=broker)
        case "move":
            partition = broker - 1
            cluster.add("move-leader", at_s, topic="orders", partition=partition, to=1 + broker % BROKERS)
            return Injected(at_s, at_s + 2, ("leader_moved",), broker=broker, topic="orders")
        case "member":
            cluster.add("crash-consumer", at_s, consumer=cluster.member, for_s=length_s)
            return Injected(at_s, at_s + length_s, ("member_failed",), client_id=cluster.member, group="billing")
    cluster.add("large-batches", at_s, producer="bulk", for_s=length_s, record_bytes=200_000)
    return Injected(at_s, at_s + length_s + 1, ("large_batches",), client_id="bulk-1")


def _add_distractors(cluster: Cluster) -> None:
    """Add distractors that delay no other client: a client quota, and a throttle of in-sync replicas."""
    chance = cluster.random.random
    if chance() < 0.5:
        limited = {"name": "limited", "topics": ["orders"], "rate": 100, "record_bytes": 2_000}
        cluster.producers.append(limited | {"quota_bytes_per_second": 100_000})
    if chance() < 0.5:
        broker = cluster.random.randint(1, BROKERS)
        cluster.add("throttle-replica", FIRST_S, broker=broker, for_s=20, bytes_per_second=1_000)


def _calm(cluster: Cluster) -> Trace:
    """Return a trace without incidents, but with random events that might be mistaken for an incident."""
    chance = cluster.random.random
    if chance() < 0.5:
        cluster.producers[0] |= {"transaction_ms": cluster.random.randint(200, 2_000), "abort_share": 0.1}
        cluster.consumers[0]["isolation"] = "read_committed"
    _add_distractors(cluster)
    if chance() < 0.5:
        cluster.topics.append({"name": "returns", "partitions": 3})
        cluster.producers.append({"name": "desk", "topics": ["returns"], "rate": 0.5})
        cluster.consumers.append({"name": "watch", "count": 5, "topics": ["returns"], "start_within_s": 3})
    if chance() < 0.5:
        cluster.consumers.append({"name": "cache", "topics": ["orders"], "fetch_min_bytes": 2_000})
    if chance() < 0.5:
        cluster.topic_creations = [{"prefix": "new", "every_ms": 2_000, "partitions": 2}]
    if chance() < 0.3:
        cluster.brokers["append"] = {"median_ms": 20, "p75_ms": 40}
    return cluster.trace()


SHAPES: dict[str, Callable[[Cluster], Trace]] = {
    **SINGLE_SHAPES,
    "several": _several,
    "overlapping": _overlapping,
    "calm": _calm,
}


def simulated_trace(shape: str, seed: int) -> Trace:
    """Return the scenario of a shape and a seed."""
    return SHAPES[shape](Cluster(Random(f"{shape}/{seed}")))

"""Random scenarios with a known incident, by shape of incident, for `benchmarks.diagnosis`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from purgatory_udf.answers.diagnosis.finding import Finding
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.simpy_environment import START_US

BROKERS = 3
# Incidents start once clients and groups have started.
FIRST_S = 6.0


@dataclass(frozen=True)
class Injected:
    """An incident of a scenario: its time in simulated seconds, the allowed kinds of its finding, and its culprit.

    A culprit of None is not compared. `consequences` are kinds that may be found in addition.
    """

    start_s: float
    end_s: float
    kinds: tuple[str, ...]
    broker: int | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    consequences: tuple[str, ...] = ()

    def is_found_by(self, finding: Finding) -> bool:
        """Return whether the finding has the kind, the culprit and the time of this incident."""
        return finding.kind in self.kinds and self._is_same_culprit(finding) and self._overlaps(finding)

    def has_consequence(self, finding: Finding) -> bool:
        """Return whether the finding is a consequence of this incident."""
        return finding.kind in self.consequences and self._overlaps(finding)

    def _is_same_culprit(self, finding: Finding) -> bool:
        return all(
            expected in (None, found)
            for expected, found in (
                (self.broker, finding.broker),
                (self.client_id, finding.client_id),
                (self.group, finding.group),
                (self.topic, finding.topic),
            )
        )

    def _overlaps(self, finding: Finding) -> bool:
        start_us, end_us = (round(START_US + second * 1_000_000) for second in (self.start_s, self.end_s))
        # A leader moves at one moment.
        return finding.start_us <= end_us and finding.end_us >= start_us


@dataclass(frozen=True)
class Trace:
    """A random scenario, and the incidents that a diagnosis of its trace should find."""

    scenario: Scenario
    injected: tuple[Injected, ...] = ()


class Cluster:
    """A random cluster of three brokers with producers and a consumer group, to which a shape adds its incidents."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.duration_s = random.uniform(24, 30)
        latency = random.uniform(0.3, 2.0)
        self.brokers: dict[str, Any] = {
            "count": BROKERS,
            "network": {"median_ms": latency, "p75_ms": latency * random.uniform(1.2, 2.0)},
            "append": {"median_ms": latency, "p75_ms": latency * random.uniform(1.2, 2.0)},
        }
        self.partitions = random.randint(3, 8)
        self.topics: list[dict[str, Any]] = [{"name": "orders", "partitions": self.partitions}]
        self.producers: list[dict[str, Any]] = [
            {
                "name": "checkout",
                "count": random.randint(2, 3),
                "topics": ["orders"],
                "rate": random.uniform(10, 25),
                "request_timeout_ms": random.choice((5_000, 30_000)),
            }
        ]
        self.consumers: list[dict[str, Any]] = [
            {"name": "billing", "count": random.randint(2, 3), "topics": ["orders"], "process_us": 100}
        ]
        self.share_groups: list[dict[str, Any]] = []
        self.topic_creations: list[dict[str, Any]] = []
        self.incidents: list[dict[str, Any]] = []
        self.broker = random.randint(1, BROKERS)
        self.member = f"billing-{random.randint(1, self.consumers[0]['count'])}"

    def start_s(self, length_s: float) -> float:
        """Draw the start of an incident that has ended 3 s before the end of the trace."""
        return self.random.uniform(FIRST_S, max(FIRST_S, self.duration_s - length_s - 3))

    def add(self, what: str, at_s: float, **fields: Any) -> None:
        """Add the incident `what` to the scenario, at `at_s` seconds of simulated time; `fields` are its settings."""
        self.incidents.append({"what": what, "at_s": at_s, **fields})

    def trace(self, *injected: Injected) -> Trace:
        """Return the trace with the incidents that were added."""
        scenario = Scenario.model_validate(
            {
                "shows": "incidents for a diagnosis",
                "seed": self.random.randint(1, 1_000_000),
                "duration_s": self.duration_s,
                "brokers": self.brokers,
                "topics": self.topics,
                "producers": self.producers,
                "consumers": self.consumers,
                "share_groups": self.share_groups,
                "topic_creations": self.topic_creations,
                "incidents": self.incidents,
            }
        )
        return Trace(scenario, injected)


def _follower_stalled(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(1.5, 8)
    at_s = cluster.start_s(length_s)
    cluster.add("stall-follower", at_s, broker=cluster.broker, for_s=length_s)
    return cluster.trace(Injected(at_s, at_s + length_s, ("follower_stalled",), broker=cluster.broker))


def _broker_frozen(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(1.5, 8)
    at_s = cluster.start_s(length_s)
    cluster.add("freeze-broker", at_s, broker=cluster.broker, for_s=length_s)
    return cluster.trace(Injected(at_s, at_s + length_s, ("broker_frozen",), broker=cluster.broker))


def _idle_broker(cluster: Cluster) -> Trace:
    """Return a trace in which a broker that leads no partition stalls, or freezes, which looks nearly the same."""
    cluster.topics[0]["partitions"] = BROKERS - 1
    length_s = cluster.random.uniform(1.5, 8)
    at_s = cluster.start_s(length_s)
    what, kinds = cluster.random.choice(
        (("stall-follower", ("follower_stalled",)), ("freeze-broker", ("follower_stalled", "broker_frozen")))
    )
    cluster.add(what, at_s, broker=BROKERS, for_s=length_s)
    return cluster.trace(Injected(at_s, at_s + length_s, kinds, broker=BROKERS))


def pause_again_and_again(cluster: Cluster, broker: int, at_s: float, length_s: float) -> None:
    """Let a broker pause its fetches again and again, each time too shortly to count as a stall."""
    pause_s = cluster.random.uniform(0.25, 0.55)
    every_s = pause_s + cluster.random.uniform(0.2, 0.8)
    times = max(1, round(length_s / every_s))
    cluster.add("stall-follower", at_s, broker=broker, for_s=pause_s, every_s=every_s, times=times)


def _follower_slow(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(5, 12)
    at_s = cluster.start_s(length_s)
    pause_again_and_again(cluster, cluster.broker, at_s, length_s)
    return cluster.trace(Injected(at_s, at_s + length_s, ("follower_slow",), broker=cluster.broker))


def _host_busy(cluster: Cluster) -> Trace:
    # In its first 15 s a cluster is slow for other reasons, and `diagnose` reports no busy host.
    length_s = cluster.random.uniform(6, 12)
    at_s = cluster.random.uniform(16, 20)
    cluster.duration_s = at_s + length_s + 5
    for broker in range(1, BROKERS + 1):
        pause_again_and_again(cluster, broker, at_s + cluster.random.uniform(0, 0.5), length_s)
    return cluster.trace(Injected(at_s, at_s + length_s + 1, ("host_busy",)))


def _below_min_isr(cluster: Cluster) -> Trace:
    lag_s = cluster.random.uniform(2, 4)
    cluster.brokers["replica_lag_time_max_ms"] = round(lag_s * 1000)
    cluster.topics.append({"name": "ledger", "partitions": cluster.random.randint(3, 6), "min_isr": BROKERS})
    timeout_ms = cluster.random.randint(1_500, 5_000)
    producer = {"name": "ledger-app", "topics": ["ledger"], "rate": cluster.random.uniform(10, 40)}
    cluster.producers.append(producer | {"request_timeout_ms": timeout_ms})
    length_s = cluster.random.uniform(2 * lag_s + 2, 14)
    at_s = cluster.start_s(length_s)
    cluster.add("stall-follower", at_s, broker=cluster.broker, for_s=length_s)
    injected = Injected(at_s, at_s + length_s, ("below_min_isr",), broker=cluster.broker, topic="ledger")
    return cluster.trace(injected)


def _leader_moved(cluster: Cluster) -> Trace:
    partition = cluster.random.randrange(cluster.partitions)
    former = 1 + partition % BROKERS
    successor = 1 + (former - 1 + cluster.random.randint(1, BROKERS - 1)) % BROKERS
    at_s = cluster.start_s(2)
    cluster.add("move-leader", at_s, topic="orders", partition=partition, to=successor)
    return cluster.trace(Injected(at_s, at_s + 2, ("leader_moved",), broker=former, topic="orders"))


def _broker_crashed(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(3, 8)
    at_s = cluster.start_s(length_s + 3)
    cluster.add("crash-broker", at_s, broker=cluster.broker, for_s=length_s)
    moved = Injected(at_s, at_s + length_s + 3, ("leader_moved",), broker=cluster.broker)
    return cluster.trace(moved)


def _broker_restarted(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(2, 6)
    at_s = cluster.start_s(length_s + 3)
    cluster.add("rolling-restart", at_s, brokers=[cluster.broker], down_s=length_s)
    return cluster.trace(Injected(at_s, at_s + length_s + 3, ("leader_moved",), broker=cluster.broker))


def _timeout_too_short(cluster: Cluster) -> Trace:
    median_ms = cluster.random.uniform(15, 30)
    cluster.brokers["append"] = {"median_ms": median_ms, "p75_ms": median_ms * 1.5}
    producer = {"name": "impatient", "topics": ["orders"], "rate": cluster.random.uniform(10, 30)}
    cluster.producers.append(producer | {"request_timeout_ms": round(median_ms * cluster.random.uniform(1.2, 2.0))})
    injected = Injected(0, cluster.duration_s, ("timeout_too_short",), client_id="impatient-1")
    return cluster.trace(injected)


def _min_bytes_out_of_reach(cluster: Cluster) -> Trace:
    reader = {"name": "archive", "topics": ["orders"], "fetch_min_bytes": cluster.random.choice((500_000, 5_000_000))}
    cluster.consumers.append(reader | {"fetch_max_wait_ms": cluster.random.randint(1_500, 5_000)})
    injected = Injected(0, cluster.duration_s, ("min_bytes_out_of_reach",), client_id="archive-1")
    return cluster.trace(injected)


def shorten_sessions(cluster: Cluster) -> float:
    """Give the group short sessions; return their length in seconds."""
    session_s = cluster.random.uniform(6, 8)
    cluster.consumers[0] |= {"session_timeout_ms": round(session_s * 1000), "heartbeat_interval_ms": 1_500}
    return session_s


def _member_failed(cluster: Cluster) -> Trace:
    length_s = shorten_sessions(cluster) + cluster.random.uniform(2, 5)
    at_s = cluster.start_s(length_s)
    what = cluster.random.choice(("pause-consumer", "crash-consumer"))
    cluster.add(what, at_s, consumer=cluster.member, for_s=length_s)
    injected = Injected(at_s, at_s + length_s, ("member_failed",), client_id=cluster.member, group="billing")
    return cluster.trace(injected)


def _member_restarted(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(2, 8)
    at_s = cluster.start_s(length_s)
    cluster.add("rolling-restart", at_s, consumer=cluster.member, down_s=length_s)
    injected = Injected(
        at_s, at_s + length_s + 1, ("member_slow_to_rejoin",), client_id=cluster.member, group="billing"
    )
    return cluster.trace(injected)


def _member_slow(cluster: Cluster) -> Trace:
    """Return a trace in which a member processes its records for longer than `max.poll.interval.ms`."""
    interval_ms = cluster.random.randint(3_000, 5_000)
    # Each member has partitions.
    cluster.topics[0]["partitions"] = 8
    slow = {"name": "slow", "group": "billing", "topics": ["orders"], "max_poll_interval_ms": interval_ms}
    # It leaves at a heartbeat up to 3 s after the interval, and comes back when it has processed four records.
    poll_ms = interval_ms + 3_000 + cluster.random.uniform(2_000, 6_000)
    cluster.consumers.append(slow | {"max_poll_records": 4, "process_us": 1_000 * poll_ms / 4})
    injected = Injected(
        0,
        cluster.duration_s,
        ("member_slow_to_rejoin",),
        client_id="slow-1",
        group="billing",
        consequences=("rebalance_storm",),
    )
    return cluster.trace(injected)


def _rebalance_storm(cluster: Cluster) -> Trace:
    """Return a trace in which members are restarted one by one. Each restart is a rebalance, and five are a storm."""
    cluster.duration_s = 40
    cluster.consumers[0]["count"] = count = cluster.random.randint(5, 7)
    at_s = cluster.random.uniform(FIRST_S, 8)
    down_s, gap_s = cluster.random.uniform(1, 2.5), cluster.random.uniform(1, 2.5)
    cluster.add("rolling-restart", at_s, consumer="billing", down_s=down_s, gap_s=gap_s)
    injected = Injected(
        at_s,
        at_s + count * (down_s + gap_s + 1),
        ("rebalance_storm",),
        group="billing",
        consequences=("member_slow_to_rejoin",),
    )
    return cluster.trace(injected)


def _purge_backlog(cluster: Cluster) -> Trace:
    # Partitions are assigned to brokers in turn: a topic before `busy` decides which broker leads its partition.
    cluster.topics = [{"name": "quiet", "partitions": 120 + cluster.broker - 1}, {"name": "busy", "partitions": 1}]
    cluster.producers = [{"name": "writer", "topics": ["busy"], "rate": cluster.random.uniform(20, 30)}]
    quiet = [partition for partition in range(120) if partition % BROKERS == cluster.broker - 1]
    reader = {"name": "dashboard", "count": 6, "commit": "never", "assign": {"quiet": quiet, "busy": [0]}}
    cluster.consumers = [reader]
    return cluster.trace(Injected(0, cluster.duration_s, ("purge_backlog",), broker=cluster.broker))


def _replication_throttled(cluster: Cluster) -> Trace:
    """Return a trace in which a throttled follower cannot rejoin the in-sync set while another one stalls."""
    lag_s = cluster.random.uniform(1.5, 3)
    cluster.brokers["replica_lag_time_max_ms"] = round(lag_s * 1000)
    cluster.topics.append({"name": "ledger", "partitions": 3})
    # A fetch returns up to 1 MiB of a partition, so the backlog of each partition must be larger.
    audit = {"name": "audit", "topics": ["ledger"], "rate": 60, "acks": 1, "record_bytes": 50_000}
    bookkeeper = {"name": "bookkeeper", "count": 2, "topics": ["ledger"], "rate": cluster.random.uniform(10, 30)}
    # Produces that were appended wait; after their timeout, new ones are refused.
    cluster.producers += [audit, bookkeeper | {"request_timeout_ms": cluster.random.randint(1_000, 2_000)}]
    throttled, stalled = cluster.random.sample(range(1, BROKERS + 1), 2)
    first_s, first_length_s = cluster.random.uniform(FIRST_S, 8), 1.5 * lag_s + cluster.random.uniform(0.5, 1.5)
    second_s = first_s + first_length_s + cluster.random.uniform(2, 4)
    second_length_s = 1.5 * lag_s + cluster.random.uniform(2, 4)
    end_s = second_s + second_length_s
    cluster.duration_s = end_s + 6
    cluster.add("stall-follower", first_s, broker=throttled, for_s=first_length_s)
    cluster.add("stall-follower", second_s, broker=stalled, for_s=second_length_s)
    throttle_s = first_s + first_length_s - 0.5
    cluster.add(
        "throttle-replica", throttle_s, broker=throttled, for_s=end_s + 2 - throttle_s, bytes_per_second=100_000
    )
    stall = ("follower_stalled", "below_min_isr")
    return cluster.trace(
        Injected(first_s, first_s + first_length_s, stall, broker=throttled),
        Injected(second_s, end_s, stall, broker=stalled),
        Injected(second_s, end_s + 1, ("replication_throttled",), broker=throttled),
    )


def _large_batches(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(3, 9)
    at_s = cluster.start_s(length_s)
    cluster.brokers["append_bytes_per_second"] = cluster.random.uniform(5e6, 30e6)
    cluster.producers.append({"name": "bulk", "topics": ["orders"], "rate": cluster.random.uniform(5, 40)})
    client = cluster.random.choice(("bulk-1", "checkout-1"))
    size = cluster.random.randint(100_000, 400_000)
    cluster.add("large-batches", at_s, producer=client, for_s=length_s, record_bytes=size)
    return cluster.trace(Injected(at_s, at_s + length_s + 1, ("large_batches",), client_id=client))


def _remote_read_slow(cluster: Cluster) -> Trace:
    length_s = cluster.random.uniform(4, 8)
    at_s = cluster.random.uniform(10, 13)
    cluster.duration_s = at_s + length_s + 5
    read = cluster.random.uniform(20, 60)
    cluster.brokers["remote_read"] = {"median_ms": read, "p75_ms": read * 1.4}
    cluster.topics.append(
        {"name": "clicks", "partitions": 6, "segment_bytes": 65_536, "local_retention_bytes": 131_072}
    )
    web = {"name": "web", "topics": ["clicks"], "rate": 400, "record_bytes": 1_000, "linger_ms": 100}
    cluster.producers.append(web)
    backfill: dict[str, Any] = {"name": "backfill", "count": 3, "assign": {"clicks": list(range(6))}}
    backfill |= {"reset": "earliest", "start_after_s": 6, "commit": "never", "process_us": 4_000}
    cluster.consumers.append(backfill | {"max_partition_fetch_bytes": 16_384})
    factor = cluster.random.uniform(500, 1_000) / read
    cluster.add("slow-remote-reads", at_s, broker=cluster.broker, for_s=length_s, factor=factor)
    return cluster.trace(Injected(at_s, at_s + length_s + 1, ("remote_read_slow",), broker=cluster.broker))


def _share_worker_slow(cluster: Cluster) -> Trace:
    lock_ms = cluster.random.randint(1_000, 2_000)
    start_s = cluster.random.uniform(1, 6)
    cluster.topics.append({"name": "jobs", "partitions": 3})
    cluster.producers.append({"name": "scheduler", "topics": ["jobs"], "rate": cluster.random.uniform(10, 20)})
    quick = {"name": "quick", "count": 3, "process_us": cluster.random.randint(1_000, 20_000)}
    slow: dict[str, Any] = {"name": "slow", "start_after_s": start_s, "process_us": 2_500 * lock_ms}
    group = {"name": "workers", "topics": ["jobs"], "record_lock_duration_ms": lock_ms, "workers": [quick, slow]}
    cluster.share_groups.append(group)
    return cluster.trace(
        Injected(start_s, cluster.duration_s, ("share_worker_slow",), client_id="slow-1", group="workers")
    )


SINGLE_SHAPES: dict[str, Callable[[Cluster], Trace]] = {
    "follower_stalled": _follower_stalled,
    "broker_frozen": _broker_frozen,
    "idle_broker": _idle_broker,
    "follower_slow": _follower_slow,
    "host_busy": _host_busy,
    "below_min_isr": _below_min_isr,
    "leader_moved": _leader_moved,
    "broker_crashed": _broker_crashed,
    "broker_restarted": _broker_restarted,
    "timeout_too_short": _timeout_too_short,
    "min_bytes_out_of_reach": _min_bytes_out_of_reach,
    "member_failed": _member_failed,
    "member_restarted": _member_restarted,
    "member_slow": _member_slow,
    "rebalance_storm": _rebalance_storm,
    "purge_backlog": _purge_backlog,
    "replication_throttled": _replication_throttled,
    "large_batches": _large_batches,
    "remote_read_slow": _remote_read_slow,
    "share_worker_slow": _share_worker_slow,
}

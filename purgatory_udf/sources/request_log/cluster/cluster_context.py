"""What the brokers' logs have to know of each other: names, leadership, transactions. Small, however long the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from purgatory_udf.sources.request_log.cluster.cluster_facts import ClusterFacts
from purgatory_udf.sources.request_log.cluster.cluster_metadata import (
    BrokerStop,
    ClusterMetadata,
    PartitionChange,
    broker_stops,
)
from purgatory_udf.sources.request_log.cluster.group_history import GroupHistory
from purgatory_udf.sources.request_log.cluster.internal_topics import TransactionFacts
from purgatory_udf.sources.request_log.cluster.record_batches import StoredBatch
from purgatory_udf.sources.request_log.lines.logged_request import Request

Key = tuple[str, int]

NO_COUNTS: Mapping[str, int] = {}

# A UUID in URL-safe base64.
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(slots=True)
class Context:
    """`span_us` is the log's own; `classic_brokers` are those whose group coordinator works in the request's thread.
    `follower_reads`: some consumer names its rack, so that it may read from a follower. `modern_groups` are those of
    newer protocols than the classic one. `zookeeper`: the controller is a ZooKeeper cluster's.
    """

    names: dict[str, str] = field(default_factory=dict)
    changes: dict[Key, list[PartitionChange]] = field(default_factory=dict)
    batches: dict[Key, list[StoredBatch]] = field(default_factory=dict)
    cluster: ClusterMetadata = field(default_factory=ClusterMetadata)
    transactions: TransactionFacts = field(default_factory=TransactionFacts)
    partition_counts: dict[str, int] = field(default_factory=dict)
    groups: GroupHistory = field(default_factory=GroupHistory)
    stops: list[BrokerStop] = field(default_factory=list)
    classic_brokers: frozenset[int] = frozenset()
    classic: bool | None = None
    follower_reads: bool = False
    modern_groups: frozenset[str] = frozenset()
    zookeeper: bool = False
    span_us: tuple[int, int] = (0, 2**62)

    def has_classic_coordinator(self, broker: int) -> bool:
        """Whether its group coordinator works in the thread that handles the request, and waits in purgatories."""
        return broker in self.classic_brokers if self.classic is None else self.classic

    def name(self, topic: str) -> str:
        return self.names.get(topic, topic)


@dataclass(frozen=True, slots=True)
class GivenMetadata:
    """What the operator hands over beside the log; it wins over what the log tells."""

    names: dict[str, str] = field(default_factory=dict)
    cluster: ClusterMetadata = field(default_factory=ClusterMetadata)
    batches: dict[Key, list[StoredBatch]] = field(default_factory=dict)
    classic: bool | None = None  # whether the brokers' group coordinators are classic ones; None: the log tells


def build_context(
    telling: Iterable[Request],
    given: GivenMetadata,
    span_us: tuple[int, int],
    classic_brokers: Iterable[int],
    asked: Mapping[str, int] = NO_COUNTS,
    follower_reads: bool = False,
    modern_groups: Iterable[str] = (),
) -> Context:
    """`telling` need hold only requests of the kinds `TELLING`, in the order of time. `asked`: how many partitions of a
    topic (or its id) followers have asked for."""
    facts = ClusterFacts()
    for request in telling:
        facts.read(request)
    return context_from_facts(facts, given, span_us, classic_brokers, asked, follower_reads, modern_groups)


def context_from_facts(
    telling: ClusterFacts,
    given: GivenMetadata,
    span_us: tuple[int, int],
    classic_brokers: Iterable[int],
    asked: Mapping[str, int] = NO_COUNTS,
    follower_reads: bool = False,
    modern_groups: Iterable[str] = (),
    unnamed: Iterable[str] = (),
) -> Context:
    """`unnamed` are ids that stand for their topics, whatever name is told of them. `telling` is used up."""
    names = {**telling.names, **given.cluster.names, **given.names}
    for topic_id in unnamed:
        names.pop(topic_id, None)
    context = Context(
        names=names,
        cluster=replace(given.cluster, topic_min_isr={**telling.min_isr, **given.cluster.topic_min_isr}),
        batches=given.batches,
        transactions=telling.transactions,
        groups=telling.groups,
        stops=broker_stops(given.cluster.lifecycle or telling.lifecycle),
        span_us=span_us,
        classic_brokers=frozenset(classic_brokers),
        classic=given.classic,
        follower_reads=follower_reads,
        modern_groups=frozenset(modern_groups),
        zookeeper=telling.zookeeper,
    )
    telling.changes = [*given.cluster.changes, *telling.changes]
    context.changes = telling.changes_by_partition(context.name)
    context.transactions.rename(names)
    counts = [(topic, partition + 1) for topic, partition in [*context.changes, *context.batches]]
    for topic, count in [*counts, *((context.name(topic), count) for topic, count in asked.items())]:
        context.partition_counts[topic] = max(context.partition_counts.get(topic, 0), count)
    return context


def unnamed_topics(topics: Iterable[str], context: Context) -> set[str]:
    """Those of the topics that go by their id, because nothing told their name."""
    known = set(context.names.values())
    return {topic for topic in topics if _TOPIC_ID.fullmatch(topic) and topic not in known}

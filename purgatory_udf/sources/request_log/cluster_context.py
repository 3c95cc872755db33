"""The context of an import: cluster facts that every task needs, from the log and from files of the operator.

Its size depends on the number of topics, groups and leadership changes, but not on the number of requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from purgatory_udf.sources.request_log.assumptions import METADATA_PROPAGATION_US, Report
from purgatory_udf.sources.request_log.cluster_facts import ClusterFacts, GroupHistory
from purgatory_udf.sources.request_log.cluster_metadata import (
    GIVEN,
    BrokerStop,
    ClusterMetadata,
    GroupSession,
    PartitionChange,
    ShareSetting,
    TopicSize,
    broker_stops,
)
from purgatory_udf.sources.request_log.internal_topics import (
    DEFAULT_PARTITIONS,
    OFFSETS_TOPIC,
    StoredBatch,
    TransactionFacts,
    partition_for,
)
from purgatory_udf.sources.request_log.logged_request import Request

Key = tuple[str, int]

NO_COUNTS: Mapping[str, int] = {}

# A UUID in URL-safe base64.
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class RemoteWaits:
    """Topics, by name or id, of requests that waited for remote storage.

    Attributes:
        fetches: Topics of fetches that were answered without the records that the partition had.
        lookups: Topics of each LIST_OFFSETS request that waited; at least one of them is tiered.
    """

    fetches: frozenset[str] = frozenset()
    lookups: frozenset[tuple[str, ...]] = frozenset()

    def __or__(self, other: RemoteWaits) -> RemoteWaits:
        return RemoteWaits(self.fetches | other.fetches, self.lookups | other.lookups)

    def tiered_topics(self, configured: frozenset[str], name: Callable[[str], str]) -> frozenset[str]:
        """Return the names of the tiered topics.

        These are the `configured` ones, the topics of `fetches`, and all topics of each request in `lookups` that has
        no topic known to be tiered. `name` maps a topic's id or name to its name.
        """
        tiered = {*configured, *map(name, self.fetches)}
        for topics in sorted(self.lookups, key=len):
            names = set(map(name, topics))
            if not names & tiered:
                tiered |= names
        return frozenset(tiered)

    def snapshot(self) -> list[Any]:
        """Return the topics as JSON values, from which `resumed` restores them."""
        return [sorted(self.fetches), sorted(map(list, self.lookups))]

    @classmethod
    def resumed(cls, state: Sequence[Any]) -> RemoteWaits:
        """Restore the topics from a `snapshot`."""
        fetches, lookups = state
        return cls(frozenset(fetches), frozenset(map(tuple, lookups)))


NO_REMOTE_WAITS = RemoteWaits()


@dataclass(slots=True)
class Context:
    """Cluster facts for the conversion of requests and the timelines of partitions.

    Attributes:
        names: Topic name by topic id.
        changes: Changes of leadership and in-sync set by partition, in time order.
        batches: Record batches by partition, from `--batches`.
        partition_counts: Number of partitions by topic, as far as the log and the given files show it.
        stops: Stops of brokers, in time order.
        classic_brokers: Brokers with a classic group coordinator, which runs in the request handler threads.
        classic: Overrides `classic_brokers` for all brokers, unless None.
        follower_reads: Whether a consumer has set `client.rack`, so that it may read from followers.
        modern_groups: Streams and share groups.
        new_brokers: Brokers with the group coordinator of Kafka 4.0.
        topic_sizes: Partition counts of topics over time, in time order.
        group_sessions: Session timeouts that were set for a group of the consumer protocol, in time order.
        share_settings: Settings that were set for a share group, in time order.
        zookeeper: Whether the controller is a ZooKeeper controller.
        tiered: Topics with remote storage, by configuration or because their requests waited for it.
        configured_tiered: Those of the tiered topics that are known from their configuration.
        lookups_wait: Whether lookups in remote storage make LIST_OFFSETS requests wait (Kafka 4.0 and later).
        span_us: First arrival and last response of the log, in microseconds since the epoch.
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
    new_brokers: frozenset[int] = frozenset()
    topic_sizes: list[TopicSize] = field(default_factory=list)
    group_sessions: dict[str, list[GroupSession]] = field(default_factory=dict)
    share_settings: dict[str, list[ShareSetting]] = field(default_factory=dict)
    zookeeper: bool = False
    tiered: frozenset[str] = frozenset()
    configured_tiered: frozenset[str] = frozenset()
    lookups_wait: bool = False
    span_us: tuple[int, int] = (0, 2**62)

    def has_classic_coordinator(self, broker: int) -> bool:
        """Return whether the broker's group coordinator is a classic one, with requests that wait in purgatories."""
        if broker in self.new_brokers:
            return False
        return broker in self.classic_brokers if self.classic is None else self.classic

    def group_partition(self, group: str) -> int:
        """Return the partition of the offsets topic that a group belongs to."""
        return partition_for(group, self.partition_counts.get(OFFSETS_TOPIC, DEFAULT_PARTITIONS[OFFSETS_TOPIC]))

    def has_new_coordinator(self, broker: int) -> bool:
        """Return whether the broker certainly has the group coordinator of Kafka 4.0."""
        return broker in self.new_brokers or self.classic is False

    def group_session_ms(self, group: str, at_us: int) -> int | None:
        """Return the session timeout that was set for the group, or None if the log shows none."""
        known = reversed(self.group_sessions.get(group, ()))
        return next((session.timeout_ms for session in known if session.at_us <= at_us), None)

    def share_settings_at(self, group: str, at_us: int) -> dict[str, int | str]:
        """Return the settings of a share group that were set by `at_us`, by field of the event `share_group`."""
        known = {each.field: each.value for each in self.share_settings.get(group, ()) if each.at_us <= at_us}
        return {field: value for field, value in known.items() if value is not None}

    def topic_ids(self) -> dict[str, str]:
        """Return the known topic ids by name."""
        return {name: topic_id for topic_id, name in self.names.items() if _TOPIC_ID.fullmatch(topic_id)}

    def name(self, topic: str) -> str:
        """Return the name of a topic given by name or id; an id without a known name stays an id."""
        return self.names.get(topic, topic)


@dataclass(frozen=True, slots=True)
class GivenMetadata:
    """Files that the operator supplies with the log; they take precedence over facts from the log.

    `classic` is whether all group coordinators are classic ones; None: the log decides. `tiered` are the topics with
    remote storage, `sizes` the numbers of partitions by topic.
    """

    names: dict[str, str] = field(default_factory=dict)
    cluster: ClusterMetadata = field(default_factory=ClusterMetadata)
    batches: dict[Key, list[StoredBatch]] = field(default_factory=dict)
    classic: bool | None = None
    tiered: frozenset[str] = frozenset()
    sizes: dict[str, int] = field(default_factory=dict)


def build_context(
    requests: Iterable[Request],
    given: GivenMetadata,
    span_us: tuple[int, int],
    classic_brokers: Iterable[int],
    fetched_counts: Mapping[str, int] = NO_COUNTS,
    follower_reads: bool = False,
    modern_groups: Iterable[str] = (),
    new_brokers: Iterable[int] = (),
    remote_waits: RemoteWaits = NO_REMOTE_WAITS,
) -> Context:
    """Build the context of a whole log.

    Args:
        requests: Requests in time order; only those of `CLUSTER_APIS` matter.
        given: Files of the operator.
        span_us: First arrival and last response of the log.
        classic_brokers: Brokers with a classic group coordinator.
        fetched_counts: Number of partitions that followers fetch, by topic name or id.
        follower_reads: Whether a consumer has set `client.rack`.
        modern_groups: Streams and share groups.
        new_brokers: Brokers with the group coordinator of Kafka 4.0.
        remote_waits: Topics of requests that waited for remote storage.
    """
    facts = ClusterFacts()
    for request in requests:
        facts.read(request)
    return context_from_facts(
        facts,
        given,
        span_us,
        classic_brokers,
        fetched_counts,
        follower_reads,
        modern_groups,
        new_brokers,
        (),
        remote_waits,
    )


def context_from_facts(
    facts: ClusterFacts,
    given: GivenMetadata,
    span_us: tuple[int, int],
    classic_brokers: Iterable[int],
    fetched_counts: Mapping[str, int] = NO_COUNTS,
    follower_reads: bool = False,
    modern_groups: Iterable[str] = (),
    new_brokers: Iterable[int] = (),
    unnamed: Iterable[str] = (),
    remote_waits: RemoteWaits = NO_REMOTE_WAITS,
) -> Context:
    """Build the context from facts already collected; see `build_context`.

    The context takes over the contents of `facts`, which must not be used afterwards. Topics with an id in `unnamed`
    keep the id as their name, because earlier steps have written events with it.
    """
    names = {**facts.names, **given.cluster.names, **given.names}
    for topic_id in unnamed:
        names.pop(topic_id, None)
    context = Context(
        names=names,
        cluster=replace(given.cluster, topic_min_isr={**facts.min_isr, **given.cluster.topic_min_isr}),
        batches=given.batches,
        transactions=facts.transactions,
        groups=facts.groups,
        stops=broker_stops(given.cluster.lifecycle or facts.lifecycle),
        span_us=span_us,
        classic_brokers=frozenset(classic_brokers),
        classic=given.classic,
        follower_reads=follower_reads,
        modern_groups=frozenset(modern_groups),
        new_brokers=frozenset(new_brokers),
        zookeeper=facts.zookeeper,
        lookups_wait=bool(remote_waits.lookups),
    )
    context.configured_tiered = frozenset({*given.tiered, *given.cluster.tiered, *facts.tiered})
    context.tiered = remote_waits.tiered_topics(context.configured_tiered, context.name)
    facts.changes = [*given.cluster.changes, *facts.changes]
    context.changes = facts.changes_by_partition(context.name)
    context.transactions.rename(names)
    counts = [(topic, partition + 1) for topic, partition in [*context.changes, *context.batches]]
    counts += [(context.name(topic), count) for topic, count in fetched_counts.items()]
    for topic, count in [*counts, *given.sizes.items()]:
        context.partition_counts[topic] = max(context.partition_counts.get(topic, 0), count)
    context.topic_sizes = _topic_sizes(context, facts.created)
    for session in sorted([*given.cluster.group_sessions, *facts.group_sessions], key=lambda session: session.at_us):
        context.group_sessions.setdefault(session.group, []).append(session)
    for setting in sorted([*given.cluster.share_settings, *facts.share_settings], key=lambda setting: setting.at_us):
        context.share_settings.setdefault(setting.group, []).append(setting)
    return context


def count_tiered(context: Context, report: Report) -> None:
    """Add the number of tiered topics to the report: those known from their configuration, and all others."""
    report.count("tiered_configured", len(context.configured_tiered))
    report.count("tiered_shown", len(context.tiered - context.configured_tiered))


def _topic_sizes(context: Context, created: Iterable[TopicSize]) -> list[TopicSize]:
    """Return the partition counts of topics over time; `created` has those that requests set.

    A metadata log dates the creation of each partition; otherwise, requests that create topics do. All other topics
    exist from the start of the log on.
    """
    dated: dict[str, list[TopicSize]] = {}
    requested: dict[str, list[TopicSize]] = {}
    for (topic, partition), changes in context.changes.items():
        for change in changes:
            if change.deleted:
                requested.setdefault(topic, []).append(TopicSize(change.at_us, topic, 0))
            if change.source == GIVEN:
                at_us = change.at_us + METADATA_PROPAGATION_US
                dated.setdefault(topic, []).append(TopicSize(at_us, topic, 0 if change.deleted else partition + 1))
    for at_us, topic, size in created:
        requested.setdefault(context.name(topic), []).append(TopicSize(at_us, context.name(topic), size))
    sizes = []
    for topic, count in context.partition_counts.items():
        of_topic = sorted(dated.get(topic) or requested.get(topic) or [])
        if max((size.partitions for size in of_topic), default=0) < count:
            of_topic = [TopicSize(context.span_us[0], topic, count), *of_topic]
        known = 0
        for at_us, at_once in groupby(of_topic, key=lambda size: size.at_us):
            partitions = [size.partitions for size in at_once]
            now = max(known, *partitions) if all(partitions) else 0
            if now != known:
                sizes.append(TopicSize(at_us, topic, now))
                known = now
    return sorted(sizes)


def unnamed_topics(topics: Iterable[str], context: Context) -> set[str]:
    """Return the topics that are identified by their id because their name is unknown."""
    known = set(context.names.values())
    return {topic for topic in topics if _TOPIC_ID.fullmatch(topic) and topic not in known}

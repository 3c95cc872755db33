"""What the brokers' logs have to know of each other: names, leadership, transactions. Small, however long the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from purgatory_udf.requestlog import cluster as clusters
from purgatory_udf.requestlog.batches import Batch
from purgatory_udf.requestlog.cluster import Change, Cluster
from purgatory_udf.requestlog.line import MALFORMED
from purgatory_udf.requestlog.request import Request
from purgatory_udf.requestlog.topics import names_in
from purgatory_udf.requestlog.transactions import TransactionFacts

Key = tuple[str, int]

# The requests from which a context is made.
TELLING = frozenset(
    {
        "METADATA",
        "DESCRIBE_TOPIC_PARTITIONS",
        "CREATE_TOPICS",
        "DELETE_TOPICS",
        "ALTER_PARTITION",
        "ADD_PARTITIONS_TO_TXN",
        "INIT_PRODUCER_ID",
    }
)


# A UUID in URL-safe base64.
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(slots=True)
class Context:
    """`span_us` is the log's own; `classic_brokers` are those whose group coordinator works in the request's thread."""

    names: dict[str, str] = field(default_factory=dict)
    changes: dict[Key, list[Change]] = field(default_factory=dict)
    batches: dict[Key, list[Batch]] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    transactions: TransactionFacts = field(default_factory=TransactionFacts)
    partition_counts: dict[str, int] = field(default_factory=dict)
    classic_brokers: frozenset[int] = frozenset()
    span_us: tuple[int, int] = (0, 2**62)

    def name(self, topic: str) -> str:
        return self.names.get(topic, topic)


@dataclass(frozen=True, slots=True)
class Given:
    """What the operator hands over beside the log; it wins over what the log tells."""

    names: dict[str, str] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    batches: dict[Key, list[Batch]] = field(default_factory=dict)


def build_context(
    telling: Iterable[Request], given: Given, span_us: tuple[int, int], classic_brokers: Iterable[int]
) -> Context:
    """`telling` need hold only requests of the kinds `TELLING`, in the order of time."""
    context = Context(
        cluster=given.cluster, batches=given.batches, span_us=span_us, classic_brokers=frozenset(classic_brokers)
    )
    found: dict[str, str] = {}
    changes: list[Change] = list(given.cluster.changes)
    deletions: list[tuple[int, str]] = []
    for request in telling:
        # What cannot be read is rejected where it becomes an event; here it only tells nothing.
        with suppress(*MALFORMED):
            found.update(names_in(request))
            changes.extend(clusters.changes_in(request))
            deletions.extend(clusters.deletions_in(request))
            for topic, size in clusters.min_isr_in(request):
                context.cluster.topic_min_isr.setdefault(topic, size)
            context.transactions.read(request)
    context.names = {**found, **given.cluster.names, **given.names}
    context.transactions.rename(context.names)
    for change in sorted(clusters.named(changes, context.names), key=lambda one: one.at_us):
        context.changes.setdefault((change.topic, change.partition), []).append(change)
    for at_us, topic in deletions:
        _delete(context, context.name(topic), at_us)
    for topic, partition in [*context.changes, *context.batches]:
        context.partition_counts[topic] = max(context.partition_counts.get(topic, 0), partition + 1)
    return context


def _delete(context: Context, topic: str, at_us: int) -> None:
    """A deletion of which only the answer to DELETE_TOPICS tells."""
    for key, changes in context.changes.items():
        if key[0] == topic and not any(one.deleted for one in changes):
            changes.append(Change(at_us, *key, clusters.REPORTED, deleted=True))
            changes.sort(key=lambda one: one.at_us)


def unnamed(topics: Iterable[str], context: Context) -> int:
    """How many of the topics go by their id, because nothing told their name."""
    known = set(context.names.values())
    return sum(bool(_TOPIC_ID.fullmatch(topic)) and topic not in known for topic in set(topics))

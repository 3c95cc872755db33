"""What a consumer reads: how it comes by its partitions, and where in each of them it is (Kafka: SubscriptionState)."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.messages import Metadata
from purgatory_udf.simulate.scenario import Consumers


class Subscribed(Enum):
    AUTO_TOPICS = "topics"
    AUTO_PATTERN = "pattern"
    USER_ASSIGNED = "assign"


class Subscription:
    """`positions` has, of each assigned partition, the offset of the next record to hand over, None while unknown."""

    def __init__(self, settings: Consumers) -> None:
        self.positions: dict[TopicPartition, int | None] = {}
        self._topics = settings.topics or []
        self._pattern = re.compile(settings.pattern) if settings.pattern is not None else None
        if settings.assign is not None:
            self.kind = Subscribed.USER_ASSIGNED
            self.assign(
                [TopicPartition(topic, partition) for topic, some in settings.assign.items() for partition in some]
            )
        else:
            self.kind = Subscribed.AUTO_TOPICS if self._pattern is None else Subscribed.AUTO_PATTERN

    @property
    def needs_a_group(self) -> bool:
        return self.kind is not Subscribed.USER_ASSIGNED

    def partitions(self, metadata: Metadata) -> list[TopicPartition]:
        """All partitions of the topics that it subscribes to, as far as the cluster has any."""
        if self._pattern is not None:
            topics = sorted(topic for topic in metadata.topics if self._pattern.fullmatch(topic))
        else:
            topics = self._topics
        return [TopicPartition(topic, at) for topic in topics for at in range(metadata.topics.get(topic, 0))]

    def assign(self, keys: list[TopicPartition]) -> None:
        """A new assignment: every position has to be found anew."""
        self.positions = dict.fromkeys(keys)

    @property
    def missing_positions(self) -> list[TopicPartition]:
        return [key for key, offset in self.positions.items() if offset is None]

    def lose_position(self, key: TopicPartition) -> None:
        if key in self.positions:
            self.positions[key] = None


Assignment = dict[str, list[TopicPartition]]


def assign_round_robin(partitions: list[TopicPartition], members: tuple[str, ...]) -> Assignment:
    """Kafka's round-robin assignor: the partitions of all topics, in turn, to one member after the other."""
    ordered = sorted(members)
    assignment: Assignment = {member: [] for member in ordered}
    for at, key in enumerate(sorted(partitions)):
        assignment[ordered[at % len(ordered)]].append(key)
    return assignment


def assign_ranges(partitions: list[TopicPartition], members: tuple[str, ...]) -> Assignment:
    """Kafka's range assignor: of each topic, consecutive partitions for each member in the order of their ids."""
    ordered = sorted(members)
    assignment: Assignment = {member: [] for member in ordered}
    by_topic: dict[str, list[TopicPartition]] = {}
    for key in partitions:
        by_topic.setdefault(key.topic, []).append(key)
    for keys in by_topic.values():
        each, more = divmod(len(keys), len(ordered))
        begin = 0
        for at, member in enumerate(ordered):
            end = begin + each + (at < more)
            assignment[member] += keys[begin:end]
            begin = end
    return assignment


# By the names under which members say that they know them.
ASSIGNORS: dict[str, Callable[[list[TopicPartition], tuple[str, ...]], Assignment]] = {
    "range": assign_ranges,
    "roundrobin": assign_round_robin,
}

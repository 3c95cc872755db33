"""A consumer's fetches: sent ahead to every broker that has none to answer, kept until they are asked for."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.client_network import Client
from purgatory_udf.simulation.environment import ProcessGenerator
from purgatory_udf.simulation.messages import (
    NONE,
    FetchPartition,
    FetchPartitions,
    FetchResponse,
    FetchResponsePartition,
    FetchSessionHandler,
    Metadata,
)
from purgatory_udf.simulation.scenario import Consumers

# What a consumer reads: how it comes by its partitions, and where in each of them it is (Kafka: SubscriptionState).


class SubscriptionType(Enum):
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
            self.kind = SubscriptionType.USER_ASSIGNED
            self.assign(
                [TopicPartition(topic, partition) for topic, some in settings.assign.items() for partition in some]
            )
        else:
            self.kind = SubscriptionType.AUTO_TOPICS if self._pattern is None else SubscriptionType.AUTO_PATTERN

    @property
    def needs_a_group(self) -> bool:
        return self.kind is not SubscriptionType.USER_ASSIGNED

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


OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


@dataclass(slots=True)
class CompletedFetch:
    """Records of one partition that wait to be handed over."""

    key: TopicPartition
    offset: int
    end: int


class Fetcher:
    """`arrived` happens whenever a fetch is answered, with data or without."""

    def __init__(self, client: Client, settings: Consumers, subscription: Subscription) -> None:
        self.arrived = client.world.env.event()
        self.metadata_is_stale = True
        self._client = client
        self._world = client.world
        self._settings = settings
        self._subscription = subscription
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._unanswered: dict[int, None] = {}
        self._completed: deque[CompletedFetch] = deque()

    @property
    def has_completed_fetches(self) -> bool:
        return bool(self._completed)

    def send_fetches(self) -> int:
        """To every broker that leads fetchable partitions and owes no answer; how many were sent.

        A partition is fetchable while none of its records wait to be handed over.
        """
        waiting = {fetch.key for fetch in self._completed}
        by_broker: dict[int, FetchPartitions] = {}
        for key, offset in self._subscription.positions.items():
            leader = self._client.metadata.leaders.get(key)
            if leader is None:
                self.metadata_is_stale = True
            elif offset is not None and key not in waiting:
                broker, epoch = leader
                want = FetchPartition(offset, self._settings.max_partition_fetch_bytes, epoch)
                by_broker.setdefault(broker, {})[key] = want
        sent = 0
        for broker, wants in by_broker.items():
            if broker not in self._unanswered:
                self._unanswered[broker] = None
                self._world.env.process(self._fetch(broker, wants))
                sent += 1
        return sent

    def fetched_records(self) -> dict[TopicPartition, int]:
        """How many records of which partition are handed over: at most `max_poll_records` in all."""
        records: dict[TopicPartition, int] = {}
        room = self._settings.max_poll_records
        while self._completed and room:
            fetch = self._completed[0]
            if self._subscription.positions.get(fetch.key) != fetch.offset:
                # The partition was lost, or its position moved, since this was asked for.
                self._completed.popleft()
                continue
            taken = min(room, fetch.end - fetch.offset)
            fetch.offset += taken
            room -= taken
            self._subscription.positions[fetch.key] = fetch.offset
            records[fetch.key] = records.get(fetch.key, 0) + taken
            if fetch.offset == fetch.end:
                self._completed.popleft()
        return records

    def _fetch(self, broker: int, wants: FetchPartitions) -> ProcessGenerator[None]:
        session = self._sessions.setdefault(broker, FetchSessionHandler())
        settings = self._settings
        fetch = session.next(
            wants,
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation=settings.isolation,
            quota=settings.quota_bytes_per_second,
        )
        answer = yield from self._client.ask(broker, fetch)
        del self._unanswered[broker]
        if isinstance(answer, FetchResponse) and answer.error == NONE:
            session.answered(answer)
            for part in answer.partitions:
                self._take(part)
        else:
            session.failed()
            self.metadata_is_stale = True
        self.arrived.succeed()
        self.arrived = self._world.env.event()

    def _take(self, part: FetchResponsePartition) -> None:
        if part.error == OFFSET_OUT_OF_RANGE:
            self._subscription.lose_position(part.key)
        elif part.error != NONE:
            self.metadata_is_stale = True
        elif part.next_offset > part.offset:
            self._completed.append(CompletedFetch(part.key, part.offset, part.next_offset))

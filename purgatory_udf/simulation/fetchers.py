"""The fetch loops of consumers and followers, and the subscription of a consumer with its group's partition assignors.

A consumer sends fetches in advance to each leader that has no fetch in flight. Their records are kept until the
application polls. A broker runs one loop for each leader, which fetches the partitions that the broker follows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.client_network import Client
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.messages import (
    NONE,
    FetchPartition,
    FetchPartitions,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchSessionHandler,
    Metadata,
)
from purgatory_udf.simulation.scenario import Brokers, Consumers
from purgatory_udf.simulation.simpy_environment import ProcessGenerator


class SubscriptionType(Enum):
    """How a consumer receives partitions (Kafka: `SubscriptionState.SubscriptionType`)."""

    AUTO_TOPICS = "topics"
    AUTO_PATTERN = "pattern"
    USER_ASSIGNED = "assign"


class Subscription:
    """A consumer's assigned partitions and its position in each.

    `positions` maps each assigned partition to the offset of the next record to return, None while it is unknown.
    """

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
    def is_auto_assigned(self) -> bool:
        """Whether a group assigns the partitions."""
        return self.kind is not SubscriptionType.USER_ASSIGNED

    def partitions(self, metadata: Metadata) -> list[TopicPartition]:
        """Return all existing partitions of the subscribed topics."""
        if self._pattern is not None:
            topics = sorted(topic for topic in metadata.topics if self._pattern.fullmatch(topic))
        else:
            topics = self._topics
        return [TopicPartition(topic, at) for topic in topics for at in range(metadata.topics.get(topic, 0))]

    def assign(self, keys: list[TopicPartition]) -> None:
        """Replace the assignment. All positions are unknown afterwards."""
        self.positions = dict.fromkeys(keys)

    @property
    def missing_positions(self) -> list[TopicPartition]:
        return [key for key, offset in self.positions.items() if offset is None]

    def clear_position(self, key: TopicPartition) -> None:
        """Forget the position, so that the `reset` policy applies."""
        if key in self.positions:
            self.positions[key] = None


Assignment = dict[str, list[TopicPartition]]


def assign_round_robin(partitions: list[TopicPartition], members: tuple[str, ...]) -> Assignment:
    """Assign the partitions of every topic to the members in turn (Kafka: `RoundRobinAssignor`)."""
    ordered = sorted(members)
    assignment: Assignment = {member: [] for member in ordered}
    for at, key in enumerate(sorted(partitions)):
        assignment[ordered[at % len(ordered)]].append(key)
    return assignment


def assign_ranges(partitions: list[TopicPartition], members: tuple[str, ...]) -> Assignment:
    """Assign consecutive partitions of each topic to the members, sorted by id (Kafka: `RangeAssignor`)."""
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


# The protocol names that members list when they join.
ASSIGNORS: dict[str, Callable[[list[TopicPartition], tuple[str, ...]], Assignment]] = {
    "range": assign_ranges,
    "roundrobin": assign_round_robin,
}


OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


@dataclass(slots=True)
class CompletedFetch:
    """Records of one partition that the application has not polled yet."""

    key: TopicPartition
    offset: int
    end: int


class ConsumerFetcher:
    """Sends fetches and keeps their records (Kafka: `Fetcher`).

    The SimPy event `response_received` is triggered by every fetch response, with or without records.
    """

    def __init__(self, client: Client, settings: Consumers, subscription: Subscription) -> None:
        self.response_received = client.environment.env.event()
        self.metadata_is_stale = True
        self._client = client
        self._environment = client.environment
        self._settings = settings
        self._subscription = subscription
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._pending_brokers: dict[int, None] = {}
        self._completed: deque[CompletedFetch] = deque()

    @property
    def has_completed_fetches(self) -> bool:
        return bool(self._completed)

    def send_fetches(self) -> int:
        """Send a fetch to every leader that has none in flight; return how many were sent.

        A partition is fetched only while none of its records wait for a poll.
        """
        waiting = {fetch.key for fetch in self._completed}
        by_broker: dict[int, FetchPartitions] = {}
        for key, offset in self._subscription.positions.items():
            leader = self._client.metadata.leaders.get(key)
            if leader is None:
                self.metadata_is_stale = True
            elif offset is not None and key not in waiting:
                broker, epoch = leader
                partition = FetchPartition(offset, self._settings.max_partition_fetch_bytes, epoch)
                by_broker.setdefault(broker, {})[key] = partition
        sent = 0
        for broker, partitions in by_broker.items():
            if broker not in self._pending_brokers:
                self._pending_brokers[broker] = None
                self._environment.env.process(self._fetch(broker, partitions))
                sent += 1
        return sent

    def fetched_records(self) -> dict[TopicPartition, int]:
        """Return the number of records per partition for one poll, at most `max_poll_records` in total."""
        records: dict[TopicPartition, int] = {}
        room = self._settings.max_poll_records
        while self._completed and room:
            fetch = self._completed[0]
            if self._subscription.positions.get(fetch.key) != fetch.offset:
                # The partition was revoked, or its position changed, after the fetch was sent.
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

    def _fetch(self, broker: int, partitions: FetchPartitions) -> ProcessGenerator[None]:
        session = self._sessions.setdefault(broker, FetchSessionHandler())
        settings = self._settings
        fetch = session.build_request(
            partitions,
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation=settings.isolation,
            quota=settings.quota_bytes_per_second,
        )
        response = yield from self._client.request(broker, fetch)
        del self._pending_brokers[broker]
        if isinstance(response, FetchResponse) and response.error == NONE:
            session.handle_response(response)
            for part in response.partitions:
                self._handle_partition(part)
        else:
            session.handle_error()
            self.metadata_is_stale = True
        self.response_received.succeed()
        self.response_received = self._environment.env.event()

    def _handle_partition(self, part: FetchResponsePartition) -> None:
        if part.error == OFFSET_OUT_OF_RANGE:
            self._subscription.clear_position(part.key)
        elif part.error != NONE:
            self.metadata_is_stale = True
        elif part.next_offset > part.offset:
            self._completed.append(CompletedFetch(part.key, part.offset, part.next_offset))


MAX_BYTES = 10_485_760
PARTITION_MAX_BYTES = 1_048_576
FETCH_BACKOFF_MS = 1000
SOCKET_TIMEOUT_MS = 30_000


class ReplicaFetcherManager:
    """One broker's replica fetchers. They stop while the broker is down (`up`) and pause while it is stalled."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.up = True
        self.stalled_until_us = 0
        self.clients: list[Client] = []

    def disconnect(self) -> None:
        """Close all connections to leaders."""
        for client in self.clients:
            client.disconnect()


class ReplicaFetcher:
    """A follower's loop for one leader: fetch, append the records, which takes some time, and fetch again."""

    def __init__(
        self,
        client: Client,
        fetcher_manager: ReplicaFetcherManager,
        leader: int,
        controller: Controller,
        settings: Brokers,
    ) -> None:
        self._client = client
        self._environment = client.environment
        self._manager = fetcher_manager
        self._leader = leader
        self._controller = controller
        self._settings = settings
        self._session = FetchSessionHandler()
        self._random = client.environment.random_stream("follower", client.client_id)

    def run(self) -> ProcessGenerator[None]:
        while True:
            yield from self._wait_while_stalled()
            partitions = self._partitions_to_fetch()
            if not partitions or not self._manager.up:
                self._session.handle_error()
                yield self._controller.leadership_changed
                continue
            response = yield from self._client.request(self._leader, self._request(partitions), SOCKET_TIMEOUT_MS)
            if not isinstance(response, FetchResponse) or response.error != NONE:
                self._session.handle_error()
                yield self._environment.sleep_ms(FETCH_BACKOFF_MS)
                continue
            self._session.handle_response(response)
            yield self._environment.sleep_us(self._append_us(response))
            yield from self._wait_while_stalled()
            if self._manager.up:
                for part in response.partitions:
                    self._append(part, partitions)

    def _partitions_to_fetch(self) -> FetchPartitions:
        broker = self._manager.broker
        return {
            key: FetchPartition(state.replica_logs[broker].end, PARTITION_MAX_BYTES, state.epoch)
            for key, state in self._controller.partitions.items()
            if state.leader == self._leader and state.followed_by(broker)
        }

    def _request(self, partitions: FetchPartitions) -> FetchRequest:
        return self._session.build_request(
            partitions,
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            replica_id=self._manager.broker,
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=MAX_BYTES,
            isolation="read_uncommitted",
        )

    def _append_us(self, response: FetchResponse) -> int:
        """Draw the time of appending the records of a response, in microseconds."""
        rate, size = self._settings.append_bytes_per_second, sum(part.bytes for part in response.partitions)
        return self._random.delay_us(self._settings.append) + (round(size / rate * 1_000_000) if rate else 0)

    def _append(self, part: FetchResponsePartition, partitions: FetchPartitions) -> None:
        """Append the records of a response to the replica's log, unless the leader changed since the fetch was sent.

        `partitions` are those of the fetch, with the leader epochs that it named.
        """
        state = self._controller.partitions[part.key]
        replica_log = state.replica_logs[self._manager.broker]
        partition = partitions.get(part.key)
        current = state.leader == self._leader and partition is not None and partition.epoch == state.epoch
        if part.error == NONE and current and replica_log.end == part.offset:
            replica_log.append(part.next_offset, part.bytes, part.high_watermark)

    def _wait_while_stalled(self) -> ProcessGenerator[None]:
        """Wait while the broker is stalled."""
        while self._manager.stalled_until_us > self._environment.now_us:
            yield self._environment.sleep_us(self._manager.stalled_until_us - self._environment.now_us)

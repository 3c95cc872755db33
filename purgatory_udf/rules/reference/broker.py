"""The broker: its replicas, its purgatories, and the requests that may have to wait in them (Kafka: ReplicaManager)."""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.rules.purgatory.clock import Clock
from purgatory_udf.rules.purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory_udf.rules.reference.delayed_admin import DelayedCreateTopics, DelayedDeleteRecords
from purgatory_udf.rules.reference.delayed_fetch import DelayedFetch
from purgatory_udf.rules.reference.delayed_produce import (
    ALL_IN_SYNC,
    INVALID_REQUIRED_ACKS,
    NONE,
    VALID_ACKS,
    DelayedProduce,
)
from purgatory_udf.rules.reference.partition import LeaderHwChange, Partition


class Broker:
    """Answers each request at once or puts it into a purgatory, and checks the purgatories when a partition changes."""

    def __init__(self, broker_id: int, config: Config, clock: Clock) -> None:
        self.broker_id = broker_id
        self.produces: DelayedOperationPurgatory[DelayedProduce]
        self.fetches: DelayedOperationPurgatory[DelayedFetch]
        self.deletions: DelayedOperationPurgatory[DelayedDeleteRecords]
        self.topics: DelayedOperationPurgatory[DelayedCreateTopics]
        self.produces = clock.new_purgatory(broker_id, "Produce", config.produce.purge_interval)
        self.fetches = clock.new_purgatory(broker_id, "Fetch", config.fetch.purge_interval)
        self.deletions = clock.new_purgatory(broker_id, "DeleteRecords", config.delete_records.purge_interval)
        self.topics = clock.new_purgatory(broker_id, "topic", config.create_topics.purge_interval)
        self._replicas: dict[TopicPartition, Partition] = {}

    def replica(self, key: TopicPartition) -> Partition:
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = Partition(key, self.broker_id)
        return replica

    # Requests.

    def append_records(self, produce: DelayedProduce, acks: int, now_us: int) -> None:
        """Append, answer or wait, and only then check what the appends completed (from Kafka 2.7 on): the produce's
        own first try already sees its own appends."""
        if acks not in VALID_ACKS:
            for part in produce.parts:
                part.error = INVALID_REQUIRED_ACKS
            produce.complete_by("invalid_acks", now_us)
            return
        sound = [part for part in produce.parts if part.error == NONE]
        changes = [(part.replica, part.replica.append(part.required_offset, part.bytes, True)) for part in sound]
        if acks != ALL_IN_SYNC:
            produce.complete_by("acks", now_us)
        elif not sound:
            produce.complete_by("append_error" if produce.parts else "empty", now_us)
        else:
            for part in sound:
                part.await_verdict()
            # On all its partitions, those in error included.
            self.produces.try_complete_else_watch(produce, [part.replica.key for part in produce.parts], now_us)
        for replica, change in changes:
            self.check_after_append(replica, change, now_us)

    def fetch_messages(self, fetch: DelayedFetch, replica_id: int, now_us: int) -> None:
        """A follower's fetch says how far that follower is, before it is served."""
        if replica_id >= 0:
            for part in fetch.parts:
                if part.replica.follower_reached(replica_id, part.fetch_offset):
                    self.check_all(part.replica, now_us)
        if not fetch.parts:
            fetch.complete_by("no_partitions", now_us)
        elif not fetch.try_on_arrival(now_us):
            self.fetches.try_complete_else_watch(fetch, [part.replica.key for part in fetch.parts], now_us)

    def delete_records(self, deletion: DelayedDeleteRecords, now_us: int) -> None:
        if not deletion.parts:
            deletion.complete_by("empty", now_us)
            return
        for part in deletion.parts:
            part.await_verdict()
        self.deletions.try_complete_else_watch(deletion, [part.replica.key for part in deletion.parts], now_us)

    def create_topics(self, creation: DelayedCreateTopics, may_wait: bool, now_us: int) -> None:
        for part in creation.parts:
            part.await_verdict()
        if not creation.parts:
            creation.complete_by("empty", now_us)
        elif not may_wait:
            creation.settle_parts()
            creation.complete_by("no_wait", now_us)
        else:
            self.topics.try_complete_else_watch(creation, [part.topic for part in creation.parts], now_us)

    # Its process stops.

    def stop(self, replica: Partition, now_us: int) -> None:
        """Nobody is answered: connections are gone, and what was parked in memory, for the partition or its topic
        (Kafka: `BrokerServer.shutdown`, `DelayedOperationPurgatory.shutdown`)."""
        for purgatory in (self.produces, self.fetches, self.deletions):
            purgatory.abandon(lambda key: key == replica.key, now_us)
        self.topics.abandon(lambda topic: topic == replica.key.topic, now_us)
        replica.stop()

    # Who is woken.

    def check_all(self, replica: Partition, now_us: int) -> None:
        """The high watermark rose, or the leadership changed."""
        self.produces.check_and_complete(replica.key, now_us)
        self.fetches.check_and_complete(replica.key, now_us)
        self.deletions.check_and_complete(replica.key, now_us)

    def check_after_append(self, replica: Partition, change: LeaderHwChange, now_us: int) -> None:
        if change is LeaderHwChange.INCREASED:
            self.check_all(replica, now_us)
        elif change is LeaderHwChange.SAME:
            self.fetches.check_and_complete(replica.key, now_us)

    def check_low_watermark(self, replica: Partition, now_us: int) -> None:
        self.deletions.check_and_complete(replica.key, now_us)


# All brokers of a trace, on one clock. Each is a world of its own; only who leads a topic is known to all.


class Cluster:
    def __init__(self, config: Config, start_ms: int) -> None:
        self.config = config
        self.clock = Clock(start_ms)
        self.brokers: dict[int, Broker] = {}
        self._led: dict[str, set[int]] = {}

    def broker(self, broker_id: int) -> Broker:
        broker = self.brokers.get(broker_id)
        if broker is None:
            broker = self.brokers[broker_id] = Broker(broker_id, self.config, self.clock)
        return broker

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """Whether each of the topic's partitions 0 to n-1 has a leader, at whichever broker."""
        led = self._led.get(topic, set())
        return len(led) >= partitions and all(partition in led for partition in range(partitions))

    def leader_elected(self, key: TopicPartition, now_us: int) -> None:
        self._led.setdefault(key.topic, set()).add(key.partition)
        for broker in self.brokers.values():
            broker.topics.check_and_complete(key.topic, now_us)

    def deleted(self, key: TopicPartition) -> None:
        self._led.get(key.topic, set()).discard(key.partition)

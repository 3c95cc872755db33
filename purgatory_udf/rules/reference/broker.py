"""A broker (ReplicaManager): its replicas, its purgatories, and the requests that may wait in them; and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.purgatory.clock import Clock, Pauses
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory_udf.rules.reference.delayed_fetch import DelayedFetch, read_from_log
from purgatory_udf.rules.reference.delayed_produce import (
    ALL_IN_SYNC,
    INVALID_REQUIRED_ACKS,
    NONE,
    VALID_ACKS,
    DelayedCreateTopics,
    DelayedDeleteRecords,
    DelayedProduce,
)
from purgatory_udf.rules.reference.delayed_remote import (
    UNKNOWN_SERVER_ERROR,
    DelayedRemoteFetch,
    DelayedRemoteListOffsets,
    RemoteReads,
)
from purgatory_udf.rules.reference.partition import LeaderHwChange, Partition, RemoteStorage
from purgatory_udf.rules.reference.share_broker import ShareBroker
from purgatory_udf.rules.reference.share_delivery import RemoteData
from purgatory_udf.rules.reference.share_state import ShareGroups


class ReplicaBroker:
    """A broker's replicas, and the share partitions with records in flight.

    This is all that a replay of share groups needs of a broker. `Broker` adds the other purgatories.
    """

    def __init__(self, broker_id: int, clock: Clock, share_groups: ShareGroups) -> None:
        self.broker_id = broker_id
        self.remote_storage = RemoteStorage()
        self._clock, self._share_groups = clock, share_groups
        self._shares: ShareBroker | None = None
        # The keys are `TopicPartition`s, which equal tuples of topic and partition.
        self._replicas: dict[tuple[str, int], Partition] = {}

    def replica(self, key: TopicPartition) -> Partition:
        """Return the broker's replica of the partition, creating it on first use."""
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = Partition(key, self.broker_id, self.remote_storage)
        return replica

    def replica_of(self, entry: Mapping[str, Any]) -> Partition:
        """Return the replica of the `topic` and `partition` of an event, or of a part of it."""
        replica = self._replicas.get((entry["topic"], entry["partition"]))
        return self.replica(TopicPartition(entry["topic"], entry["partition"])) if replica is None else replica

    def aborted_records(self, key: TopicPartition) -> list[tuple[int, int]]:
        """Return first and last offsets of the aborted records in the broker's replica, if it has one."""
        replica = self._replicas.get(key)
        return [] if replica is None else replica.aborted

    @property
    def shares(self) -> ShareBroker:
        """The share partitions and their purgatory, which are created on first use."""
        if self._shares is None:
            self._shares = ShareBroker(self.broker_id, self._clock, self._share_groups, self)
        return self._shares

    @property
    def has_shares(self) -> bool:
        """Whether the broker has had requests of share groups."""
        return self._shares is not None

    def finish_request(self, now_us: int) -> None:
        """Run the actions that were deferred to the end of a request (`ReplicaManager.tryCompleteActions`)."""
        if self._shares is not None:
            self._shares.run_actions(now_us)

    def end_remote_read(self, replica: Partition, request_id: str, data: RemoteData, now_us: int) -> None:
        """Record the end of a fetch's read of remote storage, and check the fetches that wait for the partition.

        Args:
            replica: The partition that was read.
            request_id: Id of the fetch. If several fetches have this id, an open one gets the result.
            data: What was read, or the error.
            now_us: The time.
        """
        if self._shares is not None:
            self._shares.end_remote_read(replica.key, request_id, data, now_us)

    def check_all(self, replica: Partition, now_us: int) -> None:
        """Check all purgatories of partitions, because the high watermark rose."""
        self.check_replica(replica, now_us)
        if self._shares is not None:
            self._shares.check_partition(replica.key, now_us)

    def check_after_append(self, replica: Partition, change: LeaderHwChange, now_us: int) -> None:
        """Check the purgatories with operations that an append to `replica` with this effect may complete."""
        if change is LeaderHwChange.INCREASED:
            self.check_replica(replica, now_us)
            if self._shares is not None:
                self._shares.add_append_action(replica.key)
        elif change is LeaderHwChange.SAME:
            self.check_log_end(replica, now_us)

    def fence_shares(self, replica: Partition, now_us: int) -> None:
        """End all deliveries of the partition to share groups, because the broker no longer leads it."""
        if self._shares is not None:
            self._shares.fence(replica.key, now_us)

    def stop(self, replica: Partition, now_us: int) -> None:
        """Abandon operations that wait for the partition, because the broker's process has ended.

        Clients are disconnected and waiting requests are never answered (`BrokerServer.shutdown`,
        `DelayedOperationPurgatory.shutdown`).
        """
        if self._shares is not None:
            self._shares.stop(replica.key, now_us)
        replica.stop()

    def check_replica(self, replica: Partition, now_us: int) -> None:
        """Check the purgatories that wait for the log: the high watermark rose, or the leadership changed."""

    def check_log_end(self, replica: Partition, now_us: int) -> None:
        """Check the fetches of followers that wait for the log end."""

    def check_per_partition(self, replica: Partition, now_us: int) -> None:
        """Check the purgatories of requests that settle their partitions one by one, and wait for no remote storage."""

    def check_remote(self, replica: Partition, now_us: int) -> None:
        """Check the requests that wait for remote storage: the broker has lost the leadership or the replica."""

    def check_low_watermark(self, replica: Partition, now_us: int) -> None:
        """Check the delete-records requests that wait for the partition's log start offset."""

    def check_topic(self, topic: str, now_us: int) -> None:
        """Check the create-topics requests that wait for leaders of the topic."""


class Broker(ReplicaBroker):
    """A broker. It answers a request at once or puts it into a purgatory, which it checks when a partition changes."""

    def __init__(self, broker_id: int, config: Config, clock: Clock, share_groups: ShareGroups | None = None) -> None:
        super().__init__(broker_id, clock, share_groups or ShareGroups(config.share))
        self.remote_storage.reads_all = config.remote_fetch.reads == "all"
        self.produce_purgatory: DelayedOperationPurgatory[DelayedProduce]
        self.fetch_purgatory: DelayedOperationPurgatory[DelayedFetch]
        self.delete_records_purgatory: DelayedOperationPurgatory[DelayedDeleteRecords]
        self.topic_purgatory: DelayedOperationPurgatory[DelayedCreateTopics]
        self.remote_fetch_purgatory: DelayedOperationPurgatory[DelayedRemoteFetch]
        self.remote_list_offsets_purgatory: DelayedOperationPurgatory[DelayedRemoteListOffsets]
        self.produce_purgatory = clock.new_purgatory(broker_id, "Produce", config.produce.purge_interval)
        self.fetch_purgatory = clock.new_purgatory(broker_id, "Fetch", config.fetch.purge_interval)
        self.delete_records_purgatory = clock.new_purgatory(
            broker_id, "DeleteRecords", config.delete_records.purge_interval
        )
        self.topic_purgatory = clock.new_purgatory(broker_id, "topic", config.create_topics.purge_interval)
        self.remote_fetch_purgatory = clock.new_purgatory(broker_id, "RemoteFetch", config.remote_fetch.purge_interval)
        self.remote_list_offsets_purgatory = clock.new_purgatory(
            broker_id, "RemoteListOffsets", config.list_offsets.purge_interval
        )
        self._remote_wait_ms = config.remote_fetch.broker_wait_ms
        self._reads, self._lookups = RemoteReads(), RemoteReads()

    def append_records(self, produce: DelayedProduce, acks: int, now_us: int) -> None:
        """Append the records, answer the produce or let it wait, and then check which operations the appends complete.

        Since Kafka 2.7 these checks run after the request has been handled, so the first try of the produce already
        sees its own appends.
        """
        if acks not in VALID_ACKS:
            for status in produce.statuses:
                status.error = INVALID_REQUIRED_ACKS
            produce.complete_by("invalid_acks", now_us)
            return
        appended = [status for status in produce.statuses if status.error == NONE]
        changes = [
            (status.replica, status.replica.append(status.required_offset, status.bytes, True)) for status in appended
        ]
        if acks != ALL_IN_SYNC:
            produce.complete_by("acks", now_us)
        elif not appended:
            produce.complete_by("append_error" if produce.statuses else "empty", now_us)
        else:
            for status in appended:
                status.set_pending()
            # The produce is watched on all its partitions, including those in error.
            keys = [status.replica.key for status in produce.statuses]
            self.produce_purgatory.try_complete_else_watch(produce, keys, now_us)
        for replica, change in changes:
            self.check_after_append(replica, change, now_us)

    def fetch_messages(self, fetch: DelayedFetch, replica_id: int, now_us: int) -> DelayedFetch | DelayedRemoteFetch:
        """Serve a fetch or let it wait. A follower's fetch offsets first update its progress at the leader.

        Returns:
            The fetch, or the remote fetch that replaces it because a read of remote storage was started.
        """
        if replica_id >= 0:
            for status in fetch.statuses:
                if status.replica.update_follower_fetch_state(replica_id, status.fetch_offset):
                    self.check_all(status.replica, now_us)
        remote = self._begin_remote_fetch(fetch, now_us) if self.remote_storage.is_used else None
        if remote is not None:
            return remote
        if not fetch.statuses:
            fetch.complete_by("no_partitions", now_us)
        elif not fetch.try_on_arrival(now_us):
            if fetch.delay_ms <= 0 and self.remote_storage.is_used:
                fetch.complete_by("no_wait", now_us)
            else:
                keys = [status.replica.key for status in fetch.statuses]
                self.fetch_purgatory.try_complete_else_watch(fetch, keys, now_us)
        return fetch

    def _begin_remote_fetch(self, fetch: DelayedFetch, now_us: int) -> DelayedRemoteFetch | None:
        """Start the reads of remote storage, and let the fetch wait for them.

        Errors or enough bytes on arrival do not complete a remote fetch, and its own maximum wait does not apply.

        Returns:
            The remote fetch, or None if the fetch needs no read of remote storage.
        """
        remote = [status for status in fetch.statuses if status.is_remote and status.replica_id < 0]
        if not remote:
            return None
        reads = read_from_log(fetch.statuses, fetch.isolation, fetch.limits)
        if not any(read.remote_bytes for read in reads):
            for status in remote:
                status.is_unread = self.remote_storage.quota_exhausted and status.read_error() == NONE
                status.is_unplaced = not status.is_unread
            return None
        wait_ms = fetch.delay_ms if self._remote_wait_ms is None else self._remote_wait_ms
        operation = DelayedRemoteFetch(fetch.request, wait_ms, fetch.statuses, reads)
        operation.respond = fetch.respond
        if self.remote_storage.queue_full:
            operation.reject_reads()
        else:
            self._reads.begin(operation, operation.keys)
        self.remote_fetch_purgatory.try_complete_else_watch(operation, operation.keys, now_us)
        return operation

    def end_remote_read(self, replica: Partition, request_id: str, data: RemoteData, now_us: int) -> None:
        operation: DelayedRemoteFetch | None = self._reads.end(replica.key, request_id, now_us)
        if operation is not None:
            operation.end_read(replica.key, data.error, data.bytes)
            self.remote_fetch_purgatory.check_and_complete(replica.key, now_us)
        super().end_remote_read(replica, request_id, data, now_us)

    def list_offsets(self, request: DelayedRemoteListOffsets, lookups: list[TopicPartition], now_us: int) -> None:
        """Start the lookups of a list-offsets request and let it wait, or answer it at once if it needs none."""
        if not lookups or self.remote_storage.queue_full:
            for status in request.statuses:
                if status.replica.key in lookups:
                    status.error = UNKNOWN_SERVER_ERROR
            request.complete_by("no_lookup", now_us)
            return
        for status in request.statuses:
            if status.replica.key in lookups:
                status.set_pending()
        self._lookups.begin(request, lookups)
        keys = [status.replica.key for status in request.statuses]
        self.remote_list_offsets_purgatory.try_complete_else_watch(request, keys, now_us)

    def end_remote_lookup(self, replica: Partition, request_id: str, error: str, now_us: int) -> None:
        """Record the end of a lookup in remote storage, and check the requests that wait for the partition.

        `request_id` names the list-offsets request; `error` is NONE if an offset was found or none exists.
        """
        operation: DelayedRemoteListOffsets | None = self._lookups.end(replica.key, request_id, now_us)
        if operation is not None:
            operation.end_lookup(replica.key, error)
            self.remote_list_offsets_purgatory.check_and_complete(replica.key, now_us)

    def delete_records(self, deletion: DelayedDeleteRecords, now_us: int) -> None:
        """Complete a delete-records request if all low watermarks have reached its offsets, otherwise let it wait."""
        if not deletion.statuses:
            deletion.complete_by("empty", now_us)
            return
        for status in deletion.statuses:
            status.set_pending()
        keys = [status.replica.key for status in deletion.statuses]
        self.delete_records_purgatory.try_complete_else_watch(deletion, keys, now_us)

    def create_topics(self, creation: DelayedCreateTopics, may_wait: bool, now_us: int) -> None:
        """Complete a create-topics request if all partitions have leaders or `may_wait` is false. Else let it wait."""
        for status in creation.statuses:
            status.set_pending()
        if not creation.statuses:
            creation.complete_by("empty", now_us)
        elif not may_wait:
            creation.settle_pending()
            creation.complete_by("no_wait", now_us)
        else:
            topics = [status.topic for status in creation.statuses]
            self.topic_purgatory.try_complete_else_watch(creation, topics, now_us)

    def stop(self, replica: Partition, now_us: int) -> None:
        for purgatory in (
            self.produce_purgatory,
            self.fetch_purgatory,
            self.delete_records_purgatory,
            self.remote_fetch_purgatory,
            self.remote_list_offsets_purgatory,
        ):
            purgatory.abandon(lambda key: key == replica.key, now_us)
        for reads in (self._reads, self._lookups):
            reads.forget(lambda key: key == replica.key)
        self.topic_purgatory.abandon(lambda topic: topic == replica.key.topic, now_us)
        super().stop(replica, now_us)

    def check_replica(self, replica: Partition, now_us: int) -> None:
        self.produce_purgatory.check_and_complete(replica.key, now_us)
        self.fetch_purgatory.check_and_complete(replica.key, now_us)
        self.delete_records_purgatory.check_and_complete(replica.key, now_us)

    def check_log_end(self, replica: Partition, now_us: int) -> None:
        self.fetch_purgatory.check_and_complete(replica.key, now_us)

    def check_per_partition(self, replica: Partition, now_us: int) -> None:
        self.produce_purgatory.check_and_complete(replica.key, now_us)
        self.delete_records_purgatory.check_and_complete(replica.key, now_us)

    def check_remote(self, replica: Partition, now_us: int) -> None:
        self.remote_fetch_purgatory.check_and_complete(replica.key, now_us)
        self.remote_list_offsets_purgatory.check_and_complete(replica.key, now_us)

    def check_low_watermark(self, replica: Partition, now_us: int) -> None:
        self.delete_records_purgatory.check_and_complete(replica.key, now_us)

    def check_topic(self, topic: str, now_us: int) -> None:
        self.topic_purgatory.check_and_complete(topic, now_us)


class ReplicaCluster:
    """The brokers of a trace on one clock, with only what a replay of share groups needs."""

    def __init__(self, config: Config, start_ms: int, pauses: Pauses | None = None) -> None:
        self.config = config
        self.clock = Clock(start_ms, pauses)
        self.share_groups = ShareGroups(config.share, config.remote_fetch.broker_wait_ms)
        self.brokers: dict[int, ReplicaBroker] = {}
        self._led_partitions: dict[str, set[int]] = {}

    def broker(self, broker_id: int) -> ReplicaBroker:
        """Return the broker, creating it on first use."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            broker = self.brokers[broker_id] = self._new_broker(broker_id)
        return broker

    def _new_broker(self, broker_id: int) -> ReplicaBroker:
        broker = ReplicaBroker(broker_id, self.clock, self.share_groups)
        broker.remote_storage.reads_all = self.config.remote_fetch.reads == "all"
        return broker

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """Return whether each of the topic's partitions 0 to n-1 has a leader, at any broker."""
        led = self._led_partitions.get(topic, set())
        return len(led) >= partitions and all(partition in led for partition in range(partitions))

    def on_leader_elected(self, key: TopicPartition, now_us: int) -> None:
        """Record that the partition has a leader, and check the create-topics of its topic at every broker."""
        self._led_partitions.setdefault(key.topic, set()).add(key.partition)
        for broker in self.brokers.values():
            broker.check_topic(key.topic, now_us)

    def aborted_records(self, key: TopicPartition) -> list[tuple[int, int]]:
        """Return the aborted records of a partition, in order. A new leader has those of the former ones in its log."""
        return sorted({each for broker in self.brokers.values() for each in broker.aborted_records(key)})

    def on_partition_deleted(self, key: TopicPartition) -> None:
        """Record that the partition has no leader."""
        self._led_partitions.get(key.topic, set()).discard(key.partition)


class Cluster(ReplicaCluster):
    """All brokers of a trace, on one clock.

    All brokers know which partitions of a topic have a leader, and use the same persisted states of share groups.
    """

    def broker(self, broker_id: int) -> Broker:
        """Return the broker, creating it on first use."""
        return cast(Broker, super().broker(broker_id))

    def _new_broker(self, broker_id: int) -> Broker:
        return Broker(broker_id, self.config, self.clock, self.share_groups)

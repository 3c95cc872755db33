"""A broker's server: records requests as events, and turns the engine's decisions into responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_fetch import DelayedFetch
from purgatory_udf.rules.reference.delayed_produce import DelayedCreateTopics, DelayedProduce
from purgatory_udf.rules.reference.delayed_remote import DelayedRemoteFetch
from purgatory_udf.rules.reference.partition import Partition
from purgatory_udf.simulation.client_network import Connection, Exchange, Reply
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.coordinators import GroupCoordinators, TransactionCoordinators
from purgatory_udf.simulation.messages import (
    FETCH_SESSION_NOT_FOUND,
    NO_SESSION,
    NONE,
    Batch,
    ClientRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    EndTransactionRequest,
    FetchPartitions,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchSessionCache,
    FindCoordinatorRequest,
    FindTransactionCoordinatorRequest,
    GroupCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetsResponse,
    ProduceRequest,
    ProduceResponse,
    ShareRequest,
)
from purgatory_udf.simulation.quotas import BrokerQuotas, LeaderQuota, QuotaEntity
from purgatory_udf.simulation.scenario import Brokers
from purgatory_udf.simulation.share_groups import ShareSessions
from purgatory_udf.simulation.simpy_environment import Environment, ProcessGenerator

ACKS_ALL = -1


class RemoteReaders:
    """A broker's pool of threads that read remote storage (Kafka: `RemoteLogManager.remoteStorageReaderThreadPool`).

    A read that waits for a thread when its fetch expires is skipped. A running read continues, and its result is
    discarded.
    """

    def __init__(self, environment: Environment, server: BrokerServer, settings: Brokers) -> None:
        self._environment = environment
        self._server = server
        self._settings = settings
        self._random = environment.random_stream("remote-reader", str(server.broker))
        self._pending: deque[tuple[DelayedRemoteFetch, TopicPartition, int, int]] = deque()
        self.slowdown = 1.0
        self._busy = self._process = 0
        self._is_full = False

    def submit(self, operation: DelayedRemoteFetch, offsets: list[int]) -> None:
        """Read the remote partitions of a fetch, from these offsets of its partitions."""
        for part, limit, offset in zip(operation.partitions, operation.limits, offsets, strict=True):
            if limit:
                self._pending.append((operation, part.replica.key, offset, limit))
        self._start_reads()

    def stop(self) -> None:
        """Forget all reads, because the broker's process ends."""
        self._pending.clear()
        self._busy, self._process = 0, self._process + 1
        self._record_queue()

    def _start_reads(self) -> None:
        while self._pending and self._busy < self._settings.remote_reader_threads:
            operation, key, offset, limit = self._pending.popleft()
            if not operation.completed:
                self._busy += 1
                self._environment.env.process(self._read(operation, key, offset, limit))
        self._record_queue()

    def _record_queue(self) -> None:
        """Record whether the pool takes a further read, if that has changed."""
        is_full = len(self._pending) >= self._settings.remote_reader_max_pending
        if is_full != self._is_full:
            self._is_full = is_full
            self._environment.record("reader_queue", self._server.broker, full=is_full)

    def _read(
        self, operation: DelayedRemoteFetch, key: TopicPartition, offset: int, limit: int
    ) -> ProcessGenerator[None]:
        process = self._process
        yield self._environment.sleep_us(round(self.slowdown * self._random.delay_us(self._settings.remote_read)))
        while self._server.frozen_until_us > self._environment.now_us:
            yield self._environment.sleep_us(self._server.frozen_until_us - self._environment.now_us)
        if process != self._process:
            return
        self._busy -= 1
        broker = self._server.broker
        replica = self._environment.engine.cluster.broker(broker).replica(key)
        mark = replica.high_watermark
        size = replica.log.read(offset, mark, limit, min_one_message=True)[0] if mark is not None else 0
        self._environment.record(
            "remote_read",
            broker,
            request_id=operation.request.request_id,
            topic=key.topic,
            partition=key.partition,
            bytes=size,
        )
        self._start_reads()


class BrokerServer:
    """One broker. Only requests that may wait become events; lookups are answered immediately."""

    def __init__(
        self,
        environment: Environment,
        broker: int,
        controller: Controller,
        groups: GroupCoordinators,
        transactions: TransactionCoordinators,
        settings: Brokers,
        client_entities: Mapping[str, QuotaEntity],
        share_sessions: ShareSessions,
    ) -> None:
        self.broker = broker
        self.up = True
        self.shutting_down = False
        self.frozen = False
        self.frozen_until_us = 0
        self._environment = environment
        self._controller = controller
        self._groups = groups
        self._transactions = transactions
        self.replication_quota = LeaderQuota(settings.replication_quota)
        self._quotas = BrokerQuotas(client_entities, settings.handling_us)
        self._sessions = FetchSessionCache()
        self._share_sessions = share_sessions
        self._connections: dict[Connection, None] = {}
        self.remote_readers = RemoteReaders(environment, self, settings)

    def accept(self, connection: Connection) -> None:
        self._connections = {known: None for known in self._connections if not known.closed}
        self._connections[connection] = None

    def stop(self) -> None:
        """Stop: close all connections, drop fetch sessions, and stop the groups."""
        self.up = False
        self._sessions.clear()
        self._share_sessions.clear()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self.remote_readers.stop()
        self._groups.stop(self.broker)

    def unload_groups(self) -> None:
        """Unload the broker's groups. Their waiting members receive NOT_COORDINATOR."""
        self._groups.unload(self.broker)

    def start(self) -> None:
        self.up, self.shutting_down = True, False

    def disconnected(self, connection: Connection) -> None:
        self._share_sessions.disconnected(connection)

    def handle(self, exchange: Exchange, connection: Connection, reply: Reply) -> None:
        """Handle a request of a client; see `Listener.handle`."""
        request = exchange.request
        reply = self._quotas.with_request_quota(request.client_id, reply, self._environment)
        match request:
            case ProduceRequest():
                exchange.operation_id = self._produce(request, reply)
            case FetchRequest():
                exchange.operation_id = self._fetch(request, reply)
            case GroupCoordinatorRequest():
                exchange.operation_id = self._groups.handle(self.broker, request, reply)
            case ShareRequest():
                exchange.operation_id = self._share_sessions.handle(request, connection, reply)
            case CreateTopicsRequest():
                exchange.operation_id = self._create_topics(request, reply)
            case EndTransactionRequest():
                self._transactions.end_transaction(self.broker, request, reply)
            case _:
                reply(self._answer_lookup(request), 0)

    def _produce(self, produce: ProduceRequest, reply: Reply) -> int:
        def respond(operation: DelayedProduce) -> None:
            errors = {TopicPartition(part.topic, part.partition): part.error or NONE for part in operation.statuses}
            size = sum(batch.bytes for batch in produce.batches)
            reply(ProduceResponse(errors), self._throttle_ms("produce", produce.client_id, produce.quota, size))

        partitions = [self._append(batch, produce.acks) for batch in produce.batches]
        for batch, part in zip(produce.batches, partitions, strict=True):
            if part["error"] == NONE:
                self._record_transaction_batch(batch, part["base_offset"], part["last_offset"] + 1)
        return self._environment.record(
            "produce",
            self.broker,
            respond,
            request_id=produce.request_id,
            client_id=produce.client_id,
            acks=produce.acks,
            timeout_ms=produce.timeout_ms,
            partitions=partitions,
        )

    def _record_transaction_batch(self, batch: Batch, base: int, end: int) -> None:
        """Begin, continue or end the transaction of a batch that will be appended from `base` to before `end`."""
        state = self._controller.partitions[batch.key]
        if batch.transaction is not None and batch.is_end_marker:
            state.transactions.end(batch.transaction, end, batch.aborts)
        elif batch.transaction is not None:
            state.transactions.add(batch.transaction, base, end - 1)
        self._controller.record_last_stable(state, self.broker, end=end)

    def _append(self, batch: Batch, acks: int) -> dict[str, Any]:
        """Return one partition of the produce event: the batch's offsets, or the error that rejects it."""
        topic, partition = batch.key
        place: dict[str, Any] = {"topic": topic, "partition": partition}
        state = self._controller.partitions.get(batch.key)
        if state is None:
            return {**place, "error": "UNKNOWN_TOPIC_OR_PARTITION"}
        if state.leader != self.broker:
            return {**place, "error": "NOT_LEADER_OR_FOLLOWER"}
        if acks == ACKS_ALL and len(state.isr) < state.min_isr:
            return {**place, "error": "NOT_ENOUGH_REPLICAS"}
        end = self._replica(batch.key).log.end
        offset, position = (0, 0) if end is None else (end.offset, end.position)
        if position - state.segment_start >= state.segment_bytes:
            moves_local_start = state.roll(offset, position)
            self._environment.record("partition", self.broker, change="segment_roll", offset=offset, **place)
            if moves_local_start:
                local_start = state.local_log_start
                self._environment.record(
                    "partition", self.broker, change="local_log_start", offset=local_start, **place
                )
        last = offset + batch.records - 1
        return {**place, "base_offset": offset, "last_offset": last, "bytes": batch.bytes, "error": NONE}

    def _fetch(self, fetch: FetchRequest, reply: Reply) -> int | None:
        session_partitions = self._sessions.update(fetch)
        if session_partitions is None:
            reply(FetchResponse(NO_SESSION, [], FETCH_SESSION_NOT_FOUND), 0)
            return None
        session, partitions = session_partitions
        offsets = [partition.offset for partition in partitions.values()]

        def respond(operation: DelayedFetch | DelayedRemoteFetch) -> None:
            if isinstance(operation, DelayedRemoteFetch):
                response = self._remote_fetch_response(session, operation, offsets)
            else:
                response = self._fetch_response(session, operation)
            size = sum(part.bytes for part in response.partitions)
            reply(response, self._throttle_ms("fetch", fetch.client_id, fetch.quota, size))

        joins_isr = self._update_followers(fetch, partitions)
        seq = self._environment.record(
            "fetch",
            self.broker,
            respond,
            request_id=fetch.request_id,
            client_id=fetch.client_id,
            replica_id=fetch.replica_id,
            max_wait_ms=fetch.max_wait_ms,
            min_bytes=fetch.min_bytes,
            max_bytes=fetch.max_bytes,
            isolation=fetch.isolation,
            partitions=[
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "fetch_offset": partition.offset,
                    "max_bytes": partition.max_bytes,
                    "current_leader_epoch": partition.epoch,
                    "throttled": self._is_throttled(fetch.replica_id, key),
                }
                for key, partition in partitions.items()
            ],
        )
        operation = self._environment.engine.operations[-1]
        if isinstance(operation, DelayedRemoteFetch) and not operation.completed:
            self.remote_readers.submit(operation, offsets)
        for key in joins_isr:
            self._controller.record_isr(key)
        return seq

    def _update_followers(self, fetch: FetchRequest, partitions: FetchPartitions) -> list[TopicPartition]:
        """Record a follower's progress; return the partitions in which it rejoins the in-sync set."""
        if fetch.replica_id < 0:
            return []
        back = []
        for key, partition in partitions.items():
            state = self._controller.partitions[key]
            if state.leader == self.broker:
                replica = self._replica(key)
                end = replica.log.end.offset if replica.log.end else 0
                mark = replica.high_watermark.offset if replica.high_watermark else 0
                self._controller.record_last_stable(state, self.broker, follower=(fetch.replica_id, partition.offset))
                if state.in_sync.record_fetch(fetch.replica_id, partition.offset, end, mark, self._environment.now_ms):
                    back.append(key)
        return back

    def _is_throttled(self, replica_id: int, key: TopicPartition) -> bool:
        """Return whether the replication quota holds back a follower that is out of sync."""
        if replica_id < 0:
            return False
        in_sync = replica_id in self._controller.partitions[key].isr
        return self.replication_quota.is_throttled(replica_id, key, in_sync, self._environment.now_ms)

    def _fetch_response(self, session: int, operation: DelayedFetch) -> FetchResponse:
        """Return the response of an ended fetch. Partitions that returned data move to the end of the session's list.

        `session` is the id of the fetch session, 0 without one.
        """
        partitions, now_ms = [], self._environment.now_ms
        for part, read in zip(operation.statuses, operation.reads, strict=True):
            mark = part.replica.high_watermark
            response = FetchResponsePartition(
                part.replica.key,
                part.read_error(),
                part.fetch_offset,
                read.next_offset,
                read.bytes,
                mark.offset if mark else 0,
            )
            partitions.append(response)
            if read.bytes and operation.request.fetcher == "follower":
                self.replication_quota.record_sent(part.replica_id, part.replica.key, read.bytes, now_ms)
        self._sessions.move_to_end(session, [part.key for part in partitions if part.bytes])
        return FetchResponse(session, partitions)

    def _remote_fetch_response(self, session: int, operation: DelayedRemoteFetch, offsets: list[int]) -> FetchResponse:
        """Return the response of a remote fetch: the data that has been read so far.

        Next offsets are computed from the simulated log, which still has the batches that are remote.
        """
        partitions = []
        for part, offset in zip(operation.partitions, offsets, strict=True):
            mark, next_offset = part.replica.high_watermark, offset
            if part.bytes and mark is not None:
                _, next_offset = part.replica.log.read(offset, mark, part.bytes, min_one_message=True)
            key, error = part.replica.key, part.error or NONE
            partitions.append(
                FetchResponsePartition(key, error, offset, next_offset, part.bytes, mark.offset if mark else 0)
            )
        self._sessions.move_to_end(session, [part.key for part in partitions if part.bytes])
        return FetchResponse(session, partitions)

    def _create_topics(self, creation: CreateTopicsRequest, reply: Reply) -> int:
        def respond(operation: DelayedCreateTopics) -> None:
            reply(CreateTopicsResponse({part.topic: part.error or NONE for part in operation.statuses}), 0)

        return self._environment.record(
            "create_topics",
            self.broker,
            respond,
            request_id=creation.request_id,
            client_id=creation.client_id,
            timeout_ms=creation.timeout_ms,
            topics=[{"topic": topic, "partitions": count} for topic, count in creation.topics.items()],
        )

    def _answer_lookup(self, request: ClientRequest) -> Any:
        match request:
            case MetadataRequest():
                return self._controller.metadata()
            case FindCoordinatorRequest():
                return self._groups.coordinator_of(request.group)
            case OffsetFetchRequest():
                return self._groups.committed_offsets(request)
            case ListOffsetsRequest():
                return OffsetsResponse(
                    {key: self._offset(key, request) for key in request.keys if self._is_leader(key)}
                )
            case FindTransactionCoordinatorRequest():
                return self._transactions.coordinator_of(request.name)
        raise TypeError(f"no broker handles {type(request).__name__}")

    def _offset(self, key: TopicPartition, request: ListOffsetsRequest) -> int:
        replica = self._replica(key)
        if request.earliest:
            return replica.log.start or 0
        latest = replica.last_stable_offset if request.isolation == "read_committed" else replica.high_watermark
        return latest.offset if latest else 0

    def _is_leader(self, key: TopicPartition) -> bool:
        state = self._controller.partitions.get(key)
        return state is not None and state.leader == self.broker

    def _replica(self, key: TopicPartition) -> Partition:
        return self._environment.engine.cluster.broker(self.broker).replica(key)

    def _throttle_ms(self, kind: str, client_id: str, allowed: float | None, size: int) -> int:
        return self._quotas.bandwidth_throttle_ms(kind, client_id, allowed, size, self._environment.now_ms)

"""A broker's server: requests become events, and what the engine makes of them becomes answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.rules.reference.delayed_admin import DelayedCreateTopics
from purgatory_udf.rules.reference.delayed_fetch import DelayedFetch
from purgatory_udf.rules.reference.delayed_produce import DelayedProduce
from purgatory_udf.rules.reference.partition import Partition
from purgatory_udf.simulation.client_network import Connection, Exchange, Reply
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.coordinators import GroupCoordinators, TransactionCoordinators
from purgatory_udf.simulation.environment import World
from purgatory_udf.simulation.messages import (
    FETCH_SESSION_NOT_FOUND,
    NO_SESSION,
    NONE,
    Batch,
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
    GroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetsResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
)
from purgatory_udf.simulation.quotas import BrokerQuotas, LeaderQuota, QuotaEntity
from purgatory_udf.simulation.scenario import Brokers

ALL_IN_SYNC = -1


class Server:
    def __init__(
        self,
        world: World,
        broker: int,
        controller: Controller,
        groups: GroupCoordinators,
        transactions: TransactionCoordinators,
        settings: Brokers,
        of_clients: Mapping[str, QuotaEntity],
    ) -> None:
        self.broker = broker
        self.up = True
        self.leaving = False
        self._world = world
        self._controller = controller
        self._groups = groups
        self._transactions = transactions
        self._replication_quota = LeaderQuota(settings.replication_quota)
        self._quotas = BrokerQuotas(of_clients, settings.handling_us)
        self._sessions = FetchSessionCache()
        self._connections: dict[Connection, None] = {}

    # The network's side.

    def accept(self, connection: Connection) -> None:
        self._connections = {known: None for known in self._connections if not known.closed}
        self._connections[connection] = None

    def stop(self) -> None:
        """Everybody's connection breaks, and nobody will get another."""
        self.up = False
        self._sessions.clear()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._groups.stop(self.broker)

    def resign(self) -> None:
        """Groups go to others; who waits for them is told so."""
        self._groups.resign(self.broker)

    def start(self) -> None:
        self.up, self.leaving = True, False

    def handle(self, exchange: Exchange, reply: Reply) -> None:
        message = exchange.message
        reply = self._within_quotas(message.client_id, reply)
        match message:
            case ProduceRequest():
                exchange.operation_id = self._produce(message, reply)
            case FetchRequest():
                exchange.operation_id = self._fetch(message, reply)
            case GroupRequest():
                exchange.operation_id = self._groups.handle(self.broker, message, reply)
            case CreateTopicsRequest():
                exchange.operation_id = self._create_topics(message, reply)
            case EndTransactionRequest():
                self._transactions.end(self.broker, message, reply)
            case _:
                reply(self._look_up(message), 0)

    # Requests that may have to wait.

    def _produce(self, produce: ProduceRequest, reply: Reply) -> int:
        def respond(operation: DelayedProduce) -> None:
            errors = {TopicPartition(part.topic, part.partition): part.error or NONE for part in operation.parts}
            size = sum(batch.bytes for batch in produce.batches)
            reply(ProduceResponse(errors), self._throttle_ms("produce", produce.client_id, produce.quota, size))

        partitions = [self._append(batch, produce.acks) for batch in produce.batches]
        for batch, part in zip(produce.batches, partitions, strict=True):
            if part["error"] == NONE:
                self._in_transaction(batch, part["base_offset"], part["last_offset"] + 1)
        return self._world.record(
            "produce",
            self.broker,
            respond,
            request_id=produce.request_id,
            client_id=produce.client_id,
            acks=produce.acks,
            timeout_ms=produce.timeout_ms,
            partitions=partitions,
        )

    def _in_transaction(self, batch: Batch, base: int, end: int) -> None:
        """What is about to be appended begins, goes on with or ends a transaction."""
        state = self._controller.partitions[batch.key]
        if batch.transaction is not None and batch.ends:
            state.transactions.end(batch.transaction, end)
        elif batch.transaction is not None:
            state.transactions.begin(batch.transaction, base)
        self._controller.stabilise(state, self.broker, end=end)

    def _append(self, batch: Batch, acks: int) -> dict[str, Any]:
        """One partition of the event: where the batch goes, or why it does not."""
        topic, partition = batch.key
        place: dict[str, Any] = {"topic": topic, "partition": partition}
        state = self._controller.partitions.get(batch.key)
        if state is None:
            return {**place, "error": "UNKNOWN_TOPIC_OR_PARTITION"}
        if state.leader != self.broker:
            return {**place, "error": "NOT_LEADER_OR_FOLLOWER"}
        if acks == ALL_IN_SYNC and len(state.isr) < state.min_isr:
            return {**place, "error": "NOT_ENOUGH_REPLICAS"}
        end = self._replica(batch.key).log.end
        offset, position = (0, 0) if end is None else (end.offset, end.position)
        if position - state.segment_begins >= state.segment_bytes:
            state.segment_begins = position
            self._world.record("partition", self.broker, change="segment_roll", offset=offset, **place)
        last = offset + batch.records - 1
        return {**place, "base_offset": offset, "last_offset": last, "bytes": batch.bytes, "error": NONE}

    def _fetch(self, fetch: FetchRequest, reply: Reply) -> int | None:
        opened = self._sessions.update(fetch)
        if opened is None:
            reply(FetchResponse(NO_SESSION, [], FETCH_SESSION_NOT_FOUND), 0)
            return None
        session, wants = opened

        def respond(operation: DelayedFetch) -> None:
            answer = self._read(session, operation)
            size = sum(part.bytes for part in answer.partitions)
            reply(answer, self._throttle_ms("fetch", fetch.client_id, fetch.quota, size))

        joins_isr = self._follower_progress(fetch, wants)
        seq = self._world.record(
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
                    "fetch_offset": want.offset,
                    "max_bytes": want.max_bytes,
                    "current_leader_epoch": want.epoch,
                    "throttled": self._throttles(fetch.replica_id, key),
                }
                for key, want in wants.items()
            ],
        )
        for key in joins_isr:
            self._controller.tell_isr(key)
        return seq

    def _follower_progress(self, fetch: FetchRequest, wants: FetchPartitions) -> list[TopicPartition]:
        """Where this fetch takes the follower back into the in-sync set."""
        if fetch.replica_id < 0:
            return []
        back = []
        for key, want in wants.items():
            state = self._controller.partitions[key]
            if state.leader == self.broker:
                replica = self._replica(key)
                end = replica.log.end.offset if replica.log.end else 0
                mark = replica.high_watermark.offset if replica.high_watermark else 0
                self._controller.stabilise(state, self.broker, follower=(fetch.replica_id, want.offset))
                if state.in_sync.fetched(fetch.replica_id, want.offset, end, mark, self._world.now_ms):
                    back.append(key)
        return back

    def _throttles(self, replica_id: int, key: TopicPartition) -> bool:
        """A follower out of sync is held back while it has had more than its quota."""
        if replica_id < 0:
            return False
        in_sync = replica_id in self._controller.partitions[key].isr
        return self._replication_quota.throttles(key, in_sync, self._world.now_ms)

    def _read(self, session: int, operation: DelayedFetch) -> FetchResponse:
        """What the answer carries, read as the broker holds it now."""
        partitions = []
        for part, (size, next_offset) in zip(operation.parts, operation.reads, strict=True):
            mark = part.replica.high_watermark
            answer = FetchResponsePartition(
                part.replica.key, part.error(), part.fetch_offset, next_offset, size, mark.offset if mark else 0
            )
            partitions.append(answer)
            if size and operation.request.fetcher == "follower":
                self._replication_quota.sent(part.replica.key, size, self._world.now_ms)
        self._sessions.gave(session, [part.key for part in partitions if part.bytes])
        return FetchResponse(session, partitions)

    def _create_topics(self, creation: CreateTopicsRequest, reply: Reply) -> int:
        def respond(operation: DelayedCreateTopics) -> None:
            reply(CreateTopicsResponse({part.topic: part.error or NONE for part in operation.parts}), 0)

        return self._world.record(
            "create_topics",
            self.broker,
            respond,
            request_id=creation.request_id,
            client_id=creation.client_id,
            timeout_ms=creation.timeout_ms,
            topics=[{"topic": topic, "partitions": count} for topic, count in creation.topics.items()],
        )

    # Requests that are answered at once, of which no trace tells.

    def _look_up(self, message: Request) -> Any:
        match message:
            case MetadataRequest():
                return self._controller.metadata()
            case FindCoordinatorRequest():
                return self._groups.coordinator_of(message.group)
            case OffsetFetchRequest():
                return self._groups.committed(message)
            case ListOffsetsRequest():
                return OffsetsResponse({key: self._offset(key, message) for key in message.keys if self._leads(key)})
            case FindTransactionCoordinatorRequest():
                return self._transactions.coordinator_of(message.name)
        raise TypeError(f"no broker understands a {type(message).__name__}")

    def _offset(self, key: TopicPartition, message: ListOffsetsRequest) -> int:
        replica = self._replica(key)
        if message.earliest:
            return replica.log.start or 0
        latest = replica.last_stable if message.isolation == "read_committed" else replica.high_watermark
        return latest.offset if latest else 0

    def _leads(self, key: TopicPartition) -> bool:
        state = self._controller.partitions.get(key)
        return state is not None and state.leader == self.broker

    def _replica(self, key: TopicPartition) -> Partition:
        return self._world.engine.cluster.broker(self.broker).replica(key)

    def _throttle_ms(self, kind: str, client_id: str, allowed: float | None, size: int) -> int:
        return self._quotas.bytes_ms(kind, client_id, allowed, size, self._world.now_ms)

    def _within_quotas(self, client_id: str, reply: Reply) -> Reply:
        """Its thread's time is counted when it has been answered, as the broker's is."""

        def later(answer: Any, throttle_ms: int) -> None:
            reply(answer, max(throttle_ms, self._quotas.request_ms(client_id, self._world.now_ms)))

        return later

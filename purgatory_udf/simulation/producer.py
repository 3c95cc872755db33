"""A producer: accumulates records into batches, sends and retries them, and commits or aborts transactions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulation.messages import (
    NONE,
    Batch,
    Disconnected,
    EndTransactionRequest,
    EndTransactionResponse,
    FindCoordinatorResponse,
    FindTransactionCoordinatorRequest,
    ProduceRequest,
    ProduceResponse,
)
from purgatory_udf.simulation.scenario import Producers
from purgatory_udf.simulation.simpy_environment import ProcessGenerator, cumulative_zipf


class RecordAccumulator:
    """Batches that are not delivered yet, by partition (Kafka: `RecordAccumulator`).

    A batch is ready when it is full, when its first record has lingered, or when its retry backoff has passed.
    """

    def __init__(self, batch_bytes: int, linger_us: int, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_us = linger_us
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self.bytes = 0
        # With a flush in progress batches are ready without lingering.
        self.flushing = False

    @property
    def is_full(self) -> bool:
        """Whether the buffer is used up, so that the application blocks."""
        return self.bytes >= self._buffer_bytes

    def append(self, key: TopicPartition, size: int, now_us: int) -> bool:
        """Add a record of `size` bytes; return whether a batch may have become ready."""
        queue = self._queues.setdefault(key, deque())
        last = queue[-1] if queue else None
        starts_batch = last is None or last.attempts > 0 or last.bytes + size > self._batch_bytes
        if last is None or starts_batch:
            last = Batch(key, now_us)
            queue.append(last)
        last.records += 1
        last.bytes += size
        self.bytes += size
        return starts_batch or last.bytes >= self._batch_bytes

    def ready(self, now_us: int) -> list[TopicPartition]:
        """Return the partitions with a ready first batch."""
        return [key for key, queue in self._queues.items() if queue and self._ready_us(queue) <= now_us]

    def next_ready_us(self, now_us: int) -> int | None:
        """Return the time when the next batch becomes ready, or None."""
        times = (self._ready_us(queue) for queue in self._queues.values() if queue)
        return min((time_us for time_us in times if time_us > now_us), default=None)

    def drain(self, key: TopicPartition) -> Batch:
        """Remove and return the first batch of a partition."""
        return self._queues[key].popleft()

    def reenqueue(self, batch: Batch) -> None:
        """Put a failed batch back in front of the later ones."""
        self._queues[batch.key].appendleft(batch)

    def release(self, batch: Batch) -> None:
        """Free the memory of a batch that was delivered or given up."""
        self.bytes -= batch.bytes

    def _ready_us(self, queue: deque[Batch]) -> int:
        first = queue[0]
        if first.attempts:
            return first.not_before_us
        if self.flushing or len(queue) > 1 or first.bytes >= self._batch_bytes:
            return first.created_us
        return first.created_us + self._linger_us


class TransactionManager:
    """A producer's transactions, one after the other (Kafka: `TransactionManager`).

    A partition joins a transaction with the first batch that is sent to it. A transaction is committed or aborted when
    all of its batches are delivered. The batches of the next transaction wait until its markers are written.
    `committed` and `aborted` count ended transactions with records.
    """

    def __init__(self, client: Client, duration_ms: int, abort_share: float) -> None:
        self.duration_ms = duration_ms
        self.awaits_markers = False
        self.committed = self.aborted = 0
        self._client = client
        self._environment = client.environment
        self._abort_share = abort_share
        self._random = client.environment.random_stream("transaction", client.name)
        self._keys: dict[TopicPartition, None] = {}

    def add_partitions(self, batches: Iterable[Batch]) -> None:
        """Add the partitions of batches that are about to be sent."""
        for batch in batches:
            batch.transaction = self._client.name
            self._keys[batch.key] = None

    def end(self, aborts: bool, when_written: Callable[[], None]) -> ProcessGenerator[None]:
        """Commit or abort, and return when the decision is stored.

        `when_written` is called when all markers are written.
        """
        keys, self._keys = tuple(self._keys), {}
        if not keys:
            return
        commits = not aborts and self._random.uniform(0, 1) >= self._abort_share
        response = yield from self._end_transaction(keys, commits)
        self.committed += commits
        self.aborted += not commits
        self.awaits_markers = True

        def written(_: object) -> None:
            self.awaits_markers = False
            when_written()

        if response.written.triggered:
            written(None)
        else:
            response.written.callbacks.append(written)

    def _end_transaction(
        self, keys: tuple[TopicPartition, ...], commits: bool
    ) -> ProcessGenerator[EndTransactionResponse]:
        client, name = self._client, self._client.name
        while True:
            for broker in client.brokers:
                lookup = FindTransactionCoordinatorRequest(
                    client_id=client.client_id, request_id=client.next_request_id(), name=name
                )
                coordinator = yield from client.request(broker, lookup, channel="metadata")
                if not isinstance(coordinator, FindCoordinatorResponse) or coordinator.broker is None:
                    continue
                request = EndTransactionRequest(
                    client_id=client.client_id,
                    request_id=client.next_request_id(),
                    name=name,
                    keys=keys,
                    commits=commits,
                )
                response = yield from client.request(coordinator.broker, request, channel="transactions")
                if isinstance(response, EndTransactionResponse):
                    return response
            yield self._environment.sleep_ms(RETRY_BACKOFF_MS)


RETRIABLE = {
    *("REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR"),
    *("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NETWORK_EXCEPTION"),
}


@dataclass(slots=True)
class Delivery:
    """The number of records that were sent, delivered, retried (once per retry) and lost."""

    sent: int = 0
    delivered: int = 0
    retried: int = 0
    lost: int = 0


class Producer:
    """A producer with two processes as in Kafka: the application adds records, the sender sends ready batches.

    With transactions, a third process commits or aborts them; see `TransactionManager`.
    """

    def __init__(self, client: Client, settings: Producers) -> None:
        self.delivery = Delivery()
        self.client_id = client.client_id
        self._client = client
        self._environment = client.environment
        self.settings = settings
        self.record_bytes = settings.record_bytes
        self._acks = -1 if settings.acks == "all" else settings.acks
        self._accumulator = RecordAccumulator(settings.batch_bytes, settings.linger_ms * 1000, settings.buffer_bytes)
        self._random = client.environment.random_stream("producer", client.name)
        self._in_flight: dict[int, int] = {}
        self._metadata_is_stale = True
        self._metadata_retry_scheduled = False
        self._has_lost_records = False
        self._wakeup = client.environment.env.event()
        self.transaction: TransactionManager | None = None
        if settings.transaction_ms is not None:
            self.transaction = TransactionManager(client, settings.transaction_ms, settings.abort_share)
        if self._acks == 0:
            # With acks=0 a closed connection is the only sign of a failure.
            client.on_disconnect = self._request_metadata_update

    def start(self) -> None:
        """Start the producer's processes."""
        self._environment.env.process(self._application())
        self._environment.env.process(self._sender())
        if self.transaction is not None:
            self._environment.env.process(self._transactions(self.transaction))

    def _application(self) -> ProcessGenerator[None]:
        yield from self._client.refresh_metadata()
        topics = self._client.metadata.topics
        keys = [TopicPartition(name, at) for name in self.settings.topics for at in range(topics.get(name, 0))]
        weights = cumulative_zipf(len(keys), self.settings.skew)
        while keys:
            yield self._environment.sleep_us(self._random.exponential_us(self.settings.rate))
            while self._accumulator.is_full or self._accumulator.flushing:
                yield self._wakeup
            key = keys[self._random.choose_index(weights)]
            size = self._random.uniform_around(self.record_bytes)
            self.delivery.sent += 1
            if self._accumulator.append(key, size, self._environment.now_us):
                self._wake()

    def _sender(self) -> ProcessGenerator[None]:
        while True:
            if self._metadata_is_stale:
                self._metadata_is_stale = False
                yield from self._client.refresh_metadata()
            self._send_ready()
            next_us = self._accumulator.next_ready_us(self._environment.now_us)
            if next_us is None:
                yield self._wakeup
            else:
                yield self._wakeup | self._environment.sleep_us(next_us - self._environment.now_us)

    def _send_ready(self) -> None:
        """Send one request to each leader, with the first batch of each of its ready partitions."""
        if self.transaction is not None and self.transaction.awaits_markers:
            return
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in self._accumulator.ready(self._environment.now_us):
            leader = self._client.metadata.leaders.get(key)
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(key)
            elif not self._metadata_retry_scheduled:
                self._metadata_retry_scheduled = True
                self._environment.schedule(self.settings.retry_backoff_ms * 1000, self._request_metadata_update)
        for broker, keys in by_leader.items():
            if self._in_flight.get(broker, 0) < self.settings.max_in_flight:
                batches = [self._accumulator.drain(key) for key in keys]
                self._in_flight[broker] = self._in_flight.get(broker, 0) + 1
                self._environment.env.process(self._send_produce_request(broker, batches))

    def _transactions(self, transaction: TransactionManager) -> ProcessGenerator[None]:
        """End a transaction every `duration_ms`. The application blocks from the flush until the decision is stored."""
        while True:
            yield self._environment.sleep_ms(transaction.duration_ms)
            self._accumulator.flushing = True
            self._wake()
            while self._accumulator.bytes:
                yield self._wakeup
            lost, self._has_lost_records = self._has_lost_records, False
            yield from transaction.end(aborts=lost, when_written=self._wake)
            self._accumulator.flushing = False
            self._wake()

    def _send_produce_request(self, broker: int, batches: list[Batch]) -> ProcessGenerator[None]:
        if self.transaction is not None:
            self.transaction.add_partitions(batches)
        request = ProduceRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            acks=self._acks,
            timeout_ms=self.settings.request_timeout_ms,
            batches=batches,
            quota=self.settings.quota_bytes_per_second,
        )
        response = yield from self._client.request(broker, request, self.settings.request_timeout_ms)
        self._in_flight[broker] -= 1
        for batch in reversed(batches):
            self._complete_batch(batch, self._batch_error(batch, response))
        self._wake()

    def _batch_error(self, batch: Batch, response: ProduceResponse | Disconnected | None) -> str:
        match response:
            case ProduceResponse():
                return response.errors[batch.key]
            case Disconnected():
                return "NETWORK_EXCEPTION"
        return NONE  # With acks=0 the result is unknown.

    def _complete_batch(self, batch: Batch, error: str) -> None:
        if error == NONE:
            self.delivery.delivered += batch.records
            self._accumulator.release(batch)
            return
        self._metadata_is_stale = True
        if error in RETRIABLE and batch.attempts < self.settings.retries:
            batch.attempts += 1
            batch.not_before_us = self._environment.now_us + self.settings.retry_backoff_ms * 1000
            self.delivery.retried += batch.records
            self._accumulator.reenqueue(batch)
        else:
            self.delivery.lost += batch.records
            self._has_lost_records = True
            self._accumulator.release(batch)

    def _request_metadata_update(self) -> None:
        self._metadata_retry_scheduled = False
        self._metadata_is_stale = True
        self._wake()

    def _wake(self) -> None:
        self._wakeup.succeed()
        self._wakeup = self._environment.env.event()

"""A producer: records in, batches out, and whatever failed goes out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulation.environment import ProcessGenerator, cumulative_zipf
from purgatory_udf.simulation.messages import (
    NONE,
    Batch,
    CoordinatorResponse,
    Disconnected,
    EndTransactionRequest,
    EndTransactionResponse,
    FindTransactionCoordinatorRequest,
    ProduceRequest,
    ProduceResponse,
)
from purgatory_udf.simulation.scenario import Producers

# What a producer has not sent yet: records gathered into batches, by partition (Kafka: RecordAccumulator).


class Accumulator:
    """A batch is ready when it is full, when its first record has lingered, or when it has backed off after failing."""

    def __init__(self, batch_bytes: int, linger_us: int, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_us = linger_us
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self.bytes = 0
        # Nothing lingers: somebody waits until all is delivered.
        self.flushing = False

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._buffer_bytes

    def append(self, key: TopicPartition, size: int, now_us: int) -> bool:
        """Add a record; whether that is a reason to look for ready batches."""
        queue = self._queues.setdefault(key, deque())
        last = queue[-1] if queue else None
        begins = last is None or last.attempts > 0 or last.bytes + size > self._batch_bytes
        if last is None or begins:
            last = Batch(key, now_us)
            queue.append(last)
        last.records += 1
        last.bytes += size
        self.bytes += size
        return begins or last.bytes >= self._batch_bytes

    def ready(self, now_us: int) -> list[TopicPartition]:
        """The partitions whose first batch may go."""
        return [key for key, queue in self._queues.items() if queue and self._ready_us(queue) <= now_us]

    def next_ready_us(self, now_us: int) -> int | None:
        """When the next batch will be ready that is not."""
        times = (self._ready_us(queue) for queue in self._queues.values() if queue)
        return min((time_us for time_us in times if time_us > now_us), default=None)

    def take(self, key: TopicPartition) -> Batch:
        return self._queues[key].popleft()

    def put_back(self, batch: Batch) -> None:
        """To be sent again, before all that came after it."""
        self._queues[batch.key].appendleft(batch)

    def done(self, batch: Batch) -> None:
        """Delivered or given up: its memory is free."""
        self.bytes -= batch.bytes

    def _ready_us(self, queue: deque[Batch]) -> int:
        first = queue[0]
        if first.attempts:
            return first.not_before_us
        if self.flushing or len(queue) > 1 or first.bytes >= self._batch_bytes:
            return first.created_us
        return first.created_us + self._linger_us


# A producer's transactions, one after the other, from its side (Kafka: `TransactionManager`).
#
# A partition belongs to a transaction from the first batch that is sent to it. The end is asked of the coordinator
# when all has been delivered; the next one's batches are refused until its markers are written, so they wait.


class Transaction:
    """`committed` and `aborted` count those that have ended; one without records is none."""

    def __init__(self, client: Client, lasts_ms: int, abort_share: float) -> None:
        self.lasts_ms = lasts_ms
        self.is_refused = False
        self.committed = self.aborted = 0
        self._client = client
        self._world = client.world
        self._abort_share = abort_share
        self._chance = client.world.chance("transaction", client.name)
        self._keys: dict[TopicPartition, None] = {}

    def take_in(self, batches: Iterable[Batch]) -> None:
        """These are about to be sent."""
        for batch in batches:
            batch.transaction = self._client.name
            self._keys[batch.key] = None

    def end(self, aborts: bool, when_written: Callable[[], None]) -> ProcessGenerator[None]:
        """The application goes on as soon as the decision is stored."""
        keys, self._keys = tuple(self._keys), {}
        if not keys:
            return
        commits = not aborts and self._chance.uniform(0, 1) >= self._abort_share
        ends = yield from self._ask(keys, commits)
        self.committed += commits
        self.aborted += not commits
        self.is_refused = True

        def written(_: object) -> None:
            self.is_refused = False
            when_written()

        if ends.written.triggered:
            written(None)
        else:
            ends.written.callbacks.append(written)

    def _ask(self, keys: tuple[TopicPartition, ...], commits: bool) -> ProcessGenerator[EndTransactionResponse]:
        client, name = self._client, self._client.name
        while True:
            for broker in client.brokers:
                look_up = FindTransactionCoordinatorRequest(
                    client_id=client.client_id, request_id=client.next_request_id(), name=name
                )
                coordinator = yield from client.ask(broker, look_up, channel="metadata")
                if not isinstance(coordinator, CoordinatorResponse) or coordinator.broker is None:
                    continue
                request = EndTransactionRequest(
                    client_id=client.client_id,
                    request_id=client.next_request_id(),
                    name=name,
                    keys=keys,
                    commits=commits,
                )
                answer = yield from client.ask(coordinator.broker, request, channel="transactions")
                if isinstance(answer, EndTransactionResponse):
                    return answer
            yield self._world.sleep_ms(RETRY_BACKOFF_MS)


RETRIABLE = {
    *("REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR"),
    *("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NETWORK_EXCEPTION"),
}


@dataclass(slots=True)
class Delivery:
    """What became of a producer's records."""

    sent: int = 0
    delivered: int = 0
    retried: int = 0
    lost: int = 0


class Producer:
    """Two processes, as in Kafka: the application hands records over, the sender sends what is ready. With transactions
    there is a third, which ends them: see `transaction`."""

    def __init__(self, client: Client, settings: Producers) -> None:
        self.delivery = Delivery()
        self._client = client
        self._world = client.world
        self._settings = settings
        self._acks = -1 if settings.acks == "all" else settings.acks
        self._accumulator = Accumulator(settings.batch_bytes, settings.linger_ms * 1000, settings.buffer_bytes)
        self._chance = client.world.chance("producer", client.name)
        self._in_flight: dict[int, int] = {}
        self._metadata_is_stale = True
        self._backs_off = False
        self._lost = False
        self._woken = client.world.env.event()
        self.transaction: Transaction | None = None
        if settings.transaction_ms is not None:
            self.transaction = Transaction(client, settings.transaction_ms, settings.abort_share)
        if self._acks == 0:
            # Nothing else tells that what it sent has failed.
            client.on_disconnect = self._ask_again_who_leads

    def start(self) -> None:
        self._world.env.process(self._application())
        self._world.env.process(self._sender())
        if self.transaction is not None:
            self._world.env.process(self._transactions(self.transaction))

    def _application(self) -> ProcessGenerator[None]:
        yield from self._client.refresh_metadata()
        topics = self._client.metadata.topics
        keys = [TopicPartition(name, at) for name in self._settings.topics for at in range(topics.get(name, 0))]
        weights = cumulative_zipf(len(keys), self._settings.skew)
        while keys:
            yield self._world.sleep_us(self._chance.interval_us(self._settings.rate))
            while self._accumulator.is_full or self._accumulator.flushing:
                yield self._woken
            key, size = keys[self._chance.choose(weights)], self._chance.around(self._settings.record_bytes)
            self.delivery.sent += 1
            if self._accumulator.append(key, size, self._world.now_us):
                self._wake()

    def _sender(self) -> ProcessGenerator[None]:
        while True:
            if self._metadata_is_stale:
                self._metadata_is_stale = False
                yield from self._client.refresh_metadata()
            self._send_ready()
            next_us = self._accumulator.next_ready_us(self._world.now_us)
            if next_us is None:
                yield self._woken
            else:
                yield self._woken | self._world.sleep_us(next_us - self._world.now_us)

    def _send_ready(self) -> None:
        """To each leader one request with the first batch of every ready partition that it leads."""
        if self.transaction is not None and self.transaction.is_refused:
            return
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in self._accumulator.ready(self._world.now_us):
            leader = self._client.metadata.leaders.get(key)
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(key)
            elif not self._backs_off:
                self._backs_off = True
                self._world.later(self._settings.retry_backoff_ms * 1000, self._ask_again_who_leads)
        for broker, keys in by_leader.items():
            if self._in_flight.get(broker, 0) < self._settings.max_in_flight:
                batches = [self._accumulator.take(key) for key in keys]
                self._in_flight[broker] = self._in_flight.get(broker, 0) + 1
                self._world.env.process(self._deliver(broker, batches))

    def _transactions(self, transaction: Transaction) -> ProcessGenerator[None]:
        """Commits when all is delivered; meanwhile the application hands nothing over."""
        while True:
            yield self._world.sleep_ms(transaction.lasts_ms)
            self._accumulator.flushing = True
            self._wake()
            while self._accumulator.bytes:
                yield self._woken
            lost, self._lost = self._lost, False
            yield from transaction.end(aborts=lost, when_written=self._wake)
            self._accumulator.flushing = False
            self._wake()

    def _deliver(self, broker: int, batches: list[Batch]) -> ProcessGenerator[None]:
        if self.transaction is not None:
            self.transaction.take_in(batches)
        request = ProduceRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            acks=self._acks,
            timeout_ms=self._settings.request_timeout_ms,
            batches=batches,
            quota=self._settings.quota_bytes_per_second,
        )
        answer = yield from self._client.ask(broker, request, self._settings.request_timeout_ms)
        self._in_flight[broker] -= 1
        for batch in reversed(batches):
            self._settle(batch, self._error(batch, answer))
        self._wake()

    def _error(self, batch: Batch, answer: ProduceResponse | Disconnected | None) -> str:
        match answer:
            case ProduceResponse():
                return answer.errors[batch.key]
            case Disconnected():
                return "NETWORK_EXCEPTION"
        return NONE  # acks=0: nobody will ever know

    def _settle(self, batch: Batch, error: str) -> None:
        if error == NONE:
            self.delivery.delivered += batch.records
            self._accumulator.done(batch)
            return
        self._metadata_is_stale = True
        if error in RETRIABLE and batch.attempts < self._settings.retries:
            batch.attempts += 1
            batch.not_before_us = self._world.now_us + self._settings.retry_backoff_ms * 1000
            self.delivery.retried += batch.records
            self._accumulator.put_back(batch)
        else:
            self.delivery.lost += batch.records
            self._lost = True
            self._accumulator.done(batch)

    def _ask_again_who_leads(self) -> None:
        self._backs_off = False
        self._metadata_is_stale = True
        self._wake()

    def _wake(self) -> None:
        self._woken.succeed()
        self._woken = self._world.env.event()

"""A producer: records in, batches out, and whatever failed goes out again."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.accumulator import Accumulator
from purgatory_udf.simulate.chance import zipf
from purgatory_udf.simulate.client import Client
from purgatory_udf.simulate.messages import NONE, Batch, Disconnected, Produce, Produced
from purgatory_udf.simulate.scenario import Producers
from purgatory_udf.simulate.transaction import Transaction
from purgatory_udf.simulate.world import Steps

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

    def _application(self) -> Steps[None]:
        yield from self._client.refresh_metadata()
        topics = self._client.metadata.topics
        keys = [TopicPartition(name, at) for name in self._settings.topics for at in range(topics.get(name, 0))]
        weights = zipf(len(keys), self._settings.skew)
        while keys:
            yield self._world.sleep_us(self._chance.interval_us(self._settings.rate))
            while self._accumulator.is_full or self._accumulator.flushing:
                yield self._woken
            key, size = keys[self._chance.choose(weights)], self._chance.around(self._settings.record_bytes)
            self.delivery.sent += 1
            if self._accumulator.append(key, size, self._world.now_us):
                self._wake()

    def _sender(self) -> Steps[None]:
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

    def _transactions(self, transaction: Transaction) -> Steps[None]:
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

    def _deliver(self, broker: int, batches: list[Batch]) -> Steps[None]:
        if self.transaction is not None:
            self.transaction.take_in(batches)
        request = Produce(
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

    def _error(self, batch: Batch, answer: Produced | Disconnected | None) -> str:
        match answer:
            case Produced():
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

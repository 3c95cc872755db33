"""Transactions' coordinators: they decide how a transaction ends, and have its partitions' leaders write so.

    producer     ──END_TXN──► coordinator ──answer, once the decision is stored
                                   └──WRITE_TXN_MARKERS──► each partition's leader, until all have written

Kafka: `TransactionCoordinator.endTransaction`, `TransactionMarkerChannelManager`. A transaction's next one of the same
producer begins when its markers are written (before that it is answered CONCURRENT_TRANSACTIONS). What the coordinator
stores in its own topic is a delay here, and no event.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.client import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulate.controller import Controller
from purgatory_udf.simulate.messages import NONE, Batch, Coordinator, EndTransaction, Produce, Produced, TransactionEnds
from purgatory_udf.simulate.network import Reply
from purgatory_udf.simulate.scenario import Brokers
from purgatory_udf.simulate.world import Steps, World

# A batch of one end marker; how long a leader may wait for replicas to have it (`request.timeout.ms` of a broker).
MARKER_BYTES, TIMEOUT_MS = 78, 30_000


class TransactionCoordinators:
    """Of all brokers; a transactional id has one of those that are up. A broker that fails ends none of what was
    decided: the next one goes on with it."""

    def __init__(
        self,
        world: World,
        controller: Controller,
        settings: Brokers,
        is_up: Callable[[int], bool],
        sender: Callable[[int], Client],
    ) -> None:
        """`sender` makes the client by which that broker sends markers."""
        self._world = world
        self._controller = controller
        self._settings = settings
        self._is_up = is_up
        self._sender = sender
        self._senders: dict[int, Client] = {}
        self._known: dict[str, int] = {}
        self._chance = world.chance("transactions")

    def coordinator_of(self, name: str) -> Coordinator:
        place, count = self._known.setdefault(name, len(self._known)), self._settings.count
        candidates = [(place + at) % count + 1 for at in range(count)]
        return Coordinator(next((broker for broker in candidates if self._is_up(broker)), None))

    def end(self, broker: int, message: EndTransaction, reply: Reply) -> None:
        """Answered when the decision has been stored, which takes as long as a follower needs to have it."""
        stored_us = self._chance.delay_us(self._settings.network) + self._chance.delay_us(self._settings.append)
        self._world.env.process(self._end(broker, message, reply, stored_us))

    def _end(self, broker: int, message: EndTransaction, reply: Reply, stored_us: int) -> Steps[None]:
        yield self._world.sleep_us(stored_us)
        written = self._world.env.event()
        reply(TransactionEnds(written), 0)
        yield from self._write_all(broker, message)
        written.succeed()

    def _write_all(self, broker: int, message: EndTransaction) -> Steps[None]:
        pending = list(message.keys)
        client = self._senders.get(broker)
        if client is None:
            client = self._senders[broker] = self._sender(broker)
        while pending:
            by_leader: dict[int, list[TopicPartition]] = {}
            for key in pending:
                leader = self._controller.partitions[key].leader
                if leader is not None:
                    by_leader.setdefault(leader, []).append(key)
            for leader, keys in by_leader.items():
                answer = yield from client.ask(leader, self._markers(client, message.name, keys), TIMEOUT_MS)
                if isinstance(answer, Produced):
                    done = {key for key in keys if answer.errors[key] == NONE}
                    pending = [key for key in pending if key not in done]
            if pending:
                yield self._world.sleep_ms(RETRY_BACKOFF_MS)

    def _markers(self, client: Client, name: str, keys: list[TopicPartition]) -> Produce:
        batches = [
            Batch(key, self._world.now_us, records=1, bytes=MARKER_BYTES, transaction=name, ends=True) for key in keys
        ]
        return Produce(
            client_id=client.client_id,
            request_id=client.next_request_id(),
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            batches=batches,
        )

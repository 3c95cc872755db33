"""A producer's transactions, one after the other, from its side (Kafka: `TransactionManager`).

A partition belongs to a transaction from the first batch that is sent to it. The end is asked of the coordinator when
all has been delivered; the next one's batches are refused until its markers are written, so they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.client import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulate.messages import (
    Batch,
    Coordinator,
    EndTransaction,
    FindTransactionCoordinator,
    TransactionEnds,
)
from purgatory_udf.simulate.world import Steps


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

    def end(self, aborts: bool, when_written: Callable[[], None]) -> Steps[None]:
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

    def _ask(self, keys: tuple[TopicPartition, ...], commits: bool) -> Steps[TransactionEnds]:
        client, name = self._client, self._client.name
        while True:
            for broker in client.brokers:
                look_up = FindTransactionCoordinator(
                    client_id=client.client_id, request_id=client.next_request_id(), name=name
                )
                coordinator = yield from client.ask(broker, look_up, channel="metadata")
                if not isinstance(coordinator, Coordinator) or coordinator.broker is None:
                    continue
                request = EndTransaction(
                    client_id=client.client_id,
                    request_id=client.next_request_id(),
                    name=name,
                    keys=keys,
                    commits=commits,
                )
                answer = yield from client.ask(coordinator.broker, request, channel="transactions")
                if isinstance(answer, TransactionEnds):
                    return answer
            yield self._world.sleep_ms(RETRY_BACKOFF_MS)

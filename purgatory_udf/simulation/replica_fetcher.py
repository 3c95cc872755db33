"""Replication: a broker fetches, in a loop, what the others lead and it follows."""

from __future__ import annotations

from purgatory_udf.simulation.client_network import Client
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.environment import ProcessGenerator
from purgatory_udf.simulation.messages import (
    NONE,
    FetchPartition,
    FetchPartitions,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchSessionHandler,
)
from purgatory_udf.simulation.scenario import Brokers

MAX_BYTES = 10_485_760
PARTITION_MAX_BYTES = 1_048_576
FETCH_BACKOFF_MS = 1000
SOCKET_TIMEOUT_MS = 30_000


class ReplicaFetcherManager:
    """One broker's fetchers, stopped while it is down, and standing still while it is stalled."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.up = True
        self.stalled_until_us = 0
        self.clients: list[Client] = []

    def disconnect(self) -> None:
        for client in self.clients:
            client.disconnect()


class ReplicaFetcher:
    """One follower's long poll at one leader: fetch, append what came, which takes its time, and fetch again."""

    def __init__(
        self, client: Client, replication: ReplicaFetcherManager, leader: int, controller: Controller, settings: Brokers
    ) -> None:
        self._client = client
        self._world = client.world
        self._replication = replication
        self._leader = leader
        self._controller = controller
        self._settings = settings
        self._session = FetchSessionHandler()
        self._chance = client.world.chance("follower", client.client_id)

    def run(self) -> ProcessGenerator[None]:
        while True:
            yield from self._until_awake()
            wants = self._wants()
            if not wants or not self._replication.up:
                self._session.failed()
                yield self._controller.changed
                continue
            answer = yield from self._client.ask(self._leader, self._request(wants), SOCKET_TIMEOUT_MS)
            if not isinstance(answer, FetchResponse) or answer.error != NONE:
                self._session.failed()
                yield self._world.sleep_ms(FETCH_BACKOFF_MS)
                continue
            self._session.answered(answer)
            yield self._world.sleep_us(self._chance.delay_us(self._settings.append))
            yield from self._until_awake()
            if self._replication.up:
                for part in answer.partitions:
                    self._append(part, wants)

    def _wants(self) -> FetchPartitions:
        broker = self._replication.broker
        return {
            key: FetchPartition(state.copies[broker].end, PARTITION_MAX_BYTES, state.epoch)
            for key, state in self._controller.partitions.items()
            if state.leader == self._leader and state.followed_by(broker)
        }

    def _request(self, wants: FetchPartitions) -> FetchRequest:
        return self._session.next(
            wants,
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            replica_id=self._replication.broker,
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=MAX_BYTES,
            isolation="read_uncommitted",
        )

    def _append(self, part: FetchResponsePartition, wants: FetchPartitions) -> None:
        """Unless the leader has changed meanwhile: then this may not be the log any more."""
        state = self._controller.partitions[part.key]
        copy = state.copies[self._replication.broker]
        want = wants.get(part.key)
        current = state.leader == self._leader and want is not None and want.epoch == state.epoch
        if part.error == NONE and current and copy.end == part.offset:
            copy.append(part.next_offset, part.bytes, part.high_watermark)

    def _until_awake(self) -> ProcessGenerator[None]:
        while self._replication.stalled_until_us > self._world.now_us:
            yield self._world.sleep_us(self._replication.stalled_until_us - self._world.now_us)

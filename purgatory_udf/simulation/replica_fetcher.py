"""Replication: each broker runs one loop for each leader, which fetches the partitions that the broker follows."""

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
    """One broker's replica fetchers. They stop while the broker is down (`up`) and pause while it is stalled."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.up = True
        self.stalled_until_us = 0
        self.clients: list[Client] = []

    def disconnect(self) -> None:
        """Close all connections to leaders."""
        for client in self.clients:
            client.disconnect()


class ReplicaFetcher:
    """A follower's loop for one leader: fetch, append the records, which takes some time, and fetch again."""

    def __init__(
        self,
        client: Client,
        fetcher_manager: ReplicaFetcherManager,
        leader: int,
        controller: Controller,
        settings: Brokers,
    ) -> None:
        self._client = client
        self._environment = client.environment
        self._manager = fetcher_manager
        self._leader = leader
        self._controller = controller
        self._settings = settings
        self._session = FetchSessionHandler()
        self._random = client.environment.random_stream("follower", client.client_id)

    def run(self) -> ProcessGenerator[None]:
        while True:
            yield from self._wait_while_stalled()
            partitions = self._partitions_to_fetch()
            if not partitions or not self._manager.up:
                self._session.handle_error()
                yield self._controller.leadership_changed
                continue
            response = yield from self._client.request(self._leader, self._request(partitions), SOCKET_TIMEOUT_MS)
            if not isinstance(response, FetchResponse) or response.error != NONE:
                self._session.handle_error()
                yield self._environment.sleep_ms(FETCH_BACKOFF_MS)
                continue
            self._session.handle_response(response)
            yield self._environment.sleep_us(self._append_us(response))
            yield from self._wait_while_stalled()
            if self._manager.up:
                for part in response.partitions:
                    self._append(part, partitions)

    def _partitions_to_fetch(self) -> FetchPartitions:
        broker = self._manager.broker
        return {
            key: FetchPartition(state.replica_logs[broker].end, PARTITION_MAX_BYTES, state.epoch)
            for key, state in self._controller.partitions.items()
            if state.leader == self._leader and state.followed_by(broker)
        }

    def _request(self, partitions: FetchPartitions) -> FetchRequest:
        return self._session.build_request(
            partitions,
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            replica_id=self._manager.broker,
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=MAX_BYTES,
            isolation="read_uncommitted",
        )

    def _append_us(self, response: FetchResponse) -> int:
        """Draw the time of appending the records of a response, in microseconds."""
        rate, size = self._settings.append_bytes_per_second, sum(part.bytes for part in response.partitions)
        return self._random.delay_us(self._settings.append) + (round(size / rate * 1_000_000) if rate else 0)

    def _append(self, part: FetchResponsePartition, partitions: FetchPartitions) -> None:
        """Append the records of a response to the replica's log, unless the leader changed since the fetch was sent.

        `partitions` are those of the fetch, with the leader epochs that it named.
        """
        state = self._controller.partitions[part.key]
        replica_log = state.replica_logs[self._manager.broker]
        partition = partitions.get(part.key)
        current = state.leader == self._leader and partition is not None and partition.epoch == state.epoch
        if part.error == NONE and current and replica_log.end == part.offset:
            replica_log.append(part.next_offset, part.bytes, part.high_watermark)

    def _wait_while_stalled(self) -> ProcessGenerator[None]:
        """Wait while the broker is stalled."""
        while self._manager.stalled_until_us > self._environment.now_us:
            yield self._environment.sleep_us(self._manager.stalled_until_us - self._environment.now_us)

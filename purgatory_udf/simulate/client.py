"""What every client has: a name, connections, and what it last heard of who leads what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from purgatory_udf.simulate.chance import Spread
from purgatory_udf.simulate.messages import Disconnected, GetMetadata, Message, Metadata
from purgatory_udf.simulate.network import Connection, Exchange, Listener
from purgatory_udf.simulate.world import Steps, World

RETRY_BACKOFF_MS = 100


class Client:
    """Asks brokers, each over a connection of its own, which is opened when it is needed."""

    def __init__(
        self,
        world: World,
        client_id: str,
        servers: Mapping[int, Listener],
        spread: Spread,
        log: list[Exchange],
        life: int = 1,
    ) -> None:
        """`life` counts how often a client of this name has been started."""
        self.world = world
        self.client_id = client_id
        self.name = client_id if life == 1 else f"{client_id}.{life}"
        self.paused_until_us = 0
        self.metadata = Metadata()
        self.metadata_at_us: int | None = None
        self._servers = servers
        self._spread = spread
        self._log = log
        self._connections: dict[tuple[int, str], Connection] = {}
        # Called when a connection to a broker breaks, or is broken off.
        self.on_disconnect: Callable[[], None] = lambda: None
        self._requests = count(1)
        self._opened = count(1)

    def _lost(self) -> None:
        """Who leads what may have changed (Kafka: `NetworkClient.handleServerDisconnect`)."""
        self.on_disconnect()

    def next_request_id(self) -> str:
        return f"{self.name}-{next(self._requests)}"

    @property
    def brokers(self) -> list[int]:
        return list(self._servers)

    def ask(self, broker: int, message: Message, timeout_ms: int | None = None, channel: str = "") -> Steps[Any]:
        """The answer; `Disconnected` if the connection breaks, or if the client gives up waiting and breaks it.

        A group's coordinator has a channel beside that of the broker it runs on, so that a fetch that waits holds up no
        heartbeat.
        """
        yield from self.awake()
        connection = self._connection(broker, channel)
        answer = connection.send(message)
        if timeout_ms is None:
            yield answer
        else:
            yield answer | self.world.sleep_ms(timeout_ms)
        yield from self.awake()
        if not answer.triggered:
            connection.close()
            return Disconnected(timed_out=True)
        return answer.value

    def awake(self) -> Steps[None]:
        """While the process stands still, it neither sends nor hears."""
        while self.paused_until_us > self.world.now_us:
            yield self.world.sleep_us(self.paused_until_us - self.world.now_us)

    def refresh_metadata(self) -> Steps[None]:
        """Ask one broker after the other, until one answers."""
        while True:
            for broker in self._servers:
                message = GetMetadata(client_id=self.client_id, request_id=self.next_request_id())
                answer = yield from self.ask(broker, message, channel="metadata")
                if isinstance(answer, Metadata):
                    self.metadata, self.metadata_at_us = answer, self.world.now_us
                    return
            yield self.world.sleep_ms(RETRY_BACKOFF_MS)

    def disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, broker: int, channel: str) -> Connection:
        connection = self._connections.get((broker, channel))
        if connection is None or connection.closed:
            owner = f"{self.name}/{channel}/{next(self._opened)}"
            on_close = self._lost if channel == "" else lambda: None
            connection = Connection(self.world, self._servers[broker], owner, self._spread, self._log, on_close)
            self._connections[broker, channel] = connection
        return connection

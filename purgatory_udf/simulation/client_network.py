"""Connections between clients and brokers.

Requests of a connection arrive in order, each after a network latency. The broker reads a connection's next request
after it has responded to the previous one (Kafka mutes the channel). A throttled response is sent later than it is
ready. This delay is reported as `throttle_ms` and is not purgatory time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import simpy

from purgatory_udf.simulation.messages import ClientRequest, Disconnected, Metadata, MetadataRequest, ProduceResponse
from purgatory_udf.simulation.simpy_environment import Environment, LatencyDistribution, ProcessGenerator

Reply = Callable[[Any, int], None]


@dataclass(slots=True)
class Exchange:
    """The history of a request from its client's point of view: sent, arrived, answered, throttled, received.

    `arrived_us` is the time at which the broker starts to handle the request, after earlier requests of the connection.
    """

    request: ClientRequest
    sent_us: int
    operation_id: int | None = None
    arrived_us: int | None = None
    answered_us: int | None = None
    throttle_ms: int = 0
    received_us: int | None = None


class Listener(Protocol):
    """Interface of a broker to its connections."""

    broker: int
    up: bool
    # It handles and answers no request before this time.
    frozen_until_us: int

    def accept(self, connection: Connection) -> None:
        """Register a connection, to close it when the broker stops."""

    def handle(self, exchange: Exchange, connection: Connection, reply: Reply) -> None:
        """Handle the request of an exchange. Calls `reply(response, throttle_ms)` once, now or later."""

    def disconnected(self, connection: Connection) -> None:
        """End what depends on the connection, because it was closed."""


class Connection:
    """A client's connection to one broker. After `close`, nothing that was in flight arrives."""

    def __init__(
        self,
        environment: Environment,
        server: Listener,
        owner: str,
        latency: LatencyDistribution,
        log: list[Exchange],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the connection.

        Args:
            environment: The environment of the simulation.
            server: The broker.
            owner: Name of the client, for the random numbers of the connection.
            latency: Latency of the network in each direction.
            log: Gets the exchange of every request.
            on_close: Called when either side closes the connection.
        """
        self.closed = False
        self._on_close = on_close
        self._environment = environment
        self._server = server
        self._latency = latency
        self._log = log
        self._random = environment.random_stream("network", owner, str(server.broker))
        self._waiting: dict[simpy.Event, None] = {}
        self._inbox: deque[tuple[Exchange, simpy.Event]] = deque()
        self._busy = False
        self._last_arrival_us = self._last_return_us = environment.now_us
        server.accept(self)

    def send(self, request: ClientRequest) -> simpy.Event:
        """Send a request; return a SimPy event with the response, or `Disconnected`, as its value."""
        response = self._environment.env.event()
        exchange = Exchange(request, self._environment.now_us)
        self._log.append(exchange)
        if request.expects_response:
            self._waiting[response] = None
        else:
            response.succeed(None)
        arrives_us = self._last_arrival_us = max(self._last_arrival_us, self._environment.now_us + self._delay_us())
        self._environment.schedule(arrives_us - self._environment.now_us, self._arrived, exchange, response)
        return response

    def close(self) -> None:
        """Close the connection and fail all requests in flight."""
        if self.closed:
            return
        self.closed = True
        self._on_close()
        self._environment.schedule(self._delay_us(), self._notify_server)
        waiting, self._waiting = self._waiting, {}
        for response in waiting:
            response.succeed(Disconnected())

    def _notify_server(self) -> None:
        frozen_us = self._frozen_us()
        if frozen_us:
            self._environment.schedule(frozen_us, self._notify_server)
        else:
            self._server.disconnected(self)

    def _arrived(self, exchange: Exchange, response: simpy.Event) -> None:
        if self.closed:
            return
        if not self._server.up:
            # The broker is down; the client notices after one more network latency.
            self._environment.schedule(self._delay_us(), self.close)
            return
        self._inbox.append((exchange, response))
        self._serve_next()

    def _serve_next(self) -> None:
        frozen_us = self._frozen_us()
        if frozen_us:
            self._environment.schedule(frozen_us, self._serve_next)
        elif self._inbox and not self._busy and not self.closed:
            self._busy = True
            exchange, response = self._inbox.popleft()
            exchange.arrived_us = self._environment.now_us
            self._server.handle(exchange, self, partial(self._answered, exchange, response))

    def _answered(self, exchange: Exchange, response: simpy.Event, content: Any, throttle_ms: int) -> None:
        exchange.answered_us = self._environment.now_us
        if exchange.request.expects_response:
            exchange.throttle_ms = throttle_ms
        delay_us = max(exchange.throttle_ms * 1000, self._frozen_us())
        self._environment.schedule(delay_us, self._sent, exchange, response, content)

    def _frozen_us(self) -> int:
        """Return the remaining time for which the broker stands still, in microseconds."""
        return max(0, self._server.frozen_until_us - self._environment.now_us)

    def _sent(self, exchange: Exchange, response: simpy.Event, content: Any) -> None:
        """Send the response over the network, and handle the connection's next request.

        With acks=0 there is no response: a failed produce closes the connection, so that the client refreshes its
        metadata (Kafka: `KafkaApis.handleProduceRequest`).
        """
        if self.closed:
            return
        if isinstance(content, ProduceResponse) and content.has_errors and not exchange.request.expects_response:
            self._environment.schedule(self._delay_us(), self.close)
            return
        self._busy = False
        if exchange.request.expects_response:
            back_us = self._last_return_us = max(self._last_return_us, self._environment.now_us + self._delay_us())
            self._environment.schedule(back_us - self._environment.now_us, self._received, exchange, response, content)
        self._serve_next()

    def _received(self, exchange: Exchange, response: simpy.Event, content: Any) -> None:
        if not self.closed:
            exchange.received_us = self._environment.now_us
            del self._waiting[response]
            response.succeed(content)

    def _delay_us(self) -> int:
        return self._random.delay_us(self._latency)


# Kafka's default of `retry.backoff.ms`.
RETRY_BACKOFF_MS = 100


class Client:
    """A client with its metadata and its connections, which are opened when first needed."""

    def __init__(
        self,
        environment: Environment,
        client_id: str,
        servers: Mapping[int, Listener],
        latency: LatencyDistribution,
        log: list[Exchange],
        run_number: int = 1,
    ) -> None:
        """Create a client.

        Args:
            environment: The environment of the simulation.
            client_id: The client id in its requests.
            servers: The brokers by id.
            latency: Latency of the network in each direction.
            log: Gets the exchange of every request.
            run_number: Number of starts of this client so far, from 1; distinguishes the request ids of its runs.
        """
        self.environment = environment
        self.client_id = client_id
        self.name = client_id if run_number == 1 else f"{client_id}.{run_number}"
        self.paused_until_us = 0
        self.metadata = Metadata()
        self.metadata_at_us: int | None = None
        self._servers = servers
        self._latency = latency
        self._log = log
        self._connections: dict[tuple[int, str], Connection] = {}
        # Called when a connection to a broker closes.
        self.on_disconnect: Callable[[], None] = lambda: None
        self._requests = count(1)
        self._opened = count(1)

    def _on_connection_lost(self) -> None:
        """Call `on_disconnect`, because leaders may have changed (Kafka: `NetworkClient.handleServerDisconnect`)."""
        self.on_disconnect()

    def next_request_id(self) -> str:
        """Return a request id that is unique in the trace."""
        return f"{self.name}-{next(self._requests)}"

    @property
    def brokers(self) -> list[int]:
        """All broker ids."""
        return list(self._servers)

    def request(
        self, broker: int, request: ClientRequest, timeout_ms: int | None = None, channel: str = ""
    ) -> ProcessGenerator[Any]:
        """Send a request and wait for its response.

        Returns `Disconnected` if the connection closes, or if `timeout_ms` passes, which closes the connection. Each
        `channel` has a separate connection, so that heartbeats to a coordinator are not queued behind a waiting fetch
        at the same broker.
        """
        yield from self.wait_while_paused()
        connection = self._connection(broker, channel)
        response = connection.send(request)
        if timeout_ms is None:
            yield response
        else:
            yield response | self.environment.sleep_ms(timeout_ms)
        yield from self.wait_while_paused()
        if not response.triggered:
            connection.close()
            return Disconnected(timed_out=True)
        return response.value

    def wait_while_paused(self) -> ProcessGenerator[None]:
        """Wait while the process is paused; it neither sends nor receives then."""
        while self.paused_until_us > self.environment.now_us:
            yield self.environment.sleep_us(self.paused_until_us - self.environment.now_us)

    def refresh_metadata(self) -> ProcessGenerator[None]:
        """Request metadata from one broker after the other until one responds."""
        while True:
            for broker in self._servers:
                request = MetadataRequest(client_id=self.client_id, request_id=self.next_request_id())
                response = yield from self.request(broker, request, channel="metadata")
                if isinstance(response, Metadata):
                    self.metadata, self.metadata_at_us = response, self.environment.now_us
                    return
            yield self.environment.sleep_ms(RETRY_BACKOFF_MS)

    def disconnect(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, broker: int, channel: str) -> Connection:
        connection = self._connections.get((broker, channel))
        if connection is None or connection.closed:
            owner = f"{self.name}/{channel}/{next(self._opened)}"
            on_close = self._on_connection_lost if channel == "" else lambda: None
            connection = Connection(self.environment, self._servers[broker], owner, self._latency, self._log, on_close)
            self._connections[broker, channel] = connection
        return connection

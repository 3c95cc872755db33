"""Connections: what is sent arrives after a while, in order, and is answered one request at a time.

A broker reads the next request of a connection when it has answered the one before (Kafka mutes the channel meanwhile).
A throttled answer is ready, but leaves later: that time is the quota's, not the purgatory's, and is kept apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import simpy

from purgatory_udf.simulation.environment import LatencyDistribution, ProcessGenerator, World
from purgatory_udf.simulation.messages import Disconnected, Metadata, MetadataRequest, ProduceResponse, Request

Reply = Callable[[Any, int], None]


@dataclass(slots=True)
class Exchange:
    """A request as its client sees it: sent, arrived (handled first), answered, then throttled, received."""

    message: Request
    sent_us: int
    operation_id: int | None = None
    arrived_us: int | None = None
    answered_us: int | None = None
    throttle_ms: int = 0
    received_us: int | None = None


class Listener(Protocol):
    """What a connection needs of a server."""

    broker: int
    up: bool

    def accept(self, connection: Connection) -> None:
        """Be told of a connection, to break it off in a crash."""

    def handle(self, exchange: Exchange, reply: Reply) -> None:
        """Answer by `reply(answer, throttle_ms)`, once, now or later."""


class Connection:
    """One client's connection to one broker. Once it is closed, nothing that was under way arrives."""

    def __init__(
        self,
        world: World,
        server: Listener,
        owner: str,
        spread: LatencyDistribution,
        log: list[Exchange],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_close` is called when it is closed, by whichever side."""
        self.closed = False
        self._on_close = on_close
        self._world = world
        self._server = server
        self._spread = spread
        self._log = log
        self._chance = world.chance("network", owner, str(server.broker))
        self._waiting: dict[simpy.Event, None] = {}
        self._inbox: deque[tuple[Exchange, simpy.Event]] = deque()
        self._busy = False
        self._last_there_us = self._last_back_us = world.now_us
        server.accept(self)

    def send(self, message: Request) -> simpy.Event:
        """An event that will have the answer, or `Disconnected`, as its value."""
        answer = self._world.env.event()
        exchange = Exchange(message, self._world.now_us)
        self._log.append(exchange)
        if message.owed_an_answer:
            self._waiting[answer] = None
        else:
            answer.succeed(None)
        arrives_us = self._last_there_us = max(self._last_there_us, self._world.now_us + self._delay_us())
        self._world.later(arrives_us - self._world.now_us, self._arrived, exchange, answer)
        return answer

    def close(self) -> None:
        """Give up everything that is under way."""
        if self.closed:
            return
        self.closed = True
        self._on_close()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting:
            answer.succeed(Disconnected())

    def _arrived(self, exchange: Exchange, answer: simpy.Event) -> None:
        if self.closed:
            return
        if not self._server.up:
            # Nobody listens there; the client learns of it a journey later.
            self._world.later(self._delay_us(), self.close)
            return
        self._inbox.append((exchange, answer))
        self._serve_next()

    def _serve_next(self) -> None:
        if self._inbox and not self._busy and not self.closed:
            self._busy = True
            exchange, answer = self._inbox.popleft()
            exchange.arrived_us = self._world.now_us
            self._server.handle(exchange, partial(self._answered, exchange, answer))

    def _answered(self, exchange: Exchange, answer: simpy.Event, content: Any, throttle_ms: int) -> None:
        exchange.answered_us = self._world.now_us
        if exchange.message.owed_an_answer:
            exchange.throttle_ms = throttle_ms
        self._world.later(exchange.throttle_ms * 1000, self._sent, exchange, answer, content)

    def _sent(self, exchange: Exchange, answer: simpy.Event, content: Any) -> None:
        """A produce that is owed no answer and failed can only be told so by closing the connection: nothing more is
        served on it (Kafka: `KafkaApis.handleProduceRequest`)."""
        if self.closed:
            return
        if isinstance(content, ProduceResponse) and content.failed and not exchange.message.owed_an_answer:
            self._world.later(self._delay_us(), self.close)
            return
        self._busy = False
        if exchange.message.owed_an_answer:
            back_us = self._last_back_us = max(self._last_back_us, self._world.now_us + self._delay_us())
            self._world.later(back_us - self._world.now_us, self._received, exchange, answer, content)
        self._serve_next()

    def _received(self, exchange: Exchange, answer: simpy.Event, content: Any) -> None:
        if not self.closed:
            exchange.received_us = self._world.now_us
            del self._waiting[answer]
            answer.succeed(content)

    def _delay_us(self) -> int:
        return self._chance.delay_us(self._spread)


# What every client has: a name, connections, and what it last heard of who leads what.


RETRY_BACKOFF_MS = 100


class Client:
    """Asks brokers, each over a connection of its own, which is opened when it is needed."""

    def __init__(
        self,
        world: World,
        client_id: str,
        servers: Mapping[int, Listener],
        spread: LatencyDistribution,
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

    def ask(
        self, broker: int, message: Request, timeout_ms: int | None = None, channel: str = ""
    ) -> ProcessGenerator[Any]:
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

    def awake(self) -> ProcessGenerator[None]:
        """While the process stands still, it neither sends nor hears."""
        while self.paused_until_us > self.world.now_us:
            yield self.world.sleep_us(self.paused_until_us - self.world.now_us)

    def refresh_metadata(self) -> ProcessGenerator[None]:
        """Ask one broker after the other, until one answers."""
        while True:
            for broker in self._servers:
                message = MetadataRequest(client_id=self.client_id, request_id=self.next_request_id())
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

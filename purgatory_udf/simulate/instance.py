"""A consumer over its lives: it is started, closed, crashes, stands still, and is started again."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from purgatory_udf.simulate.client import Client
from purgatory_udf.simulate.consumer import Consumer
from purgatory_udf.simulate.scenario import Consumers
from purgatory_udf.simulate.world import Steps

NewClient = Callable[[str, int], Client]


class Instance:
    """`client_id` stays the same in every life, and so does a static member's instance id."""

    def __init__(self, client_id: str, settings: Consumers, new_client: NewClient) -> None:
        self.client_id = client_id
        self.lives: list[Consumer] = []
        self._settings = settings
        self._new_client = new_client
        self._client: Client | None = None
        self._process: simpy.Process | None = None

    @property
    def records(self) -> int:
        return sum(consumer.records for consumer in self.lives)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        if self.is_running:
            return
        self._client = self._new_client(self.client_id, len(self.lives) + 1)
        instance_id = self.client_id if self._settings.static_members else None
        self.lives.append(Consumer(self._client, self._settings, instance_id))
        self._process = self._client.world.env.process(self.lives[-1].run())

    def close(self) -> Steps[None]:
        """In order: the consumer ends its poll, commits, and leaves."""
        if self._process is not None and self._process.is_alive:
            self.lives[-1].closing = True
            yield self._process

    def crash(self) -> None:
        """Nobody is told."""
        if self._process is not None and self._process.is_alive:
            self._process.interrupt()

    def pause(self, until_us: int) -> None:
        if self._client is not None:
            self._client.paused_until_us = max(self._client.paused_until_us, until_us)

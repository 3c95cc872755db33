"""An administrator who creates topics, one after the other, and waits for each to have its leaders."""

from __future__ import annotations

from purgatory_udf.simulate.client import Client
from purgatory_udf.simulate.controller import Controller
from purgatory_udf.simulate.messages import CreateTopics
from purgatory_udf.simulate.scenario import Topic, TopicCreations
from purgatory_udf.simulate.world import Steps


class Administrator:
    def __init__(self, client: Client, controller: Controller, settings: TopicCreations) -> None:
        self._client = client
        self._world = client.world
        self._controller = controller
        self._settings = settings

    def run(self) -> Steps[None]:
        number = 0
        while True:
            yield self._world.sleep_ms(self._settings.every_ms)
            number += 1
            yield from self._create(f"{self._settings.prefix}-{number}")

    def _create(self, name: str) -> Steps[None]:
        """The controller begins when it hears of the topic; the broker waits for what comes of it."""
        settings = self._settings
        topic = Topic(
            name=name,
            partitions=settings.partitions,
            replication=settings.replication,
            min_isr=min(2, settings.replication),
        )
        self._controller.create_later(topic, settings.election)
        request = CreateTopics(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            timeout_ms=settings.timeout_ms,
            topics={name: settings.partitions},
        )
        yield from self._client.ask(self._client.brokers[0], request)

"""The closed loop: a cluster, its clients and what happens to them, played until the scenario is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import Replay
from purgatory_udf.simulation.broker_server import Server
from purgatory_udf.simulation.client_network import Client, Exchange
from purgatory_udf.simulation.consumer import ConsumerInstance
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.coordinators import GroupCoordinators, TransactionCoordinators
from purgatory_udf.simulation.environment import START_US, ProcessGenerator, World
from purgatory_udf.simulation.incidents import IncidentProcess
from purgatory_udf.simulation.messages import CreateTopicsRequest
from purgatory_udf.simulation.producer import Producer
from purgatory_udf.simulation.quotas import quota_entities
from purgatory_udf.simulation.replica_fetcher import ReplicaFetcher, ReplicaFetcherManager
from purgatory_udf.simulation.scenario import Consumers, Scenario, Topic, TopicCreations

# An administrator who creates topics, one after the other, and waits for each to have its leaders.


class Administrator:
    def __init__(self, client: Client, controller: Controller, settings: TopicCreations) -> None:
        self._client = client
        self._world = client.world
        self._controller = controller
        self._settings = settings

    def run(self) -> ProcessGenerator[None]:
        number = 0
        while True:
            yield self._world.sleep_ms(self._settings.every_ms)
            number += 1
            yield from self._create(f"{self._settings.prefix}-{number}")

    def _create(self, name: str) -> ProcessGenerator[None]:
        """The controller begins when it hears of the topic; the broker waits for what comes of it."""
        settings = self._settings
        topic = Topic(
            name=name,
            partitions=settings.partitions,
            replication=settings.replication,
            min_isr=min(2, settings.replication),
        )
        self._controller.create_later(topic, settings.election)
        request = CreateTopicsRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            timeout_ms=settings.timeout_ms,
            topics={name: settings.partitions},
        )
        yield from self._client.ask(self._client.brokers[0], request)


# How much simulated time passes between two reports of progress.
PROGRESS_INTERVAL_US = 500_000

ReportProgress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class SimulationResult:
    """The trace, what the simulated brokers did (drained), and how the clients saw it."""

    scenario: Scenario
    events: list[dict[str, Any]]
    truth: Replay
    exchanges: list[Exchange]
    producers: list[Producer]
    instances: list[ConsumerInstance]
    seconds: float


class ClosedLoop:
    def __init__(self, scenario: Scenario, config: Config | None = None) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, config or Config())
        self.servers: dict[int, Server] = {}
        self.replications: dict[int, ReplicaFetcherManager] = {}
        self.instances: dict[str, list[ConsumerInstance]] = {}
        self.producers: list[Producer] = []
        self.exchanges: list[Exchange] = []
        self.controller = Controller(self.world, scenario.brokers, self._is_up)
        self._brokers()
        for topic in scenario.topics:
            self.controller.create(topic)
        self._clients()
        for incident in scenario.incidents:
            self.world.env.process(IncidentProcess(self, incident).run())

    def run(self, report: ReportProgress | None = None) -> SimulationResult:
        """`report` hears now and then: events so far, the simulated time, the share of it that is over."""
        began = time.perf_counter()
        length_us = round(self.scenario.duration_s * 1_000_000)
        for passed_us in [*range(PROGRESS_INTERVAL_US, length_us, PROGRESS_INTERVAL_US), length_us]:
            self.world.run(START_US + passed_us)
            if report is not None:
                report(len(self.world.events), START_US + passed_us, passed_us / length_us)
        truth = self.world.engine.finish()
        return SimulationResult(
            scenario=self.scenario,
            events=self.world.events,
            truth=truth,
            exchanges=self.exchanges,
            producers=self.producers,
            instances=[instance for instances in self.instances.values() for instance in instances],
            seconds=time.perf_counter() - began,
        )

    def consumers(self, name: str) -> list[ConsumerInstance]:
        if name in self.instances:
            return self.instances[name]
        every = [instance for instances in self.instances.values() for instance in instances]
        # A scenario that was scaled down may have fewer consumers than its incidents name.
        return [instance for instance in every if instance.client_id == name] or self.instances[name.rpartition("-")[0]]

    def _is_up(self, broker: int) -> bool:
        """Whether it may lead and coordinate: not from when it was asked to stop."""
        return broker not in self.servers or (self.servers[broker].up and not self.servers[broker].leaving)

    def _brokers(self) -> None:
        settings = self.scenario.brokers
        brokers = list(range(1, settings.count + 1))
        groups = GroupCoordinators(self.world, brokers, self._is_up)
        transactions = TransactionCoordinators(
            self.world,
            self.controller,
            settings,
            self._is_up,
            lambda it: self._client(f"broker-{it}-txn-marker-sender"),
        )
        of_clients = quota_entities([*self.scenario.producers, *self.scenario.consumers])
        for broker in brokers:
            self.servers[broker] = Server(
                self.world, broker, self.controller, groups, transactions, settings, of_clients
            )
            self.replications[broker] = ReplicaFetcherManager(broker)
        for broker in brokers:
            for leader in brokers:
                if leader != broker:
                    client = self._client(f"broker-{broker}-fetcher-{leader}")
                    replication = self.replications[broker]
                    replication.clients.append(client)
                    fetcher = ReplicaFetcher(client, replication, leader, self.controller, settings)
                    self.world.env.process(fetcher.run())
        self.world.env.process(self.controller.watch_in_sync())

    def _clients(self) -> None:
        for producers in self.scenario.producers:
            for at in range(1, producers.count + 1):
                self.producers.append(Producer(self._client(f"{producers.name}-{at}"), producers))
                self.producers[-1].start()
        for consumers in self.scenario.consumers:
            self._consumers(consumers)
        for creations in self.scenario.topic_creations:
            administrator = Administrator(self._client(creations.name), self.controller, creations)
            self.world.env.process(administrator.run())

    def _consumers(self, consumers: Consumers) -> None:
        chance = self.world.chance("start", consumers.name)
        for at in range(1, consumers.count + 1):
            instance = ConsumerInstance(f"{consumers.name}-{at}", consumers, self._client)
            self.instances.setdefault(consumers.name, []).append(instance)
            self.world.later(round(chance.uniform(0, consumers.start_within_s) * 1_000_000), instance.start)

    def _client(self, name: str, life: int = 1) -> Client:
        return Client(self.world, name, self.servers, self.scenario.brokers.network, self.exchanges, life)

"""The closed loop: a cluster with its clients, simulated for the scenario's duration, and the incidents in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.reference_replay import Replay
from purgatory_udf.simulation.broker_server import BrokerServer
from purgatory_udf.simulation.client_network import Client, Exchange
from purgatory_udf.simulation.consumer import Consumer, ConsumerInstance, ConsumerRun
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.coordinators import GroupCoordinators, TransactionCoordinators
from purgatory_udf.simulation.fetchers import ReplicaFetcher, ReplicaFetcherManager
from purgatory_udf.simulation.messages import CreateTopicsRequest
from purgatory_udf.simulation.producer import Producer
from purgatory_udf.simulation.quotas import quota_entities
from purgatory_udf.simulation.scenario import (
    Consumers,
    Scenario,
    ShareGroupSettings,
    ShareWorkers,
    Topic,
    TopicCreations,
)
from purgatory_udf.simulation.scenario_sections import (
    CrashBroker,
    CrashConsumer,
    FreezeBroker,
    Incident,
    LargeBatches,
    MoveLeader,
    PauseConsumer,
    RollingRestart,
    SlowRemoteReads,
    StallFollower,
    ThrottleReplica,
)
from purgatory_udf.simulation.share_groups import ShareGroupMembers, ShareSessions, ShareWorker
from purgatory_udf.simulation.simpy_environment import START_US, Environment, ProcessGenerator


class Administrator:
    """An admin client that creates topics one after the other and waits until each has leaders."""

    def __init__(self, client: Client, controller: Controller, settings: TopicCreations) -> None:
        self._client = client
        self._environment = client.environment
        self._controller = controller
        self._settings = settings

    def run(self) -> ProcessGenerator[None]:
        number = 0
        while True:
            yield self._environment.sleep_ms(self._settings.every_ms)
            number += 1
            yield from self._create(f"{self._settings.prefix}-{number}")

    def _create(self, name: str) -> ProcessGenerator[None]:
        """Create a topic: send the request, and start the elections of leaders for which the request waits."""
        settings = self._settings
        topic = Topic(
            name=name,
            partitions=settings.partitions,
            replication=settings.replication,
            min_isr=min(2, settings.replication),
        )
        self._controller.create_after_election(topic, settings.election)
        request = CreateTopicsRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            timeout_ms=settings.timeout_ms,
            topics={name: settings.partitions},
        )
        yield from self._client.request(self._client.brokers[0], request)


# Simulated time between two progress reports.
PROGRESS_INTERVAL_US = 500_000

ReportProgress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class SimulationResult:
    """The trace, the outcomes of the simulated brokers after draining, and the clients' view of them."""

    scenario: Scenario
    events: list[dict[str, Any]]
    truth: Replay
    exchanges: list[Exchange]
    producers: list[Producer]
    instances: list[ConsumerInstance]
    seconds: float


class ClosedLoop:
    """A simulation of one scenario: construct it, then call `run` once."""

    def __init__(self, scenario: Scenario, config: Config | None = None) -> None:
        self.scenario = scenario
        self.environment = Environment(scenario.seed, config or Config())
        self.servers: dict[int, BrokerServer] = {}
        self.fetcher_managers: dict[int, ReplicaFetcherManager] = {}
        self.instances: dict[str, list[ConsumerInstance]] = {}
        self.producers: list[Producer] = []
        self.exchanges: list[Exchange] = []
        self.controller = Controller(self.environment, scenario.brokers, self._is_up)
        self._create_brokers()
        for topic in scenario.topics:
            self.controller.create(topic)
        self._create_clients()
        for incident in scenario.incidents:
            self.environment.env.process(IncidentProcess(self, incident).run())

    def run(self, report: ReportProgress | None = None) -> SimulationResult:
        """Simulate the whole duration.

        `report` is called repeatedly with the number of events, the simulated time in microseconds, and the completed
        share.
        """
        started = time.perf_counter()
        length_us = self.last_us + 1 - START_US
        for elapsed_us in [*range(PROGRESS_INTERVAL_US, length_us, PROGRESS_INTERVAL_US), length_us]:
            self.environment.run(START_US + elapsed_us)
            if report is not None:
                report(len(self.environment.events), START_US + elapsed_us, elapsed_us / length_us)
        truth = self.environment.engine.finish()
        return SimulationResult(
            scenario=self.scenario,
            events=self.environment.events,
            truth=truth,
            exchanges=self.exchanges,
            producers=self.producers,
            instances=[instance for instances in self.instances.values() for instance in instances],
            seconds=time.perf_counter() - started,
        )

    @property
    def last_us(self) -> int:
        """The last microsecond of the simulation."""
        return START_US + round(self.scenario.duration_s * 1_000_000) - 1

    def consumers(self, name: str) -> list[ConsumerInstance]:
        """Return the consumer instance `name-N`, or all instances of the consumer set `name`."""
        if name in self.instances:
            return self.instances[name]
        every = [instance for instances in self.instances.values() for instance in instances]
        # In a scaled-down scenario an incident may name an instance that does not exist: use the whole set.
        return [instance for instance in every if instance.client_id == name] or self.instances[name.rpartition("-")[0]]

    def producers_of(self, name: str) -> list[Producer]:
        """Return the producer `name-N`, or all producers of the set `name`."""
        every = [producer for producer in self.producers if name in (producer.client_id, producer.settings.name)]
        # In a scaled-down scenario an incident may name a producer that does not exist: use the whole set.
        return every or self.producers_of(name.rpartition("-")[0])

    def _is_up(self, broker: int) -> bool:
        """Return whether the broker may lead and coordinate; false from the start of a controlled shutdown."""
        return broker not in self.servers or (self.servers[broker].up and not self.servers[broker].shutting_down)

    def _create_brokers(self) -> None:
        settings = self.scenario.brokers
        brokers = list(range(1, settings.count + 1))
        groups = GroupCoordinators(self.environment, brokers, self._is_up)
        transactions = TransactionCoordinators(
            self.environment,
            self.controller,
            settings,
            self._is_up,
            lambda broker: self._new_client(f"broker-{broker}-txn-marker-sender"),
        )
        client_entities = quota_entities([*self.scenario.producers, *self.scenario.consumers])
        for broker in brokers:
            self.servers[broker] = BrokerServer(
                self.environment,
                broker,
                self.controller,
                groups,
                transactions,
                settings,
                client_entities,
                ShareSessions(self.environment, broker, self.scenario.share_groups),
            )
            self.fetcher_managers[broker] = ReplicaFetcherManager(broker)
        for broker in brokers:
            for leader in brokers:
                if leader != broker:
                    client = self._new_client(f"broker-{broker}-fetcher-{leader}")
                    fetcher_manager = self.fetcher_managers[broker]
                    fetcher_manager.clients.append(client)
                    fetcher = ReplicaFetcher(client, fetcher_manager, leader, self.controller, settings)
                    self.environment.env.process(fetcher.run())
        self.environment.env.process(self.controller.run_isr_shrinking())

    def _create_clients(self) -> None:
        for producers in self.scenario.producers:
            for number in range(1, producers.count + 1):
                self.producers.append(Producer(self._new_client(f"{producers.name}-{number}"), producers))
                self.producers[-1].start()
        for consumers in self.scenario.consumers:
            self._create_instances(consumers, partial(Consumer, settings=consumers))
        for group in self.scenario.share_groups:
            self._create_share_group(group)
        for creations in self.scenario.topic_creations:
            administrator = Administrator(self._new_client(creations.name), self.controller, creations)
            self.environment.env.process(administrator.run())

    def _create_share_group(self, group: ShareGroupSettings) -> None:
        self.environment.record(
            "share_group",
            next(iter(self.servers)),
            group=group.name,
            record_lock_duration_ms=group.record_lock_duration_ms,
            delivery_count_limit=group.delivery_count_limit,
            partition_max_record_locks=group.partition_max_record_locks,
            auto_offset_reset=group.reset,
            isolation=group.isolation,
        )
        members = ShareGroupMembers(self.environment, group)
        for workers in group.workers:
            self._create_instances(workers, partial(ShareWorker, settings=workers, members=members))

    def _create_instances(self, settings: Consumers | ShareWorkers, new_run: Callable[[Client], ConsumerRun]) -> None:
        random = self.environment.random_stream("start", settings.name)
        for number in range(1, settings.count + 1):
            instance = ConsumerInstance(f"{settings.name}-{number}", self._new_client, new_run)
            self.instances.setdefault(settings.name, []).append(instance)
            start_s = settings.start_after_s + random.uniform(0, settings.start_within_s)
            self.environment.schedule(round(start_s * 1_000_000), instance.start)

    def _new_client(self, name: str, run_number: int = 1) -> Client:
        return Client(self.environment, name, self.servers, self.scenario.brokers.network, self.exchanges, run_number)


# Between a controlled shutdown's last leader change and the end of the process.
_SHUTDOWN_GRACE_MS = 50


class IncidentProcess:
    """Causes one incident `times` times. An incident of a set of consumers affects the next consumer each time."""

    def __init__(self, cluster: ClosedLoop, incident: Incident) -> None:
        self._cluster = cluster
        self._environment = cluster.environment
        self._incident = incident

    def run(self) -> ProcessGenerator[None]:
        incident = self._incident
        yield self._environment.sleep_ms(incident.at_s * 1000)
        for occurrence in range(incident.times):
            self._environment.env.process(self._inject(occurrence))
            yield self._environment.sleep_ms(incident.every_s * 1000)

    def _inject(self, occurrence: int) -> ProcessGenerator[None]:
        match self._incident:
            case StallFollower(broker=broker, for_s=for_s):
                self._cluster.fetcher_managers[broker].stalled_until_us = self._from_now_us(for_s)
            case FreezeBroker(broker=broker, for_s=for_s):
                yield from self._freeze_broker(broker, self._from_now_us(for_s))
            case CrashBroker() as crash:
                yield from self._crash_broker(crash)
            case MoveLeader(topic=topic, partition=partition, to=to):
                yield from self._cluster.controller.move(TopicPartition(topic, partition), to)
            case PauseConsumer(consumer=name, for_s=for_s):
                self._select_consumer(name, occurrence).pause(self._from_now_us(for_s))
            case CrashConsumer(consumer=name, for_s=for_s):
                instance = self._select_consumer(name, occurrence)
                instance.crash()
                yield self._environment.sleep_ms(for_s * 1000)
                instance.start()
            case ThrottleReplica(broker=broker, for_s=for_s, bytes_per_second=rate):
                quotas = [server.replication_quota for server in self._cluster.servers.values()]
                for quota in quotas:
                    quota.throttle_replica(broker, rate)
                yield self._environment.sleep_ms(for_s * 1000)
                for quota in quotas:
                    quota.end_throttle(broker)
            case LargeBatches(producer=name, for_s=for_s, record_bytes=record_bytes):
                producers = self._cluster.producers_of(name)
                for producer in producers:
                    producer.record_bytes = record_bytes
                yield self._environment.sleep_ms(for_s * 1000)
                for producer in producers:
                    producer.record_bytes = producer.settings.record_bytes
            case SlowRemoteReads(broker=broker, for_s=for_s, factor=factor):
                self._cluster.servers[broker].remote_readers.slowdown = factor
                yield self._environment.sleep_ms(for_s * 1000)
                self._cluster.servers[broker].remote_readers.slowdown = 1
            case RollingRestart(brokers=[*brokers]) as restart:
                for broker in brokers:
                    yield from self._restart_broker(broker, restart.down_s)
                    yield self._environment.sleep_ms(restart.gap_s * 1000)
            case RollingRestart(consumer=str(name)) as restart:
                for instance in self._cluster.consumers(name):
                    yield from instance.close()
                    yield self._environment.sleep_ms(restart.down_s * 1000)
                    instance.start()
                    yield self._environment.sleep_ms(restart.gap_s * 1000)

    def _from_now_us(self, for_s: float) -> int:
        return self._environment.now_us + round(for_s * 1_000_000)

    def _select_consumer(self, name: str, occurrence: int) -> ConsumerInstance:
        candidates = self._cluster.consumers(name)
        return candidates[occurrence % len(candidates)]

    def _freeze_broker(self, broker: int, until_us: int) -> ProcessGenerator[None]:
        """Let a broker stand still until `until_us`, at most until the end of the simulation.

        If the broker already stands still for longer, that does not change.
        """
        server, fetcher_manager = self._cluster.servers[broker], self._cluster.fetcher_managers[broker]
        until_us = max(self._environment.now_us, min(until_us, self._cluster.last_us))
        while server.frozen and server.frozen_until_us // 1000 <= self._environment.now_ms:
            # Its timers run already; the process that froze it is about to record the end.
            yield self._environment.sleep_us(server.frozen_until_us - self._environment.now_us)
        server.frozen_until_us = until_us = max(until_us, server.frozen_until_us)
        fetcher_manager.stalled_until_us = max(until_us, fetcher_manager.stalled_until_us)
        if server.frozen:
            self._environment.extend_pause(broker, until_us)
            return
        server.frozen = True
        self._environment.pause_broker(broker, until_us)
        while server.frozen_until_us > self._environment.now_us:
            yield self._environment.sleep_us(server.frozen_until_us - self._environment.now_us)
        server.frozen = False
        self._environment.record("resumed", broker)

    def _crash_broker(self, crash: CrashBroker) -> ProcessGenerator[None]:
        yield from self._crash_and_restart(crash.broker, crash.for_s)
        if crash.preferred_again_after_s is not None:
            yield self._environment.sleep_ms(crash.preferred_again_after_s * 1000)
            yield from self._cluster.controller.elect_preferred_leaders()

    def _restart_broker(self, broker: int, down_s: float) -> ProcessGenerator[None]:
        """Restart a broker after a controlled shutdown, in which it hands over its partitions and groups."""
        server = self._cluster.servers[broker]
        server.shutting_down = True
        yield from self._cluster.controller.controlled_shutdown(broker)
        server.unload_groups()
        yield self._environment.sleep_ms(_SHUTDOWN_GRACE_MS)
        yield from self._crash_and_restart(broker, down_s)

    def _crash_and_restart(self, broker: int, for_s: float) -> ProcessGenerator[None]:
        """Stop a broker and start it again after `for_s`.

        Its connections close, waiting requests are cancelled, and its fetchers stop.
        """
        server, fetcher_manager = self._cluster.servers[broker], self._cluster.fetcher_managers[broker]
        controller = self._cluster.controller
        fetcher_manager.up = False
        fetcher_manager.disconnect()
        server.stop()
        controller.stop_broker(broker)
        self._environment.env.process(controller.detect_failure(broker))
        yield self._environment.sleep_ms(for_s * 1000)
        server.start()
        fetcher_manager.up = True
        controller.restart_broker(broker)

"""The incidents of a scenario: each fault is injected at its times."""

from __future__ import annotations

from typing import Protocol

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.broker_server import BrokerServer
from purgatory_udf.simulation.consumer import ConsumerInstance
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.environment import ProcessGenerator, World
from purgatory_udf.simulation.replica_fetcher import ReplicaFetcherManager
from purgatory_udf.simulation.scenario import (
    CrashBroker,
    CrashConsumer,
    Incident,
    MoveLeader,
    PauseConsumer,
    RollingRestart,
    StallFollower,
)

# Between a controlled shutdown's last leader change and the end of the process.
_SHUTDOWN_GRACE_MS = 50


class SimulatedCluster(Protocol):
    """What an incident may act on."""

    world: World
    controller: Controller
    servers: dict[int, BrokerServer]
    fetcher_managers: dict[int, ReplicaFetcherManager]

    def consumers(self, name: str) -> list[ConsumerInstance]:
        """Return the consumer of that name, or all consumers of the set of that name."""


class IncidentProcess:
    """Injects one incident `times` times; each time it takes the next consumer of a set."""

    def __init__(self, cluster: SimulatedCluster, incident: Incident) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._incident = incident

    def run(self) -> ProcessGenerator[None]:
        incident = self._incident
        yield self._world.sleep_ms(incident.at_s * 1000)
        for occurrence in range(incident.times):
            self._world.env.process(self._inject(occurrence))
            yield self._world.sleep_ms(incident.every_s * 1000)

    def _inject(self, occurrence: int) -> ProcessGenerator[None]:
        match self._incident:
            case StallFollower(broker=broker, for_s=for_s):
                self._cluster.fetcher_managers[broker].stalled_until_us = self._world.now_us + round(for_s * 1_000_000)
            case CrashBroker() as crash:
                yield from self._crash_broker(crash)
            case MoveLeader(topic=topic, partition=partition, to=to):
                yield from self._cluster.controller.move(TopicPartition(topic, partition), to)
            case PauseConsumer(consumer=name, for_s=for_s):
                self._select_consumer(name, occurrence).pause(self._world.now_us + round(for_s * 1_000_000))
            case CrashConsumer(consumer=name, for_s=for_s):
                instance = self._select_consumer(name, occurrence)
                instance.crash()
                yield self._world.sleep_ms(for_s * 1000)
                instance.start()
            case RollingRestart(brokers=[*brokers]) as restart:
                for broker in brokers:
                    yield from self._restart_broker(broker, restart.down_s)
                    yield self._world.sleep_ms(restart.gap_s * 1000)
            case RollingRestart(consumer=str(name)) as restart:
                for instance in self._cluster.consumers(name):
                    yield from instance.close()
                    yield self._world.sleep_ms(restart.down_s * 1000)
                    instance.start()
                    yield self._world.sleep_ms(restart.gap_s * 1000)

    def _select_consumer(self, name: str, occurrence: int) -> ConsumerInstance:
        candidates = self._cluster.consumers(name)
        return candidates[occurrence % len(candidates)]

    def _crash_broker(self, crash: CrashBroker) -> ProcessGenerator[None]:
        yield from self._take_down(crash.broker, crash.for_s)
        if crash.preferred_again_after_s is not None:
            yield self._world.sleep_ms(crash.preferred_again_after_s * 1000)
            yield from self._cluster.controller.elect_preferred_leaders()

    def _restart_broker(self, broker: int, down_s: float) -> ProcessGenerator[None]:
        """Shut a broker down in order: it hands over its partitions and groups, then stops."""
        server = self._cluster.servers[broker]
        server.shutting_down = True
        yield from self._cluster.controller.controlled_shutdown(broker)
        server.unload_groups()
        yield self._world.sleep_ms(_SHUTDOWN_GRACE_MS)
        yield from self._take_down(broker, down_s)

    def _take_down(self, broker: int, for_s: float) -> ProcessGenerator[None]:
        """Stop a broker and start it again after `for_s`.

        Its connections close, waiting requests are cancelled, and its fetchers stop.
        """
        server, fetcher_manager = self._cluster.servers[broker], self._cluster.fetcher_managers[broker]
        controller = self._cluster.controller
        fetcher_manager.up = False
        fetcher_manager.disconnect()
        server.stop()
        controller.stop_broker(broker)
        self._world.env.process(controller.detect_failure(broker))
        yield self._world.sleep_ms(for_s * 1000)
        server.start()
        fetcher_manager.up = True
        controller.restart_broker(broker)

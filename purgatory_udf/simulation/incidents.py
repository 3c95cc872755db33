"""What happens to a cluster: the scenario's incidents, each at its times."""

from __future__ import annotations

from typing import Protocol

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.broker_server import Server
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

# From when a broker has handed everything over until it stops.
_SHUTDOWN_GRACE_MS = 50


class SimulatedCluster(Protocol):
    """Who takes part in a simulation."""

    world: World
    controller: Controller
    servers: dict[int, Server]
    replications: dict[int, ReplicaFetcherManager]

    def consumers(self, name: str) -> list[ConsumerInstance]:
        """The consumer of that name, or all of the set of that name."""


class IncidentProcess:
    """One incident, `times` times. Of a set of consumers, it is another one's turn each time."""

    def __init__(self, cast: SimulatedCluster, incident: Incident) -> None:
        self._cast = cast
        self._world = cast.world
        self._incident = incident

    def run(self) -> ProcessGenerator[None]:
        incident = self._incident
        yield self._world.sleep_ms(incident.at_s * 1000)
        for turn in range(incident.times):
            self._world.env.process(self._happen(turn))
            yield self._world.sleep_ms(incident.every_s * 1000)

    def _happen(self, turn: int) -> ProcessGenerator[None]:
        match self._incident:
            case StallFollower(broker=broker, for_s=for_s):
                self._cast.replications[broker].stalled_until_us = self._world.now_us + round(for_s * 1_000_000)
            case CrashBroker() as crash:
                yield from self._crash_broker(crash)
            case MoveLeader(topic=topic, partition=partition, to=to):
                yield from self._cast.controller.move(TopicPartition(topic, partition), to)
            case PauseConsumer(consumer=name, for_s=for_s):
                self._whose_turn(name, turn).pause(self._world.now_us + round(for_s * 1_000_000))
            case CrashConsumer(consumer=name, for_s=for_s):
                instance = self._whose_turn(name, turn)
                instance.crash()
                yield self._world.sleep_ms(for_s * 1000)
                instance.start()
            case RollingRestart(brokers=[*brokers]) as restart:
                for broker in brokers:
                    yield from self._restart_broker(broker, restart.down_s)
                    yield self._world.sleep_ms(restart.gap_s * 1000)
            case RollingRestart(consumer=str(name)) as restart:
                for instance in self._cast.consumers(name):
                    yield from instance.close()
                    yield self._world.sleep_ms(restart.down_s * 1000)
                    instance.start()
                    yield self._world.sleep_ms(restart.gap_s * 1000)

    def _whose_turn(self, name: str, turn: int) -> ConsumerInstance:
        candidates = self._cast.consumers(name)
        return candidates[turn % len(candidates)]

    def _crash_broker(self, crash: CrashBroker) -> ProcessGenerator[None]:
        yield from self._down(crash.broker, crash.for_s)
        if crash.preferred_again_after_s is not None:
            yield self._world.sleep_ms(crash.preferred_again_after_s * 1000)
            yield from self._cast.controller.prefer_first_replicas()

    def _restart_broker(self, broker: int, down_s: float) -> ProcessGenerator[None]:
        """In order: what it leads and coordinates goes to others, who waits for it is told so, and then it stops."""
        server = self._cast.servers[broker]
        server.leaving = True
        yield from self._cast.controller.hand_over(broker)
        server.resign()
        yield self._world.sleep_ms(_SHUTDOWN_GRACE_MS)
        yield from self._down(broker, down_s)

    def _down(self, broker: int, for_s: float) -> ProcessGenerator[None]:
        """Its connections break, what waits there ends, its followers' loops stop; later it comes back."""
        server, replication = self._cast.servers[broker], self._cast.replications[broker]
        controller = self._cast.controller
        replication.up = False
        replication.disconnect()
        server.stop()
        controller.fail(broker)
        self._world.env.process(controller.notice_failure(broker))
        yield self._world.sleep_ms(for_s * 1000)
        server.start()
        replication.up = True
        controller.come_back(broker)

"""A small handwritten fitted scenario: one producer, one consumer and one follower of one partition."""

from __future__ import annotations

from purgatory_udf.simulation.scenario import Brokers, Consumers, Producers, Scenario, Topic
from purgatory_udf.simulation.scenario_sections import (
    Fitted,
    FittedFigures,
    FittedHost,
    FittedPartition,
    FittedProducer,
    FittedReader,
    WorkBySize,
)

SMALL = WorkBySize(quantiles=[[0.2, 0.5, 0.9]])


def small_scenario() -> Scenario:
    """Return the scenario, with a record of 300 bytes every 20 ms."""
    waits = FittedFigures(per_s=47.5, waited=1, expired=0, p50_ms=19, p95_ms=20, p99_ms=20, kb=0.35)
    return Scenario(
        shows="A small cluster",
        duration_s=6,
        brokers=Brokers(count=2),
        topics=[Topic(name="t", partitions=1, replication=2, min_isr=1)],
        producers=[Producers(name="p", topics=["t"], rate=50, record_bytes=300, linger_ms=0)],
        consumers=[Consumers(name="c", group="g", assign={"t": [0]})],
        fitted=Fitted(
            begin_s=0,
            host=FittedHost(),
            lateness_ms=[0.1, 0.6, 1.2],
            partitions=[FittedPartition(topic="t", partition=0, replicas=[1, 2])],
            readers={
                "c": FittedReader(reads={1: [0]}, turn=SMALL),
                "broker-2-fetcher-0": FittedReader(replica=2, reads={1: [0]}, turn=SMALL, handling=[0.1]),
            },
            producers={
                "p": FittedProducer(
                    gaps_ms=[20.0] * 50, partitions=[0] * 50, record_bytes=[300] * 50, handling=SMALL, answer=[0.1]
                )
            },
            recorded={"c": {"FETCH": waits}},
        ),
    )

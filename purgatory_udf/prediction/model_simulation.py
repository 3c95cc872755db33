"""Simulates a plan: brokers, followers, consumers and producers on one host."""

from __future__ import annotations

from random import Random

from purgatory_udf.prediction.model_broker import ModelBroker, ModelPartition
from purgatory_udf.prediction.model_host import Measurements, ModelHost, Sampler, SamplerBySize
from purgatory_udf.prediction.model_producer import ModelProducer
from purgatory_udf.prediction.model_reader import ModelReader
from purgatory_udf.prediction.simulation_plan import AppendsPlan, BySize, ClusterPlan, PurgePlan

# Readers start at random times within this period.
START_MS = 100


def simulate(plan: ClusterPlan, seed: int, traced: bool = False) -> Measurements:
    """Simulate a plan with a random seed; keep a trace of the events if `traced`."""
    begin = -plan.warm_up_ms
    host, measurements = (
        ModelHost(begin, plan.cores, plan.stall_ms, plan.stretch),
        Measurements(events=[] if traced else None),
    )
    parts = [
        ModelPartition(partition.topic, partition.partition, partition.leader, partition.followers)
        for partition in plan.partitions
    ]
    numbers = sorted({part.leader for part in parts})
    brokers = {
        number: ModelBroker(
            *(number, host, measurements, plan.purges.get(number, PurgePlan())),
            Sampler(plan.lateness, _random(seed, "reaper", number)),
        )
        for number in numbers
    }
    for part in parts if traced else ():
        measurements.event(
            *(begin, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="leader",
            leader_epoch=0,
            replicas=[part.leader, *part.followed],
            isr=[part.leader, *part.followed],
            min_isr=1,
        )
        measurements.event(
            *(begin, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="log_end",
            offset=0,
            bytes=0,
        )
        for replica in part.followed:
            measurements.event(
                *(begin, "partition", part.leader),
                topic=part.topic,
                partition=part.partition,
                change="replica_end",
                replica_id=replica,
                offset=0,
            )
    for reader_plan in plan.readers:
        random = _random(seed, "reader", reader_plan.client, reader_plan.broker)
        mine = [parts[key] for key in reader_plan.keys]
        reader = ModelReader(
            reader_plan,
            brokers[reader_plan.broker],
            mine,
            _by_size(reader_plan.turn, random),
            Sampler(reader_plan.handling, random),
        )
        reader.start(begin + random.random() * START_MS)
    for producer_plan in plan.producers:
        random = _random(seed, "producer", producer_plan.client)
        producer = ModelProducer(
            producer_plan,
            brokers,
            parts,
            _by_size(producer_plan.handling, random),
            Sampler(producer_plan.answer, random),
        )
        producer.start()
    Appends(plan.appends, host, brokers, parts).start()
    host.run(plan.duration_ms)
    return measurements


class Appends:
    """The appends without a producer, repeated in a cycle."""

    def __init__(
        self, plan: AppendsPlan, host: ModelHost, brokers: dict[int, ModelBroker], parts: list[ModelPartition]
    ) -> None:
        self._plan = plan
        self._host = host
        self._brokers = brokers
        self._parts = parts
        self._next = plan.begin_at
        self._due_ms = plan.begin_ms

    def start(self) -> None:
        if len(self._plan.gaps_ms):
            self._host.schedule(self._due_ms, self._append, None)

    def _append(self, _: None) -> None:
        plan, place = self._plan, self._next
        part, size = self._parts[plan.keys[place]], plan.batch_bytes[place]
        broker = self._brokers[part.leader]
        broker.measurements.event(
            *(self._host.now, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="log_end",
            offset=part.end + 1,
            bytes=size,
        )
        broker.append([(part, size)])
        self._next = (place + 1) % len(plan.gaps_ms)
        self._due_ms += plan.gaps_ms[self._next]
        self._host.schedule(self._due_ms, self._append, None)


def _by_size(given: BySize, random: Random) -> SamplerBySize:
    return SamplerBySize(given.bounds, given.quantiles, random)


def _random(seed: int, *entity: object) -> Random:
    """Return a random source that depends on the seed and the entity's name only, so that entities are independent."""
    return Random("/".join(map(str, (seed, *entity))))

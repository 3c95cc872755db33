"""A plan, played: brokers, followers, consumers and producers on one machine."""

from __future__ import annotations

from random import Random

from purgatory_udf.prediction.model_broker import ModelBroker, ModelPartition
from purgatory_udf.prediction.model_host import Measurements, ModelHost, Sampler, SamplerBySize
from purgatory_udf.prediction.model_producer import ModelProducer
from purgatory_udf.prediction.model_reader import ModelReader
from purgatory_udf.prediction.simulation_plan import AppendsPlan, BySize, ClusterPlan, PurgePlan

# Readers begin within this time of each other.
START_MS = 100


def simulate(plan: ClusterPlan, seed: int, traced: bool = False) -> Measurements:
    """The diary of one play; its events are kept where a trace is asked for."""
    begin = -plan.warm_up_ms
    machine, diary = (
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
            *(number, machine, diary, plan.purges.get(number, PurgePlan())),
            Sampler(plan.lateness, _chance(seed, "reaper", number)),
        )
        for number in numbers
    }
    for part in parts if traced else ():
        diary.event(
            *(begin, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="leader",
            leader_epoch=0,
            replicas=[part.leader, *part.followed],
            isr=[part.leader, *part.followed],
            min_isr=1,
        )
        diary.event(
            *(begin, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="log_end",
            offset=0,
            bytes=0,
        )
        for replica in part.followed:
            diary.event(
                *(begin, "partition", part.leader),
                topic=part.topic,
                partition=part.partition,
                change="replica_end",
                replica_id=replica,
                offset=0,
            )
    for asked in plan.readers:
        chance = _chance(seed, "reader", asked.client, asked.broker)
        mine = [parts[key] for key in asked.keys]
        reader = ModelReader(
            asked, brokers[asked.broker], mine, _by_size(asked.turn, chance), Sampler(asked.handling, chance)
        )
        reader.start(begin + chance.random() * START_MS)
    for made in plan.producers:
        chance = _chance(seed, "producer", made.client)
        producer = ModelProducer(made, brokers, parts, _by_size(made.handling, chance), Sampler(made.answer, chance))
        producer.start()
    Appends(plan.appends, machine, brokers, parts).start()
    machine.run(plan.duration_ms)
    return diary


class Appends:
    def __init__(
        self, plan: AppendsPlan, machine: ModelHost, brokers: dict[int, ModelBroker], parts: list[ModelPartition]
    ) -> None:
        self._plan = plan
        self._machine = machine
        self._brokers = brokers
        self._parts = parts
        self._next = plan.begin_at
        self._due_ms = plan.begin_ms

    def start(self) -> None:
        if len(self._plan.gaps_ms):
            self._machine.at(self._due_ms, self._append, None)

    def _append(self, _: None) -> None:
        plan, place = self._plan, self._next
        part, size = self._parts[plan.keys[place]], plan.batch_bytes[place]
        broker = self._brokers[part.leader]
        broker.diary.event(
            *(self._machine.now, "partition", part.leader),
            topic=part.topic,
            partition=part.partition,
            change="log_end",
            offset=part.end + 1,
            bytes=size,
        )
        broker.append([(part, size)])
        self._next = (place + 1) % len(plan.gaps_ms)
        self._due_ms += plan.gaps_ms[self._next]
        self._machine.at(self._due_ms, self._append, None)


def _by_size(given: BySize, chance: Random) -> SamplerBySize:
    return SamplerBySize(given.bounds, given.quantiles, chance)


def _chance(seed: int, *entity: object) -> Random:
    """A function of the seed and the entity's name alone, so that none disturbs another."""
    return Random("/".join(map(str, (seed, *entity))))

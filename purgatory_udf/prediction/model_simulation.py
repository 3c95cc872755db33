"""Simulates a plan: brokers, followers, consumers and producers on one host.

A consumer or follower sends its next fetch after each response and some work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from random import Random

from purgatory_udf.prediction.model_broker import (
    FETCH,
    AnsweredRequest,
    Measurements,
    ModelBroker,
    ModelHost,
    ModelPartition,
    Sampler,
    SamplerBySize,
)
from purgatory_udf.prediction.model_producer import ModelProducer
from purgatory_udf.prediction.simulation_plan import AppendsPlan, BySize, ClusterPlan, PurgePlan, ReaderPlan

# A broker processes the reported positions of a follower within this share of the request's handling.
PROGRESS = 0.8


class ModelReader:
    """A consumer or follower at one broker: sends fetches one after the other, and keeps its positions."""

    def __init__(
        self,
        plan: ReaderPlan,
        broker: ModelBroker,
        parts: Sequence[ModelPartition],
        turn: SamplerBySize,
        handling: Sampler,
    ) -> None:
        self.plan = plan
        self.broker = broker
        self.parts = list(parts)
        self.positions = [0] * len(parts)
        self._turn = turn
        self._handling = handling
        # The partitions with data in the last response; a follower's next fetch reports their positions.
        self._changed: list[int] = []
        self._step_ms = self._rest_ms = 0.0
        self._reported = 0

    def start(self, at_ms: float) -> None:
        self.broker.host.schedule(at_ms, self._try, None)

    def answered(self, fetch: ModelFetch, expired: bool) -> None:
        """Read the available data into the response, and start the work before the next fetch."""
        host, plan = self.broker.host, self.plan
        now, got = host.now, 0
        self._changed = []
        for place, part in enumerate(self.parts):
            at = self.positions[place]
            end = part.end if plan.replica >= 0 else part.high_watermark
            if end > at:
                most = min(plan.partition_max_bytes, plan.max_bytes - got)
                end = _within(part.sizes, at, end, most, at_least_one=got == 0)
            if end > at:
                got += part.sizes[end] - part.sizes[at]
                self.positions[place] = end
                self._changed.append(place)
                if plan.replica < 0 and now > 0:
                    reached = self.broker.measurements.delivery_ms
                    for batch in range(at, end):
                        reached.append((plan.client, now - part.appended_ms[batch]))
        if now > 0:
            answer = AnsweredRequest(
                plan.client, FETCH, plan.broker, now, now - fetch.at_ms, expired, got, plan.replica >= 0
            )
            self.broker.measurements.answered.append(answer)
        host.work(self._turn(got), self._next_fetch, None)

    def _next_fetch(self, _: None) -> None:
        if self.plan.replica < 0:
            self._try(None)
            return
        handling = self._handling()
        self._reported = 0
        if self._changed:
            self._step_ms = PROGRESS * handling / len(self._changed)
            self._rest_ms = (1 - PROGRESS) * handling
            self._report_position(None)
        else:
            self.broker.host.work(handling, self._try, None)

    def _report_position(self, _: None) -> None:
        """Report a follower's position in one partition, which may complete operations, then the next one."""
        broker, place = self.broker, self._changed[self._reported]
        part, position = self.parts[place], self.positions[place]
        broker.measurements.event(
            *(broker.host.now, "partition", broker.number),
            topic=part.topic,
            partition=part.partition,
            change="replica_end",
            replica_id=self.plan.replica,
            offset=position,
        )
        broker.follower_reached(part, self.plan.replica, position)
        self._reported += 1
        more = self._reported < len(self._changed)
        broker.host.work(
            self._step_ms if more else self._step_ms + self._rest_ms, self._report_position if more else self._try, None
        )

    def _try(self, _: None) -> None:
        broker, plan = self.broker, self.plan
        now = broker.host.now
        if broker.measurements.events is not None:
            self._trace_fetch(now)
        fetch = ModelFetch(self, now)
        if plan.max_wait_ms <= 0:
            fetch.done = True
            self.answered(fetch, expired=False)
        else:
            broker.fetches.try_complete_else_watch(fetch, self.parts, broker.deadline_ms(plan.max_wait_ms))

    def _trace_fetch(self, now: float) -> None:
        plan = self.plan
        self.broker.measurements.event(
            *(now, "fetch", plan.broker),
            client_id=plan.client,
            request_id=plan.client,
            replica_id=plan.replica,
            max_wait_ms=plan.max_wait_ms,
            min_bytes=plan.min_bytes,
            max_bytes=plan.max_bytes,
            isolation="read_uncommitted",
            partitions=[
                {
                    "topic": part.topic,
                    "partition": part.partition,
                    "fetch_offset": position,
                    "max_bytes": plan.partition_max_bytes,
                    "current_leader_epoch": -1,
                    "throttled": False,
                }
                for part, position in zip(self.parts, self.positions, strict=True)
            ],
        )


class ModelFetch:
    """A delayed fetch of a `ModelReader`, first tried at `at_ms`."""

    __slots__ = ("_reader", "at_ms", "done")

    def __init__(self, reader: ModelReader, at_ms: float) -> None:
        self.at_ms = at_ms
        self.done = False
        self._reader = reader

    def holds(self) -> bool:
        """Return whether the readable bytes reach `min_bytes` (case D of Kafka's DelayedFetch)."""
        reader = self._reader
        plan, missing = reader.plan, min(reader.plan.min_bytes, reader.plan.max_bytes)
        follows, most = plan.replica >= 0, plan.partition_max_bytes
        if missing <= 0:
            return True
        for part, at in zip(reader.parts, reader.positions, strict=True):
            end = len(part.appended_ms) if follows else part.high_watermark
            if end > at:
                size = part.sizes[end] - part.sizes[at]
                missing -= size if size < most else most
                if missing <= 0:
                    return True
        return False

    def end(self, expired: bool) -> None:
        self._reader.answered(self, expired)


def _within(sizes: list[int], at: int, end: int, most: int, at_least_one: bool) -> int:
    """Return the position up to which a read from `at` gets complete batches of at most `most` bytes.

    With `at_least_one`, it gets the first batch even if that is larger. `sizes` is as in `ModelPartition`.
    """
    if sizes[end] - sizes[at] <= most:
        return end
    return max(at + at_least_one, bisect_right(sizes, sizes[at] + max(0, most), at, end + 1) - 1)


# Readers start at random times within this period.
START_MS = 100


def simulate(plan: ClusterPlan, seed: int, traced: bool = False) -> Measurements:
    """Simulate a plan with a random seed; the result includes a trace of the events if `traced`."""
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
    if traced:
        _record_partitions(measurements, parts, begin)
    _start_readers(plan, seed, brokers, parts)
    _start_producers(plan, seed, brokers, parts)
    Appends(plan.appends, host, brokers, parts).start()
    host.run(plan.duration_ms)
    return measurements


def _record_partitions(measurements: Measurements, parts: list[ModelPartition], at_ms: float) -> None:
    """Add the events with the initial leader, log and followers of each partition to the trace."""
    for part in parts:
        initial = partial(
            measurements.event, *(at_ms, "partition", part.leader), topic=part.topic, partition=part.partition
        )
        replicas = [part.leader, *part.followed]
        initial(change="leader", leader_epoch=0, replicas=replicas, isr=replicas, min_isr=1)
        initial(change="log_end", offset=0, bytes=0)
        for replica in part.followed:
            initial(change="replica_end", replica_id=replica, offset=0)


def _start_readers(plan: ClusterPlan, seed: int, brokers: dict[int, ModelBroker], parts: list[ModelPartition]) -> None:
    """Start each consumer and follower at a random time during the first `START_MS` of the warm-up."""
    for reader in plan.readers:
        random = _random(seed, "reader", reader.client, reader.broker)
        own_partitions = [parts[key] for key in reader.keys]
        turn, handling = _by_size(reader.turn, random), Sampler(reader.handling, random)
        model = ModelReader(reader, brokers[reader.broker], own_partitions, turn, handling)
        model.start(-plan.warm_up_ms + random.random() * START_MS)


def _start_producers(
    plan: ClusterPlan, seed: int, brokers: dict[int, ModelBroker], parts: list[ModelPartition]
) -> None:
    """Start each producer."""
    for producer in plan.producers:
        random = _random(seed, "producer", producer.client)
        handling, answer = _by_size(producer.handling, random), Sampler(producer.answer, random)
        ModelProducer(producer, brokers, parts, handling, answer).start()


class Appends:
    """Makes the appends of a plan that no producer makes, and repeats them in a cycle."""

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
    """Return a random generator for an entity. It depends only on the seed and the entity's name."""
    return Random("/".join(map(str, (seed, *entity))))

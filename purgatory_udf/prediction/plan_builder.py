"""Builds the simulation plan of a fitted scenario, including edited settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.prediction.simulation_plan import (
    AppendsPlan,
    BySize,
    ClusterPlan,
    PartitionPlan,
    ProducerPlan,
    ReaderPlan,
    assignment_by_topic,
    copy_producers,
    copy_readers,
    partitions_by_broker,
)
from purgatory_udf.simulation.fitted_scenario import Fitted, WorkBySize
from purgatory_udf.simulation.scenario import Consumers, Producers, Scenario

# The settings that the model supports. Others would have no effect, so they are rejected.
_BROKERS = ("count", "replica_fetch_wait_max_ms", "replica_fetch_min_bytes")
_PRODUCERS = (
    *("name", "count", "topics", "rate", "record_bytes", "linger_ms", "batch_bytes", "acks", "request_timeout_ms"),
    "max_in_flight",
)
_CONSUMERS = (
    *("name", "count", "group", "assign", "fetch_min_bytes", "fetch_max_wait_ms", "fetch_max_bytes"),
    "max_partition_fetch_bytes",
)
# Sections that only the closed-loop simulation supports.
_SECTIONS = ("topic_creations", "incidents")


def require_supported_settings(scenario: Scenario, fitted: Fitted) -> None:
    """Raise UserError if the scenario has settings or clients that the model does not support."""
    for section in _SECTIONS:
        if getattr(scenario, section):
            raise UserError(f"{section}: a fitted scenario does not support this section; remove it")
    _only("brokers", scenario.brokers, _BROKERS)
    for made in scenario.producers:
        _only(f"producers: {made.name}", made, _PRODUCERS)
        _require_recorded("producers", made.name, fitted.producers)
        topics = {fitted.partitions[place].topic for place in fitted.producers[made.name].partitions}
        if not topics <= set(made.topics):
            raise UserError(
                f"producers: {made.name}: topics: must include the recorded topics {', '.join(sorted(topics))}"
            )
    consumers = [name for name, reader in fitted.readers.items() if reader.replica < 0]
    for consumer in scenario.consumers:
        _only(f"consumers: {consumer.name}", consumer, _CONSUMERS)
        _require_recorded("consumers", consumer.name, consumers)


def _only(place: str, given: BaseModel, known: Sequence[str]) -> None:
    unknown = next((name for name in sorted(given.model_fields_set) if name not in known), None)
    if unknown is not None:
        raise UserError(f"{place}: {unknown}: not supported in a fitted scenario; use one of {', '.join(known)}")


def _require_recorded(section: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise UserError(
            f"{section}: {name}: not in the recording, which has {', '.join(names) or 'none'}; to add copies of one, "
            "set its count"
        )


# Simulated time before the measurements, in milliseconds.
WARM_UP_MS = 3000.0


def require_fitted(scenario: Scenario) -> Fitted:
    """Return the section `fitted`; raise UserError if the scenario has none."""
    if scenario.fitted is None:
        raise UserError("the scenario has no section 'fitted'; create one from a recording by the command fit")
    return scenario.fitted


def consumer_groups(scenario: Scenario) -> dict[str, str]:
    """Return the group of each consumer."""
    return {consumer.name: consumer.group_id for consumer in scenario.consumers}


def build_plan(scenario: Scenario) -> ClusterPlan:
    """Return the plan: settings from the sections of the scenario, everything else from `fitted`."""
    fitted = require_fitted(scenario)
    require_supported_settings(scenario, fitted)
    duration_ms = scenario.duration_s * 1000
    appends = fitted.appends
    begin_at, begin_ms = _begin(appends.gaps_ms, appends.first_ms, 1.0)
    return ClusterPlan(
        duration_ms=duration_ms,
        warm_up_ms=WARM_UP_MS,
        cores=fitted.host.cores,
        partitions=[
            PartitionPlan(partition.topic, partition.partition, partition.replicas[0], partition.replicas[1:])
            for partition in fitted.partitions
        ],
        readers=[*_followers(scenario, fitted), *_consumers(scenario, fitted)],
        producers=[
            each
            for settings in scenario.producers
            for each in copy_producers(_producer(settings, fitted), settings.count)
        ],
        appends=AppendsPlan(begin_at, begin_ms, appends.gaps_ms, appends.partitions, appends.batch_bytes),
        lateness=fitted.lateness_ms,
        stall_ms=fitted.host.stall_ms or float("inf"),
        stretch=fitted.host.stretch,
    )


def _followers(scenario: Scenario, fitted: Fitted) -> list[ReaderPlan]:
    brokers = scenario.brokers
    return [
        ReaderPlan(
            client=client,
            broker=broker,
            replica=reader.replica,
            keys=keys,
            min_bytes=brokers.replica_fetch_min_bytes,
            max_wait_ms=brokers.replica_fetch_wait_max_ms,
            partition_max_bytes=reader.partition_max_bytes,
            max_bytes=reader.max_bytes,
            turn=_by_size(reader.turn),
            handling=reader.handling,
        )
        for client, reader in fitted.readers.items()
        if reader.replica >= 0
        for broker, keys in sorted(reader.reads.items())
    ]


def _consumers(scenario: Scenario, fitted: Fitted) -> list[ReaderPlan]:
    return [
        each
        for settings in scenario.consumers
        for broker, keys in sorted(_reads(settings, fitted).items())
        for each in copy_readers(
            ReaderPlan(
                client=settings.name,
                broker=broker,
                replica=-1,
                keys=keys,
                min_bytes=settings.fetch_min_bytes,
                max_wait_ms=settings.fetch_max_wait_ms,
                partition_max_bytes=settings.max_partition_fetch_bytes,
                max_bytes=settings.fetch_max_bytes,
                turn=_by_size(fitted.readers[settings.name].turn),
                handling=fitted.readers[settings.name].handling,
            ),
            settings.count,
        )
    ]


def _reads(settings: Consumers, fitted: Fitted) -> Mapping[int, list[int]]:
    """Return the partitions per broker: the recorded ones, unless `assign` was edited."""
    reader = fitted.readers[settings.name]
    keys = [TopicPartition(partition.topic, partition.partition) for partition in fitted.partitions]
    assign = settings.assign or {}
    if {topic: sorted(numbers) for topic, numbers in assign.items()} == assignment_by_topic(reader, keys):
        return reader.reads
    return partitions_by_broker(settings.name, assign, fitted.partitions)


def _producer(settings: Producers, fitted: Fitted) -> ProducerPlan:
    producer = fitted.producers[settings.name]
    recorded = len(producer.gaps_ms) / sum(producer.gaps_ms) * 1000
    # An unedited rate or record size differs from the recorded one by rounding only.
    speed = 1.0 if abs(settings.rate / recorded - 1) < 1e-3 else settings.rate / recorded
    usual = max(1, round(sum(producer.record_bytes) / len(producer.record_bytes)))
    larger = 1.0 if settings.record_bytes == usual else settings.record_bytes / usual
    begin_at, begin_ms = _begin(producer.gaps_ms, producer.first_ms, speed)
    return ProducerPlan(
        client=settings.name,
        acks=-1 if settings.acks == "all" else settings.acks,
        timeout_ms=settings.request_timeout_ms,
        linger_ms=settings.linger_ms,
        batch_bytes=settings.batch_bytes,
        max_in_flight=settings.max_in_flight,
        begin_at=begin_at,
        begin_ms=begin_ms,
        speed=speed,
        gaps_ms=producer.gaps_ms,
        keys=producer.partitions,
        record_bytes=producer.record_bytes if larger == 1 else [round(size * larger) for size in producer.record_bytes],
        handling=_by_size(producer.handling),
        answer=producer.answer,
    )


def _begin(gaps_ms: Sequence[float], first_ms: float, speed: float) -> tuple[int, float]:
    """Return the index and time of the first record of the warm-up.

    The cycle is shifted so that its first record is due as long after time 0 as in the recording; the records before it
    are the last of the previous cycle.
    """
    place, at = 0, first_ms / speed
    circle_ms = sum(gaps_ms)
    while circle_ms > 0:
        before = at - gaps_ms[place] / speed
        if before < -WARM_UP_MS:
            break
        place, at = (place - 1) % len(gaps_ms), before
    return place, at


def _by_size(given: WorkBySize) -> BySize:
    return BySize(given.bounds, given.quantiles)

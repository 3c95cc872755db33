"""The plan of a simulation: a fitted scenario with the settings of a variant, ready to be sent to another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.scenario import Consumers, Producers, Scenario
from purgatory_udf.simulation.scenario_sections import Fitted, FittedPartition, FittedReader, WorkBySize

Quantiles = Sequence[float]
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


@dataclass(frozen=True, slots=True)
class BySize:
    """Quantiles of work (ms) per range of sizes (bytes); each of `bounds` is the start of the next range."""

    bounds: Sequence[int]
    quantiles: Sequence[Quantiles]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition with its leader and the followers in sync."""

    topic: str
    partition: int
    leader: int
    followers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """The fetches of one client at one broker.

    Attributes:
        replica: Broker ID of a follower; -1 for a consumer.
        keys: Indices of the partitions in the plan.
        turn: Work from a response to the handling of the next request (follower) or its first try (consumer), by the
            size of the response.
        handling: Work of a follower's request before its first try.
    """

    client: str
    broker: int
    replica: int
    keys: Sequence[int]
    min_bytes: int
    max_wait_ms: int
    partition_max_bytes: int
    max_bytes: int
    turn: BySize
    handling: Quantiles


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """A producer with its records, which are repeated in a cycle, `speed` times as fast as recorded.

    `gaps_ms`, `keys` and `record_bytes` have one entry per record. The first record is the one at index `begin_at`; it
    arrives at `begin_ms`.
    """

    client: str
    acks: int
    timeout_ms: int
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    begin_at: int
    begin_ms: float
    speed: float
    gaps_ms: Sequence[float]
    keys: Sequence[int]
    record_bytes: Sequence[int]
    handling: BySize
    answer: Quantiles


@dataclass(frozen=True, slots=True)
class AppendsPlan:
    """Appends without a producer, such as those of coordinators, repeated in a cycle.

    The fields are those of `ProducerPlan`, with one batch per entry instead of one record.
    """

    begin_at: int
    begin_ms: float
    gaps_ms: Sequence[float]
    keys: Sequence[int]
    batch_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """The purge intervals of a broker's purgatories, in operations."""

    fetch: int = 1000
    produce: int = 1000


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of a simulation of the cluster.

    Attributes:
        duration_ms: Length of the measured period.
        warm_up_ms: Length of the period before it.
        cores: Number of cores that all clients and brokers share; None: steps do not slow each other down.
        partitions: The partitions; other attributes refer to them by index.
        readers: The fetches of consumers and followers.
        producers: The producers.
        appends: The appends without a producer.
        lateness: Quantiles of the reaper's delay, in milliseconds.
        stall_ms: See `model_broker`.
        stretch: See `model_broker`.
        purges: Purge intervals by broker; other brokers have Kafka's defaults.
    """

    duration_ms: float
    warm_up_ms: float
    cores: float | None
    partitions: Sequence[PartitionPlan]
    readers: Sequence[ReaderPlan]
    producers: Sequence[ProducerPlan]
    appends: AppendsPlan
    lateness: Quantiles
    stall_ms: float = float("inf")
    stretch: float = 1.0
    purges: Mapping[int, PurgePlan] = field(default_factory=dict)


def assignment_by_topic(reader: FittedReader, keys: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of a reader by topic, in the form of a scenario's `assign`."""
    by_topic: dict[str, list[int]] = {}
    for place in sorted(place for places in reader.reads.values() for place in places):
        by_topic.setdefault(keys[place].topic, []).append(keys[place].partition)
    return {topic: sorted(numbers) for topic, numbers in sorted(by_topic.items())}


def partitions_by_broker(
    client: str, assign: Mapping[str, Sequence[int]], partitions: Sequence[FittedPartition]
) -> dict[int, list[int]]:
    """Return the partitions of `assign`, which are numbers by topic, by leader as indices into `partitions`.

    Raises:
        UserError: A partition is not in the recording; the message names `client`, the consumer.
    """
    places = {(partition.topic, partition.partition): place for place, partition in enumerate(partitions)}
    by_broker: dict[int, list[int]] = {}
    for topic, numbers in assign.items():
        for number in numbers:
            place = places.get((topic, number))
            if place is None:
                raise UserError(f"consumers: {client}: assign: {topic}-{number} is not in the recording; remove it")
            by_broker.setdefault(partitions[place].replicas[0], []).append(place)
    return {broker: sorted(indices) for broker, indices in sorted(by_broker.items())}


# Maximum number of copies of a client.
MAX_COPIES = 1000


def copy_readers(reader: ReaderPlan, count: int) -> list[ReaderPlan]:
    """Return `count` copies of a consumer that read the same partitions, each in a separate group."""
    return [replace(reader, client=copy_name(reader.client, number)) for number in range(count)]


def copy_producers(producer: ProducerPlan, count: int) -> list[ProducerPlan]:
    """Return `count` copies of a producer, which start at different records so that they are not synchronous."""
    length = len(producer.gaps_ms)
    return [
        replace(
            producer,
            client=copy_name(producer.client, number),
            begin_at=(producer.begin_at + number * length // count) % max(1, length),
        )
        for number in range(count)
    ]


def copy_name(client: str, number: int) -> str:
    """Return the name of a copy; copy 0 is the client itself."""
    return f"{client}#{number + 1}" if number else client


def is_copy(name: str, client: str) -> bool:
    """Return whether the name is that of the client or of one of its copies."""
    return name == client or (name.startswith(f"{client}#") and name[len(client) + 1 :].isdigit())


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
        raise UserError("the scenario has no section 'fitted'; create a scenario from a recording with fit")
    return scenario.fitted


def consumer_groups(scenario: Scenario) -> dict[str, str]:
    """Return the consumer group of each consumer, by client id."""
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
    """Return a consumer's partitions by broker: the recorded ones, unless `assign` of the scenario was edited."""
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
    """Return index and time, in milliseconds, of the first record of the warm-up, which ends at time 0.

    `gaps_ms` has the gap before each record of the cycle, and `speed` divides all times. The cycle is shifted so that
    its first record is due `first_ms` after time 0, as in the recording. The records before it are the last ones of the
    previous cycle.
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

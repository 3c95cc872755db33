"""The plan of a simulation: a fitted scenario with the settings of a variant, ready to be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.fitted_scenario import FittedPartition, FittedReader

Quantiles = Sequence[float]


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
    """Appends without a producer, such as those of coordinators."""

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
    """The whole plan; brokers without an entry in `purges` have Kafka's default purge intervals."""

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
    """Return the partitions of `assign` by leader, as indices into `partitions`."""
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
    """Return copies of a consumer that read the same partitions, each in its own group."""
    return [replace(reader, client=copy_name(reader.client, number)) for number in range(count)]


def copy_producers(producer: ProducerPlan, count: int) -> list[ProducerPlan]:
    """Return copies of a producer that start at different records of the cycle, so that they are not synchronous."""
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
    """Whether the name is that of the client or of one of its copies."""
    return name == client or (name.startswith(f"{client}#") and name[len(client) + 1 :].isdigit())

"""What is to be played, ready to be handed to another process: a fitted scenario with a variant's settings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.fitted_scenario import FittedPartition, FittedReader

Quantiles = Sequence[float]


@dataclass(frozen=True, slots=True)
class BySize:
    """Work in ms, by the bytes that it is about: `bounds` are where the next range begins."""

    bounds: Sequence[int]
    quantiles: Sequence[Quantiles]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    topic: str
    partition: int
    leader: int
    followers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """One client's fetches at one broker. `keys` are places in the plan's partitions; a consumer's `replica` is -1.

    `turn`: from an answer to the next request's handling (a follower's) or first try (a consumer's), by the answer's
    bytes. `handling`: from there to a follower's first try.
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
    """`gaps_ms`, `keys` and `record_bytes`: the records, in their order, again and again, `speed` times as fast; the
    one at `begin_at` is the first, and comes at `begin_ms`."""

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
    """What is appended without a producer: the coordinators' records."""

    begin_at: int
    begin_ms: float
    gaps_ms: Sequence[float]
    keys: Sequence[int]
    batch_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """After how many ended operations a broker's purgatories are purged."""

    fetch: int = 1000
    produce: int = 1000


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`purges` by broker; Kafka's default for those that it does not name."""

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


# What a consumer reads: by topic, as a scenario says it, and by broker, as it is played.


def assignment_by_topic(reader: FittedReader, keys: Sequence[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for place in sorted(place for places in reader.reads.values() for place in places):
        by_topic.setdefault(keys[place].topic, []).append(keys[place].partition)
    return {topic: sorted(numbers) for topic, numbers in sorted(by_topic.items())}


def partitions_by_broker(
    client: str, assign: Mapping[str, Sequence[int]], partitions: Sequence[FittedPartition]
) -> dict[int, list[int]]:
    """Of each broker, the places of the partitions that it leads."""
    places = {(partition.topic, partition.partition): place for place, partition in enumerate(partitions)}
    by_broker: dict[int, list[int]] = {}
    for topic, numbers in assign.items():
        for number in numbers:
            place = places.get((topic, number))
            if place is None:
                raise UserError(f"consumers: {client}: {topic}-{number} is no partition of the recording")
            by_broker.setdefault(partitions[place].replicas[0], []).append(place)
    return {broker: sorted(mine) for broker, mine in sorted(by_broker.items())}


# More of the same client, or none of it: copies have names of their own.


# So many of one client are as many as anybody would have played.
MAX_COPIES = 1000


def copy_readers(reader: ReaderPlan, count: int) -> list[ReaderPlan]:
    """Each reads what the consumer reads, as one of a group of its own."""
    return [replace(reader, client=copy_name(reader.client, number)) for number in range(count)]


def copy_producers(producer: ProducerPlan, count: int) -> list[ProducerPlan]:
    """Each begins elsewhere in the circle of the records, so that they do not walk in step."""
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
    return f"{client}#{number + 1}" if number else client


def is_copy(name: str, client: str) -> bool:
    """Whether that is the client's own name, or one of its copies'."""
    return name == client or (name.startswith(f"{client}#") and name[len(client) + 1 :].isdigit())

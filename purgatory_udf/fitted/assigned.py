"""What a consumer reads: by topic, as a scenario says it, and by broker, as it is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory_udf.errors import UserError
from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.fitted import FittedPartition, FittedReader


def assigned(reader: FittedReader, keys: Sequence[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for place in sorted(place for places in reader.reads.values() for place in places):
        by_topic.setdefault(keys[place].topic, []).append(keys[place].partition)
    return {topic: sorted(numbers) for topic, numbers in sorted(by_topic.items())}


def reads_of(
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

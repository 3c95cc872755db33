"""What followers copy, as their leader's log shows it: how far each replica's own log and high watermark are, and when.

A consumer that reads from a follower (KIP-392) may read up to that follower's own high watermark, which it learns from
its leader's answers (Kafka: `ReplicaFetcherThread.processPartitionData`), at most to the end of its own log. So it is
the leader's line, not the follower's, that tells what the follower's readers wait for.

    leader    ── answer: records, high watermark ──────────── next fetch: the end of what was copied
    follower                  └ appended, high watermark set, waiting fetches tried (`completeDelayedFetchRequests`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from purgatory_udf.requestlog.lines.bodies import AskedPartition, FetchAnswer
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.requests.facts import Copied
from purgatory_udf.requestlog.supposed import COPIED_AT


class Learnt(NamedTuple):
    """Of one partition, by one answer."""

    topic: str
    partition: int
    base: int
    bytes: int
    high_watermark: int


class Copies:
    """Feed it one follower's fetches, in their order: each tells what the answer before it has come to."""

    def __init__(self, at_us: int = 0, learnt: Iterable[Learnt] = ()) -> None:
        self._at_us = at_us
        self._learnt = list(learnt)

    def fetch(
        self, request: Request, partitions: Iterable[AskedPartition], answered: FetchAnswer
    ) -> Iterator[tuple[tuple[str, int], Copied]]:
        ends = {(partition.topic, partition.partition): partition.offset for partition in partitions}
        at = self._at_us + round((request.arrival_us - self._at_us) * COPIED_AT)
        for learnt in self._learnt:
            end = ends.get((learnt.topic, learnt.partition))
            if end is not None:
                yield (
                    (learnt.topic, learnt.partition),
                    Copied(at, learnt.base, end, learnt.bytes, min(end, learnt.high_watermark)),
                )
        self._at_us = request.answered_us
        self._learnt = [
            Learnt(
                partition.topic,
                partition.partition,
                ends[partition.topic, partition.partition],
                partition.bytes,
                partition.high_watermark,
            )
            for partition in answered.partitions
            if not partition.error
            and partition.high_watermark >= 0
            and partition.parts_at < 0
            and (partition.topic, partition.partition) in ends
        ]

    def snapshot(self) -> list[Any]:
        """What JSON can keep."""
        return [self._at_us, list(map(list, self._learnt))]

    @classmethod
    def resumed(cls, state: list[Any]) -> Copies:
        """From a `snapshot`."""
        at_us, learnt = state
        return cls(at_us, (Learnt(*fields) for fields in learnt))

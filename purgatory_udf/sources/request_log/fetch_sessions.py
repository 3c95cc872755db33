"""Incremental fetch sessions (KIP-227), rebuilt from the log, and the followers' logs that they show.

The line of an incremental fetch lists only partitions that are new or have a new offset; the session has the others.

    epoch -1           no session (librdkafka), or the last fetch of one: the list is complete
    epoch 0            a new session: the list is complete, the response has the session id (0: none was granted)
    epoch 1, 2, …      the list has new and changed partitions; forgotten ones are removed; all others are unchanged

A broker serves the partitions of a session in a fixed order; those for which it returned records move to the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.sources.request_log.assumptions import FOLLOWER_APPEND_FRACTION
from purgatory_udf.sources.request_log.fact_kinds import FollowerCopy, Key, OpenRun
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    Numbers,
)

NEVER = 2**62
INITIAL_EPOCH, FINAL_EPOCH = 0, -1


def session_key(request: FetchRequestBody, response: FetchResponseBody, connection: str) -> str:
    """Return the key by which the fetches of a session are grouped: the session id, else the connection.

    Args:
        request: The fetch.
        response: Its response.
        connection: Name of the connection, for fetches without a session.
    """
    if request.session_epoch == INITIAL_EPOCH and response.session_id:
        return str(response.session_id)
    if request.session_epoch > INITIAL_EPOCH:
        return str(request.session_id)
    return connection


AnyKey = TypeVar("AnyKey", bound=Hashable)
Partition = TypeVar("Partition")


def session_keys(epochs: Numbers, requested: Numbers, granted: Numbers, connections: pa.Array) -> pa.Array:
    """Return the keys of many fetches as a column; see `session_key`.

    Args:
        epochs: Session epochs of the fetches.
        requested: Session ids in the requests.
        granted: Session ids in the responses.
        connections: Names of the connections.
    """
    begins = (epochs == INITIAL_EPOCH) & (granted != 0)
    ids = pa.array(np.where(begins, granted, requested)).cast(pa.string())
    return pc.if_else(pa.array(begins | (epochs > INITIAL_EPOCH)), ids, connections)


@dataclass(slots=True)
class FetchSession(Generic[AnyKey, Partition]):
    """The partitions of one fetch session, in the broker's order.

    `complete` is false until all partitions are certainly known, as after the start of a session; `was_complete` is
    whether those of the latest fetch were known.
    """

    partitions: dict[AnyKey, Partition] = field(default_factory=dict)
    complete: bool = False
    was_complete: bool = False

    def resolve(
        self,
        resolved: list[Partition],
        epoch: int,
        listed: Iterable[tuple[AnyKey, Partition]],
        forgotten: Iterable[AnyKey],
        error: int,
        with_records: Iterable[AnyKey],
    ) -> None:
        """Apply the next fetch of the session, in order of handling, and append all its partitions to `resolved`.

        Args:
            resolved: The partitions of earlier fetches.
            epoch: Session epoch of the fetch.
            listed: Keys of the partitions in its own line, and the partitions.
            forgotten: Keys of the partitions that the fetch removes.
            error: Error of the whole response, after which the broker has read nothing.
            with_records: Keys of the partitions in the response that have records.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # As in the broker's map, a partition listed twice counts once.
            self.partitions = dict(listed)
            self.complete = self.was_complete = True
            resolved += self.partitions.values()
            return
        partitions = self.partitions
        for key, partition in listed:
            partitions[key] = partition
        for key in forgotten:
            partitions.pop(key, None)
        self.was_complete = self.complete
        if error:
            # The broker evicted the session or did not know it: nothing was read.
            self.partitions, self.complete = {}, False
            return
        resolved += partitions.values()
        for key in with_records:
            if key in partitions:
                partitions[key] = partitions.pop(key)


class FetchedPartition(NamedTuple):
    """The part of a response to a follower for one partition: records from `base` on, and the high watermark."""

    topic: str
    partition: int
    base: int
    bytes: int
    high_watermark: int


class FollowerTracker:
    """Derives a follower's own log from its fetches at the leader.

    Each fetch shows how far the follower has appended the records of the previous response.
    """

    def __init__(self, at_us: int = 0, sent: Iterable[FetchedPartition] = ()) -> None:
        self._at_us = at_us
        self._sent = list(sent)

    def advance(
        self, arrival_us: int, answered_us: int, ends: Mapping[Key, int], fetched: Iterable[FetchPartitionData]
    ) -> Iterator[tuple[Key, FollowerCopy]]:
        """Yield ((topic, partition), copy) for the records that the follower has appended since its previous fetch.

        Args:
            arrival_us: When the next fetch of the follower, in order of handling, arrived.
            answered_us: When it was answered.
            ends: The offsets of its partitions, which show what the follower has appended.
            fetched: The partitions of its response. The next fetch shows which records the follower has appended.
        """
        at = self._at_us + round((arrival_us - self._at_us) * FOLLOWER_APPEND_FRACTION)
        for sent in self._sent:
            end = ends.get((sent.topic, sent.partition))
            if end is not None:
                yield (
                    (sent.topic, sent.partition),
                    FollowerCopy(at, sent.base, end, sent.bytes, min(end, sent.high_watermark)),
                )
        self._at_us = answered_us
        self._sent = [
            FetchedPartition(
                partition.topic,
                partition.partition,
                ends[partition.topic, partition.partition],
                partition.bytes,
                partition.high_watermark,
            )
            for partition in fetched
            if not partition.error
            and partition.high_watermark >= 0
            and partition.diverging_end_offset < 0
            and (partition.topic, partition.partition) in ends
        ]

    def snapshot(self) -> list[Any]:
        """Return the state as JSON values, from which `resumed` restores it."""
        return [self._at_us, list(map(list, self._sent))]

    @classmethod
    def resumed(cls, state: list[Any]) -> FollowerTracker:
        """Restore the state from a `snapshot`."""
        at_us, sent = state
        return cls(at_us, (FetchedPartition(*fields) for fields in sent))


@dataclass(slots=True)
class SessionState:
    """A session between two calls.

    Attributes:
        session: Its partitions, by (topic, partition) as in the lines.
        runs: Attempts to fetch from the same offset, by (name, partition); more may follow.
        read_us: When the log was read for the previous response, from which a follower has all its records.
        follower: The follower's own log.
    """

    session: FetchSession[Key, FetchRequestPartition] = field(default_factory=FetchSession)
    runs: dict[Key, OpenRun] = field(default_factory=dict)
    read_us: int = NEVER
    follower: FollowerTracker = field(default_factory=FollowerTracker)

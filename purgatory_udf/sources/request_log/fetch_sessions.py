"""Incremental fetch sessions (KIP-227), rebuilt from the log, and the followers' logs that they show.

The line of an incremental fetch lists only partitions that are new or have a new offset; the session has the others.

    epoch -1           no session (librdkafka), or the last fetch of one: the list is complete
    epoch 0            a new session: the list is complete, the response has the session id (0: none was granted)
    epoch 1, 2, …      the list has new and changed partitions; forgotten ones are removed; all others are unchanged

A broker serves the partitions of a session in a fixed order; those for which it returned records move to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.rules.engine.jit.ordered_maps import CLEAR, REPLACE, UPDATE, MapChanges, apply
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.assumptions import FOLLOWER_APPEND_FRACTION
from purgatory_udf.sources.request_log.fact_kinds import Booleans, FollowerCopy, Key, OpenRun
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchPartitionData,
    FetchRequestBody,
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


class SessionPartitions(NamedTuple):
    """The partitions of sessions at fetches, as places of entries; entries are explained at `SessionKeys`.

    Attributes:
        places: The entries of each fetch in the broker's order, one fetch after the other.
        bounds: The bounds of each fetch's places.
        complete: Whether all partitions of the fetch are known.
        left: The entries of each session after its fetches.
        left_bounds: The same by session.
        left_complete: Whether no partition of the session is missing.
    """

    places: Numbers
    bounds: Numbers
    complete: Booleans
    left: Numbers
    left_bounds: Numbers
    left_complete: Booleans


def partitions_of_sessions(
    session_bounds: Numbers, epochs: Numbers, failed: Booleans, complete: Booleans, keys: SessionKeys, key_count: int
) -> SessionPartitions:
    """Return the partitions of each fetch, and of each session after its fetches.

    Args:
        session_bounds: The first fetch of each session, and the number of fetches.
        epochs: Session epoch of each fetch.
        failed: Whether the whole response has an error, after which the broker has read nothing.
        complete: For each session, whether all of its partitions are known before the fetches.
        keys: Keys of the partitions before and in each fetch.
        key_count: Number of keys.
    """
    # The broker evicted a session with an error, or did not know it. A complete list has an epoch of its own.
    is_full = (epochs == INITIAL_EPOCH) | (epochs == FINAL_EPOCH)
    kinds = np.where(is_full, REPLACE, np.where(failed, CLEAR, UPDATE))
    listed = apply(MapChanges(session_bounds, kinds, *keys), key_count, compiled_parser.is_loaded())
    # For each session, whether all partitions are known before its first fetch, and after each fetch.
    sessions = np.arange(len(session_bounds) - 1)
    known = np.insert(is_full, session_bounds[:-1], complete)
    changes = np.insert(is_full | failed, session_bounds[:-1], True)
    known = known[np.maximum.accumulate(np.where(changes, np.arange(len(changes)), 0))]
    after = np.arange(len(epochs)) + 1 + np.repeat(sessions, np.diff(session_bounds))
    return SessionPartitions(
        listed.values,
        listed.bounds,
        is_full | known[after - 1],
        listed.left,
        listed.left_bounds,
        known[session_bounds[1:] + sessions],
    )


class SessionKeys(NamedTuple):
    """Numbers of topics and partitions, for one session or fetch after the other.

    Attributes:
        entries: The key of each entry: partitions of sessions before the fetches, then partitions listed in lines.
        earlier_bounds: The bounds of the former, by session.
        listed_bounds: The bounds of the latter, by fetch.
        forgotten: Keys that fetches remove from their sessions.
        forgotten_bounds: The same by fetch.
        with_records: Keys in responses that have records.
        with_records_bounds: The same by fetch.
    """

    entries: Numbers
    earlier_bounds: Numbers
    listed_bounds: Numbers
    forgotten: Numbers
    forgotten_bounds: Numbers
    with_records: Numbers
    with_records_bounds: Numbers


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
        keys: Its partitions by (topic, partition) as in the lines, in the order of the broker.
        entries: Their offset, maximum bytes, leader epoch and log start.
        complete: Whether certainly no partition is missing, as after the start of a session.
        runs: Attempts to fetch from the same offset, by (name, partition); more may follow.
        read_us: When the log was read for the previous response, from which a follower has all its records.
        follower: The follower's own log.
    """

    keys: list[Key] = field(default_factory=list)
    entries: Numbers = field(default_factory=lambda: np.empty((0, 4), np.int64))
    complete: bool = False
    runs: dict[Key, OpenRun] = field(default_factory=dict)
    read_us: int = NEVER
    follower: FollowerTracker = field(default_factory=FollowerTracker)

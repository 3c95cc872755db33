"""Conversion of fetches, session by session: each is an operation, and shows the reader's position in each partition.

A consumer that reads from a follower (KIP-392) may read up to the follower's own high watermark. The follower learns it
from its leader's responses (`ReplicaFetcherThread.processPartitionData`), and it is at most the end of the follower's
log. So the offsets for which the follower's consumers wait are shown by the leader's lines, not the follower's:

    leader    ── response: records, high watermark ───────── next fetch: end of the follower's log
    follower                  └ records appended, high watermark set, waiting fetches checked
                                (`completeDelayedFetchRequests`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    COMPLETION_SPREAD_US,
    FOLLOWER_APPEND_FRACTION,
    MIN_TURNAROUND_US,
    READ_TO_RESPONSE_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fetch_sessions import FetchSession, OpenRun, ResolvedFetch
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    decode_fetch_request,
    decode_fetch_response,
)
from purgatory_udf.sources.request_log.log_line import Request
from purgatory_udf.sources.request_log.partition_facts import (
    ConsumerRead,
    Fact,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    Key,
    LocalStart,
    PartitionError,
    ReaderPosition,
)
from purgatory_udf.sources.request_log.recorded_operation import (
    LoggedOperation,
    follower_read_times,
    logged_operation,
    recorded_fetch,
)

READ_COMMITTED = 1
NEVER = 2**62

# Largest number of encoded partitions that a session caches.
MAX_CACHED_PARTITIONS = 10_000

# Largest number of attempts in one fact.
MAX_ATTEMPTS = 10_000

# Up to this version of FETCH, a batch larger than `max_bytes` is not returned.
LAST_HARD_LIMIT_VERSION = 2

_NO_DATA = FetchPartitionData("", -1, errors.NONE, -1, 0)

KeyedCopy = tuple[Key, FollowerCopy]

_to_json = msgspec.json.Encoder().encode


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
        self, request: Request, partitions: Iterable[FetchRequestPartition], response: FetchResponseBody
    ) -> Iterator[tuple[tuple[str, int], FollowerCopy]]:
        """Yield ((topic, partition), copy) for the records that the follower has appended since its previous fetch.

        Args:
            request: The next fetch of the follower, in order of handling.
            partitions: The partitions of the fetch. Their offsets show what the follower has appended.
            response: Its response. The next fetch shows which of its records the follower has appended.
        """
        ends = {(partition.topic, partition.partition): partition.offset for partition in partitions}
        at = self._at_us + round((request.arrival_us - self._at_us) * FOLLOWER_APPEND_FRACTION)
        for sent in self._sent:
            end = ends.get((sent.topic, sent.partition))
            if end is not None:
                yield (
                    (sent.topic, sent.partition),
                    FollowerCopy(at, sent.base, end, sent.bytes, min(end, sent.high_watermark)),
                )
        self._at_us = request.answered_us
        self._sent = [
            FetchedPartition(
                partition.topic,
                partition.partition,
                ends[partition.topic, partition.partition],
                partition.bytes,
                partition.high_watermark,
            )
            for partition in response.partitions
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


class SessionConverter:
    """Converts the fetches of one session, which must come in order of handling.

    Attempts to fetch from an offset are held back until the reader fetches from another one, because only the next
    fetch shows whether an attempt found records. `take_empty_attempts` returns the attempts that are known to be empty,
    and `finish` the others.

    `snapshot` and `resumed` carry the session to the next step of a followed log; call `take_empty_attempts` before
    `snapshot`. `report` may be replaced between two fetches.
    """

    def __init__(self, context: Context, report: Report) -> None:
        self.report = report
        self._context = context
        self._names = context.names
        # Encoded partitions of events: most fetches of a session request most partitions with the same fields.
        self._encoded: dict[FetchRequestPartition, msgspec.Raw] = {}
        self._session = FetchSession()
        self._runs: dict[Key, OpenRun] = {}
        # When the log was read for the previous response, from which a follower has all its records.
        self._read_us = NEVER
        self._follower = FollowerTracker()
        self._follower_copies: list[tuple[int, KeyedCopy]] = []

    def convert(self, request: Request) -> tuple[LoggedOperation | None, list[tuple[Key, Fact]]]:
        """Convert the next fetch into its operation and facts; no operation if no partition is known."""
        fetch, response = request.fetch or (decode_fetch_request(request.body), decode_fetch_response(request.answer))
        resolved = self._session.resolve(fetch, response)
        if not resolved.complete and not resolved.partitions and not response.error:
            self.report.count("session_unknown")
            return None, []
        self.report.count("session_partial", int(not resolved.complete))
        self.report.count("session_error", int(response.error != 0))
        failed = {
            (partition.topic, partition.partition): partition.error
            for partition in response.partitions
            if partition.error
        }
        excluded = {key for key, error in failed.items() if self._is_excluded(error, key, request)}
        self.report.count("left_out_partition", len(excluded))
        diverging = {
            (partition.topic, partition.partition): partition.diverging_end_offset
            for partition in response.partitions
            if partition.diverging_end_offset >= 0
        }
        # The broker answers such a fetch at once, even without data. No event has epochs, so none of its bytes are
        # required in the replay.
        at_once = bool(diverging) and not request.remote_us
        self.report.count("diverging", int(at_once))
        read = checked = resolved.partitions
        if excluded or diverging:
            # A follower with a diverging log has the leader's records below the point of divergence only.
            read = [
                partition._replace(
                    offset=min(
                        partition.offset, diverging.get((partition.topic, partition.partition), partition.offset)
                    )
                )
                for partition in resolved.partitions
                if (partition.topic, partition.partition) not in excluded
            ]
            checked = [partition for partition in read if (partition.topic, partition.partition) not in diverging]
        facts: list[tuple[Key, Fact]] = [
            *self._attempts(request, fetch, checked),
            *self._errors(request, fetch.max_wait_ms, failed, excluded),
            *self._positions(request, fetch, read, resolved, failed),
            *self._deliveries(request, fetch, response),
            *self._high_watermarks(request, fetch, response),
        ]
        if self._context.tiered:
            facts += self._tiered_facts(request, fetch, read, response)
        self._read_us = request.answered_us if request.remote_us else request.local_us
        if fetch.replica_id >= 0 and self._context.follower_reads:
            for (topic, partition), copied in self._follower.advance(request, read, response):
                self._follower_copies.append((fetch.replica_id, ((self._context.name(topic), partition), copied)))
        recorded = recorded_fetch(request, fetch, response)
        recorded.complete = resolved.complete
        replicas = {} if request.remote_us else _preferred_replicas(response)
        event = {
            "time_us": request.local_us,
            "type": "fetch",
            "replica_id": fetch.replica_id,
            "max_wait_ms": fetch.max_wait_ms,
            "min_bytes": 0 if at_once else max(0, fetch.min_bytes),
            "max_bytes": max(0, fetch.max_bytes),
            "isolation": "read_committed" if fetch.isolation == READ_COMMITTED else "read_uncommitted",
            "partitions": self._event_partitions(read, replicas),
            "hard_max_bytes": request.version <= LAST_HARD_LIMIT_VERSION,
        }
        return logged_operation(request, event, recorded), facts

    def take_follower_copies(self) -> Iterator[tuple[int, KeyedCopy]]:
        """Yield the facts about the follower's own log that fetches since the last call showed, as (follower, fact)."""
        copied, self._follower_copies = self._follower_copies, []
        yield from copied

    def take_empty_attempts(self) -> list[tuple[Key, Fact]]:
        """Remove and return all attempts except the latest of each partition. They are known to be empty."""
        earlier = ((key, run.take_all_but_last()) for key, run in self._runs.items())
        return [(key, attempts) for key, attempts in earlier if attempts is not None]

    def finish(self) -> list[tuple[Key, Fact]]:
        """Return the attempts that are still held back, as (partition, facts), at the end of the session."""
        last, self._runs = self._runs, {}
        return [(key, run.to_run()) for key, run in last.items()]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values, from which `resumed` restores it."""
        return {
            "partitions": list(map(list, self._session.partitions.values())),
            "complete": self._session.complete,
            "tries": [[*key, *msgspec.structs.astuple(run.last)] for key, run in self._runs.items()],
            "read_us": self._read_us,
            "copies": self._follower.snapshot(),
        }

    @classmethod
    def resumed(cls, context: Context, report: Report, state: dict[str, Any]) -> SessionConverter:
        """Restore the state of a session from a `snapshot`. `report` counts what this step converts."""
        converter = cls(context, report)
        listed = (FetchRequestPartition(*fields) for fields in state["partitions"])
        converter._session = FetchSession(
            {(partition.topic, partition.partition): partition for partition in listed}, state["complete"]
        )
        converter._runs = {(topic, partition): OpenRun(*run) for topic, partition, *run in state["tries"]}
        converter._read_us = state["read_us"]
        converter._follower = FollowerTracker.resumed(state["copies"])
        return converter

    def _key(self, partition: FetchRequestPartition) -> Key:
        return self._names.get(partition.topic, partition.topic), partition.partition

    def _is_excluded(self, error: int, key: Key, request: Request) -> bool:
        """Return whether the broker excluded the partition before it read the log, so the fetch does not contain it."""
        if error in errors.EXCLUDED_FROM_FETCH:
            return True
        if error != errors.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        # Excluded if the topic was deleted before the fetch was handled, but not if it was deleted during the wait.
        changes = self._context.changes.get((self._context.name(key[0]), key[1]), [])
        return any(change.deleted and change.at_us < request.start_us for change in changes)

    def _event_partitions(self, read: Iterable[FetchRequestPartition], replicas: dict[Key, int]) -> list[msgspec.Raw]:
        """Return the partitions as serialized objects of a fetch event; `replicas` are preferred read replicas."""
        if len(self._encoded) > MAX_CACHED_PARTITIONS:
            self._encoded.clear()
        encoded = self._encoded
        listed = []
        for partition in read:
            fetched = encoded.get(partition)
            if fetched is None:
                fetched = encoded[partition] = self._encode_partition(partition, None)
            if replicas and (preferred := replicas.get((partition.topic, partition.partition))) is not None:
                fetched = self._encode_partition(partition, preferred)
            listed.append(fetched)
        return listed

    def _encode_partition(self, partition: FetchRequestPartition, preferred: int | None) -> msgspec.Raw:
        event = {
            "topic": self._context.name(partition.topic),
            "partition": partition.partition,
            "fetch_offset": max(0, partition.offset),
            "max_bytes": max(0, partition.max_bytes),
            "current_leader_epoch": max(-1, partition.leader_epoch),
            "preferred_replica": preferred,
        }
        return msgspec.Raw(_to_json(event))

    def _attempts(
        self, request: Request, fetch: FetchRequestBody, read: list[FetchRequestPartition]
    ) -> Iterator[tuple[Key, Fact]]:
        """Add the fetch's attempts to the open runs of attempts, and yield (partition, run) for runs that end."""
        # An open transaction hides records from read_committed consumers, so their attempts prove nothing.
        proves = fetch.isolation != READ_COMMITTED
        # A fetch that had to wait for the first byte found no record.
        known_empty = request.remote_us > 0 and fetch.min_bytes <= 1 and proves
        runs, names, at, replica = self._runs, self._names, request.local_us, fetch.replica_id
        for requested in read:
            topic, partition, offset = requested[:3]
            key = names.get(topic, topic), partition
            run = runs.get(key)
            if run is not None:
                if proves and run.offset == offset:
                    if run.replica == replica and len(run.times) < MAX_ATTEMPTS:
                        run.times.append(at)
                        run.empty = known_empty
                        continue
                    run.empty = True
                yield key, run.to_run()
            runs[key] = OpenRun(at, replica, offset, known_empty)

    def _errors(
        self, request: Request, max_wait_ms: int, failed: dict[Key, int], excluded: set[Key]
    ) -> Iterator[tuple[Key, Fact]]:
        # If an error completed the wait, it shows the time of the change; at the deadline the change may be older.
        completed = 0 < request.remote_us < max_wait_ms * 1000
        at = request.answered_us if request.remote_us else request.local_us
        for (topic, partition), error in failed.items():
            if (topic, partition) not in excluded:
                if error == errors.FENCED_LEADER_EPOCH and completed:
                    # The epoch was current on arrival, so the leadership has changed. Kafka checks the epoch before the
                    # leader.
                    error = errors.NOT_LEADER_OR_FOLLOWER
                yield (self._context.name(topic), partition), PartitionError(at, error)

    def _positions(
        self,
        request: Request,
        fetch: FetchRequestBody,
        read: list[FetchRequestPartition],
        resolved: ResolvedFetch,
        failed: dict[Key, int],
    ) -> Iterator[tuple[Key, Fact]]:
        """Yield the reader's position in each listed partition. These are the partitions with a new offset.

        Partitions that were answered with an error at once are left out, because they prove nothing.
        """
        if not resolved.listed:
            return
        moved = [partition for partition in read if (partition.topic, partition.partition) in resolved.listed]
        for number, partition in enumerate(moved):
            if (partition.topic, partition.partition) in failed and not request.remote_us:
                continue
            if fetch.replica_id >= 0:
                at, wake = follower_read_times(request.start_us, request.local_us, number, len(moved))
                yield (
                    self._key(partition),
                    ReaderPosition(
                        at,
                        wake,
                        request.local_us,
                        min(self._read_us, request.arrival_us - MIN_TURNAROUND_US),
                        fetch.replica_id,
                        partition.offset,
                        partition.log_start,
                        request.start_us,
                        partition.leader_epoch,
                    ),
                )
            else:
                at = request.arrival_us
                yield self._key(partition), ReaderPosition(at, at, at, at, -1, partition.offset)

    def _high_watermarks(
        self, request: Request, fetch: FetchRequestBody, response: FetchResponseBody
    ) -> Iterator[tuple[Key, Fact]]:
        """Yield the high watermarks in the response, with the times between which the broker may have read them.

        A broker reads the log when a waiting fetch completes. If the fetch did not wait, it reads the log during the
        handling of the request; for a consumer, at the end of the handling.
        """
        if request.remote_us:
            since, until = request.answered_us - READ_TO_RESPONSE_US, request.answered_us + COMPLETION_SPREAD_US
        else:
            until = request.local_us
            since = request.start_us if fetch.replica_id >= 0 else until - READ_TO_RESPONSE_US
        # If a fetch waited for remote storage, it read the log on arrival: see `partitions.tiered_reads`.
        tiered = self._context.tiered if request.remote_us and fetch.replica_id < 0 else ()
        for partition in response.partitions:
            if partition.high_watermark >= 0 and not partition.error:
                topic = self._context.name(partition.topic)
                if topic not in tiered:
                    yield (topic, partition.partition), HighWatermarkReading(since, until, partition.high_watermark)

    def _tiered_facts(
        self,
        request: Request,
        fetch: FetchRequestBody,
        read: list[FetchRequestPartition],
        response: FetchResponseBody,
    ) -> Iterator[tuple[Key, Fact]]:
        """Yield facts about tiered partitions: consumers' reads, and local log starts from followers' fetches."""
        answered = {(partition.topic, partition.partition): partition for partition in response.partitions}
        for slot, partition in enumerate(read):
            key = self._key(partition)
            if key[0] not in self._context.tiered:
                continue
            data = answered.get((partition.topic, partition.partition), _NO_DATA)
            if fetch.replica_id >= 0:
                if data.error == errors.OFFSET_MOVED_TO_TIERED_STORAGE:
                    yield key, LocalStart(request.local_us, partition.offset + 1, False)
                continue
            if request.remote_us or data.bytes or data.error == errors.UNKNOWN_SERVER_ERROR:
                yield (
                    key,
                    ConsumerRead(
                        request.local_us,
                        request.start_us,
                        request.answered_us if request.remote_us else request.local_us,
                        request.remote_us,
                        partition.offset,
                        fetch.min_bytes,
                        partition.max_bytes,
                        data.bytes,
                        data.error,
                        data.high_watermark,
                        data.last_stable,
                        fetch.isolation == READ_COMMITTED,
                        *request.place,
                        slot,
                    ),
                )

    def _deliveries(
        self, request: Request, fetch: FetchRequestBody, response: FetchResponseBody
    ) -> Iterator[tuple[Key, Fact]]:
        if fetch.replica_id >= 0:
            for partition in response.partitions:
                if partition.bytes:
                    yield (
                        (self._context.name(partition.topic), partition.partition),
                        FollowerDelivery(request.answered_us, partition.bytes),
                    )


def _preferred_replicas(response: FetchResponseBody) -> dict[Key, int]:
    """Return the preferred read replica of each partition that redirects the consumer; such fetches do not wait."""
    return {
        (partition.topic, partition.partition): partition.preferred_replica
        for partition in response.partitions
        if partition.preferred_replica >= 0
    }

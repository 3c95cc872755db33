"""A session's fetches taken apart: each is an operation, and each says where its reader is in every partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from purgatory_udf.sources.request_log.assumptions import (
    COMPLETION_SPREAD_US,
    FOLLOWER_APPEND_FRACTION,
    MIN_TURNAROUND_US,
    READ_TO_RESPONSE_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster.cluster_context import Context
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    decode_fetch_request,
    decode_fetch_response,
)
from purgatory_udf.sources.request_log.requests.fetch_sessions import FetchSession, OpenRun, ResolvedFetch
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Fact,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    Key,
    PartitionError,
    ReaderPosition,
)
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    LoggedOperation,
    follower_read_times,
    logged_operation,
    recorded_fetch,
)

# What followers copy, as their leader's log shows it: how far each replica's own log and high watermark are, and when.
#
# A consumer that reads from a follower (KIP-392) may read up to that follower's own high watermark, which it learns
# from its leader's answers (Kafka: `ReplicaFetcherThread.processPartitionData`), at most to the end of its own log. So
# it is the leader's line, not the follower's, that tells what the follower's readers wait for.
#
#     leader    ── answer: records, high watermark ──────────── next fetch: the end of what was copied
#     follower                  └ appended, high watermark set, waiting fetches tried (`completeDelayedFetchRequests`)


class FetchedPartition(NamedTuple):
    """Of one partition, by one answer."""

    topic: str
    partition: int
    base: int
    bytes: int
    high_watermark: int


class FollowerTracker:
    """Feed it one follower's fetches, in their order: each tells what the answer before it has come to."""

    def __init__(self, at_us: int = 0, learnt: Iterable[FetchedPartition] = ()) -> None:
        self._at_us = at_us
        self._learnt = list(learnt)

    def advance(
        self, request: Request, partitions: Iterable[FetchRequestPartition], answered: FetchResponseBody
    ) -> Iterator[tuple[tuple[str, int], FollowerCopy]]:
        ends = {(partition.topic, partition.partition): partition.offset for partition in partitions}
        at = self._at_us + round((request.arrival_us - self._at_us) * FOLLOWER_APPEND_FRACTION)
        for learnt in self._learnt:
            end = ends.get((learnt.topic, learnt.partition))
            if end is not None:
                yield (
                    (learnt.topic, learnt.partition),
                    FollowerCopy(at, learnt.base, end, learnt.bytes, min(end, learnt.high_watermark)),
                )
        self._at_us = request.answered_us
        self._learnt = [
            FetchedPartition(
                partition.topic,
                partition.partition,
                ends[partition.topic, partition.partition],
                partition.bytes,
                partition.high_watermark,
            )
            for partition in answered.partitions
            if not partition.error
            and partition.high_watermark >= 0
            and partition.diverging_end_offset < 0
            and (partition.topic, partition.partition) in ends
        ]

    def snapshot(self) -> list[Any]:
        """What JSON can keep."""
        return [self._at_us, list(map(list, self._learnt))]

    @classmethod
    def resumed(cls, state: list[Any]) -> FollowerTracker:
        """From a `snapshot`."""
        at_us, learnt = state
        return cls(at_us, (FetchedPartition(*fields) for fields in learnt))


KeyedCopy = tuple[Key, FollowerCopy]

_to_json = msgspec.json.Encoder().encode

READ_COMMITTED = 1
NEVER = 2**62

# Of how many partitions a session remembers what it said.
MAX_CACHED_PARTITIONS = 10_000

# Of how many tries one fact tells at most.
MAX_ATTEMPTS = 10_000

# Such fetches get no batch that is larger than their maxima.
LAST_HARD_LIMIT_VERSION = 2


class SessionConverter:
    """Feed it one session's fetches in the order of their handling; `finish` gives the last facts.

    A try's fact waits for the reader's next fetch, which shows whether the try had been in vain; of those that were,
    for one that is not (`tried` tells of them before). Then `snapshot` has all that a reader `resumed` elsewhere needs
    to go on. `report` may be exchanged for another.
    """

    def __init__(self, context: Context, report: Report) -> None:
        self.report = report
        self._context = context
        self._names = context.names
        # What an event says of a partition, by what was asked of it: most fetches of a session ask the same of most.
        self._said: dict[FetchRequestPartition, msgspec.Raw] = {}
        self._session = FetchSession()
        self._runs: dict[Key, OpenRun] = {}
        # When the answer before was read: what a follower has, it had from there.
        self._read_us = NEVER
        self._copies = FollowerTracker()
        self._copied: list[tuple[int, KeyedCopy]] = []

    def convert(self, request: Request) -> tuple[LoggedOperation | None, list[tuple[Key, Fact]]]:
        asked, answered = request.fetch or (decode_fetch_request(request.body), decode_fetch_response(request.answer))
        in_force = self._session.resolve(asked, answered)
        if not in_force.complete and not in_force.partitions and not answered.error:
            self.report.count("session_unknown")
            return None, []
        self.report.count("session_partial", int(not in_force.complete))
        self.report.count("session_error", int(answered.error != 0))
        troubled = {
            (partition.topic, partition.partition): partition.error
            for partition in answered.partitions
            if partition.error
        }
        left_out = {key for key, error in troubled.items() if self._is_left_out(error, key, request)}
        self.report.count("left_out_partition", len(left_out))
        parted = {
            (partition.topic, partition.partition): partition.diverging_end_offset
            for partition in answered.partitions
            if partition.diverging_end_offset >= 0
        }
        read = tried = in_force.partitions
        if left_out or parted:
            # A follower whose log parts from the leader's has what lies below, whatever it asked for.
            read = [
                partition._replace(
                    offset=min(partition.offset, parted.get((partition.topic, partition.partition), partition.offset))
                )
                for partition in in_force.partitions
                if (partition.topic, partition.partition) not in left_out
            ]
            tried = [partition for partition in read if (partition.topic, partition.partition) not in parted]
        facts: list[tuple[Key, Fact]] = [
            *self._tries_of(request, asked, tried),
            *self._troubles(request, troubled, left_out),
            *self._positions(request, asked, read, in_force, troubled),
            *self._deliveries(request, asked, answered),
            *self._sights(request, asked, answered),
        ]
        self._read_us = request.answered_us if request.remote_us else request.local_us
        if asked.replica_id >= 0 and self._context.follower_reads:
            for (topic, partition), copied in self._copies.advance(request, read, answered):
                self._copied.append((asked.replica_id, ((self._context.name(topic), partition), copied)))
        recorded = recorded_fetch(request, asked, answered)
        recorded.complete = in_force.complete
        sent = {} if request.remote_us else _preferred_replicas(answered)
        event = {
            "time_us": request.local_us,
            "type": "fetch",
            "replica_id": asked.replica_id,
            "max_wait_ms": asked.max_wait_ms,
            "min_bytes": max(0, asked.min_bytes),
            "max_bytes": max(0, asked.max_bytes),
            "isolation": "read_committed" if asked.isolation == READ_COMMITTED else "read_uncommitted",
            "partitions": self._all_fetched(read, sent),
            "hard_max_bytes": request.version <= LAST_HARD_LIMIT_VERSION,
        }
        return logged_operation(request, event, recorded), facts

    def take_follower_copies(self) -> Iterator[tuple[int, KeyedCopy]]:
        """What the fetches read since the last call have shown of their follower's own log: (broker, fact)."""
        copied, self._copied = self._copied, []
        yield from copied

    def take_empty_attempts(self) -> list[tuple[Key, Fact]]:
        """All tries but the last of each partition."""
        earlier = ((key, run.take_all_but_last()) for key, run in self._runs.items())
        return [(key, tries) for key, tries in earlier if tries is not None]

    def finish(self) -> list[tuple[Key, Fact]]:
        last, self._runs = self._runs, {}
        return [(key, run.to_run()) for key, run in last.items()]

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {
            "partitions": list(map(list, self._session.partitions.values())),
            "complete": self._session.complete,
            "tries": [[*key, *msgspec.structs.astuple(run.last)] for key, run in self._runs.items()],
            "read_us": self._read_us,
            "copies": self._copies.snapshot(),
        }

    @classmethod
    def resumed(cls, context: Context, report: Report, state: dict[str, Any]) -> SessionConverter:
        """From a `snapshot`."""
        reader = cls(context, report)
        listed = (FetchRequestPartition(*fields) for fields in state["partitions"])
        reader._session = FetchSession(
            {(partition.topic, partition.partition): partition for partition in listed}, state["complete"]
        )
        reader._runs = {(topic, partition): OpenRun(*run) for topic, partition, *run in state["tries"]}
        reader._read_us = state["read_us"]
        reader._copies = FollowerTracker.resumed(state["copies"])
        return reader

    def _key(self, asked: FetchRequestPartition) -> Key:
        return self._names.get(asked.topic, asked.topic), asked.partition

    def _is_left_out(self, error: int, key: Key, request: Request) -> bool:
        if error in errors.EXCLUDED_FROM_FETCH:
            return True
        if error != errors.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        # Unknown to the broker's metadata when the fetch came: left out as well. Deleted while it waited: not.
        changes = self._context.changes.get((self._context.name(key[0]), key[1]), [])
        return any(change.deleted and change.at_us < request.start_us for change in changes)

    def _all_fetched(self, read: Iterable[FetchRequestPartition], sent: dict[Key, int]) -> list[msgspec.Raw]:
        if len(self._said) > MAX_CACHED_PARTITIONS:
            self._said.clear()
        said = self._said
        listed = []
        for partition in read:
            fetched = said.get(partition)
            if fetched is None:
                fetched = said[partition] = self._fetched(partition, None)
            if sent and (preferred := sent.get((partition.topic, partition.partition))) is not None:
                fetched = self._fetched(partition, preferred)
            listed.append(fetched)
        return listed

    def _fetched(self, asked: FetchRequestPartition, preferred: int | None) -> msgspec.Raw:
        event = {
            "topic": self._context.name(asked.topic),
            "partition": asked.partition,
            "fetch_offset": max(0, asked.offset),
            "max_bytes": max(0, asked.max_bytes),
            "current_leader_epoch": max(-1, asked.leader_epoch),
            "preferred_replica": preferred,
        }
        return msgspec.Raw(_to_json(event))

    def _tries_of(
        self, request: Request, asked: FetchRequestBody, read: list[FetchRequestPartition]
    ) -> Iterator[tuple[Key, Fact]]:
        # A transaction may hold back what is in the log: a committed reader's silence proves nothing.
        proves = asked.isolation != READ_COMMITTED
        # Whoever had to wait for the first byte had found none.
        in_vain = request.remote_us > 0 and asked.min_bytes <= 1 and proves
        runs, names, at, replica = self._runs, self._names, request.local_us, asked.replica_id
        for asked_partition in read:
            topic, partition, offset = asked_partition[:3]
            key = names.get(topic, topic), partition
            run = runs.get(key)
            if run is not None:
                if proves and run.offset == offset:
                    if run.replica == replica and len(run.times) < MAX_ATTEMPTS:
                        run.times.append(at)
                        run.empty = in_vain
                        continue
                    run.empty = True
                yield key, run.to_run()
            runs[key] = OpenRun(at, replica, offset, in_vain)

    def _troubles(self, request: Request, troubled: dict[Key, int], left_out: set[Key]) -> Iterator[tuple[Key, Fact]]:
        at = request.answered_us if request.remote_us else request.local_us
        for (topic, partition), error in troubled.items():
            if (topic, partition) not in left_out:
                yield (self._context.name(topic), partition), PartitionError(at, error)

    def _positions(
        self,
        request: Request,
        asked: FetchRequestBody,
        read: list[FetchRequestPartition],
        in_force: ResolvedFetch,
        troubled: dict[Key, int],
    ) -> Iterator[tuple[Key, Fact]]:
        """Where the reader is, for the partitions whose offset is new. What was refused at once proves nothing."""
        if not in_force.listed:
            return
        moved = [partition for partition in read if (partition.topic, partition.partition) in in_force.listed]
        for number, partition in enumerate(moved):
            if (partition.topic, partition.partition) in troubled and not request.remote_us:
                continue
            if asked.replica_id >= 0:
                at, wake = follower_read_times(request.start_us, request.local_us, number, len(moved))
                yield (
                    self._key(partition),
                    ReaderPosition(
                        at,
                        wake,
                        request.local_us,
                        min(self._read_us, request.arrival_us - MIN_TURNAROUND_US),
                        asked.replica_id,
                        partition.offset,
                        partition.log_start,
                        request.start_us,
                        partition.leader_epoch,
                    ),
                )
            else:
                at = request.arrival_us
                yield self._key(partition), ReaderPosition(at, at, at, at, -1, partition.offset)

    def _sights(
        self, request: Request, asked: FetchRequestBody, answered: FetchResponseBody
    ) -> Iterator[tuple[Key, Fact]]:
        """What waited was read when it was answered; what did not, in its handling, a consumer's at its end."""
        if request.remote_us:
            since, until = request.answered_us - READ_TO_RESPONSE_US, request.answered_us + COMPLETION_SPREAD_US
        else:
            until = request.local_us
            since = request.start_us if asked.replica_id >= 0 else until - READ_TO_RESPONSE_US
        for partition in answered.partitions:
            if partition.high_watermark >= 0 and not partition.error:
                yield (
                    (self._context.name(partition.topic), partition.partition),
                    HighWatermarkReading(since, until, partition.high_watermark),
                )

    def _deliveries(
        self, request: Request, asked: FetchRequestBody, answered: FetchResponseBody
    ) -> Iterator[tuple[Key, Fact]]:
        if asked.replica_id >= 0:
            for partition in answered.partitions:
                if partition.bytes:
                    yield (
                        (self._context.name(partition.topic), partition.partition),
                        FollowerDelivery(request.answered_us, partition.bytes),
                    )


def _preferred_replicas(answered: FetchResponseBody) -> dict[Key, int]:
    """Partitions of which a consumer is told that another replica is nearer; none of them waits."""
    return {
        (partition.topic, partition.partition): partition.preferred_replica
        for partition in answered.partitions
        if partition.preferred_replica >= 0
    }

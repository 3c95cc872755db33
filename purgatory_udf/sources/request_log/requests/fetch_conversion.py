"""A session's fetches taken apart: each is an operation, and each says where its reader is in every partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from purgatory_udf.sources.request_log.assumptions import (
    COPIED_AT,
    READ_BEFORE_US,
    RELEASES_TAKE_US,
    TURNAROUND_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster.cluster_context import Context
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    AskedPartition,
    FetchAnswer,
    FetchBody,
    fetch_answer_of,
    fetch_of,
)
from purgatory_udf.sources.request_log.requests.fetch_sessions import FetchInForce, Repeated, Session
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Copied,
    Delivered,
    Fact,
    Key,
    Position,
    Sight,
    Trouble,
)
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    LoggedOperation,
    operation,
    read_and_wake,
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


CopiedFact = tuple[Key, Copied]

_to_json = msgspec.json.Encoder().encode

READ_COMMITTED = 1
NEVER = 2**62

# Of how many partitions a session remembers what it said.
MOST_SAID = 10_000

# Of how many tries one fact tells at most.
MOST_TRIES = 10_000

# Such fetches get no batch that is larger than their maxima.
HARD_LIMITS_UP_TO = 2


class SessionReader:
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
        self._said: dict[AskedPartition, msgspec.Raw] = {}
        self._session = Session()
        self._runs: dict[Key, Repeated] = {}
        # When the answer before was read: what a follower has, it had from there.
        self._read_us = NEVER
        self._copies = Copies()
        self._copied: list[tuple[int, CopiedFact]] = []

    def read(self, request: Request) -> tuple[LoggedOperation | None, list[tuple[Key, Fact]]]:
        asked, answered = request.fetch or (fetch_of(request.body), fetch_answer_of(request.answer))
        in_force = self._session.fetch(asked, answered)
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
            (partition.topic, partition.partition): partition.parts_at
            for partition in answered.partitions
            if partition.parts_at >= 0
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
            for (topic, partition), copied in self._copies.fetch(request, read, answered):
                self._copied.append((asked.replica_id, ((self._context.name(topic), partition), copied)))
        recorded = recorded_fetch(request, asked, answered)
        recorded.complete = in_force.complete
        sent = {} if request.remote_us else _sent_elsewhere(answered)
        event = {
            "time_us": request.local_us,
            "type": "fetch",
            "replica_id": asked.replica_id,
            "max_wait_ms": asked.max_wait_ms,
            "min_bytes": max(0, asked.min_bytes),
            "max_bytes": max(0, asked.max_bytes),
            "isolation": "read_committed" if asked.isolation == READ_COMMITTED else "read_uncommitted",
            "partitions": self._all_fetched(read, sent),
            "hard_max_bytes": request.version <= HARD_LIMITS_UP_TO,
        }
        return operation(request, event, recorded), facts

    def copied(self) -> Iterator[tuple[int, CopiedFact]]:
        """What the fetches read since the last call have shown of their follower's own log: (broker, fact)."""
        copied, self._copied = self._copied, []
        yield from copied

    def tried(self) -> list[tuple[Key, Fact]]:
        """All tries but the last of each partition."""
        earlier = ((key, run.tries_but_the_last()) for key, run in self._runs.items())
        return [(key, tries) for key, tries in earlier if tries is not None]

    def finish(self) -> list[tuple[Key, Fact]]:
        last, self._runs = self._runs, {}
        return [(key, run.tries()) for key, run in last.items()]

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
    def resumed(cls, context: Context, report: Report, state: dict[str, Any]) -> SessionReader:
        """From a `snapshot`."""
        reader = cls(context, report)
        listed = (AskedPartition(*fields) for fields in state["partitions"])
        reader._session = Session(
            {(partition.topic, partition.partition): partition for partition in listed}, state["complete"]
        )
        reader._runs = {(topic, partition): Repeated(*run) for topic, partition, *run in state["tries"]}
        reader._read_us = state["read_us"]
        reader._copies = Copies.resumed(state["copies"])
        return reader

    def _key(self, asked: AskedPartition) -> Key:
        return self._names.get(asked.topic, asked.topic), asked.partition

    def _is_left_out(self, error: int, key: Key, request: Request) -> bool:
        if error in errors.LEFT_OUT_OF_A_FETCH:
            return True
        if error != errors.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        # Unknown to the broker's metadata when the fetch came: left out as well. Deleted while it waited: not.
        changes = self._context.changes.get((self._context.name(key[0]), key[1]), [])
        return any(change.deleted and change.at_us < request.start_us for change in changes)

    def _all_fetched(self, read: Iterable[AskedPartition], sent: dict[Key, int]) -> list[msgspec.Raw]:
        if len(self._said) > MOST_SAID:
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

    def _fetched(self, asked: AskedPartition, preferred: int | None) -> msgspec.Raw:
        event = {
            "topic": self._context.name(asked.topic),
            "partition": asked.partition,
            "fetch_offset": max(0, asked.offset),
            "max_bytes": max(0, asked.max_bytes),
            "current_leader_epoch": max(-1, asked.leader_epoch),
            "preferred_replica": preferred,
        }
        return msgspec.Raw(_to_json(event))

    def _tries_of(self, request: Request, asked: FetchBody, read: list[AskedPartition]) -> Iterator[tuple[Key, Fact]]:
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
                    if run.replica == replica and len(run.moments) < MOST_TRIES:
                        run.moments.append(at)
                        run.barren = in_vain
                        continue
                    run.barren = True
                yield key, run.tries()
            runs[key] = Repeated(at, replica, offset, in_vain)

    def _troubles(self, request: Request, troubled: dict[Key, int], left_out: set[Key]) -> Iterator[tuple[Key, Fact]]:
        at = request.answered_us if request.remote_us else request.local_us
        for (topic, partition), error in troubled.items():
            if (topic, partition) not in left_out:
                yield (self._context.name(topic), partition), Trouble(at, error)

    def _positions(
        self,
        request: Request,
        asked: FetchBody,
        read: list[AskedPartition],
        in_force: FetchInForce,
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
                at, wake = read_and_wake(request.start_us, request.local_us, number, len(moved))
                yield (
                    self._key(partition),
                    Position(
                        at,
                        wake,
                        request.local_us,
                        min(self._read_us, request.arrival_us - TURNAROUND_US),
                        asked.replica_id,
                        partition.offset,
                        partition.log_start,
                        request.start_us,
                        partition.leader_epoch,
                    ),
                )
            else:
                at = request.arrival_us
                yield self._key(partition), Position(at, at, at, at, -1, partition.offset)

    def _sights(self, request: Request, asked: FetchBody, answered: FetchAnswer) -> Iterator[tuple[Key, Fact]]:
        """What waited was read when it was answered; what did not, in its handling, a consumer's at its end."""
        if request.remote_us:
            since, until = request.answered_us - READ_BEFORE_US, request.answered_us + RELEASES_TAKE_US
        else:
            until = request.local_us
            since = request.start_us if asked.replica_id >= 0 else until - READ_BEFORE_US
        for partition in answered.partitions:
            if partition.high_watermark >= 0 and not partition.error:
                yield (
                    (self._context.name(partition.topic), partition.partition),
                    Sight(since, until, partition.high_watermark),
                )

    def _deliveries(self, request: Request, asked: FetchBody, answered: FetchAnswer) -> Iterator[tuple[Key, Fact]]:
        if asked.replica_id >= 0:
            for partition in answered.partitions:
                if partition.bytes:
                    yield (
                        (self._context.name(partition.topic), partition.partition),
                        Delivered(request.answered_us, partition.bytes),
                    )


def _sent_elsewhere(answered: FetchAnswer) -> dict[Key, int]:
    """Partitions of which a consumer is told that another replica is nearer; none of them waits."""
    return {
        (partition.topic, partition.partition): partition.preferred
        for partition in answered.partitions
        if partition.preferred >= 0
    }

"""What one request shows of one partition at one broker: the small pieces that a partition's timeline is made of.

Times are microseconds. S is the moment at which a request's handling began, L at which it ended.

Facts are packed as the list of their fields behind their kind's number (`tag`), and kept so between the steps of a log
that is followed: neither changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from purgatory_udf.sources.request_log.requests.fetch_sessions import (
    NO_ATTEMPTS,
    AttemptColumns,
    AttemptRun,
    FetchAttempt,
)

Key = tuple[str, int]


class Append(msgspec.Struct, array_like=True, tag=0, gc=False):
    """Records written to the log, [base, end): known where an answer names them, else -1 until they are found.

    `operation` (file, line) and `slot` say which partition of which produce this is. Without an operation it is a
    request that may have caused an append of some `records` (0: unknown), such as a commit or the end of a transaction.

    `writer` (file, line) and `client` are those of the request by which a coordinator wrote this; with `waits_ms` >= 0
    that was a produce of its own, which waits so long for replicas; with a `slot`, it is a partition of the writer's.

    `at_us` is when the records are in the log, `check_us` when the fetches that wait for them are looked at,
    `until_us` the latest that either can be, `event_us` the time of the produce's own event, which is an append as
    well, `answered_us` that of the answer, if it had to wait for the other replicas and they came in time.
    """

    start_us: int
    at_us: int
    check_us: int
    until_us: int
    event_us: int = -1
    answered_us: int = -1
    base: int = -1
    end: int = -1
    bytes: int = 0
    records: int = 0
    file: int = -1
    line: int = -1
    slot: int = -1
    transaction: str | None = None
    ends_transaction: str | None = None
    writer_file: int = -1
    writer_line: int = -1
    client: str | None = None
    wait_ms: int = -1

    @property
    def is_operation(self) -> bool:
        return self.line >= 0

    @property
    def is_within_handling(self) -> bool:
        """Whether it is certain that it was made between the S and L of its produce."""
        return self.is_operation and self.transaction is None


class ReaderPosition(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A reader asked for `offset`: a follower (`replica` >= 0) has all before it, a consumer was allowed to see it.

    `at_us` is when the broker took note of it, `wake_us` when those who waited for that were answered, `until_us`
    when the request's handling ended, `proven_us` the moment before which all below the offset must have been there,
    `epoch` the leader's, as the reader knows it.
    """

    at_us: int
    wake_us: int
    until_us: int
    proven_us: int
    replica: int
    offset: int
    log_start: int = -1
    start_us: int = -1
    epoch: int = -1


class HighWatermarkReading(msgspec.Struct, array_like=True, tag=2, gc=False):
    """An answer said what the high watermark was, at some moment from `since_us` to `until_us`."""

    since_us: int
    until_us: int
    offset: int


class FollowerDelivery(msgspec.Struct, array_like=True, tag=4, gc=False):
    """A follower's fetch was answered with `bytes` of records."""

    at_us: int
    bytes: int


class PartitionError(msgspec.Struct, array_like=True, tag=5, gc=False):
    """An answer said that the partition could not be served here."""

    at_us: int
    error: int


class RecordDeletion(msgspec.Struct, array_like=True, tag=6, gc=False):
    """DELETE_RECORDS asked to move the log start to `offset` (-1: to the high watermark)."""

    at_us: int
    offset: int


class FollowerCopy(msgspec.Struct, array_like=True, tag=7, gc=False):
    """This replica, a follower, had copied [base, end), of `bytes`, and knew its high watermark."""

    at_us: int
    base: int
    end: int
    bytes: int
    high_watermark: int


Fact = (
    Append
    | ReaderPosition
    | HighWatermarkReading
    | FetchAttempt
    | AttemptRun
    | FollowerDelivery
    | PartitionError
    | RecordDeletion
    | FollowerCopy
)


@dataclass(slots=True)
class PartitionFacts:
    """All facts of one partition at one broker, each kind in time order."""

    broker: int
    topic: str
    partition: int
    appends: list[Append] = field(default_factory=list)
    positions: list[ReaderPosition] = field(default_factory=list)
    follower_attempts: AttemptColumns = NO_ATTEMPTS
    consumer_attempts: AttemptColumns = NO_ATTEMPTS
    high_watermarks: list[HighWatermarkReading] = field(default_factory=list)
    deliveries: list[FollowerDelivery] = field(default_factory=list)
    errors: list[PartitionError] = field(default_factory=list)
    deletions: list[RecordDeletion] = field(default_factory=list)
    copies: list[FollowerCopy] = field(default_factory=list)

    @classmethod
    def of(cls, broker: int, key: Key, facts: Iterable[Fact]) -> PartitionFacts:
        made = cls(broker, *key)
        tries: list[FetchAttempt | AttemptRun] = []
        by_kind: dict[type[Fact], list[Any]] = {
            Append: made.appends,
            ReaderPosition: made.positions,
            HighWatermarkReading: made.high_watermarks,
            FollowerDelivery: made.deliveries,
            PartitionError: made.errors,
            RecordDeletion: made.deletions,
            FollowerCopy: made.copies,
            FetchAttempt: tries,
            AttemptRun: tries,
        }
        for fact in facts:
            by_kind[type(fact)].append(fact)
        made.follower_attempts = AttemptColumns.of(attempt for attempt in tries if attempt.replica >= 0)
        made.consumer_attempts = AttemptColumns.of(attempt for attempt in tries if attempt.replica < 0)
        made.appends.sort(key=lambda append: (append.start_us, append.file, append.line))
        made.positions.sort(key=lambda position: (position.at_us, position.replica, position.offset))
        made.high_watermarks.sort(key=lambda sight: (sight.until_us, sight.offset))
        for other in (made.deliveries, made.errors, made.deletions, made.copies):
            other.sort(key=lambda fact: fact.at_us)
        return made

    @property
    def has_only_copies(self) -> bool:
        """Whether nobody asked this broker for anything: what it has copied then tells nothing."""
        asked = (
            self.appends,
            self.positions,
            self.follower_attempts,
            self.consumer_attempts,
            self.errors,
            self.deletions,
        )
        return bool(self.copies) and not any(asked)

    @property
    def first_us(self) -> int:
        """The first moment of which anything is known."""
        firsts = [kind[0].at_us for kind in (self.positions, self.errors, self.deletions) if kind]
        firsts += [int(tries.at_us[0]) for tries in (self.follower_attempts, self.consumer_attempts) if tries]
        firsts += [append.start_us for append in self.appends[:1]]
        return min(firsts, default=1)

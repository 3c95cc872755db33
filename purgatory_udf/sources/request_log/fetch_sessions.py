"""Incremental fetch sessions (KIP-227), rebuilt from the log, and attempts of readers to fetch from an offset.

The line of an incremental fetch lists only partitions that are new or have a new offset; the session has the others.

    epoch -1           no session (librdkafka), or the last fetch of one: the list is complete
    epoch 0            a new session: the list is complete, the response has the session id (0: none was granted)
    epoch 1, 2, …      the list has new and changed partitions; forgotten ones are removed; all others are unchanged

A broker serves the partitions of a session in a fixed order; those for which it returned records move to the end.

A reader fetches from the same offset again until there are records, so a partition has far more fetch attempts than any
other fact. They are therefore stored as runs of equal offset, and evaluated as columns:

    fetches from   7  7  7  7  9  9 …      AttemptRun(offset=7, 4 times), AttemptRun(offset=9, …), …
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    Key,
)

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


class ResolvedFetch(msgspec.Struct, gc=False):
    """A fetch with all its partitions.

    `listed` are the partitions in its own line. `complete` is false while partitions may be missing, because the
    session started before the log.
    """

    partitions: list[FetchRequestPartition]
    listed: set[Key]
    complete: bool = True


@dataclass(slots=True)
class FetchSession:
    """The partitions of one fetch session, in the broker's order.

    `complete` is false until all partitions are certainly known, as after the start of a session.
    """

    partitions: dict[Key, FetchRequestPartition] = field(default_factory=dict)
    complete: bool = False

    def resolve(self, request: FetchRequestBody, response: FetchResponseBody) -> ResolvedFetch:
        """Apply the next fetch of the session, in order of handling, and return it with all its partitions.

        After an error in `response` the broker has read nothing.
        """
        listed = {(partition.topic, partition.partition) for partition in request.partitions}
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # As in the broker's map, a partition listed twice counts once.
            self.partitions = {(partition.topic, partition.partition): partition for partition in request.partitions}
            self.complete = True
            return ResolvedFetch(list(self.partitions.values()), listed)
        for partition in request.partitions:
            self.partitions[partition.topic, partition.partition] = partition
        for key in request.forgotten:
            self.partitions.pop(key, None)
        resolved = list(self.partitions.values())
        if response.error:
            # The broker evicted the session or did not know it: nothing was read.
            self.partitions, complete = {}, self.complete
            self.complete = False
            return ResolvedFetch([], listed, complete)
        for data in response.partitions:
            if data.bytes and (moved := self.partitions.pop((data.topic, data.partition), None)):
                self.partitions[data.topic, data.partition] = moved
        return ResolvedFetch(resolved, listed, self.complete)


Integers = npt.NDArray[np.int64]


class FetchAttempt(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The first check of a fetch from `offset`, at `at_us`.

    `empty` is whether there were no records, which is so if the reader fetched from that offset again.
    """

    at_us: int
    replica: int
    offset: int
    empty: bool = False


class AttemptRun(msgspec.Struct, array_like=True, tag=8, gc=False):
    """Consecutive attempts of one reader from the same offset.

    All attempts but the last were empty. `empty` is whether the last one was empty, too. `times` are 64-bit integers,
    in microseconds.
    """

    replica: int
    offset: int
    empty: bool
    times: bytes

    def since(self, since_us: int) -> Iterator[FetchAttempt | AttemptRun]:
        """Yield the attempts from a time on, and the latest one before it."""
        # Most runs are so short that numpy would be slower.
        at = array("q", self.times)
        if min(at) >= since_us:
            yield self
            return
        last = len(at) - 1
        _, latest = max((time, number) for number, time in enumerate(at) if time < since_us)
        yield FetchAttempt(at[latest], self.replica, self.offset, self.empty or latest < last)
        if later := array("q", (time for time in at if time >= since_us)):
            yield AttemptRun(self.replica, self.offset, self.empty or at[last] < since_us, later.tobytes())


class OpenRun:
    """A run of attempts of one reader from the same offset, to which more may be added (see `AttemptRun`)."""

    __slots__ = ("empty", "offset", "replica", "times")

    def __init__(self, at_us: int, replica: int, offset: int, empty: bool) -> None:
        self.times = array("q", (at_us,))
        self.replica, self.offset, self.empty = replica, offset, empty

    def to_run(self) -> AttemptRun:
        """Return all attempts of the run as a fact."""
        return AttemptRun(self.replica, self.offset, self.empty, self.times.tobytes())

    def take_all_but_last(self) -> AttemptRun | None:
        """Remove and return all attempts but the last, which are known to be empty; None if there is only one."""
        before, self.times = self.times[:-1], self.times[-1:]
        return AttemptRun(self.replica, self.offset, True, before.tobytes()) if before else None

    @property
    def last(self) -> FetchAttempt:
        """The latest attempt."""
        return FetchAttempt(self.times[-1], self.replica, self.offset, self.empty)


@dataclass(frozen=True, slots=True)
class AttemptColumns:
    """Attempts as columns, ordered by time, replica and offset."""

    at_us: Integers
    replica: Integers
    offset: Integers
    empty: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, attempts: Iterable[FetchAttempt | AttemptRun]) -> AttemptColumns:
        """Build the columns from attempts and runs in any order."""
        runs = [attempt if isinstance(attempt, AttemptRun) else _run_of_one(attempt) for attempt in attempts]
        if not runs:
            return NO_ATTEMPTS
        at = np.frombuffer(b"".join([run.times for run in runs]), np.int64)
        lengths = np.array([len(run.times) // at.itemsize for run in runs], np.int64)
        replica, offset = (
            np.repeat(np.array(values, np.int64), lengths)
            for values in ([run.replica for run in runs], [run.offset for run in runs])
        )
        empty = np.ones(len(at), bool)
        empty[np.cumsum(lengths) - 1] = [run.empty for run in runs]
        order = np.lexsort((offset, replica, at))
        return cls(at[order], replica[order], offset[order], empty[order])

    def __len__(self) -> int:
        return len(self.at_us)

    def empty_attempts(self) -> tuple[Integers, Integers]:
        """Return times (in microseconds) and offsets of the attempts that were empty, as two arrays in time order."""
        return self.at_us[self.empty], self.offset[self.empty]

    def last_us(self, replica: int, until_us: int) -> int:
        """Return the time of a replica's latest attempt until `until_us`, or 0."""
        times = self.at_us[(self.replica == replica) & (self.at_us <= until_us)]
        return int(times[-1]) if len(times) else 0


_NO_NUMBERS = np.zeros(0, np.int64)
NO_ATTEMPTS = AttemptColumns(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.zeros(0, bool))


def _run_of_one(attempt: FetchAttempt) -> AttemptRun:
    return AttemptRun(attempt.replica, attempt.offset, attempt.empty, array("q", (attempt.at_us,)).tobytes())

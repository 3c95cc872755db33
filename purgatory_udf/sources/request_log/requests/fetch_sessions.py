"""Incremental fetch sessions, rebuilt: which partitions a fetch is about when its line lists only what changed.

    epoch -1           no session (librdkafka), or the last fetch of one: the list is complete
    epoch 0            a new session: the list is complete, the answer carries the session's id (0: none was granted)
    epoch 1, 2, …      the list holds what is new or moved; forgotten topics leave; all else stays as it was

A broker serves a session's partitions in a fixed order, from which those that were answered with records move to the
end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from purgatory_udf.sources.request_log.lines.request_bodies import (
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    Key,
)

INITIAL_EPOCH, FINAL_EPOCH = 0, -1


def session_key(asked: FetchRequestBody, answered: FetchResponseBody, connection: str) -> str:
    """What the fetches of one session have in common, its first included; those without one go by their connection."""
    if asked.session_epoch == INITIAL_EPOCH and answered.session_id:
        return str(answered.session_id)
    if asked.session_epoch > INITIAL_EPOCH:
        return str(asked.session_id)
    return connection


class ResolvedFetch(msgspec.Struct, gc=False):
    """One fetch with all its partitions; `listed` are those that its line named itself. `complete` is false while
    partitions of a session that began before the log may be missing."""

    partitions: list[FetchRequestPartition]
    listed: set[Key]
    complete: bool = True


@dataclass(slots=True)
class FetchSession:
    """Feed it the fetches of one session key in the order in which they were handled."""

    partitions: dict[Key, FetchRequestPartition] = field(default_factory=dict)
    complete: bool = False

    def resolve(self, asked: FetchRequestBody, answered: FetchResponseBody) -> ResolvedFetch:
        listed = {(partition.topic, partition.partition) for partition in asked.partitions}
        if asked.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A partition listed twice counts once, as in the broker's map.
            self.partitions = {(partition.topic, partition.partition): partition for partition in asked.partitions}
            self.complete = True
            return ResolvedFetch(list(self.partitions.values()), listed)
        for partition in asked.partitions:
            self.partitions[partition.topic, partition.partition] = partition
        for key in asked.forgotten:
            self.partitions.pop(key, None)
        in_force = list(self.partitions.values())
        if answered.error:
            # The broker has dropped the session, or never had it: nothing was read.
            self.partitions, complete = {}, self.complete
            self.complete = False
            return ResolvedFetch([], listed, complete)
        for read in answered.partitions:
            if read.bytes and (moved := self.partitions.pop((read.topic, read.partition), None)):
                self.partitions[read.topic, read.partition] = moved
        return ResolvedFetch(in_force, listed, self.complete)


# Fetches as they were first tried, of which a partition has by far more than of all else.
#
# A reader asks for one offset again and again, until there is something. So its tries are told in runs, and a
# partition's are looked at in columns.
#
#     fetches from   7  7  7  7  9  9 …      Tries(offset=7, moments of four), Tries(offset=9, …), …


Integers = npt.NDArray[np.int64]


class FetchAttempt(msgspec.Struct, array_like=True, tag=3, gc=False):
    """A fetch from `offset` was first tried. `barren`: its reader asked for that offset again, so it got nothing."""

    at_us: int
    replica: int
    offset: int
    empty: bool = False


class AttemptRun(msgspec.Struct, array_like=True, tag=8, gc=False):
    """Some, of one reader, one after the other. All but the last were barren; whether that was, `barren` says."""

    replica: int
    offset: int
    empty: bool
    # Of 64 bits each.
    times: bytes

    def since(self, moment_us: int) -> Iterator[FetchAttempt | AttemptRun]:
        """Those from then on, and the last of those before."""
        # Most are so few that columns would cost more than they gain.
        at = array("q", self.times)
        if min(at) >= moment_us:
            yield self
            return
        last = len(at) - 1
        _, latest = max((moment, number) for number, moment in enumerate(at) if moment < moment_us)
        yield FetchAttempt(at[latest], self.replica, self.offset, self.empty or latest < last)
        if later := array("q", (moment for moment in at if moment >= moment_us)):
            yield AttemptRun(self.replica, self.offset, self.empty or at[last] < moment_us, later.tobytes())


class OpenRun:
    """Tries that may go on."""

    __slots__ = ("empty", "offset", "replica", "times")

    def __init__(self, at_us: int, replica: int, offset: int, barren: bool) -> None:
        self.times = array("q", (at_us,))
        self.replica, self.offset, self.empty = replica, offset, barren

    def to_run(self) -> AttemptRun:
        return AttemptRun(self.replica, self.offset, self.empty, self.times.tobytes())

    def take_all_but_last(self) -> AttemptRun | None:
        """Of these it is known that they were barren; what is told is forgotten."""
        before, self.times = self.times[:-1], self.times[-1:]
        return AttemptRun(self.replica, self.offset, True, before.tobytes()) if before else None

    @property
    def last(self) -> FetchAttempt:
        return FetchAttempt(self.times[-1], self.replica, self.offset, self.empty)


@dataclass(frozen=True, slots=True)
class AttemptColumns:
    """Tries in columns, in the order of time; simultaneous ones by replica and offset."""

    at_us: Integers
    replica: Integers
    offset: Integers
    empty: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tries: Iterable[FetchAttempt | AttemptRun]) -> AttemptColumns:
        runs = [attempt if isinstance(attempt, AttemptRun) else _run_of_one(attempt) for attempt in tries]
        if not runs:
            return NO_ATTEMPTS
        at = np.frombuffer(b"".join([run.times for run in runs]), np.int64)
        lengths = np.array([len(run.times) // at.itemsize for run in runs], np.int64)
        replica, offset = (
            np.repeat(np.array(values, np.int64), lengths)
            for values in ([run.replica for run in runs], [run.offset for run in runs])
        )
        barren = np.ones(len(at), bool)
        barren[np.cumsum(lengths) - 1] = [run.empty for run in runs]
        order = np.lexsort((offset, replica, at))
        return cls(at[order], replica[order], offset[order], barren[order])

    def __len__(self) -> int:
        return len(self.at_us)

    def empty_attempts(self) -> tuple[Integers, Integers]:
        """When, and from which offset, of those that were barren."""
        return self.at_us[self.empty], self.offset[self.empty]

    def last_us(self, replica: int, until_us: int) -> int:
        """Of a replica, until that moment; 0 if there is none."""
        moments = self.at_us[(self.replica == replica) & (self.at_us <= until_us)]
        return int(moments[-1]) if len(moments) else 0


_NO_NUMBERS = np.zeros(0, np.int64)
NO_ATTEMPTS = AttemptColumns(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.zeros(0, bool))


def _run_of_one(attempt: FetchAttempt) -> AttemptRun:
    return AttemptRun(attempt.replica, attempt.offset, attempt.empty, array("q", (attempt.at_us,)).tobytes())

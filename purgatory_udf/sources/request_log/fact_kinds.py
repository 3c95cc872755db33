"""Kinds of facts about a partition at a broker; each fact comes from one request, or a part of it.

Times are microseconds since the epoch. S is the time at which the handling of a request started, L at which it ended
(see `logged_request`).

Facts are serialized as their number (`tag`) and the list of their fields. This format is stored between the steps of a
followed log, so numbers and fields must not change.

A reader fetches from the same offset again until there are records, so a partition has far more fetch attempts than any
other fact. They are therefore stored as runs of equal offset:

    fetches from   7  7  7  7  9  9 …      AttemptRun(offset=7, 4 times), AttemptRun(offset=9, …), …

Many facts of a frequent kind are stored together, as columns (`FactBlock`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Key = tuple[str, int]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Column = npt.NDArray[Any]


class Append(msgspec.Struct, array_like=True, tag=0, gc=False):
    """Records appended to the log, or a request that may have caused an append.

    Attributes:
        start_us: S of the request.
        at_us: When the records are in the log.
        check_us: When the fetches that wait for the records are checked.
        until_us: Latest possible value of the two times above.
        event_us: Time of the produce's own event, which is an append in the replay as well; -1: no produce.
        answered_us: When the produce was answered after it had waited for replicas; -1: it did not wait, or timed out.
        base: First offset; -1 while unknown.
        end: Offset after the last one; -1 while unknown.
        bytes: Size of the records.
        records: Number of records that the request may have appended; 0: unknown.
        file: File of the produce; -1: the append belongs to no produce line, but for instance to a commit or the end of
            a transaction.
        line: Line of the produce.
        slot: Index of the partition in the produce.
        transaction: Transactional id of the records.
        ends_transaction: Transactional id of the transaction that a marker completes.
        aborts: Whether this marker aborts the transaction.
        writer_file: File of the request for which a coordinator appended.
        writer_line: Line of that request.
        client: Client of that request.
        wait_ms: How long the coordinator's append waits for replicas, as a separate produce; -1: it does not wait. If
            `slot` is set as well, it belongs to the produce of `writer_file` and `writer_line`.
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
    aborts: bool = False
    writer_file: int = -1
    writer_line: int = -1
    client: str | None = None
    wait_ms: int = -1

    @property
    def is_operation(self) -> bool:
        """Whether a produce in the request log made the append, and not, for example, a coordinator."""
        return self.line >= 0

    @property
    def is_within_handling(self) -> bool:
        """Whether the append certainly happened while its produce was handled, between S and L (see the module)."""
        return self.is_operation and self.transaction is None


class ReaderPosition(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A reader fetched from `offset`: a follower has all records below it, a consumer was allowed to read them.

    Attributes:
        at_us: When the broker recorded the offset.
        wake_us: When the operations that waited for the offset were completed.
        until_us: L of the fetch.
        proven_us: Time before which all records below the offset must have been appended.
        replica: Broker id of the follower; -1: a consumer.
        offset: Fetch offset.
        log_start: Log start offset of the follower; -1: unknown.
        start_us: S of the fetch; -1: unknown.
        epoch: Leader epoch in the fetch; -1: none.
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
    """A response had the high watermark `offset`, which was current at some time from `since_us` to `until_us`."""

    since_us: int
    until_us: int
    offset: int


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


class OpenRun:
    """A run of attempts of one reader from the same offset, to which more may be added (see `AttemptRun`)."""

    __slots__ = ("empty", "offset", "replica", "times")

    def __init__(self, at_us: int, replica: int, offset: int, empty: bool) -> None:
        self.times = array("q", (at_us,))
        self.replica, self.offset, self.empty = replica, offset, empty

    @classmethod
    def of(cls, run: AttemptRun) -> OpenRun:
        """Return an open run with the attempts of a run."""
        open_run = cls(0, run.replica, run.offset, run.empty)
        open_run.times = array("q", run.times)
        return open_run

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


class FollowerDelivery(msgspec.Struct, array_like=True, tag=4, gc=False):
    """A follower's fetch was answered with `bytes` bytes of records."""

    at_us: int
    bytes: int


class PartitionError(msgspec.Struct, array_like=True, tag=5, gc=False):
    """A response had an error for the partition."""

    at_us: int
    error: int


class RecordDeletion(msgspec.Struct, array_like=True, tag=6, gc=False):
    """DELETE_RECORDS requested to move the log start to `offset` (-1: to the high watermark)."""

    at_us: int
    offset: int


class FollowerCopy(msgspec.Struct, array_like=True, tag=7, gc=False):
    """The broker, as a follower, had appended the offsets [base, end), of `bytes` bytes.

    `high_watermark` is the follower's own high watermark at that time, up to which it serves consumers.
    """

    at_us: int
    base: int
    end: int
    bytes: int
    high_watermark: int


class CoordinatorAnswer(msgspec.Struct, array_like=True, tag=9, gc=False):
    """The broker answered a request to a group of this partition of the offsets topic.

    `error` shows its state at `at_us`: NONE (it coordinated the group), COORDINATOR_LOAD_IN_PROGRESS (not yet) or
    NOT_COORDINATOR.
    """

    at_us: int
    error: int


class ConsumerRead(msgspec.Struct, array_like=True, tag=10, gc=False):
    """A consumer's fetch of a tiered partition that waited, or that returned records at once.

    Attributes:
        at_us: L of the fetch.
        start_us: S of the fetch.
        until_us: When it was answered.
        waited_us: How long it waited; 0: answered at once.
        offset: Fetch offset.
        min_bytes: Minimum of the whole fetch.
        max_bytes: Maximum of the partition.
        bytes: Size of the records in the response.
        error: Error code in the response.
        high_watermark: High watermark in the response; -1: not in it.
        last_stable: Last stable offset in the response; -1: not in it.
        committed: Whether the consumer reads only up to the last stable offset.
        file: File of the fetch.
        line: Line of the fetch.
        slot: Index of the partition in the fetch.
    """

    at_us: int
    start_us: int
    until_us: int
    waited_us: int
    offset: int
    min_bytes: int
    max_bytes: int
    bytes: int
    error: int
    high_watermark: int
    last_stable: int
    committed: bool
    file: int
    line: int
    slot: int


class RemoteLookup(msgspec.Struct, array_like=True, tag=11, gc=False):
    """A lookup in remote storage for a list-offsets request ended at `at_us`, with an error code or 0.

    `file` and `line` are those of the request, `offset` is the offset found.
    """

    at_us: int
    error: int
    offset: int
    file: int
    line: int


class LocalStart(msgspec.Struct, array_like=True, tag=12, gc=False):
    """A response showed that the local log starts at `offset` or, unless `exact`, at a later one."""

    at_us: int
    offset: int
    exact: bool


class FactBlock(msgspec.Struct, array_like=True, tag=13, gc=False):
    """Facts of a kind with only integers and booleans: its tag, and its columns of 64-bit integers.

    A block of appends has only their integers; their other fields have the default values. A block with the tag of
    `AttemptRun` has their number, their columns `replica`, `offset`, `empty` and number of attempts, and the times of
    the attempts.
    """

    kind: int
    columns: bytes

    @classmethod
    def of(cls, kind: type[SingleFact], rows: Integers) -> FactBlock:
        """Build a block; `rows` has a row for each field of a fact, of an append for each integer."""
        tag: Any = kind.__struct_config__.tag
        return cls(tag, rows.tobytes())

    @classmethod
    def of_runs(cls, runs: Integers, times: Integers) -> FactBlock:
        """Build a block of runs; `runs` has the rows `replica`, `offset`, `empty` and number of attempts."""
        number = np.array([runs.shape[1]], np.int64)
        return cls(_RUN_TAG, b"".join([number.tobytes(), runs.astype(np.int64).tobytes(), times.tobytes()]))

    @property
    def has_attempts(self) -> bool:
        """Whether the facts are attempts, or runs of them."""
        return self.kind in _ATTEMPT_TAGS

    def is_of(self, kind: type[SingleFact]) -> bool:
        """Return whether the facts are of this kind."""
        return self.kind == kind.__struct_config__.tag

    def rows(self) -> tuple[type[SingleFact], Integers]:
        """Return the kind, and an array with a row for each field; runs are returned as single attempts."""
        if self.kind == _RUN_TAG:
            return FetchAttempt, rows_of_runs(*self.runs())
        kind = _KINDS_BY_TAG[self.kind]
        number = sum(fields_of(kind).values()) if kind is Append else len(fields_of(kind))
        return kind, np.frombuffer(self.columns, np.int64).reshape(number, -1)

    def __len__(self) -> int:
        return self.rows()[1].shape[1]

    def set_offsets(self, which: Booleans, base: Integers, end: Integers) -> None:
        """Set the offsets of some appends of a block of appends; the arguments have a value for each of them."""
        if which.any():
            rows, names = self.rows()[1].copy(), list(fields_of(Append))
            for name, values in (("base", base), ("end", end)):
                rows[names.index(name), which] = values[which]
            self.columns = rows.tobytes()

    def appends(self) -> list[Append]:
        """Return the appends of a block of appends."""
        columns = columns_of_appends(self.rows()[1])
        return list(map(Append, *(column.tolist() for column in columns.values())))

    def runs(self) -> tuple[Integers, Integers]:
        """Return the runs and times of a block of attempts, as `of_runs` takes them; each single attempt is a run."""
        values = np.frombuffer(self.columns, np.int64)
        if self.kind == _RUN_TAG:
            end = 1 + 4 * int(values[0])
            return values[1:end].reshape(4, -1), values[end:]
        rows = values.reshape(4, -1)
        return np.concatenate([rows[1:], np.ones((1, rows.shape[1]), np.int64)]), rows[0]


SingleFact = (
    Append
    | ReaderPosition
    | HighWatermarkReading
    | FetchAttempt
    | AttemptRun
    | FollowerDelivery
    | PartitionError
    | RecordDeletion
    | FollowerCopy
    | CoordinatorAnswer
    | ConsumerRead
    | RemoteLookup
    | LocalStart
)
Fact = SingleFact | FactBlock
# Frequent kinds; their facts may be in blocks.
BLOCK_KINDS = (ReaderPosition, HighWatermarkReading, FetchAttempt, FollowerDelivery)
_KINDS_BY_TAG: dict[Any, type[SingleFact]] = {kind.__struct_config__.tag: kind for kind in (Append, *BLOCK_KINDS)}
_RUN_TAG: Any = AttemptRun.__struct_config__.tag
_ATTEMPT_TAGS = (_RUN_TAG, FetchAttempt.__struct_config__.tag)
# Facts by broker and partition.
FactsOfPartitions = dict[tuple[int, Key], list[Fact]]


@cache
def fields_of(kind: type[Fact]) -> dict[str, bool]:
    """Return whether each field of a kind of facts is an integer. Slow at first: it evaluates the annotations."""
    return {each.name: each.type is int for each in msgspec.structs.fields(kind)}


@cache
def _defaults_of_appends() -> dict[str, Column]:
    """Return a column of one row with the default value for each field of an append that is no integer."""
    none = Append(0, 0, 0, 0)
    others = (name for name, is_integer in fields_of(Append).items() if not is_integer)
    return {name: object_column([getattr(none, name)]) for name in others}


def columns_of_appends(rows: Integers) -> dict[str, Column]:
    """Return the columns of appends in a block; see `FactBlock`."""
    defaults, number = _defaults_of_appends(), rows.shape[1]
    integers = iter(rows)
    return {
        name: next(integers) if is_integer else np.broadcast_to(defaults[name], (number,))
        for name, is_integer in fields_of(Append).items()
    }


def object_column(values: Sequence[Any]) -> Column:
    """Return a column of objects."""
    # Values may be lists, of which `np.array` would make more dimensions.
    return np.fromiter(values, object, len(values))


def rows_of_runs(runs: Integers, times: Integers) -> Integers:
    """Return the attempts of runs; see `FactBlock.of_runs` for the arguments."""
    length = runs[3]
    rows = np.empty((4, len(times)), np.int64)
    rows[0] = times
    rows[1:3] = runs[:2].repeat(length, axis=1)
    rows[3] = 1
    rows[3, length.cumsum() - 1] = runs[2]
    return rows

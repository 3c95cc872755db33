"""Facts about one partition at one broker, each from one request. The timelines of partitions are built from them.

Times are microseconds since the epoch. S is the time at which the handling of a request started, L at which it ended
(see `logged_request`).

Facts are serialized as their number (`tag`) and the list of their fields. This format is stored between the steps of a
followed log, so numbers and fields must not change.

A reader fetches from the same offset again until there are records, so a partition has far more fetch attempts than any
other fact. They are therefore stored as runs of equal offset, and evaluated as columns:

    fetches from   7  7  7  7  9  9 …      AttemptRun(offset=7, 4 times), AttemptRun(offset=9, …), …

A busy partition has millions of appends, positions and readings, so these are held as columns, too (`FactColumns`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Key = tuple[str, int]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

# The facts of several partitions are processed like those of one: times and offsets of each partition are moved into a
# separate interval of this length, because no rule compares those of different intervals. With at most this number of
# intervals, all values are below 2**62.
INTERVAL = 1 << 52
MAX_INTERVALS = (1 << 10) - 1


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
    all attempts.
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
            return FetchAttempt, _rows_of_runs(*self.runs())
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
# Frequent kinds, whose facts may be in blocks.
BLOCK_KINDS = (ReaderPosition, HighWatermarkReading, FetchAttempt, FollowerDelivery)
_KINDS_BY_TAG: dict[Any, type[SingleFact]] = {kind.__struct_config__.tag: kind for kind in (Append, *BLOCK_KINDS)}
_RUN_TAG: Any = AttemptRun.__struct_config__.tag
_ATTEMPT_TAGS = (_RUN_TAG, FetchAttempt.__struct_config__.tag)
# Facts by broker and partition.
FactsOfPartitions = dict[tuple[int, Key], list[Fact]]


@dataclass(frozen=True, slots=True)
class AttemptColumns:
    """Attempts as columns, ordered by time, replica and offset."""

    at_us: Integers
    replica: Integers
    offset: Integers
    empty: Booleans

    @classmethod
    def of(cls, attempts: Iterable[FetchAttempt | AttemptRun | FactBlock]) -> AttemptColumns:
        """Build the columns from attempts, runs and blocks of attempts in any order."""
        return _sorted_attempts(*attempt_rows_of_each([attempts]))

    def __len__(self) -> int:
        return len(self.at_us)

    def where(self, wanted: Booleans | Integers | slice) -> AttemptColumns:
        """Return the attempts with True in a mask, or with these numbers."""
        return AttemptColumns(self.at_us[wanted], self.replica[wanted], self.offset[wanted], self.empty[wanted])

    def empty_attempts(self) -> tuple[Integers, Integers]:
        """Return times (in microseconds) and offsets of the attempts that were empty, as two arrays in time order."""
        return self.at_us[self.empty], self.offset[self.empty]

    def last_us(self, replica: int, until_us: int) -> int:
        """Return the time of a replica's latest attempt until `until_us`, or 0."""
        times = self.at_us[(self.replica == replica) & (self.at_us <= until_us)]
        return int(times[-1]) if len(times) else 0


_NO_NUMBERS = np.zeros(0, np.int64)
NO_ATTEMPTS = AttemptColumns(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.zeros(0, bool))


def attempt_rows(attempts: Iterable[FetchAttempt | AttemptRun | FactBlock]) -> Integers:
    """Return a row for each field of `FetchAttempt`, with all attempts in their order."""
    return attempt_rows_of_each([attempts])[0]


def attempt_rows_of_each(
    groups: Iterable[Iterable[FetchAttempt | AttemptRun | FactBlock]],
) -> tuple[Integers, list[int]]:
    """Return `attempt_rows` of several groups together, and the bounds of those of each group."""
    runs: list[Integers] = []
    times: list[bytes] = []
    single: list[tuple[int, int, bool, int]] = []
    count, bounds = 0, [0]
    for attempts in groups:
        for attempt in attempts:
            if isinstance(attempt, FactBlock):
                if single:
                    runs.append(np.array(single, np.int64).T)
                    single = []
                of_block, times_of_block = attempt.runs()
                runs.append(of_block)
                count += len(times_of_block)
                times.append(times_of_block.tobytes())
                continue
            of_run = attempt.times if isinstance(attempt, AttemptRun) else array("q", (attempt.at_us,)).tobytes()
            length = len(of_run) // 8
            single.append((attempt.replica, attempt.offset, attempt.empty, length))
            times.append(of_run)
            count += length
        bounds.append(count)
    runs.append(np.array(single, np.int64).reshape(-1, 4).T)
    return _rows_of_runs(np.concatenate(runs, axis=1), np.frombuffer(b"".join(times), np.int64)), bounds


def _rows_of_runs(runs: Integers, times: Integers) -> Integers:
    """Return the attempts of runs; see `FactBlock.of_runs` for the arguments."""
    length = runs[3]
    rows = np.empty((4, len(times)), np.int64)
    rows[0] = times
    rows[1:3] = runs[:2].repeat(length, axis=1)
    rows[3] = 1
    rows[3, length.cumsum() - 1] = runs[2]
    return rows


def _sorted_attempts(rows: Integers, bounds: Sequence[int]) -> AttemptColumns:
    """Return the columns of attempts, those of each group in order; see `attempt_rows_of_each` for the arguments."""
    at, replica, offset, empty = rows
    order = order_by(*_numbers_of_groups(bounds), at, replica, offset)
    return AttemptColumns(at[order], replica[order], offset[order], empty[order].astype(bool))


def order_by(*keys: Integers) -> npt.NDArray[np.intp]:
    """Return the order that sorts rows by keys, the first one first; rows with equal keys keep their order."""
    if not len(keys[0]):
        return np.arange(0)
    # One number of all keys is sorted much faster, if it has no more than 63 bits.
    joined, count = np.zeros(1, np.int64), 1
    for key in keys:
        least = int(key.min())
        width = int(key.max()) - least + 1
        count *= width
        if count >= 2**63:
            return np.lexsort(keys[::-1])
        joined = joined * width + (key.astype(np.int64, copy=False) - least)
    return joined.argsort(kind="stable")


def _numbers_of_groups(bounds: Sequence[int]) -> list[Integers]:
    """Return the number of the group of each row, as a list of one array; empty if there is only one group."""
    return [np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))] if len(bounds) > 2 else []


F = TypeVar("F", bound=msgspec.Struct)
Column = npt.NDArray[Any]
# Number of facts that are made into columns, or read from them, at once; number of such chunks that are joined.
_CHUNK, _CHUNKS = 4096, 64
# Number of facts in blocks, which need less memory, that are made into columns at once.
_CHUNK_OF_BLOCKS = 1 << 15
_INTEGER_TYPES = [(each, np.iinfo(each).min, np.iinfo(each).max) for each in (np.int8, np.int16, np.int32, np.int64)]


class FactColumns(Generic[F]):
    """Facts of one kind as columns; many are stored in the narrowest type. The facts that it yields are copies."""

    __slots__ = ("_columns", "_kind", "_length")

    def __init__(self, kind: type[F], columns: dict[str, Column], length: int) -> None:
        self._kind, self._columns, self._length = kind, columns, length

    @classmethod
    def of(cls, kind: type[F], facts: Iterable[F]) -> FactColumns[F]:
        """Return the columns of facts, in the same order."""
        collector = FactCollector(kind)
        for fact in facts:
            collector.append(fact)
        return collector.columns()

    @classmethod
    def none(cls, kind: type[F]) -> FactColumns[F]:
        """Return columns without facts."""
        return cls(kind, dict(_no_columns(kind)), 0)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[F]:
        for start in range(0, self._length, _CHUNK):
            yield from self.rows(slice(start, start + _CHUNK))

    def in_order(self, rows: Integers) -> Iterator[F]:
        """Yield the facts of rows, given their numbers."""
        for start in range(0, len(rows), _CHUNK):
            yield from self.rows(rows[start : start + _CHUNK])

    def __getitem__(self, row: int) -> F:
        return self.rows(slice(row, row + 1))[0]

    def rows(self, which: slice | Integers) -> list[F]:
        """Return the facts of some rows."""
        return list(map(self._kind, *(column[which].tolist() for column in self._columns.values())))

    def is_none(self, name: str) -> Booleans:
        """Return whether each value of a field is None."""
        none: Any = None
        return np.equal(self._columns[name], none).astype(bool)

    def has_any(self, name: str, rows: Integers) -> bool:
        """Return whether any value of a field is true in some rows."""
        column = self._columns[name]
        return any(column[rows[:1] if _has_one_value(column) else rows])

    def integers(self, name: str) -> Integers:
        """Return the values of a field, widened so that calculations do not overflow."""
        return self._columns[name].astype(np.int64, copy=False)

    def values(self, name: str) -> Column:
        """Return the values of a field as they are stored."""
        return self._columns[name]

    def replace(self, name: str, values: Integers) -> None:
        """Replace the values of a field."""
        self._columns[name] = _narrowed(values) if len(values) >= _CHUNK else values

    def sort(self, *names: str, bounds: Sequence[int] = ()) -> npt.NDArray[np.intp] | None:
        """Sort by fields, the first one first; return the former number of each row, or None if all are the same.

        Equal facts keep their order. With the `bounds` of groups of consecutive rows, each group is sorted for itself.
        """
        if self._length < 2:
            return None
        groups, first = _numbers_of_groups(bounds), self._columns[names[0]]
        is_in_order = first[1:] > first[:-1]
        for numbers in groups:
            is_in_order |= numbers[1:] > numbers[:-1]
        if is_in_order.all():
            return None
        order = order_by(*groups, *(self._columns[name] for name in names))
        if (order[1:] > order[:-1]).all():
            return None
        for name, column in self._columns.items():
            if not _has_one_value(column):
                self._columns[name] = column[order]
        return order

    def split(self, bounds: Sequence[int]) -> list[FactColumns[F]]:
        """Return the facts between each two bounds. They share memory."""
        if len(bounds) == 2:
            return [self]
        kind, columns = self._kind, self._columns.items()
        return [
            FactColumns(kind, {name: column[begin:end] for name, column in columns}, end - begin)
            if begin < end
            else FactColumns.none(kind)
            for begin, end in pairwise(bounds)
        ]

    def extend(self, more: FactColumns[F]) -> None:
        """Add facts at the end."""
        for name, column in self._columns.items():
            self._columns[name] = _joined([column, more._columns[name]])
        self._length += len(more)


class FactCollector(Generic[F]):
    """Collects facts of one kind as columns."""

    def __init__(self, kind: type[F]) -> None:
        self._kind = kind
        self._fields = fields_of(kind)
        self._held: list[F] = []
        self._held_blocks: list[Integers] = []
        self._in_blocks = 0
        # The number of held facts before each held block.
        self._held_before: list[int] = []
        # Small chunks are joined soon, because the C library keeps their memory for a long time.
        self._chunks: dict[str, list[Column]] = defaultdict(list)
        self._large_chunks: dict[str, list[Column]] = defaultdict(list)
        self._length = 0
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return self._length + len(self._held) + self._in_blocks

    def append(self, fact: F) -> None:
        """Add a fact."""
        self._held.append(fact)
        if len(self._held) == _CHUNK:
            self._make_columns()

    def append_block(self, rows: Integers) -> None:
        """Add facts of integers; `rows` is as in a `FactBlock`."""
        self._held_blocks.append(rows)
        self._held_before.append(len(self._held))
        self._in_blocks += rows.shape[1]
        if self._in_blocks >= _CHUNK_OF_BLOCKS:
            self._make_columns()

    def columns(self) -> FactColumns[F]:
        """Return all facts, and remove them from the collector."""
        self._make_columns()
        if not self._length:
            # Most partitions lack facts of most kinds.
            return FactColumns.none(self._kind)
        columns = {}
        for name in self._fields:
            chunks = self._chunks[name]
            # Narrower types only save memory, of which few facts need little.
            if self._length >= _CHUNK_OF_BLOCKS and chunks:
                chunks = [self._narrowed(name, _joined(chunks))]
            columns[name] = _joined([*self._large_chunks[name], *chunks])
        return FactColumns(self._kind, columns, self._length)

    def _make_columns(self) -> None:
        """Make the held facts and blocks into a chunk of columns."""
        self._length = len(self)
        parts = [*([self._columns_of_held()] if self._held else []), *self._columns_of_blocks()]
        order = None
        if len(parts) == 2:
            lengths = [block.shape[1] for block in self._held_blocks]
            before = np.repeat(self._held_before, lengths)
            order = np.insert(np.arange(len(self._held)), before, len(self._held) + np.arange(self._in_blocks))
        for name in self._fields if parts else ():
            column = _joined([part[name] for part in parts])
            self._add_chunk(name, column if order is None or _has_one_value(column) else column[order])
        self._held.clear()
        self._held_blocks.clear()
        self._held_before.clear()
        self._in_blocks = 0

    def _columns_of_held(self) -> dict[str, Column]:
        rows = zip(*map(msgspec.structs.astuple, self._held), strict=True)
        return {
            name: np.array(values, np.int64) if is_integer else self._objects(values)
            for (name, is_integer), values in zip(self._fields.items(), rows, strict=True)
        }

    def _columns_of_blocks(self) -> list[dict[str, Column]]:
        if not self._held_blocks:
            return []
        rows = np.concatenate(self._held_blocks, axis=1)
        return [columns_of_appends(rows) if self._kind is Append else dict(zip(self._fields, rows, strict=True))]

    def _add_chunk(self, name: str, column: Column) -> None:
        chunks = self._chunks[name]
        chunks.append(column if len(column) < _CHUNK else self._narrowed(name, column))
        if len(chunks) == _CHUNKS:
            self._large_chunks[name].append(self._narrowed(name, _joined(chunks)))
            chunks.clear()

    def _narrowed(self, name: str, column: Column) -> Column:
        return _narrowed(column) if self._fields[name] else column

    def _objects(self, values: tuple[Any, ...]) -> Column:
        if len(set(map(id, values))) == 1:
            single = np.empty(1, object)
            single[0] = values[0]
            return np.broadcast_to(single, (len(values),))
        # Equal names share one object.
        texts = self._texts
        return _of_objects([texts.setdefault(value, value) if type(value) is str else value for value in values])


@cache
def fields_of(kind: type[Fact]) -> dict[str, bool]:
    """Return whether each field of a kind of facts is an integer. Slow at first: it evaluates the annotations."""
    return {each.name: each.type is int for each in msgspec.structs.fields(kind)}


@cache
def _defaults_of_appends() -> dict[str, Column]:
    """Return a column of one row with the default value for each field of an append that is no integer."""
    none = Append(0, 0, 0, 0)
    others = (name for name, is_integer in fields_of(Append).items() if not is_integer)
    return {name: _of_objects([getattr(none, name)]) for name in others}


def columns_of_appends(rows: Integers) -> dict[str, Column]:
    """Return the columns of appends in a block; see `FactBlock`."""
    defaults, number = _defaults_of_appends(), rows.shape[1]
    integers = iter(rows)
    return {
        name: next(integers) if is_integer else np.broadcast_to(defaults[name], (number,))
        for name, is_integer in fields_of(Append).items()
    }


@cache
def _no_columns(kind: type[Fact]) -> dict[str, Column]:
    return {name: np.empty(0, np.int64 if is_integer else object) for name, is_integer in fields_of(kind).items()}


def _of_objects(values: Sequence[Any]) -> Column:
    # Values may be lists, of which `np.array` would make more dimensions.
    return np.fromiter(values, object, len(values))


def _narrowed(values: Integers) -> Column:
    """Return the same numbers in the narrowest type; equal numbers are stored once."""
    if not len(values):
        return values
    least, most = int(values.min()), int(values.max())
    narrowest = next(each for each, lowest, highest in _INTEGER_TYPES if lowest <= least and most <= highest)
    if least == most:
        return np.broadcast_to(values[:1].astype(narrowest), values.shape)
    return values.astype(narrowest)


def _joined(chunks: Sequence[Column]) -> Column:
    if len(chunks) == 1:
        return chunks[0]
    filled = [chunk for chunk in chunks if len(chunk)]
    if not filled:
        return chunks[0]
    first = filled[0]
    if all(_has_one_value(chunk) and chunk[0] == first[0] and type(chunk[0]) is type(first[0]) for chunk in filled):
        return np.broadcast_to(first[:1].copy(), (sum(map(len, filled)),))
    return np.concatenate(filled)


def _has_one_value(column: Column) -> bool:
    """Return whether a column stores one value for all rows."""
    return column.strides == (0,)


@dataclass(slots=True)
class PartitionFacts:
    """All facts of one partition at one broker, those of each kind in time order.

    `given` has the number of each append among those given, or is None if these were in order.
    """

    broker: int
    topic: str
    partition: int
    appends: FactColumns[Append] = field(default_factory=lambda: FactColumns.none(Append))
    positions: FactColumns[ReaderPosition] = field(default_factory=lambda: FactColumns.none(ReaderPosition))
    follower_attempts: AttemptColumns = NO_ATTEMPTS
    consumer_attempts: AttemptColumns = NO_ATTEMPTS
    high_watermarks: FactColumns[HighWatermarkReading] = field(
        default_factory=lambda: FactColumns.none(HighWatermarkReading)
    )
    deliveries: FactColumns[FollowerDelivery] = field(default_factory=lambda: FactColumns.none(FollowerDelivery))
    errors: list[PartitionError] = field(default_factory=list)
    deletions: list[RecordDeletion] = field(default_factory=list)
    copies: FactColumns[FollowerCopy] = field(default_factory=lambda: FactColumns.none(FollowerCopy))
    coordinator_answers: list[CoordinatorAnswer] = field(default_factory=list)
    reads: list[ConsumerRead] = field(default_factory=list)
    lookups: list[RemoteLookup] = field(default_factory=list)
    local_starts: list[LocalStart] = field(default_factory=list)
    given: npt.NDArray[np.intp] | None = None

    @classmethod
    def of(cls, broker: int, key: Key, facts: Iterable[Fact]) -> PartitionFacts:
        """Collect facts about one partition at one broker, given in any order, by kind and in time order."""
        return cls.of_each([(broker, key, facts)])[0]

    @classmethod
    def of_each(cls, partitions: Iterable[tuple[int, Key, Iterable[Fact]]]) -> list[PartitionFacts]:
        """Collect the facts of several partitions, as `of` does."""
        results: list[PartitionFacts] = []
        columns = [FactCollector(kind) for kind in _SORTED_BY]
        bounds: list[list[int]] = [[0] for _ in columns]
        attempts: list[list[FetchAttempt | AttemptRun | FactBlock]] = []
        for broker, key, facts in partitions:
            result = cls(broker, *key)
            results.append(result)
            attempts.append([])
            by_kind: dict[type[Fact], Any] = {
                **dict(zip(_SORTED_BY, columns, strict=True)),
                PartitionError: result.errors,
                RecordDeletion: result.deletions,
                CoordinatorAnswer: result.coordinator_answers,
                ConsumerRead: result.reads,
                RemoteLookup: result.lookups,
                LocalStart: result.local_starts,
                FetchAttempt: attempts[-1],
                AttemptRun: attempts[-1],
            }
            for fact in facts:
                if isinstance(fact, FactBlock):
                    if fact.has_attempts:
                        attempts[-1].append(fact)
                    else:
                        kind, rows = fact.rows()
                        by_kind[kind].append_block(rows)
                else:
                    by_kind[type(fact)].append(fact)
            for of_kind, collector in zip(bounds, columns, strict=True):
                of_kind.append(len(collector))
            result._sort_lists()
        for (name, fields), collector, of_kind in zip(_SORTED_BY.values(), columns, bounds, strict=True):
            facts_of_kind: FactColumns[Any] = collector.columns()
            order = facts_of_kind.sort(*fields, bounds=of_kind)
            for result, part in zip(results, facts_of_kind.split(of_kind), strict=True):
                setattr(result, name, part)
            if name == "appends" and order is not None:
                for result, (begin, end) in zip(results, pairwise(of_kind), strict=True):
                    result.given = order[begin:end] - begin
        _set_attempts(results, attempts)
        return results

    def _sort_lists(self) -> None:
        for of_kind in (self.errors, self.deletions, self.coordinator_answers, self.lookups, self.local_starts):
            of_kind.sort(key=lambda fact: fact.at_us)
        self.reads.sort(key=lambda read: (read.at_us, read.file, read.line))

    @property
    def has_only_copies(self) -> bool:
        """Whether the broker only copied the partition and served no request, so that it has no events there."""
        served = (
            self.appends,
            self.positions,
            self.follower_attempts,
            self.consumer_attempts,
            self.errors,
            self.deletions,
            self.coordinator_answers,
            self.lookups,
        )
        return bool(self.copies) and not any(served)

    @property
    def first_us(self) -> int:
        """Time of the earliest fact, in microseconds since the epoch."""
        times = [kind[0].at_us for kind in (self.errors, self.deletions, self.lookups) if kind]
        times += [int(self.positions.integers("at_us")[0])] if self.positions else []
        times += [int(attempts.at_us[0]) for attempts in (self.follower_attempts, self.consumer_attempts) if attempts]
        times += [int(self.appends.integers("start_us")[0])] if self.appends else []
        times = times or [answer.at_us for answer in self.coordinator_answers[:1]]
        if not times:
            # Of a session from before the log, a response may name partitions that no request does.
            times = [kind[0].at_us for kind in (self.deliveries, self.local_starts) if kind]
            times += [self.high_watermarks[0].since_us] if self.high_watermarks else []
        return min(times, default=1)


# Kinds of facts that are held as columns: the attribute of `PartitionFacts`, and the fields by which they are sorted.
_SORTED_BY: dict[type[SingleFact], tuple[str, tuple[str, ...]]] = {
    Append: ("appends", ("start_us", "file", "line")),
    ReaderPosition: ("positions", ("at_us", "replica", "offset")),
    HighWatermarkReading: ("high_watermarks", ("until_us", "offset")),
    FollowerDelivery: ("deliveries", ("at_us",)),
    FollowerCopy: ("copies", ("at_us",)),
}


def _set_attempts(
    partitions: Sequence[PartitionFacts], attempts: Sequence[list[FetchAttempt | AttemptRun | FactBlock]]
) -> None:
    """Set the attempts of partitions, in time order. Empties the lists of attempts."""
    rows, bounds = attempt_rows_of_each(attempts)
    for each in attempts:
        each.clear()
    all_attempts = _sorted_attempts(rows, bounds)
    is_follower = all_attempts.replica >= 0
    for name, wanted in (("follower_attempts", is_follower), ("consumer_attempts", ~is_follower)):
        numbers = np.flatnonzero(wanted)
        found, ends = all_attempts.where(numbers), np.searchsorted(numbers, bounds).tolist()
        for facts, (begin, end) in zip(partitions, pairwise(ends), strict=True):
            setattr(facts, name, found.where(slice(begin, end)))

"""Tables of a call's decisions: `completions`, `expirations`, `cancellations`, `watches` and `purgatory_gauges`.

Compiled code first flattens ended operations and their parts to plain columns; tables are cut from these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.contract.tables import (
    CANCELLATIONS,
    COMPLETIONS,
    EXPIRATIONS,
    OUTCOME_PARTITION,
    PURGATORY_GAUGES,
    TIMESTAMP,
    WATCHES,
)
from purgatory_udf.rules.engine.column_access import COPIED_BYTES, gather_strings
from purgatory_udf.rules.engine.jit import Int64Enum
from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import (
    copy_16,
    floor_div,
    inlined,
    int64,
    load_int32,
    prefetch,
    uint64,
)
from purgatory_udf.rules.engine.jit.records import Records, attribute_view, sorted_unique, take_records
from purgatory_udf.rules.engine.loop.arena import FORCING, PART, SETTLED, ZERO, AnswerSource
from purgatory_udf.rules.engine.loop.codes import (
    FOREVER,
    KINDS,
    NO_PARTITION,
    PURGATORIES,
    UNKNOWN,
    Code,
    Error,
    Reader,
    Rule,
)
from purgatory_udf.rules.engine.loop.engine_call import KeyNames
from purgatory_udf.rules.engine.loop.engine_state import Decisions
from purgatory_udf.rules.engine.parallel_pieces import run_in_thread

Result = TypeVar("Result")


class Int64Field(Int64Enum):
    """Rows of the array with the 64-bit columns of operations."""

    SEQ, STARTED, ENDED, DEADLINE, WAIT, BYTES, ANSWERED, TEXT = range(8)


class Int32Field(Int64Enum):
    """Rows of the array with the 32-bit columns of operations."""

    CODE, BROKER, KEY, RULE, TRIGGER, FETCHER = range(6)


class PartField(Int64Enum):
    """Rows of the array with the 32-bit columns of parts."""

    KEY, ERROR, ERROR_TEXT = range(3)


class WatchInt64Field(Int64Enum):
    """Rows of the array with the 64-bit columns of watches."""

    SEQ, STARTED, DEADLINE, ENDED, INCREMENTS = range(5)


class WatchInt32Field(Int64Enum):
    """Rows of the array with the 32-bit columns of watches."""

    CODE, BROKER, KEYS, STATUS = range(4)


class WatchStatus(Int64Enum):
    """How a watch ended."""

    SATISFIED, ERROR, FORCED, EXPIRED, CANCELLED = range(5)


class FetcherType(Int64Enum):
    """Who sent a fetch; `NONE` for other operations."""

    CONSUMER, FOLLOWER, NONE = range(3)


# Parts are read once, from memory that the processor does not prefetch fast enough.
_PART_BYTES, _PARTS_AHEAD = int64(PART.itemsize), int64(24)
_US_PER_MS = int64(1000)
# With fewer ended operations, a second thread takes as long to start as it saves.
_MIN_IN_TWO_THREADS = 1 << 15


@entry_point
def count_parts(operations: Records, ended: Records) -> int:
    """Return the number of parts of the operations in the rows `ended`."""
    count = ZERO
    for row in ended:
        count += operations[row].count
    return count


@entry_point
def flatten(
    operations: Records,
    parts: Records,
    ended: Records,
    begin: int,
    end: int,
    at: int,
    no_key: int,
    longs: Records,
    ints: Records,
    watched: Records,
    offsets: Records,
    part_bytes: Records,
    part_ints: Records,
    is_fetch: Records,
    parts_address: int,
) -> int:
    """Write the columns of ended operations and of their parts.

    Args:
        operations: Operations, ended or open.
        parts: Their parts; those of one operation are consecutive.
        ended: Rows of `operations`.
        begin: The first of the ended operations to write.
        end: The end of these.
        at: The number of parts of the earlier ones.
        no_key: The number that stands for "no key".
        longs: Filled: a row for each `Int64Field`, a column for each ended operation.
        ints: Filled: a row for each `Int32Field`, a column for each ended operation.
        watched: Filled: whether each ended operation was watched.
        offsets: Filled: the first part of each ended operation in the columns of parts, then the number of parts.
        part_bytes: Filled: the bytes of each part.
        part_ints: Filled: a row for each `PartField`, a column for each part.
        is_fetch: Filled: whether each ended operation is a fetch.
        parts_address: The address of `parts`.

    Returns:
        The greatest error code of a part.
    """
    greatest_error, at = 0, uint64(at)
    offsets[begin] = at
    for o in range(uint64(begin), uint64(end)):
        operation = operations[ended[o]]
        first, fetch = operation.first, operation.code == Code.FETCH or operation.code == Code.REMOTE_FETCH
        total = 0
        for nth in range(operation.count):
            part = parts[first + nth]
            prefetch(parts_address + (first + nth + _PARTS_AHEAD) * _PART_BYTES)
            # The attribute `size` of a numpy record is its number of elements.
            size = part["size"]
            total += size
            part_bytes[at], part_ints[PartField.KEY, at] = size, part.key
            part_ints[PartField.ERROR, at], part_ints[PartField.ERROR_TEXT, at] = part.error, part.text
            greatest_error = max(greatest_error, part.error)
            at += uint64(1)
        longs[Int64Field.SEQ, o], longs[Int64Field.TEXT, o] = operation.seq, operation.text
        longs[Int64Field.STARTED, o], longs[Int64Field.ENDED, o] = operation.t, operation.end_t
        longs[Int64Field.DEADLINE, o] = operation.deadline * 1000
        longs[Int64Field.WAIT, o] = floor_div(operation.end_t, _US_PER_MS) - floor_div(operation.t, _US_PER_MS)
        longs[Int64Field.BYTES, o], longs[Int64Field.ANSWERED, o] = total, operation.answered_bytes
        ints[Int32Field.CODE, o], ints[Int32Field.BROKER, o] = operation.code, operation.broker
        ints[Int32Field.RULE, o] = operation.rule
        ints[Int32Field.KEY, o] = parts[_first_key(operation, parts)].key if operation.count > 0 else no_key
        ints[Int32Field.TRIGGER, o] = parts[first + operation.trigger].key if operation.trigger != UNKNOWN else no_key
        is_fetch[o] = fetch
        fetcher = FetcherType.FOLLOWER if operation.mode == Reader.FOLLOWER else FetcherType.CONSUMER
        ints[Int32Field.FETCHER, o] = fetcher if fetch else FetcherType.NONE
        watched[o] = operation.watched > 0
        offsets[o + 1] = at
    return greatest_error


@inlined
def _first_key(operation: Any, parts: Records) -> int:
    """Return the row of the operation's first part that watches its key; a remote fetch watches only remote parts."""
    at = operation.first
    if operation.code == Code.REMOTE_FETCH:
        while parts[at].read_state < AnswerSource.PENDING:
            at += 1
    return at


@entry_point
def flatten_watches(
    operations: Records,
    parts: Records,
    ended: Records,
    begin: int,
    end: int,
    at: int,
    longs: Records,
    ints: Records,
    is_key: Records,
) -> None:
    """Write the columns of the ended operations' watches.

    Args:
        operations: Operations, ended or open.
        parts: Their parts; those of one operation are consecutive.
        ended: Rows of `operations`.
        begin: The first of the ended operations to write.
        end: The end of these.
        at: The number of parts of the earlier ones.
        longs: Filled: a row for each `WatchInt64Field`, a column for each watch.
        ints: Filled: a row for each `WatchInt32Field`, a column for each watch.
        is_key: Filled: whether the operation is watched on the part.
    """
    at = uint64(at)
    for o in range(uint64(begin), uint64(end)):
        operation = operations[ended[o]]
        fetch = operation.code == Code.FETCH
        # The first update completes a fetch of one partition, and a fetch that did not wait gets none.
        counts = fetch and operation.total > 1 and operation.watched > 0
        status = _status(operation, fetch)
        remote, keys = operation.code == Code.REMOTE_FETCH, operation.total
        if remote:
            keys = 0
            for nth in range(operation.count):
                keys += parts[operation.first + nth].read_state >= AnswerSource.PENDING
        for nth in range(operation.count):
            part = parts[operation.first + nth]
            is_key[at] = not remote or part.read_state >= AnswerSource.PENDING
            longs[WatchInt64Field.SEQ, at], longs[WatchInt64Field.STARTED, at] = operation.seq, operation.t
            longs[WatchInt64Field.DEADLINE, at] = operation.deadline * 1000
            longs[WatchInt64Field.ENDED, at] = operation.end_t if fetch else part.end_t
            longs[WatchInt64Field.INCREMENTS, at] = part.updates if counts else 0
            ints[WatchInt32Field.CODE, at], ints[WatchInt32Field.BROKER, at] = operation.code, operation.broker
            ints[WatchInt32Field.KEYS, at] = keys
            if operation.rule == Rule.TIMEOUT and (fetch or part.queue != SETTLED):
                ints[WatchInt32Field.STATUS, at] = WatchStatus.EXPIRED
            elif part.error == Error.UNANSWERED:
                ints[WatchInt32Field.STATUS, at] = WatchStatus.CANCELLED
            elif part.queue == FORCING or (remote and part.read_state == AnswerSource.PENDING):
                ints[WatchInt32Field.STATUS, at] = WatchStatus.FORCED
            elif status == WatchStatus.SATISFIED and part.error != 0:
                ints[WatchInt32Field.STATUS, at] = WatchStatus.ERROR
            else:
                ints[WatchInt32Field.STATUS, at] = status
            at += uint64(1)


@inlined
def _status(operation: Any, fetch: bool) -> int:
    """Return the default status of an operation's watches.

    It is `SATISFIED`, except for a fetch of one partition that completed without its bytes: `FORCED`.
    """
    if fetch and operation.count == 1 and operation.rule != Rule.MIN_BYTES:
        return WatchStatus.FORCED
    return WatchStatus.SATISFIED


@entry_point
def write_strings(
    numbers: Records, starts: int, text: int, known: Records, offsets: Records, valid: Records, target: int
) -> int:
    """Write a column of strings, given by their numbers; return its size in bytes.

    Args:
        numbers: The number of each row's string.
        starts: The address of the 32-bit offsets of the strings, and of the end of the last.
        text: The address of the strings. Up to 16 bytes after each are copied too.
        known: Whether a string is not null.
        offsets: Filled with Arrow's offsets.
        valid: Filled: whether a row is not null. Empty if no string is null.
        target: The address to write the strings to.
    """
    size = ZERO
    offsets[0] = 0
    for row in range(len(numbers)):
        number, to = int64(numbers[row]), target + size
        begin, end = load_int32(starts, number), load_int32(starts, number + 1)
        copy_16(to, text + begin)
        # Most are shorter.
        for copied in range(COPIED_BYTES, end - begin, COPIED_BYTES):
            copy_16(to + copied, text + begin + copied)
        size += end - begin
        offsets[row + 1] = size
    for row in range(len(valid)):
        valid[row] = known[numbers[row]]
    return size


@entry_point
def take_numbers(values: Records, numbers: Records, taken: Records) -> None:
    """Fill `taken` with the values that have these numbers. Arrow and numpy need several times as long."""
    for row in range(len(numbers)):
        taken[row] = values[numbers[row]]


@entry_point
def write_readable_names(
    starts: int, topics: int, partitions: Records, offsets: Records, target: Records, to: int
) -> int:
    """Write the readable name of each key, `topic-partition`, or the topic alone if the key has no partition.

    Args:
        starts: The address of the topics' first bytes in `topics`, as 32-bit integers, and of the end.
        topics: The address of all topics, followed by `COPIED_BYTES` bytes of any value.
        partitions: The partition of each key.
        offsets: Filled: Arrow's offsets.
        target: Filled: the names.
        to: The address of `target`.

    Returns:
        The total size in bytes.
    """
    size = offsets[0] = 0
    for key in range(len(partitions)):
        begin, end = load_int32(starts, key), load_int32(starts, key + 1)
        for copied in range(0, end - begin, COPIED_BYTES):
            copy_16(to + size + copied, topics + begin + copied)
        size += end - begin
        number = int64(partitions[key])
        if number != NO_PARTITION:
            target[size] = _MINUS
            size += 1
            if number < 0:
                target[size], number = _MINUS, -number
                size += 1
            limit = 10
            while number >= limit:
                limit *= 10
                size += 1
            size += 1
            at = size
            while limit > 1:
                at -= 1
                target[at], number = _DIGIT_0 + number % 10, number // 10
                limit //= 10
        offsets[key + 1] = size
    return size


_MINUS, _DIGIT_0 = map(int64, b"-0")
# `-`, and the characters of a 32-bit number.
_PARTITION_BYTES = 12


class _Strings:
    """Strings by number, and columns of them. Arrow's own `take` needs several times as long.

    Args:
        starts: The first byte of each string in `text`, and the end of the last.
        text: The bytes of the strings, followed by at least `COPIED_BYTES` bytes of any value.
        known: Whether each string is not null; empty if no string is null.
    """

    def __init__(self, starts: Records, text: Any, known: Records) -> None:
        self._starts, self._text, self._known, self._has_null = starts, text, known, len(known) > 0
        self._lengths = starts[1:] - starts[:-1]
        self._longest = int(self._lengths.max(initial=0))
        self._addresses = pa.py_buffer(starts).address, pa.py_buffer(text).address

    @classmethod
    def from_array(cls, strings: pa.StringArray) -> _Strings:
        """Return the strings of an array, by row."""
        _, offsets, text = strings.buffers()
        starts = (
            np.frombuffer(offsets, np.int32, len(strings) + 1, 4 * strings.offset)
            if len(strings)
            else np.zeros(1, np.int32)
        )
        known = np.array(strings.is_valid() if strings.null_count else [], bool)
        return cls(starts, b"".join([text or b"", bytes(COPIED_BYTES)]), known)

    def readable_names(self, partitions: Records) -> _Strings:
        """Return the readable names of keys with these strings as topics, and a null as the last string."""
        # The text of the topics has `COPIED_BYTES` further bytes.
        count, longest = len(partitions), len(self._text) + _PARTITION_BYTES * len(partitions)
        if longest > INT32_MAX:
            raise OverflowError(f"the names of {count} keys have more bytes than an Arrow array can have")
        offsets, target, known = np.empty(count + 2, np.int32), np.empty(longest, np.uint8), np.ones(count + 1, bool)
        offsets[-1] = write_readable_names(*self._addresses, partitions, offsets, target, pa.py_buffer(target).address)
        known[-1] = False
        return _Strings(offsets, target, known)

    def column(self, numbers: Records) -> pa.Array:
        """Return the strings with these numbers."""
        size = len(numbers) * self._longest
        if size > _MAX_UNMEASURED:
            size = int(self._lengths[numbers].sum(dtype=np.int64))
        if size > INT32_MAX:
            raise OverflowError(f"{len(numbers)} strings have {size} bytes, more than an Arrow array can have")
        offsets, target = np.empty(len(numbers) + 1, np.int32), np.empty(size + COPIED_BYTES, np.uint8)
        valid, text = np.empty(len(numbers) if self._has_null else 0, bool), pa.py_buffer(target)
        size = write_strings(numbers, *self._addresses, self._known, offsets, valid, text.address)
        buffers = [_bitmap(valid) if self._has_null else None, pa.py_buffer(offsets), text.slice(0, size)]
        return pa.Array.from_buffers(pa.string(), len(numbers), buffers)


# Space for a column of strings is measured if it may need more than this number of bytes.
_MAX_UNMEASURED = 1 << 26


def _bitmap(is_set: Records) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_set, bitorder="little"))


def _bool_array(values: Records) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bitmap(values)])


def _repeat(text: str, count: int) -> pa.Array:
    """Return a column that repeats one string."""
    value = text.encode()
    offsets = (
        np.arange(0, count * len(value) + 1, len(value), dtype=np.int32) if value else np.zeros(count + 1, np.int32)
    )
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(value * count))


def _by_number(names: dict[int, str], absent: str | None = "") -> _Strings:
    """Return the name of each number, from 0 to the greatest."""
    return _Strings.from_array(pa.array([names.get(number, absent) for number in range(max(names) + 1)], pa.string()))


_RULES = _by_number({int(rule): rule.name.lower() for rule in Rule})
# A partition without a response has no error.
_ERRORS = _by_number({int(error): error.name for error in Error if error is not Error.UNANSWERED}, None)
_KINDS = _by_number({int(code): kind for code, kind in KINDS.items()})
_STATUS = _by_number({int(status): status.name.lower() for status in WatchStatus})
_FETCHERS = _Strings.from_array(
    pa.array([None if one is FetcherType.NONE else one.name.lower() for one in FetcherType], pa.string())
)


def _int_array(column: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(column))


def _timestamps(us: Records) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(us), [None, pa.py_buffer(us)])


# The columns of all tables of outcomes, and of each table its columns among these, and the table without rows: creating
# one takes as long as filling thousands of rows.
_SCHEMAS = (COMPLETIONS, EXPIRATIONS, CANCELLATIONS)
_ALL_COLUMNS = pa.schema({field.name: field for schema in _SCHEMAS for field in schema}.values())
_ALL_NAMES = _ALL_COLUMNS.names
_OUTCOMES = [([*map(_ALL_COLUMNS.get_field_index, schema.names)], schema.empty_table()) for schema in _SCHEMAS]


def _ids(ids: pa.Array, rows: Records) -> pa.Array:
    """Return the request or client ids in these rows. Empty strings, which stand for missing ids, become null."""
    if ids.null_count == len(ids):
        return pa.nulls(len(rows), pa.string())
    column = gather_strings(ids, rows)
    if column is None:
        column = ids.take(pa.array(rows))
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    return column


class _KeyColumns:
    """Topics, partitions and readable names of keys; the last readable name is null and means "no key"."""

    def __init__(self, keys: KeyNames) -> None:
        columns = keys.columns
        self.topic, self._partitions = _Strings.from_array(columns.topics), columns.partitions
        self.readable = self.topic.readable_names(columns.partitions)

    def partition(self, keys: Records) -> pa.Array:
        """Return the partitions of these keys."""
        partitions = np.empty(len(keys), np.int32)
        take_numbers(self._partitions, keys, partitions)
        return pa.array(partitions)


class OutcomeColumns:
    """The columns of a call's ended operations.

    Args:
        decided: The decisions of the call.
        run_id: The run's id, for the tables.
        trace_end_us: The trace's last event, if known; later expirations are marked as `after_end`.
    """

    def __init__(self, decided: Decisions, run_id: str, trace_end_us: int | None = None) -> None:
        self._decided, self._run_id = decided, run_id
        self._ended = decided.ended
        operations = len(self._ended)
        parts = decided.ended_parts
        self._completed = len(decided.completed)
        self._cancelled = self._completed + len(decided.expired)
        self._longs = np.empty((len(Int64Field), operations), np.int64)
        self._ints = np.empty((len(Int32Field), operations), np.int32)
        self._watched, self._offsets = np.empty(operations, bool), np.empty(operations + 1, np.int32)
        self._part_bytes, self._part_ints = np.empty(parts, np.int64), np.empty((len(PartField), parts), np.int32)
        self._is_fetch = np.empty(operations, bool)
        self._greatest_error = max(self._by_halves(self._flatten))
        self._fetches = _bitmap(self._is_fetch)
        if self._offsets[-1] < parts:
            self._part_bytes = self._part_bytes[: self._offsets[-1]]
            self._part_ints = self._part_ints[:, : self._offsets[-1]]
        self._names = _KeyColumns(self._used_names())
        self._end_us = FOREVER if trace_end_us is None else trace_end_us // 1000 * 1000

    @property
    def _in_two_threads(self) -> bool:
        return len(self._ended) >= _MIN_IN_TWO_THREADS and pa.cpu_count() > 1

    def _by_halves(self, work: Callable[[int, int], Result]) -> list[Result]:
        """Call `work` with begin and end of ranges of the ended operations: one range for each thread."""
        count = len(self._ended)
        if not self._in_two_threads:
            return [work(0, count)]
        second_half = run_in_thread(partial(work, count // 2, count))
        return [work(0, count // 2), second_half()]

    def _flatten(self, begin: int, end: int) -> int:
        decided, operations = self._decided, attribute_view(self._decided.all_operations)
        return flatten(
            operations,
            attribute_view(decided.all_parts),
            self._ended,
            begin,
            end,
            count_parts(operations, self._ended[:begin]),
            len(decided.names),
            self._longs,
            self._ints,
            self._watched,
            self._offsets,
            self._part_bytes,
            self._part_ints,
            self._is_fetch,
            pa.py_buffer(decided.all_parts).address,
        )

    def _used_names(self) -> KeyNames:
        """Return the names of the keys that occur. If these are few of the state's keys, renumber them.

        A state can have thousands of keys, and a small batch only a few of them.
        """
        names, keys = self._decided.names, self._part_ints[PartField.KEY]
        if 2 * len(keys) > len(names):
            return names
        used = sorted_unique(keys, len(names))
        numbers = np.empty(len(names) + 1, np.int32)
        numbers[used], numbers[len(names)] = np.arange(len(used)), len(used)
        for row in (keys, self._ints[Int32Field.KEY], self._ints[Int32Field.TRIGGER]):
            row[:] = numbers[row]
        return names.take(used)

    @property
    def latest_us(self) -> int:
        """The time at which the last operation ended, in microseconds."""
        return int(self._longs[Int64Field.ENDED].max())

    def outcomes(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Return the tables of completions, expirations and cancellations."""
        columns = self._columns()
        # Slicing a batch takes less time than slicing a table.
        batch = pa.RecordBatch.from_arrays([columns[name] for name in _ALL_NAMES], schema=_ALL_COLUMNS)
        bounds = (0, self._completed, self._cancelled, len(self._watched))
        completions, expirations, cancellations = (
            pa.Table.from_batches([batch.select(selected).slice(begin, end - begin)]) if begin < end else empty
            for (selected, empty), (begin, end) in zip(_OUTCOMES, pairwise(bounds), strict=True)
        )
        return completions, expirations, cancellations

    def _columns(self) -> dict[str, pa.Array]:
        """Return the columns of the ended operations; each table takes the columns in its schema."""
        others = run_in_thread(self._ids_and_partitions) if self._in_two_threads else self._ids_and_partitions
        longs, ints, names = self._longs, self._ints, self._names
        ended_at, rule = _timestamps(longs[Int64Field.ENDED]), _RULES.column(ints[Int32Field.RULE])
        return {
            "run_id": _repeat(self._run_id, len(self._ended)),
            "operation_id": pa.array(longs[Int64Field.SEQ]),
            "kind": _KINDS.column(ints[Int32Field.CODE]),
            "broker": pa.array(ints[Int32Field.BROKER]),
            "key": names.readable.column(ints[Int32Field.KEY]),
            "started_at": _timestamps(longs[Int64Field.STARTED]),
            "completed_at": ended_at,
            "expired_at": ended_at,
            "cancelled_at": ended_at,
            "deadline": _timestamps(longs[Int64Field.DEADLINE]),
            "wait_ms": pa.array(longs[Int64Field.WAIT]),
            "watched": _bool_array(self._watched),
            "completed_by": rule,
            "reason": rule,
            "trigger": names.readable.column(ints[Int32Field.TRIGGER]),
            "bytes": self._of_fetches(longs[Int64Field.BYTES]),
            "fetcher": _FETCHERS.column(ints[Int32Field.FETCHER]),
            "after_end": _bool_array(longs[Int64Field.ENDED] > self._end_us),
            "answered_bytes": self._of_fetches(longs[Int64Field.ANSWERED]),
            **others(),
        }

    def _ids_and_partitions(self) -> dict[str, pa.Array]:
        text = self._longs[Int64Field.TEXT]
        return {
            "request_id": _ids(self._decided.request_ids, text),
            "client_id": _ids(self._decided.client_ids, text),
            "partitions": self._partitions(),
        }

    def _of_fetches(self, values: Records) -> pa.Array:
        """Return a column that is null for other operations than fetches."""
        buffers = [self._fetches, pa.py_buffer(values)]
        return pa.Array.from_buffers(pa.int64(), len(values), buffers)

    def _partitions(self) -> pa.Array:
        ints, names = self._part_ints, self._names
        # Usually there is no error.
        errors = ints[PartField.ERROR]
        error = _ERRORS.column(errors) if self._greatest_error else _repeat(Error.NONE.name, len(errors))
        if self._greatest_error == Error.RECORDED:
            recorded = errors == Error.RECORDED
            recorded_names = self._decided.errors.take(pa.array(ints[PartField.ERROR_TEXT][recorded]))
            error = pc.replace_with_mask(error, pa.array(recorded), recorded_names)
        values = [names.topic.column(ints[PartField.KEY]), names.partition(ints[PartField.KEY]), error]
        fields = pa.StructArray.from_arrays([*values, pa.array(self._part_bytes)], fields=list(OUTCOME_PARTITION))
        return pa.ListArray.from_arrays(pa.array(self._offsets), fields)

    def watches(self) -> pa.Table:
        """Return the table of watches. A fetch's watches end with it, others when their partition is settled."""
        decided, names, key = self._decided, self._names, self._part_ints[PartField.KEY]
        longs, ints = (
            np.empty((len(WatchInt64Field), len(key)), np.int64),
            np.empty((len(WatchInt32Field), len(key)), np.int32),
        )
        is_key = np.empty(len(key), bool)
        tables = attribute_view(decided.all_operations), attribute_view(decided.all_parts), self._ended

        def flatten_range(begin: int, end: int) -> None:
            flatten_watches(*tables, begin, end, self._offsets[begin], longs, ints, is_key)

        self._by_halves(flatten_range)
        columns = {
            "run_id": _repeat(self._run_id, len(key)),
            "operation_id": pa.array(longs[WatchInt64Field.SEQ]),
            "kind": _KINDS.column(ints[WatchInt32Field.CODE]),
            "broker": pa.array(ints[WatchInt32Field.BROKER]),
            "topic": names.topic.column(key),
            "partition": names.partition(key),
            "keys": pa.array(ints[WatchInt32Field.KEYS]),
            "started_at": _timestamps(longs[WatchInt64Field.STARTED]),
            "deadline": _timestamps(longs[WatchInt64Field.DEADLINE]),
            "ended_at": _timestamps(longs[WatchInt64Field.ENDED]),
            "status": _STATUS.column(ints[WatchInt32Field.STATUS]),
            "increments": pa.array(longs[WatchInt64Field.INCREMENTS]),
        }
        watches = pa.table([columns[name] for name in WATCHES.names], schema=WATCHES)
        # A remote fetch is not watched on the partitions that it reads locally.
        return watches if is_key.all() else watches.filter(pa.array(is_key))


def outcome_tables(decided: Decisions, run_id: str, trace_end_us: int | None) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the tables of completions, expirations and cancellations.

    `trace_end_us` is the time of the trace's last event, None if it is not known. Later expirations are marked as
    `after_end`.
    """
    return OutcomeColumns(decided, run_id, trace_end_us).outcomes()


def gauge_table(decided: Decisions, run_id: str) -> pa.Table:
    """Return the gauge readings of a call as rows of `purgatory_gauges`."""
    readings, purgatories = decided.readings, take_records(decided.purgatories, decided.readings["purgatory"])
    columns = {
        "run_id": _repeat(run_id, len(readings)),
        "broker": _int_array(purgatories["broker"]),
        "purgatory": pa.array([PURGATORIES[Code(code)] for code in purgatories["code"].tolist()], pa.string()),
        "at": _timestamps(readings["at_ms"] * 1000),
        "watched": pa.array(readings["watched"].astype(np.int64)),
        "delayed": pa.array(readings["delayed"].astype(np.int64)),
        "purged": pa.array(readings["purged"].astype(np.int64)),
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)

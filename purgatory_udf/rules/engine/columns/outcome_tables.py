"""Ended operations as rows of `completions`, `expirations`, `cancellations` and `watches`; readings as rows of
`purgatory_gauges`."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import (
    CANCELLATIONS,
    COMPLETIONS,
    EXPIRATIONS,
    OUTCOME_PARTITION,
    PURGATORY_GAUGES,
    TIMESTAMP,
    WATCHES,
)
from purgatory_udf.rules.engine.columns.parallel_pieces import run_in_thread, threads_for
from purgatory_udf.rules.engine.jit import Int64Enum
from purgatory_udf.rules.engine.jit.compiled_functions import entry_point, inlined
from purgatory_udf.rules.engine.jit.intrinsics import take_records
from purgatory_udf.rules.engine.jit.records import Records, attribute_view
from purgatory_udf.rules.engine.loop.arena import FORCING, SETTLED
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
    key_parts,
)
from purgatory_udf.rules.engine.loop.engine_state import Decisions

# Ended operations, their parts, and their watches as plain columns; `outcomes` makes tables of them.


class OperationInt64(Int64Enum):
    """An operation's columns of 64 bits."""

    SEQ, STARTED, ENDED, DEADLINE, WAIT, BYTES, ANSWERED, TEXT = range(8)


class OperationInt32(Int64Enum):
    """Those of 32."""

    CODE, BROKER, KEY, RULE, TRIGGER, FETCHER = range(6)


class PartInt32(Int64Enum):
    """A part's, of 32."""

    KEY, ERROR, ERROR_TEXT = range(3)


class WatchInt64(Int64Enum):
    """A watch's of 64, which begins when its operation comes."""

    SEQ, STARTED, DEADLINE, ENDED, INCREMENTS = range(5)


class WatchInt32(Int64Enum):
    CODE, BROKER, KEYS, STATUS = range(4)


class WatchStatus(Int64Enum):
    SATISFIED, ERROR, FORCED, EXPIRED, CANCELLED = range(5)


class Fetcher(Int64Enum):
    CONSUMER, FOLLOWER, NOBODY = range(3)


@entry_point
def flatten(
    operations: Records,
    parts: Records,
    ended: Records,
    no_key: int,
    longs: Records,
    ints: Records,
    watched: Records,
    offsets: Records,
    part_bytes: Records,
    part_ints: Records,
) -> None:
    """Those that ended, by their places, each with its parts; `no_key` is the place of the name that is null."""
    at = 0
    offsets[0] = 0
    for o in range(len(ended)):
        operation = operations[ended[o]]
        first, fetch = operation.first, operation.code == Code.FETCH
        total = 0
        for nth in range(operation.count):
            part = parts[first + nth]
            # numpy calls something else a record's `size`.
            size = part["size"]
            total += size
            part_bytes[at], part_ints[PartInt32.KEY, at] = size, part.key
            part_ints[PartInt32.ERROR, at], part_ints[PartInt32.ERROR_TEXT, at] = part.error, part.text
            at += 1
        longs[OperationInt64.SEQ, o], longs[OperationInt64.STARTED, o], longs[OperationInt64.ENDED, o] = (
            operation.seq,
            operation.t,
            operation.end_t,
        )
        longs[OperationInt64.DEADLINE, o] = operation.deadline * 1000
        longs[OperationInt64.WAIT, o] = operation.end_t // 1000 - operation.t // 1000
        longs[OperationInt64.BYTES, o], longs[OperationInt64.ANSWERED, o], longs[OperationInt64.TEXT, o] = (
            total,
            operation.answered,
            operation.text,
        )
        ints[OperationInt32.CODE, o], ints[OperationInt32.BROKER, o], ints[OperationInt32.RULE, o] = (
            operation.code,
            operation.broker,
            operation.rule,
        )
        ints[OperationInt32.KEY, o] = parts[first].key if operation.count > 0 else no_key
        ints[OperationInt32.TRIGGER, o] = (
            parts[first + operation.trigger].key if operation.trigger != UNKNOWN else no_key
        )
        if fetch:
            ints[OperationInt32.FETCHER, o] = (
                Fetcher.FOLLOWER if operation.mode == Reader.FOLLOWER else Fetcher.CONSUMER
            )
        else:
            ints[OperationInt32.FETCHER, o] = Fetcher.NOBODY
        watched[o] = operation.watched > 0
        offsets[o + 1] = at


@entry_point
def flatten_watches(operations: Records, parts: Records, ended: Records, longs: Records, ints: Records) -> None:
    at = 0
    for o in range(len(ended)):
        operation = operations[ended[o]]
        fetch = operation.code == Code.FETCH
        # One of a single partition is complete at the first step that it sees, and one that never waited sees none.
        counts = fetch and operation.total > 1 and operation.watched > 0
        status = _status(operation, fetch)
        for nth in range(operation.count):
            part = parts[operation.first + nth]
            longs[WatchInt64.SEQ, at], longs[WatchInt64.STARTED, at] = operation.seq, operation.t
            longs[WatchInt64.DEADLINE, at] = operation.deadline * 1000
            longs[WatchInt64.ENDED, at] = operation.end_t if fetch else part.end_t
            longs[WatchInt64.INCREMENTS, at] = part.news if counts else 0
            ints[WatchInt32.CODE, at], ints[WatchInt32.BROKER, at] = operation.code, operation.broker
            ints[WatchInt32.KEYS, at] = operation.total
            if operation.rule == Rule.TIMEOUT and (fetch or part.heap != SETTLED):
                ints[WatchInt32.STATUS, at] = WatchStatus.EXPIRED
            elif part.error == Error.UNANSWERED:
                ints[WatchInt32.STATUS, at] = WatchStatus.CANCELLED
            elif part.heap == FORCING:
                ints[WatchInt32.STATUS, at] = WatchStatus.FORCED
            elif status == WatchStatus.SATISFIED and part.error != 0:
                ints[WatchInt32.STATUS, at] = WatchStatus.ERROR
            else:
                ints[WatchInt32.STATUS, at] = status
            at += 1


@inlined
def _status(operation: Any, fetch: bool) -> int:
    """Of watches that nothing else is to be said of: a fetch of one key that did not get its bytes was forced."""
    if fetch and operation.count == 1 and operation.rule != Rule.MIN_BYTES:
        return WatchStatus.FORCED
    return WatchStatus.SATISFIED


def _lookup_array(names: dict[int, str | None]) -> pa.Array:
    return pa.array([names.get(number) for number in range(max(names) + 1)], pa.string())


_RULES = _lookup_array({int(rule): rule.name.lower() for rule in Rule})
# Of what is not answered nothing is said.
_ERRORS = _lookup_array({int(error): error.name for error in Error if error is not Error.UNANSWERED})
_KINDS = _lookup_array({int(code): kind for code, kind in KINDS.items()})
_STATUS = _lookup_array({int(status): status.name.lower() for status in WatchStatus})
_FETCHERS = _lookup_array({int(who): None if who is Fetcher.NOBODY else who.name.lower() for who in Fetcher})


def _take(words: pa.Array, numbers: Records) -> pa.Array:
    return pc.take(words, pa.array(numbers), boundscheck=False)


def _int_array(column: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(column))


def _timestamps(us: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(us), pa.int64()).view(TIMESTAMP)


@cache
def _empty_table(schema: pa.Schema) -> pa.Table:
    """To make one takes as long as a column of thousands."""
    return schema.empty_table()


def _null_if_empty(column: pa.Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    empty = pc.equal(column, "")
    return pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column


class _KeyNames:
    """Topics, partitions and readable names of the state's keys; a last readable name is null, for no key."""

    def __init__(self, keys: list[str]) -> None:
        _, partitions, topics = zip(*map(key_parts, keys), strict=True) if keys else ((), (), ())
        self.topic, self.partition = pa.array(topics, pa.string()), pa.array(partitions, pa.int32())
        readable = [f"{topic}-{at}" for topic, at in zip(topics, partitions, strict=True)]
        if NO_PARTITION in partitions:
            readable = [
                topic if at == NO_PARTITION else name
                for topic, at, name in zip(topics, partitions, readable, strict=True)
            ]
        self.readable = pa.array([*readable, None], pa.string())


class OutcomeColumns:
    """What a call found, as columns from which the tables are put together."""

    def __init__(self, decided: Decisions, run_id: str, trace_end_us: int | None = None) -> None:
        self._decided, self._run_id = decided, run_id
        self._names = _KeyNames(decided.names)
        self._ended = decided.ended
        operations, parts = len(self._ended), int(decided.all_operations["count"][self._ended].sum())
        self._completed = len(decided.completed)
        self._cancelled = self._completed + len(decided.expired)
        self._longs = np.empty((len(OperationInt64), operations), np.int64)
        self._ints = np.empty((len(OperationInt32), operations), np.int32)
        self._watched, self._offsets = np.empty(operations, bool), np.empty(operations + 1, np.int32)
        self._part_bytes, self._part_ints = np.empty(parts, np.int64), np.empty((len(PartInt32), parts), np.int32)
        flatten(
            attribute_view(decided.all_operations), attribute_view(decided.all_parts), self._ended, len(decided.names), self._longs,
            self._ints, self._watched, self._offsets, self._part_bytes, self._part_ints,
        )  # fmt: skip
        self._end_us = FOREVER if trace_end_us is None else trace_end_us // 1000 * 1000

    @property
    def latest_us(self) -> int:
        """When the last of them ended."""
        return int(self._longs[OperationInt64.ENDED].max())

    def outcomes(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Completions, expirations and cancellations; an expiration after the trace's last event is marked so."""
        columns = self._columns()
        bounds = (0, self._completed, self._cancelled, len(self._watched))
        schemas = (COMPLETIONS, EXPIRATIONS, CANCELLATIONS)
        completions, expirations, cancellations = (
            pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema).slice(begin, end - begin)
            if begin < end
            else _empty_table(schema)
            for schema, (begin, end) in zip(schemas, pairwise(bounds), strict=True)
        )
        return completions, expirations, cancellations

    def _columns(self) -> dict[str, pa.Array]:
        """Of all that ended, however it did: a table has those that it has names for."""
        several = threads_for(len(self._part_bytes)) > 1
        partitions = run_in_thread(self._partitions) if several else self._partitions
        decided, longs, ints, names = self._decided, self._longs, self._ints, self._names
        text, no_fetch = pa.array(longs[OperationInt64.TEXT]), ints[OperationInt32.FETCHER] == Fetcher.NOBODY
        ended_at, rule = _timestamps(longs[OperationInt64.ENDED]), _take(_RULES, ints[OperationInt32.RULE])
        return {
            "run_id": pa.repeat(pa.scalar(self._run_id, pa.string()), len(text)),
            "operation_id": pa.array(longs[OperationInt64.SEQ]),
            "kind": _take(_KINDS, ints[OperationInt32.CODE]),
            "broker": pa.array(ints[OperationInt32.BROKER]),
            "request_id": _null_if_empty(decided.request_ids.take(text)),
            "client_id": _null_if_empty(decided.client_ids.take(text)),
            "key": _take(names.readable, ints[OperationInt32.KEY]),
            "started_at": _timestamps(longs[OperationInt64.STARTED]),
            "completed_at": ended_at,
            "expired_at": ended_at,
            "cancelled_at": ended_at,
            "deadline": _timestamps(longs[OperationInt64.DEADLINE]),
            "wait_ms": pa.array(longs[OperationInt64.WAIT]),
            "watched": pa.array(self._watched),
            "completed_by": rule,
            "reason": rule,
            "trigger": _take(names.readable, ints[OperationInt32.TRIGGER]),
            "bytes": pa.array(longs[OperationInt64.BYTES], mask=no_fetch),
            "fetcher": _take(_FETCHERS, ints[OperationInt32.FETCHER]),
            "after_end": pa.array(longs[OperationInt64.DEADLINE] > self._end_us),
            "answered_bytes": pa.array(longs[OperationInt64.ANSWERED], mask=no_fetch),
            "partitions": partitions(),
        }

    def _partitions(self) -> pa.Array:
        ints, names = self._part_ints, self._names
        # Most often nothing went wrong.
        errors = ints[PartInt32.ERROR]
        error = _take(_ERRORS, errors) if errors.any() else pa.repeat(_ERRORS[0], len(errors))
        recorded = errors == Error.RECORDED
        if recorded.any():
            named_ = self._decided.errors.take(pa.array(ints[PartInt32.ERROR_TEXT][recorded]))
            error = pc.replace_with_mask(error, pa.array(recorded), named_)
        values = [_take(names.topic, ints[PartInt32.KEY]), _take(names.partition, ints[PartInt32.KEY]), error]
        fields = pa.StructArray.from_arrays([*values, pa.array(self._part_bytes)], fields=list(OUTCOME_PARTITION))
        return pa.ListArray.from_arrays(pa.array(self._offsets), fields)

    def watches(self) -> pa.Table:
        """One row per finished watch. A fetch's end with it; the others each when their partition is settled."""
        decided, names, key = self._decided, self._names, self._part_ints[PartInt32.KEY]
        longs, ints = np.empty((len(WatchInt64), len(key)), np.int64), np.empty((len(WatchInt32), len(key)), np.int32)
        flatten_watches(
            attribute_view(decided.all_operations), attribute_view(decided.all_parts), self._ended, longs, ints
        )
        columns = {
            "run_id": pa.repeat(pa.scalar(self._run_id, pa.string()), len(key)),
            "operation_id": pa.array(longs[WatchInt64.SEQ]),
            "kind": _take(_KINDS, ints[WatchInt32.CODE]),
            "broker": pa.array(ints[WatchInt32.BROKER]),
            "topic": _take(names.topic, key),
            "partition": _take(names.partition, key),
            "keys": pa.array(ints[WatchInt32.KEYS]),
            "started_at": _timestamps(longs[WatchInt64.STARTED]),
            "deadline": _timestamps(longs[WatchInt64.DEADLINE]),
            "ended_at": _timestamps(longs[WatchInt64.ENDED]),
            "status": _take(_STATUS, ints[WatchInt32.STATUS]),
            "increments": pa.array(longs[WatchInt64.INCREMENTS]),
        }
        return pa.table([columns[name] for name in WATCHES.names], schema=WATCHES)


def outcome_tables(decided: Decisions, run_id: str, trace_end_us: int | None) -> tuple[pa.Table, pa.Table, pa.Table]:
    return OutcomeColumns(decided, run_id, trace_end_us).outcomes()


def gauge_table(decided: Decisions, run_id: str) -> pa.Table:
    readings, whose = decided.readings, take_records(decided.purgatories, decided.readings["purgatory"])
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(readings)),
        "broker": _int_array(whose["broker"]),
        "purgatory": pa.array([PURGATORIES[Code(code)] for code in whose["code"].tolist()], pa.string()),
        "at": _timestamps(readings["at_ms"] * 1000),
        "watched": pa.array(readings["watched"].astype(np.int64)),
        "delayed": pa.array(readings["delayed"].astype(np.int64)),
        "purged": pa.array(readings["purged"].astype(np.int64)),
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)

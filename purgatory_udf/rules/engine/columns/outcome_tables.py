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
from purgatory_udf.rules.engine.columns.parallel_pieces import begun, threads_for
from purgatory_udf.rules.engine.jit import Number
from purgatory_udf.rules.engine.jit.compiled_functions import entry, inlined
from purgatory_udf.rules.engine.jit.intrinsics import chosen
from purgatory_udf.rules.engine.jit.records import Records, named
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


class Long(Number):
    """An operation's columns of 64 bits."""

    SEQ, STARTED, ENDED, DEADLINE, WAIT, BYTES, ANSWERED, TEXT = range(8)


class Int(Number):
    """Those of 32."""

    CODE, BROKER, KEY, RULE, TRIGGER, FETCHER = range(6)


class OfPart(Number):
    """A part's, of 32."""

    KEY, ERROR, ERROR_TEXT = range(3)


class WatchLong(Number):
    """A watch's of 64, which begins when its operation comes."""

    SEQ, STARTED, DEADLINE, ENDED, INCREMENTS = range(5)


class WatchInt(Number):
    CODE, BROKER, KEYS, STATUS = range(4)


class Status(Number):
    SATISFIED, ERROR, FORCED, EXPIRED, CANCELLED = range(5)


class FetchedBy(Number):
    CONSUMER, FOLLOWER, NOBODY = range(3)


@entry
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
            part_bytes[at], part_ints[OfPart.KEY, at] = size, part.key
            part_ints[OfPart.ERROR, at], part_ints[OfPart.ERROR_TEXT, at] = part.error, part.text
            at += 1
        longs[Long.SEQ, o], longs[Long.STARTED, o], longs[Long.ENDED, o] = operation.seq, operation.t, operation.end_t
        longs[Long.DEADLINE, o] = operation.deadline * 1000
        longs[Long.WAIT, o] = operation.end_t // 1000 - operation.t // 1000
        longs[Long.BYTES, o], longs[Long.ANSWERED, o], longs[Long.TEXT, o] = total, operation.answered, operation.text
        ints[Int.CODE, o], ints[Int.BROKER, o], ints[Int.RULE, o] = operation.code, operation.broker, operation.rule
        ints[Int.KEY, o] = parts[first].key if operation.count > 0 else no_key
        ints[Int.TRIGGER, o] = parts[first + operation.trigger].key if operation.trigger != UNKNOWN else no_key
        if fetch:
            ints[Int.FETCHER, o] = FetchedBy.FOLLOWER if operation.mode == Reader.FOLLOWER else FetchedBy.CONSUMER
        else:
            ints[Int.FETCHER, o] = FetchedBy.NOBODY
        watched[o] = operation.watched > 0
        offsets[o + 1] = at


@entry
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
            longs[WatchLong.SEQ, at], longs[WatchLong.STARTED, at] = operation.seq, operation.t
            longs[WatchLong.DEADLINE, at] = operation.deadline * 1000
            longs[WatchLong.ENDED, at] = operation.end_t if fetch else part.end_t
            longs[WatchLong.INCREMENTS, at] = part.news if counts else 0
            ints[WatchInt.CODE, at], ints[WatchInt.BROKER, at] = operation.code, operation.broker
            ints[WatchInt.KEYS, at] = operation.total
            if operation.rule == Rule.TIMEOUT and (fetch or part.heap != SETTLED):
                ints[WatchInt.STATUS, at] = Status.EXPIRED
            elif part.error == Error.UNANSWERED:
                ints[WatchInt.STATUS, at] = Status.CANCELLED
            elif part.heap == FORCING:
                ints[WatchInt.STATUS, at] = Status.FORCED
            elif status == Status.SATISFIED and part.error != 0:
                ints[WatchInt.STATUS, at] = Status.ERROR
            else:
                ints[WatchInt.STATUS, at] = status
            at += 1


@inlined
def _status(operation: Any, fetch: bool) -> int:
    """Of watches that nothing else is to be said of: a fetch of one key that did not get its bytes was forced."""
    if fetch and operation.count == 1 and operation.rule != Rule.MIN_BYTES:
        return Status.FORCED
    return Status.SATISFIED


def _words(names: dict[int, str | None]) -> pa.Array:
    return pa.array([names.get(number) for number in range(max(names) + 1)], pa.string())


_RULES = _words({int(rule): rule.name.lower() for rule in Rule})
# Of what is not answered nothing is said.
_ERRORS = _words({int(error): error.name for error in Error if error is not Error.UNANSWERED})
_KINDS = _words({int(code): kind for code, kind in KINDS.items()})
_STATUS = _words({int(status): status.name.lower() for status in Status})
_FETCHERS = _words({int(who): None if who is FetchedBy.NOBODY else who.name.lower() for who in FetchedBy})


def _taken(words: pa.Array, numbers: Records) -> pa.Array:
    return pc.take(words, pa.array(numbers), boundscheck=False)


def _plain(column: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(column))


def _time(us: Records) -> pa.Array:
    return pa.array(np.ascontiguousarray(us), pa.int64()).view(TIMESTAMP)


@cache
def _without_rows(schema: pa.Schema) -> pa.Table:
    """To make one takes as long as a column of thousands."""
    return schema.empty_table()


def _text(column: pa.Array) -> pa.Array:
    """Empty stands for null: neither a request nor a client is named by nothing."""
    empty = pc.equal(column, "")
    return pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column


class _Names:
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


class Ended:
    """What a call found, as columns from which the tables are put together."""

    def __init__(self, decided: Decisions, run_id: str, trace_end_us: int | None = None) -> None:
        self._decided, self._run_id = decided, run_id
        self._names = _Names(decided.names)
        self._ended = decided.ended
        operations, parts = len(self._ended), int(decided.all_operations["count"][self._ended].sum())
        self._completed = len(decided.completed)
        self._cancelled = self._completed + len(decided.expired)
        self._longs = np.empty((len(Long), operations), np.int64)
        self._ints = np.empty((len(Int), operations), np.int32)
        self._watched, self._offsets = np.empty(operations, bool), np.empty(operations + 1, np.int32)
        self._part_bytes, self._part_ints = np.empty(parts, np.int64), np.empty((len(OfPart), parts), np.int32)
        flatten(
            named(decided.all_operations), named(decided.all_parts), self._ended, len(decided.names), self._longs,
            self._ints, self._watched, self._offsets, self._part_bytes, self._part_ints,
        )  # fmt: skip
        self._end_us = FOREVER if trace_end_us is None else trace_end_us // 1000 * 1000

    @property
    def latest_us(self) -> int:
        """When the last of them ended."""
        return int(self._longs[Long.ENDED].max())

    def outcomes(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Completions, expirations and cancellations; an expiration after the trace's last event is marked so."""
        columns = self._columns()
        bounds = (0, self._completed, self._cancelled, len(self._watched))
        schemas = (COMPLETIONS, EXPIRATIONS, CANCELLATIONS)
        completions, expirations, cancellations = (
            pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema).slice(begin, end - begin)
            if begin < end
            else _without_rows(schema)
            for schema, (begin, end) in zip(schemas, pairwise(bounds), strict=True)
        )
        return completions, expirations, cancellations

    def _columns(self) -> dict[str, pa.Array]:
        """Of all that ended, however it did: a table has those that it has names for."""
        several = threads_for(len(self._part_bytes)) > 1
        partitions = begun(self._partitions) if several else self._partitions
        decided, longs, ints, names = self._decided, self._longs, self._ints, self._names
        text, no_fetch = pa.array(longs[Long.TEXT]), ints[Int.FETCHER] == FetchedBy.NOBODY
        ended_at, rule = _time(longs[Long.ENDED]), _taken(_RULES, ints[Int.RULE])
        return {
            "run_id": pa.repeat(pa.scalar(self._run_id, pa.string()), len(text)),
            "operation_id": pa.array(longs[Long.SEQ]),
            "kind": _taken(_KINDS, ints[Int.CODE]),
            "broker": pa.array(ints[Int.BROKER]),
            "request_id": _text(decided.request_ids.take(text)),
            "client_id": _text(decided.client_ids.take(text)),
            "key": _taken(names.readable, ints[Int.KEY]),
            "started_at": _time(longs[Long.STARTED]),
            "completed_at": ended_at,
            "expired_at": ended_at,
            "cancelled_at": ended_at,
            "deadline": _time(longs[Long.DEADLINE]),
            "wait_ms": pa.array(longs[Long.WAIT]),
            "watched": pa.array(self._watched),
            "completed_by": rule,
            "reason": rule,
            "trigger": _taken(names.readable, ints[Int.TRIGGER]),
            "bytes": pa.array(longs[Long.BYTES], mask=no_fetch),
            "fetcher": _taken(_FETCHERS, ints[Int.FETCHER]),
            "after_end": pa.array(longs[Long.DEADLINE] > self._end_us),
            "answered_bytes": pa.array(longs[Long.ANSWERED], mask=no_fetch),
            "partitions": partitions(),
        }

    def _partitions(self) -> pa.Array:
        ints, names = self._part_ints, self._names
        # Most often nothing went wrong.
        errors = ints[OfPart.ERROR]
        error = _taken(_ERRORS, errors) if errors.any() else pa.repeat(_ERRORS[0], len(errors))
        recorded = errors == Error.RECORDED
        if recorded.any():
            named_ = self._decided.errors.take(pa.array(ints[OfPart.ERROR_TEXT][recorded]))
            error = pc.replace_with_mask(error, pa.array(recorded), named_)
        values = [_taken(names.topic, ints[OfPart.KEY]), _taken(names.partition, ints[OfPart.KEY]), error]
        fields = pa.StructArray.from_arrays([*values, pa.array(self._part_bytes)], fields=list(OUTCOME_PARTITION))
        return pa.ListArray.from_arrays(pa.array(self._offsets), fields)

    def watches(self) -> pa.Table:
        """One row per finished watch. A fetch's end with it; the others each when their partition is settled."""
        decided, names, key = self._decided, self._names, self._part_ints[OfPart.KEY]
        longs, ints = np.empty((len(WatchLong), len(key)), np.int64), np.empty((len(WatchInt), len(key)), np.int32)
        flatten_watches(named(decided.all_operations), named(decided.all_parts), self._ended, longs, ints)
        columns = {
            "run_id": pa.repeat(pa.scalar(self._run_id, pa.string()), len(key)),
            "operation_id": pa.array(longs[WatchLong.SEQ]),
            "kind": _taken(_KINDS, ints[WatchInt.CODE]),
            "broker": pa.array(ints[WatchInt.BROKER]),
            "topic": _taken(names.topic, key),
            "partition": _taken(names.partition, key),
            "keys": pa.array(ints[WatchInt.KEYS]),
            "started_at": _time(longs[WatchLong.STARTED]),
            "deadline": _time(longs[WatchLong.DEADLINE]),
            "ended_at": _time(longs[WatchLong.ENDED]),
            "status": _taken(_STATUS, ints[WatchInt.STATUS]),
            "increments": pa.array(longs[WatchLong.INCREMENTS]),
        }
        return pa.table([columns[name] for name in WATCHES.names], schema=WATCHES)


def outcome_tables(decided: Decisions, run_id: str, trace_end_us: int | None) -> tuple[pa.Table, pa.Table, pa.Table]:
    return Ended(decided, run_id, trace_end_us).outcomes()


def gauge_table(decided: Decisions, run_id: str) -> pa.Table:
    readings, whose = decided.readings, chosen(decided.purgatories, decided.readings["purgatory"])
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(readings)),
        "broker": _plain(whose["broker"]),
        "purgatory": pa.array([PURGATORIES[Code(code)] for code in whose["code"].tolist()], pa.string()),
        "at": _time(readings["at_ms"] * 1000),
        "watched": pa.array(readings["watched"].astype(np.int64)),
        "delayed": pa.array(readings["delayed"].astype(np.int64)),
        "purged": pa.array(readings["purged"].astype(np.int64)),
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)

"""Ended operations, their parts, and their watches as plain columns; `outcomes` makes tables of them."""

from __future__ import annotations

from typing import Any

from purgatory_udf.compiling.compiled import entry, inlined
from purgatory_udf.compiling.numbers import Number
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop.words import UNKNOWN, Code, Error, Reader, Rule
from purgatory_udf.loop.world import FORCING, SETTLED


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

"""Ended operations, their parts, and their watches as plain columns; `outcomes` makes tables of them."""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import entry, inlined, number
from purgatory_udf.loop.words import UNKNOWN, Code, Error, Reader, Rule
from purgatory_udf.loop.world import FORCING, SETTLED, Records

# Columns of an operation, of 64 bits and of 32. Places in lists of words, which end with one that is null.
SEQ, STARTED, ENDED, DEADLINE, WAIT, BYTES, ANSWERED, TEXT, LONGS = map(number, range(9))
CODE, BROKER, KEY, RULE, TRIGGER, FETCHER, INTS = map(number, range(7))
# Columns of a part.
PART_KEY, ERROR, ERROR_TEXT, PART_INTS = map(number, range(4))
# Columns of a watch, which begins when its operation comes.
WATCH_SEQ, WATCH_STARTED, WATCH_DEADLINE, WATCH_ENDED, INCREMENTS, WATCH_LONGS = map(number, range(6))
WATCH_CODE, WATCH_BROKER, KEYS, STATUS, WATCH_INTS = map(number, range(5))

SATISFIED, IN_ERROR, FORCED, EXPIRED, CANCELLED = map(number, range(5))
CONSUMER, FOLLOWER, NOBODY = map(number, range(3))

_FETCH, _FOLLOWS = number(Code.FETCH), number(Reader.FOLLOWER)
_BY_BYTES, _BY_TIMEOUT = number(Rule.MIN_BYTES), number(Rule.TIMEOUT)
_UNANSWERED = number(Error.UNANSWERED)
_UNKNOWN = number(UNKNOWN)


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
        first, fetch = operation.first, operation.code == _FETCH
        total = 0
        for nth in range(operation.count):
            part = parts[first + nth]
            # numpy calls something else a record's `size`.
            size = part["size"]
            total += size
            part_bytes[at], part_ints[PART_KEY, at] = size, part.key
            part_ints[ERROR, at], part_ints[ERROR_TEXT, at] = part.error, part.text
            at += 1
        longs[SEQ, o], longs[STARTED, o], longs[ENDED, o] = operation.seq, operation.t, operation.end_t
        longs[DEADLINE, o] = operation.deadline * 1000
        longs[WAIT, o] = operation.end_t // 1000 - operation.t // 1000
        longs[BYTES, o], longs[ANSWERED, o], longs[TEXT, o] = total, operation.answered, operation.text
        ints[CODE, o], ints[BROKER, o], ints[RULE, o] = operation.code, operation.broker, operation.rule
        ints[KEY, o] = parts[first].key if operation.count > 0 else no_key
        ints[TRIGGER, o] = parts[first + operation.trigger].key if operation.trigger != _UNKNOWN else no_key
        if fetch:
            ints[FETCHER, o] = FOLLOWER if operation.mode == _FOLLOWS else CONSUMER
        else:
            ints[FETCHER, o] = NOBODY
        watched[o] = operation.watched > 0
        offsets[o + 1] = at


@entry
def flatten_watches(operations: Records, parts: Records, ended: Records, longs: Records, ints: Records) -> None:
    at = 0
    for o in range(len(ended)):
        operation = operations[ended[o]]
        fetch = operation.code == _FETCH
        # One of a single partition is complete at the first step that it sees, and one that never waited sees none.
        counts = fetch and operation.total > 1 and operation.watched > 0
        status = _status(operation, fetch)
        for nth in range(operation.count):
            part = parts[operation.first + nth]
            longs[WATCH_SEQ, at], longs[WATCH_STARTED, at] = operation.seq, operation.t
            longs[WATCH_DEADLINE, at] = operation.deadline * 1000
            longs[WATCH_ENDED, at] = operation.end_t if fetch else part.end_t
            longs[INCREMENTS, at] = part.news if counts else 0
            ints[WATCH_CODE, at], ints[WATCH_BROKER, at] = operation.code, operation.broker
            ints[KEYS, at] = operation.total
            if operation.rule == _BY_TIMEOUT and (fetch or part.heap != SETTLED):
                ints[STATUS, at] = EXPIRED
            elif part.error == _UNANSWERED:
                ints[STATUS, at] = CANCELLED
            elif part.heap == FORCING:
                ints[STATUS, at] = FORCED
            elif status == SATISFIED and part.error != 0:
                ints[STATUS, at] = IN_ERROR
            else:
                ints[STATUS, at] = status
            at += 1


@inlined
def _status(operation: Any, fetch: bool) -> int:
    """Of watches that nothing else is to be said of: a fetch of one key that did not get its bytes was forced."""
    if fetch and operation.count == 1 and operation.rule != _BY_BYTES:
        return FORCED
    return SATISFIED

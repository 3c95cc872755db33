"""Ended operations and their parts as plain columns, in one pass over each; `outcomes` makes tables of them."""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import entry, inlined, number
from purgatory_udf.loop.words import UNKNOWN, Code, Error, Reader, Rule
from purgatory_udf.loop.world import Records

# Columns of an operation, of 64 bits and of 32. Places in lists of words, which end with one that is null.
SEQ, STARTED, ENDED, DEADLINE, WAIT, BYTES, ANSWERED, TEXT, LONGS = map(number, range(9))
CODE, BROKER, KEY, RULE, TRIGGER, FETCHER, INTS = map(number, range(7))
# Columns of a part; it is watched from when its operation came.
PART_SEQ, PART_STARTED, PART_DEADLINE, PART_ENDED, INCREMENTS, PART_BYTES, PART_LONGS = map(number, range(7))
PART_CODE, PART_BROKER, PART_KEY, KEYS, STATUS, ERROR, ERROR_TEXT, PART_INTS = map(number, range(8))

SATISFIED, IN_ERROR, FORCED, EXPIRED, CANCELLED = map(number, range(5))
CONSUMER, FOLLOWER, NOBODY = map(number, range(3))

_FETCH, _FOLLOWS, _BY_BYTES = number(Code.FETCH), number(Reader.FOLLOWER), number(Rule.MIN_BYTES)
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
    part_longs: Records,
    part_ints: Records,
) -> None:
    """Those that ended, by their places, each with its parts; `no_key` is the place of the name that is null."""
    at = 0
    offsets[0] = 0
    for o in range(len(ended)):
        operation = operations[ended[o]]
        first, fetch = operation.first, operation.code == _FETCH
        status = _status(operation, fetch)
        total = 0
        for nth in range(operation.count):
            part = parts[first + nth]
            total += part.bytes
            part_longs[PART_SEQ, at], part_longs[PART_STARTED, at] = operation.seq, operation.t
            part_longs[PART_DEADLINE, at], part_longs[PART_ENDED, at] = operation.deadline * 1000, part.end_t
            part_longs[INCREMENTS, at], part_longs[PART_BYTES, at] = part.told if fetch else 0, part.bytes
            part_ints[PART_CODE, at], part_ints[PART_BROKER, at] = operation.code, operation.broker
            part_ints[PART_KEY, at], part_ints[KEYS, at] = part.key, operation.total
            part_ints[ERROR, at], part_ints[ERROR_TEXT, at] = part.error, part.text
            if operation.expired and (fetch or part.settled == 0):
                part_ints[STATUS, at] = EXPIRED
            elif part.error == _UNANSWERED:
                part_ints[STATUS, at] = CANCELLED
            elif part.settled == 2:
                part_ints[STATUS, at] = FORCED
            elif status == SATISFIED and part.error != 0:
                part_ints[STATUS, at] = IN_ERROR
            else:
                part_ints[STATUS, at] = status
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


@inlined
def _status(operation: Any, fetch: bool) -> int:
    """Of watches that nothing else is to be said of: a fetch of one key that did not get its bytes was forced."""
    if fetch and operation.count == 1 and operation.rule != _BY_BYTES:
        return FORCED
    return SATISFIED

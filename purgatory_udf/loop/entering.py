"""Before a call: what room its events need, and whether in purgatories that there are none of yet."""

from __future__ import annotations

from purgatory_udf.loop.compiled import entry, inlined, number, rule
from purgatory_udf.loop.words import Acks, Code, Error, Reader
from purgatory_udf.loop.world import Records, record

_PRODUCE, _FETCH, _CREATE, _LOG_END, _ROLL, _REPLICA_END, _LED, _THROTTLED, _UNTHROTTLED = map(
    number,
    (
        Code.PRODUCE,
        Code.FETCH,
        Code.CREATE_TOPICS,
        Code.LOG_END,
        Code.SEGMENT_ROLL,
        Code.REPLICA_END,
        Code.LED,
        Code.THROTTLED,
        Code.UNTHROTTLED,
    ),
)
_INVALID, _FOLLOWER, _SOUND = number(Acks.INVALID), number(Reader.FOLLOWER), number(Error.NONE)

# How many of each the call brings at most; `purgatories` that the state does not have yet.
TOTALS = record("operations parts nodes purgatories")
# By key: batches that will be appended, segments rolled.
MORE = record("batches rolls")


@entry
def enter(
    events: Records,
    asked: Records,
    places: Records,
    known: Records,
    more: Records,
    missing: Records,
    totals: Records,
) -> None:
    """`places`: the state's number of each key of the call. `known`: the state's purgatories; `missing` (out): places
    of events whose purgatories are not among these."""
    total, last = totals[0], -1
    for e in range(len(events)):
        event = events[e]
        code, mode = event.code, event.mode
        if code <= _CREATE:
            total.operations += 1
            total.parts += event.count
            if last < 0 or events[last].code != code or events[last].broker != event.broker:
                last = e
                if not _known(known, events, missing, total.purgatories, code, event.broker):
                    missing[total.purgatories] = e
                    total.purgatories += 1
        for a in range(event.first, event.first + event.count):
            one = asked[a]
            if code == _LOG_END or (code == _PRODUCE and one.error == _SOUND and mode < _INVALID):
                more[places[one.key].key].batches += 1
            elif code == _ROLL:
                more[places[one.key].key].rolls += 1
            elif _tells(code, mode):
                total.nodes += 1


@inlined
def _tells(code: int, mode: int) -> bool:
    """Whether it may say something new of a follower, or of a topic's leaders or watchers."""
    if code == _FETCH:
        return mode == _FOLLOWER
    return code in (_REPLICA_END, _LED, _CREATE, _THROTTLED, _UNTHROTTLED)


@rule
def _known(known: Records, events: Records, missing: Records, count: int, code: int, broker: int) -> bool:
    for purgatory in known:
        if purgatory.code == code and purgatory.broker == broker:
            return True
    for place in range(count):
        event = events[missing[place]]
        if event.code == code and event.broker == broker:
            return True
    return False

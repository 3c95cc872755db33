"""What room a call's events need: how much of everything they bring at most, and in which purgatories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.compiling.access import named
from purgatory_udf.compiling.compiled import entry, inlined
from purgatory_udf.compiling.records import Records, record
from purgatory_udf.loop.words import Acks, Code, Error, Reader
from purgatory_udf.loop.world import HOME, MORE

_TOTALS = record("operations parts nodes homes")


@dataclass(frozen=True)
class Room:
    more: Records  # by name of the call
    homes: Records  # of the call's operations
    operations: int
    parts: int
    nodes: int


def room_for(events: Records, asked: Records, names: int) -> Room:
    """Of a call that knows so many names, and does not know its room since it was made of its events."""
    more, homes = np.zeros(names, MORE), np.empty(len(events), HOME)
    totals = np.zeros(1, _TOTALS)
    _count(named(events), named(asked), named(more), named(homes), named(totals))
    operations, parts, nodes, count = totals[0].tolist()
    return Room(more, homes[:count], operations, parts, nodes)


@entry
def _count(events: Records, asked: Records, more: Records, homes: Records, totals: Records) -> None:
    """All but the first two are filled."""
    total = totals[0]
    for e in range(len(events)):
        event = events[e]
        code, mode = event.code, event.mode
        if code <= Code.CREATE_TOPICS:
            total.operations += 1
            total.parts += event.count
            at = 0
            while at < total.homes and (homes[at].code != code or homes[at].broker != event.broker):
                at += 1
            if at == total.homes:
                homes[at].code, homes[at].broker = code, event.broker
                total.homes += 1
        elif code == Code.LOG_END:
            more[event.key].batches += 1
        elif code == Code.SEGMENT_ROLL:
            more[event.key].rolls += 1
        elif tells(code, mode):
            total.nodes += 1
        for a in range(event.first, event.first + event.count):
            ask = asked[a]
            if code == Code.PRODUCE and ask.error == Error.NONE and mode < Acks.INVALID:
                more[ask.key].batches += 1
            elif tells(code, mode):
                total.nodes += 1


@inlined
def tells(code: int, mode: int) -> bool:
    """Whether it may say something new of a follower, or of a topic's leaders or watchers."""
    if code == Code.FETCH:
        return mode == Reader.FOLLOWER
    return code in (Code.REPLICA_END, Code.LED, Code.CREATE_TOPICS, Code.THROTTLED, Code.UNTHROTTLED)

"""What one call brings: events in order, the keys that each touches, and the texts that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.compiled_functions import entry, inlined
from purgatory_udf.rules.engine.jit.intrinsics import chosen
from purgatory_udf.rules.engine.jit.records import Records, named, record
from purgatory_udf.rules.engine.loop.arena import HOME, MORE, none_of
from purgatory_udf.rules.engine.loop.codes import Acks, Code, Error, Reader

# What room a call's events need: how much of everything they bring at most, and in which purgatories.


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


@cache
def no_texts() -> pa.Array:
    return pa.array([], pa.string())


def all_texts(held: pa.Array, more: pa.Array) -> pa.Array:
    """One behind the other; to put nothing behind a million is no reason to copy them."""
    if not len(held) or not len(more):
        return held if len(held) else more
    return pa.concat_arrays([held, more])


@dataclass
class Call:
    """`events` sorted by (t, seq). A request's `first` and `count` are places in `asked`, a change's `told` in `told`.
    Keys are places in `names`.

    Requests' texts are told by the events' `text`; names of recorded errors by the `text` of what was asked.
    """

    names: list[str] = field(default_factory=list)
    events: Records = field(default_factory=none_of("events"))
    asked: Records = field(default_factory=none_of("asked"))
    told: Records = field(default_factory=none_of("told"))
    in_sync: Records = field(default_factory=none_of("in_sync"))
    request_ids: pa.Array = field(default_factory=no_texts)
    client_ids: pa.Array = field(default_factory=no_texts)
    errors: pa.Array = field(default_factory=no_texts)
    room: Room | None = None  # that the events need, where that is known

    def __len__(self) -> int:
        return len(self.events)

    def only(self, which: Records) -> Call:
        """Some of the events; what they ask, and all names and texts, stay where they are."""
        return replace(self, events=chosen(self.events, which), room=None)


def changes_of(events: Records) -> Records:
    """Places of those that are no requests."""
    return np.flatnonzero(events["code"] > Code.CREATE_TOPICS)


def in_order(events: Records) -> Records:
    """By time, then number; events that come in order are left alone."""
    t, seq = events["t"], events["seq"]
    later = (t[1:] > t[:-1]) | ((t[1:] == t[:-1]) & (seq[1:] >= seq[:-1]))
    return events if later.all() else chosen(events, np.lexsort((seq, t)))

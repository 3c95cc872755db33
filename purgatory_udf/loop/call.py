"""What one call brings: events in order, the keys that each touches, and the texts that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from purgatory_udf.compiling.moving import chosen
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop.entering import Room
from purgatory_udf.loop.words import Code
from purgatory_udf.loop.world import none_of


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

"""What one call brings: events in order, the keys that each touches, and the texts that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from purgatory_udf.compiling.moving import chosen, copied, joined
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop.entering import Room
from purgatory_udf.loop.words import Code, Error
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


def together(parts: Sequence[Call]) -> Call:
    """Several calls as one, in the order of their events."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return Call()
    if len(parts) == 1:
        return parts[0]
    numbers: dict[str, int] = {}
    events, asked, told = ([copied(getattr(part, name)) for part in parts] for name in ("events", "asked", "told"))
    rows = tales = members = texts = errors = 0
    for part, mine, those, more in zip(parts, events, asked, told, strict=True):
        key = np.array([numbers.setdefault(name, len(numbers)) for name in part.names], dtype=np.int32)
        changes, requests = changes_of(mine), np.flatnonzero(mine["code"] <= Code.CREATE_TOPICS)
        mine["key"][changes] = key[mine["key"][changes]]
        mine["told"][changes[mine["told"][changes] >= 0]] += tales
        mine["first"][requests] += rows
        mine["text"][requests] += texts
        those["key"] = key[those["key"]]
        those["text"][those["error"] == Error.RECORDED] += errors
        more["first"] += members
        rows, tales, members = rows + len(those), tales + len(more), members + len(part.in_sync)
        texts, errors = texts + len(part.request_ids), errors + len(part.errors)
    return Call(
        list(numbers),
        in_order(joined(events)),
        joined(asked),
        joined(told),
        joined([part.in_sync for part in parts]),
        pa.concat_arrays([part.request_ids for part in parts]),
        pa.concat_arrays([part.client_ids for part in parts]),
        pa.concat_arrays([part.errors for part in parts]),
    )

"""What one call found of its groups, as one value; and what many such values say, in columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from purgatory_udf.frames.codec import pack, unpack
from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.groups.answers import ANSWERS
from purgatory_udf.groups.chronicle import WALKS
from purgatory_udf.groups.ended import ENDED
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.groups.step import Findings
from purgatory_udf.outcomes import Transition

# `members` is a JSON list.
TRANSITIONS = FrameLayout(numbers=("t", "generation"), texts=("from_state", "to_state", "reason", "members"))

# In every part `group` is a place among the packet's names.
_PARTS = {"ended": ENDED, "transitions": TRANSITIONS, "answers": ANSWERS, "walks": WALKS}


def packet(found: Mapping[str, Findings]) -> bytes:
    """Everything that the tables and the gauges say of a call, by group."""
    frames: dict[str, list[Frame]] = {name: [] for name in _PARTS}
    for place, one in enumerate(found.values()):
        parts = {
            "ended": one.ended,
            "transitions": [TRANSITIONS.of([_row(change) for change in one.transitions])],
            "answers": one.told,
            "walks": one.walked,
        }
        for name, mine in parts.items():
            frames[name] += [part.with_columns(group=_all(place, len(part))) for part in mine if len(part)]
    names = Frame({"key": np.array(list(found), dtype=object)})
    joined = {name: _joined(parts, _numbered(_PARTS[name])) for name, parts in frames.items()}
    return pack({"names": names, **joined})


def unpacked(packets: Sequence[bytes], *names: str) -> dict[str, Frame]:
    """These parts of every packet, end to end, with `broker` and `group` (its name) beside each row."""
    frames: dict[str, list[Frame]] = {name: [] for name in names}
    for value in packets:
        parts = unpack(value)
        keys = [parts_of(key) for key in parts["names"].key]
        brokers = np.array([broker for broker, _ in keys], dtype=np.int64)
        groups = np.array([group for _, group in keys], dtype=object)
        for name in names:
            part = parts[name]
            if len(part):
                frames[name].append(part.with_columns(broker=brokers[part.group], group=groups[part.group]))
    return {name: _joined(parts, _named(_PARTS[name])) for name, parts in frames.items()}


def _row(change: Transition) -> tuple[int | str, ...]:
    members = json.dumps(change.members)
    return change.at_us, change.generation, change.from_state, change.to_state, change.reason, members


def _joined(parts: list[Frame], layout: FrameLayout) -> Frame:
    return Frame.concat(parts) if parts else layout.empty()


def _numbered(layout: FrameLayout) -> FrameLayout:
    return FrameLayout((*layout.numbers, "group"), layout.texts)


def _named(layout: FrameLayout) -> FrameLayout:
    return FrameLayout((*layout.numbers, "broker"), (*layout.texts, "group"))


def _all(value: int, count: int) -> Array:
    return np.full(count, value, dtype=np.int64)

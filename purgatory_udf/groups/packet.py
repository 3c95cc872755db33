"""What one call found of its groups, as a value for each table; and what many such values say, in columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from purgatory_udf.frames.codec import pack, unpack
from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.groups.answers import ANSWERS
from purgatory_udf.groups.ended import CANCELLED, COMPLETED, ENDED, EXPIRED, ends_of
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.groups.step import Findings
from purgatory_udf.outcomes import Transition

# `members` is a JSON list.
TRANSITIONS = FrameLayout(numbers=("t", "generation"), texts=("from_state", "to_state", "reason", "members"))

# The tables of ends have one layout.
_ENDS = {"completions": COMPLETED, "expirations": EXPIRED, "cancellations": CANCELLED}
_LAYOUTS = {**dict.fromkeys(_ENDS, ENDED), "group_transitions": TRANSITIONS, "told": ANSWERS}
# When a row happened.
_TIME = {**dict.fromkeys(_ENDS, "end_t"), "group_transitions": "t", "told": "at"}


class Packet(NamedTuple):
    """Of one table so many rows, the last of which happened at `latest_us`. In them `group` is a place among the
    packet's names."""

    table: str
    latest_us: int
    rows: int
    payload: bytes


def packets(by_group: Mapping[str, Findings]) -> list[Packet]:
    """What the tables say of a call, by table: no packet without rows."""
    frames: dict[str, list[Frame]] = {table: [] for table in _LAYOUTS}
    for place, findings in enumerate(by_group.values()):
        parts = {
            **{table: [ended.take(ends_of(ended) == end) for ended in findings.ended] for table, end in _ENDS.items()},
            "group_transitions": [TRANSITIONS.of([_row(change) for change in findings.transitions])],
            "told": findings.answer_frames,
        }
        for table, mine in parts.items():
            frames[table] += [part.with_columns(group=_all(place, len(part))) for part in mine if len(part)]
    names = Frame({"key": np.array(list(by_group), dtype=object)})
    joined = {table: Frame.concat(parts) for table, parts in frames.items() if parts}
    return [
        Packet(table, int(rows.columns[_TIME[table]].max()), len(rows), pack({"names": names, "rows": rows}))
        for table, rows in joined.items()
    ]


def unpacked(table: str, payloads: Iterable[bytes]) -> Frame:
    """One table's packets end to end, with `broker` and `group` (its name) beside each row."""
    frames = []
    for value in payloads:
        parts = unpack(value)
        keys = [parts_of(key) for key in parts["names"].key]
        brokers = np.array([broker for broker, _ in keys], dtype=np.int64)
        groups = np.array([group for _, group in keys], dtype=object)
        rows = parts["rows"]
        frames.append(rows.with_columns(broker=brokers[rows.group], group=groups[rows.group]))
    return Frame.concat(frames) if frames else _named(_LAYOUTS[table]).empty()


def _row(change: Transition) -> tuple[int | str, ...]:
    members = json.dumps(change.members)
    return change.at_us, change.generation, change.from_state, change.to_state, change.reason, members


def _named(layout: FrameLayout) -> FrameLayout:
    return FrameLayout((*layout.numbers, "broker"), (*layout.texts, "group"))


def _all(value: int, count: int) -> Array:
    return np.full(count, value, dtype=np.int64)

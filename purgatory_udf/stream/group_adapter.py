"""Where Spark's group state meets the group coordinator: as `adapter` does for partitions, with timers after timers.

A call holds one consumer group, or all of a shard. It ends what is due up to its horizon in one go, however many timers
follow one another in it, and leaves one timer at the earliest deadline that is left. Once the watermark has passed the
end of the trace nothing more can come, and the horizon is the end of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from purgatory_udf.config import GroupSettings
from purgatory_udf.groups.packet import packet
from purgatory_udf.groups.requests import Requests
from purgatory_udf.groups.rows import ROWS
from purgatory_udf.groups.shelf import Shelf
from purgatory_udf.groups.step import Findings, step
from purgatory_udf.groups.waits import Waits, open_of
from purgatory_udf.groups.words import FOREVER
from purgatory_udf.live.rebalances import Sayings, in_rebalance
from purgatory_udf.stream.adapter import SparkGroupState
from purgatory_udf.stream.packing import CLOCK

# The scalars say what `inspect` shows without opening the state.
STATE_SCHEMA = (
    "groups BIGINT, sessions BIGINT, next_deadline_ms BIGINT, state_name STRING, state BINARY, waiting BINARY"
)
# A call's packet, how many rows its tables will have, what it says of its groups' waits and, while a table is followed,
# for `top`.
OUTPUT_SCHEMA = (
    "watermark_ms BIGINT, completions BIGINT, expirations BIGINT, group_transitions BIGINT, told BIGINT, "
    "said STRING, waits BINARY, payload BINARY"
)
COUNTED = ("completions", "expirations", "group_transitions", "told")


@dataclass(frozen=True)
class GroupLimits:
    """What a call needs to know of the run. Without an end (`--follow`), nothing is drained."""

    config: GroupSettings
    disorder: bool
    trace_end_ms: int | None
    follows: bool = False


def coordinating(
    limits: GroupLimits,
) -> Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]:
    """The function for `applyInPandasWithState`, by broker and group id, or by shard of these."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: SparkGroupState) -> Iterator[pd.DataFrame]:
        values = [bytes(value) for frame in frames for value in frame["payload"] if value]
        row = _tick(group) if key[0] == CLOCK else _call(values, group, limits)
        if row is not None:
            yield pd.DataFrame([row], columns=["watermark_ms", *COUNTED, "said", "waits", "payload"])

    return run


Row = tuple[int, int, int, int, int, str | None, bytes | None, bytes | None]


def _tick(group: SparkGroupState) -> Row:
    """The group of no key is called in every batch, and once more when the time that it told has passed: it says up to
    when all groups are told, though none of them has anything to say."""
    watermark = group.getCurrentWatermarkMs()
    if group.hasTimedOut:
        group.remove()
    else:
        group.update((0, 0, None, None, b"", None))
        group.setTimeoutTimestamp(max(watermark, 1))
    return watermark, 0, 0, 0, 0, None, None, None


def _call(values: list[bytes], group: SparkGroupState, limits: GroupLimits) -> Row | None:
    watermark = group.getCurrentWatermarkMs()
    shelf, waiting = Shelf(), []
    if group.exists:
        *_, state, held = group.get
        shelf = Shelf.from_bytes(bytes(state))
        if held:
            waiting.append(Requests.from_bytes(bytes(held)))
    ready = Requests.together([*waiting, *map(Requests.from_bytes, values)])
    later = None
    if limits.disorder:
        now = ready.rows.t <= watermark * 1000
        ready, later = ready.where(now), ready.where(~now)
    waits, sayings = Waits(), Sayings() if limits.follows else None
    found = _decided(shelf, ready, _horizon(ready, watermark, limits), limits.config, waits, sayings)
    _leave(group, shelf, later, watermark)
    told = waits.to_bytes()
    if not found and told is None:
        return None
    said = sayings.to_json() if sayings is not None else None
    return watermark, *_counted(found), said, told, packet(found) if found else None


def _counted(found: dict[str, Findings]) -> tuple[int, int, int, int]:
    expired = sum(int((ended.expired > 0).sum()) for one in found.values() for ended in one.ended)
    ended = sum(len(ended) for one in found.values() for ended in one.ended)
    changes = sum(len(one.transitions) for one in found.values())
    return ended - expired, expired, changes, sum(len(told) for one in found.values() for told in one.told)


def _horizon(ready: Requests, watermark: int, limits: GroupLimits) -> int:
    """Up to where the groups' past is settled."""
    if limits.trace_end_ms is not None and watermark > limits.trace_end_ms:
        return FOREVER
    if not limits.disorder and len(ready.rows):
        return max(watermark, int(ready.rows.t.max()) // 1000)
    return watermark


def _decided(
    shelf: Shelf, ready: Requests, horizon: int, config: GroupSettings, waits: Waits, sayings: Sayings | None
) -> dict[str, Findings]:
    """Of the groups with requests, and of those whose timers are due; nobody else is touched."""
    found = {}
    rows = dict(ready.by_group())
    for key in {**rows, **dict.fromkeys(shelf.due(horizon))}:
        kept = shelf.take(key)
        before, was = open_of(kept), in_rebalance(kept)
        kept, mine = step(key, kept, rows.get(key, ROWS.empty()), horizon, config)
        shelf.put(key, kept)
        waits.note(key, before, kept, mine)
        if sayings is not None:
            sayings.note(key, was, kept, mine)
        if mine:
            found[key] = mine
    return found


def _leave(group: SparkGroupState, shelf: Shelf, later: Requests | None, watermark: int) -> None:
    waits = later is not None and len(later.rows) > 0
    if not len(shelf) and not waits and not group.exists:
        return
    deadline = wake = shelf.next_deadline_ms
    held = None
    if later is not None and waits:
        wake, held = min(deadline, int(later.rows.t.min()) // 1000), later.to_bytes()
    scalars = (len(shelf), shelf.sessions, deadline if deadline < FOREVER else None, shelf.state)
    group.update((*scalars, shelf.to_bytes(), held))
    if wake < FOREVER:
        # A timer must lie after the epoch, too.
        group.setTimeoutTimestamp(max(wake, watermark, 1))

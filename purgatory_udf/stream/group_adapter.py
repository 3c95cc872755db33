"""Where Spark's group state meets the group coordinator: as `adapter` does for partitions, with timers after timers.

A call ends what is due up to its horizon in one go, however many timers follow one another in it, and leaves one timer
at the earliest deadline that is left. Once the watermark has passed the end of the trace nothing more can come, and the
horizon is the end of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.config import Group
from purgatory_udf.groups.kept import Kept
from purgatory_udf.groups.packet import packet
from purgatory_udf.groups.rows import in_order
from purgatory_udf.groups.snapshot import from_bytes, to_bytes
from purgatory_udf.groups.step import Found, step
from purgatory_udf.groups.words import FOREVER
from purgatory_udf.stream.adapter import GroupState
from purgatory_udf.stream.packing import CLOCK

# The scalars say what `inspect` shows without opening the state.
STATE_SCHEMA = "members BIGINT, next_deadline_ms BIGINT, state_name STRING, state BINARY, waiting BINARY"
OUTPUT_SCHEMA = "payload BINARY"


@dataclass(frozen=True)
class GroupLimits:
    """What a call needs to know of the run. Without an end (`--follow`), nothing is drained."""

    config: Group
    disorder: bool
    trace_end_ms: int | None


def encode(rows: Frame) -> bytes:
    """One group's rows as a value."""
    return pack({"rows": rows})


def decode(value: bytes) -> Frame:
    return unpack(value)["rows"]


def coordinating(limits: GroupLimits) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for `applyInPandasWithState`, by broker and group id."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        values = [bytes(value) for frame in frames for value in frame["payload"] if value]
        if key[0] == CLOCK:
            # It tells the time by having come; nothing is kept, so nothing fires.
            return
        found = _call(key[0], values, group, limits)
        if found:
            yield pd.DataFrame({"payload": [packet(key[0], found)]})

    return run


def _call(key: str, values: list[bytes], group: GroupState, limits: GroupLimits) -> Found:
    watermark = group.getCurrentWatermarkMs()
    kept, waiting = Kept(), []
    if group.exists:
        *_, state, held = group.get
        kept = from_bytes(bytes(state), key)
        if held:
            waiting.append(decode(bytes(held)))
    arrived = in_order(waiting + [decode(value) for value in values])
    count = int(np.searchsorted(arrived.t, watermark * 1000, side="right")) if limits.disorder else len(arrived)
    ready, later = arrived.take(slice(0, count)), arrived.take(slice(count, None))
    kept, found = step(key, kept, ready, _horizon(ready, watermark, limits), limits.config)
    _leave(group, kept, later, watermark)
    return found


def _horizon(ready: Frame, watermark: int, limits: GroupLimits) -> int:
    """Up to where the group's past is settled."""
    if limits.trace_end_ms is not None and watermark > limits.trace_end_ms:
        return FOREVER
    if not limits.disorder and len(ready):
        return max(watermark, int(ready.t[-1]) // 1000)
    return watermark


def _leave(group: GroupState, kept: Kept, later: Frame, watermark: int) -> None:
    if kept.group is None and not len(later) and not group.exists:
        return
    deadline = kept.next_deadline_ms()
    wake = min(deadline, int(later.t[0]) // 1000) if len(later) else deadline
    members = len(kept.group.members) if kept.group is not None else 0
    held = encode(later) if len(later) else None
    group.update((members, deadline if deadline < FOREVER else None, kept.state, to_bytes(kept), held))
    if wake < FOREVER:
        group.setTimeoutTimestamp(max(wake, watermark))

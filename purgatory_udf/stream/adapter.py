"""The only place where Spark's group state meets the rules: `GroupState` in, `step` called, `GroupState` left behind.

Every call ends in exactly one of: nothing kept; kept with a timer; kept without one. A call for a timer that did none
of these would be repeated for ever. A timer may not lie before the watermark, so what is due is ended first and the
timer is armed at the earliest deadline left, or at the watermark if that is later.

With disorder, events wait in the state until the watermark has passed them, and are then decided in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from purgatory_udf.columnar.codec import pack
from purgatory_udf.columnar.explode import Exploded
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.columnar.partition import State, step
from purgatory_udf.columnar.pending import Packet, Pending, packet_of
from purgatory_udf.loop.words import FOREVER
from purgatory_udf.stream.packing import CLOCK, decode, encode, together

# The scalars say what `inspect` shows without opening the watcher lists.
STATE_SCHEMA = "open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, keys BIGINT, state BINARY, waiting BINARY"
OUTPUT_SCHEMA = "payload BINARY"
PENDING_SCHEMA = "open BIGINT, state BINARY"
SETTLED_SCHEMA = "payload BINARY"


class GroupState(Protocol):
    """What this needs of pyspark's GroupState."""

    @property
    def exists(self) -> bool: ...
    @property
    def hasTimedOut(self) -> bool: ...  # noqa: N802
    @property
    def get(self) -> tuple[Any, ...]: ...
    def update(self, value: tuple[Any, ...]) -> None: ...
    def remove(self) -> None: ...
    def setTimeoutTimestamp(self, ms: int) -> None: ...  # noqa: N802
    def getCurrentWatermarkMs(self) -> int: ...  # noqa: N802


@dataclass(frozen=True)
class Limits:
    """What a call needs to know of the run."""

    retain_bytes: int
    disorder: bool


def keyed(limits: Limits) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for `applyInPandasWithState`, by group of keys."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        if key[0] == CLOCK:
            # It tells the time by having come; nothing is kept, so nothing fires.
            for _ in frames:
                pass
            return
        values = [value for frame in frames for value in frame["payload"] if value]
        packet = _call(values, group, limits)
        if packet is not None:
            yield pd.DataFrame({"payload": [packet.to_bytes()]})

    return run


def _call(values: list[bytes], group: GroupState, limits: Limits) -> Packet | None:
    watermark = group.getCurrentWatermarkMs()
    state, waiting = State(), []
    if group.exists:
        kept = group.get
        state = State.from_bytes(bytes(kept[4]))
        if kept[5]:
            waiting.append(decode(bytes(kept[5])))
    arrived = together(waiting + [decode(bytes(value)) for value in values])
    ready, later = _split(arrived, watermark) if limits.disorder else (arrived, None)
    horizon = watermark
    if not limits.disorder and len(ready.rows):
        horizon = max(watermark, int(ready.rows.t.max()) // 1000)
    found = step(state, ready.keys, ready.rows, horizon, limits.retain_bytes)
    _leave(group, state, later, watermark)
    return packet_of(found, state.keys)


def _split(arrived: Exploded, watermark: int) -> tuple[Exploded, Exploded | None]:
    """What no earlier event can follow any more, and what must wait."""
    if not len(arrived.rows):
        return arrived, None
    now = arrived.rows.t <= watermark * 1000
    if now.all():
        return arrived, None
    return Exploded(arrived.keys, arrived.rows.take(now)), Exploded(arrived.keys, arrived.rows.take(~now))


def _leave(group: GroupState, state: State, later: Exploded | None, watermark: int) -> None:
    open_, wake = state.open, state.next_deadline()
    oldest = int(open_.t.min()) // 1000 if len(open_) else None
    deadline = wake if len(open_) else None
    held = None
    if later is not None:
        held = encode(later)
        wake = min(wake, int(later.rows.t.min()) // 1000)
    group.update((len(open_), oldest, deadline, len(state.keys), state.to_bytes(), held))
    if wake < FOREVER:
        # A timer must lie after the epoch, too.
        group.setTimeoutTimestamp(max(wake, watermark, 1))


def settling() -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for the second query, by bucket of operations: watches in, whole operations out."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        pending = Pending.from_bytes(bytes(group.get[1])) if group.exists else Pending()
        values = [bytes(value) for frame in frames for value in frame["payload"]]
        settled, keys = pending.add([Packet.from_bytes(value) for value in values])
        waiting = pending.packet.done
        if len(waiting):
            group.update((len(np.unique(waiting.op)), pending.to_bytes()))
        elif group.exists:
            group.remove()
        if len(settled.operations):
            yield pd.DataFrame({"payload": [settled_bytes(settled.operations, settled.watches, keys)]})

    return run


def settled_bytes(operations: Frame, watches: Frame, keys: list[str]) -> bytes:
    names = Frame({"name": np.array(keys, dtype=object)})
    return pack({"keys": names, "operations": operations, "watches": watches})

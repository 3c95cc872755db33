"""The only place where Spark's group state meets the rules: `GroupState` in, `step` called, `GroupState` left behind.

Every call ends in exactly one of: nothing kept; kept with a timer; kept without one. A call for a timer that did none
of these would be repeated for ever. A timer may not lie before the watermark, so what is due is ended first and the
timer is armed at the earliest deadline left, or at the watermark if that is later.

With disorder, events wait in the state until the watermark has passed them, and are then decided in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa

from purgatory_udf.live.sayings import of_keys, of_time
from purgatory_udf.loop.call import Call, together
from purgatory_udf.loop.codec import call_bytes, call_of, state_bytes, state_of
from purgatory_udf.loop.grouping import by_broker, whole
from purgatory_udf.loop.memory import keep_freed
from purgatory_udf.loop.outcomes import Ended, gauge_table
from purgatory_udf.loop.shares import decided_apart, decided_here, undecidable
from purgatory_udf.loop.state import Found, Limits, State, step
from purgatory_udf.loop.words import FOREVER
from purgatory_udf.stream.packing import CLOCK, TICK, shares
from purgatory_udf.tables import ENDS

# The scalars say what `inspect` shows without opening the watcher lists.
STATE_SCHEMA = "open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, keys BIGINT, state BINARY, waiting BINARY"
# A call's rows of one table, how many, as an Arrow stream, and when the last of its operations ended; or, in the table
# `RELAY`, a share for a group of the next query, and its latest time.
OUTPUT_SCHEMA = "table STRING, `group` STRING, time_us BIGINT, rows BIGINT, payload BINARY"
RELAY = "relay"
# What the call says for `top`, while a table is followed.
LIVE = "live"

_ROWS_A_VALUE = 1 << 17


class SparkGroupState(Protocol):
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


class Sees(Enum):
    """How much of an operation a group sees: all of it, where groups are brokers; a share, where they are partitions or
    shards; or what such groups have left, for the brokers' groups behind them."""

    ALL = "all"
    SHARE = "share"
    REST = "rest"


@dataclass(frozen=True)
class Plan:
    """What a call needs to know of the run."""

    run_id: str
    limits: Limits
    disorder: bool
    trace_end_us: int | None
    # All of the trace comes in one batch: nothing follows what a call is given.
    at_once: bool = False
    sees: Sees = Sees.ALL
    follows: bool = False


Row = tuple[str, str, int, int, bytes]


def keyed(plan: Plan) -> Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]:
    """The function for `applyInPandasWithState`, by group of keys."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: SparkGroupState) -> Iterator[pd.DataFrame]:
        keep_freed()
        values = [value for frame in frames for value in frame["payload"] if value]
        if key[0] == CLOCK:
            # It tells the time by having come; nothing is kept, so nothing fires.
            rows = _ticks(values) if plan.follows and values else []
        else:
            rows = list(_call(key[0], values, group, plan))
        if rows:
            yield pd.DataFrame(rows, columns=["table", "group", "time_us", "rows", "payload"])

    return run


def _ticks(values: list[bytes]) -> list[Row]:
    events, latest_us = zip(*(struct.unpack(TICK, bytes(value)) for value in values), strict=True)
    return [(LIVE, CLOCK, max(latest_us), 0, of_time(sum(events)))]


def _call(name: str, values: list[bytes], group: SparkGroupState, plan: Plan) -> Iterator[Row]:
    watermark = group.getCurrentWatermarkMs()
    state, waiting = State(), []
    if group.exists:
        kept = group.get
        state = state_of(bytes(kept[4]))
        if kept[5]:
            waiting.append(call_of(bytes(kept[5])))
    ready = together(waiting + [call_of(bytes(value)) for value in values])
    later = None
    if plan.disorder and not plan.at_once:
        ready, later = _split(ready, watermark)
    horizon = watermark
    if plan.at_once:
        horizon = FOREVER
    elif not plan.disorder and len(ready):
        horizon = max(watermark, int(ready.events["t"].max()) // 1000)
    if plan.sees is Sees.SHARE:
        found = decided_here(step(state, undecidable(ready), horizon, plan.limits))
        for broker, time_us, share in shares(ready, by_broker):
            yield RELAY, broker, time_us, 0, share
    elif plan.sees is Sees.REST:
        found = decided_apart(step(state, whole(ready), horizon, plan.limits))
    else:
        found = step(state, ready, horizon, plan.limits)
    _leave(group, state, later, watermark, plan)
    yield from _rows(found, plan)
    if plan.follows:
        yield LIVE, name, horizon * 1000, 0, of_keys(state, found, whole=plan.sees is not Sees.SHARE)


def _split(arrived: Call, watermark: int) -> tuple[Call, Call | None]:
    """What no earlier event can follow any more, and what must wait. Strictly before the watermark, as timers are: so
    all groups of a batch have let go of the same past."""
    now = arrived.events["t"] // 1000 < watermark
    if now.all():
        return arrived, None
    return arrived.only(now), arrived.only(~now)


def _leave(group: SparkGroupState, state: State, later: Call | None, watermark: int, plan: Plan) -> None:
    open_, wake = state.operations, state.next_deadline_ms
    oldest = int(open_["t"].min()) // 1000 if len(open_) else None
    deadline = wake if len(open_) else None
    held = None
    if later is not None:
        held = call_bytes(later)
        wake = min(wake, int(later.events["t"].min()) // 1000)
    if plan.follows:
        # No end of the trace will come, at which everything is read that is left.
        wake = min(wake, state.next_reading_ms)
    group.update((len(state.parts), oldest, deadline, len(state.names), state_bytes(state), held))
    if wake < FOREVER:
        # A timer must lie after the epoch, too.
        group.setTimeoutTimestamp(max(wake, watermark, 1))


def _rows(found: Found, plan: Plan) -> Iterator[Row]:
    """What a call found, as rows of the tables."""
    if len(found.ended):
        ended = Ended(found, plan.run_id, plan.trace_end_us)
        for table, rows in zip(ENDS, ended.outcomes(), strict=True):
            yield from _values(table, rows, ended.latest_us)
        yield from _values("watches", ended.watches())
    if len(found.readings):
        yield from _values("purgatory_gauges", gauge_table(found, plan.run_id))


def _values(name: str, table: pa.Table, latest_us: int = 0) -> Iterator[Row]:
    for begin in range(0, len(table), _ROWS_A_VALUE):
        part = table.slice(begin, _ROWS_A_VALUE)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
        yield name, "", latest_us, len(part), sink.getvalue().to_pybytes()

"""Adapter between Spark's group state and the rules: the function for `applyInPandasWithState`.

Each call restores a group's state, runs one `step` of the rules and stores the new state, with an event-time timeout if
time alone can change it. A timeout must not be earlier than the watermark. `step` first expires everything that is due;
the timeout is then the earliest remaining deadline, or the watermark if that is later. A call for a timeout has to
update or remove the state: Spark would otherwise repeat it.

If events may be out of order, they are kept in the state until the watermark has passed them, and are then decided in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import pandas as pd

from purgatory_udf.common.worker_memory import retain_freed_memory
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.streaming.stateful_rules import CLOCK, AnyRules, OutputChunk, Plan, Rows, Rules, State, decode_ticks

# The scalars repeat facts of the serialized `state`, so that queries on the state store need not decode it.
STATE_SCHEMA = "open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, keys BIGINT, state BINARY, waiting BINARY"
OUTPUT_SCHEMA = "table STRING, `group` STRING, time_us BIGINT, rows BIGINT, payload BINARY"


class SparkGroupState(Protocol):
    """The part of pyspark's `GroupState` that the adapter uses."""

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


def state_function(rules: AnyRules) -> Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]:
    """Return the function for `applyInPandasWithState`, which Spark calls for each group."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: SparkGroupState) -> Iterator[pd.DataFrame]:
        retain_freed_memory()
        values = [bytes(value) for frame in frames for value in frame["payload"] if value]
        chunks = list(
            _call_clock(values, group, rules) if key[0] == CLOCK else _call_group(key[0], values, group, rules)
        )
        if chunks:
            yield pd.DataFrame(chunks, columns=list(OutputChunk._fields))

    return run


def _call_clock(values: list[bytes], group: SparkGroupState, rules: AnyRules) -> Iterator[OutputChunk]:
    """Call the rules for the clock group, which has a row in every batch with events.

    If the rules need it, a timeout calls them once more when the watermark has passed the batch's last event.
    """
    watermark = group.getCurrentWatermarkMs()
    if group.hasTimedOut:
        group.remove()
    elif rules.needs_clock_timer and not rules.plan.is_one_batch:
        group.update((0, None, None, 0, b"", None))
        group.setTimeoutTimestamp(max(watermark, 1))
    return rules.tick(*decode_ticks(values), _horizon([], watermark, rules.plan))


def _call_group(
    name: str, values: list[bytes], group: SparkGroupState, rules: Rules[State, Rows]
) -> Iterable[OutputChunk]:
    plan, watermark = rules.plan, group.getCurrentWatermarkMs()
    state, held = rules.decode_state(None), []
    if group.exists:
        *_, serialized, waiting = group.get
        state = rules.decode_state(bytes(serialized))
        if waiting:
            held.append(bytes(waiting))
    ready, later = rules.decode_rows([*held, *values]), None
    if plan.has_disorder and not plan.is_one_batch:
        ready, later = _split_at_watermark(rules, ready, watermark)
    state, chunks = rules.step(name, state, ready, _horizon(rules.times_us(ready), watermark, plan))
    _save_state(group, rules, state, later, watermark)
    return chunks


def _split_at_watermark(rules: Rules[State, Rows], arrived: Rows, watermark: int) -> tuple[Rows, Rows | None]:
    """Return the rows that no earlier row can follow, and the rows that have to wait, or None.

    The bound is strict, like that of timeouts, so all groups of a batch decide the same range of time.
    """
    now = rules.times_us(arrived) // 1000 < watermark
    if now.all():
        return arrived, None
    return rules.select(arrived, now), rules.select(arrived, ~now)


def _horizon(ready_us: Any, watermark: int, plan: Plan) -> int:
    """Return the time in milliseconds up to which the group's events are complete."""
    if plan.is_one_batch or (plan.trace_end_us is not None and watermark > plan.trace_end_us // 1000):
        return FOREVER
    if not plan.has_disorder and len(ready_us):
        return max(watermark, int(ready_us.max()) // 1000)
    return watermark


def _save_state(
    group: SparkGroupState, rules: Rules[State, Rows], state: State, later: Rows | None, watermark: int
) -> None:
    *scalars, wake = rules.scalars(state)
    held = None
    if later is not None:
        held = rules.encode_rows(later)
        wake = min(wake, int(rules.times_us(later).min()) // 1000)
    group.update((*scalars, rules.encode_state(state), held))
    if wake < FOREVER:
        # Spark requires a positive timestamp.
        group.setTimeoutTimestamp(max(wake, watermark, 1))

"""The only place where Spark's group state meets the rules: `GroupState` in, `step` called, `GroupState` left behind.

Every call ends in exactly one of: nothing kept; kept with a timer; kept without one. A call for a timer that did none
of these would be repeated for ever. A timer may not lie before the watermark, so what is due is ended first and the
timer is armed at the earliest deadline left, or at the watermark if that is later.

With disorder, events wait in the state until the watermark has passed them, and are then decided in order.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.worker_memory import retain_freed_memory
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.streaming.stateful_rules import CLOCK, AnyRules, OutputChunk, Plan, Rows, Rules, State, decode_ticks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The scalars say what a state is about without opening it.
STATE_SCHEMA = "open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, keys BIGINT, state BINARY, waiting BINARY"
OUTPUT_SCHEMA = "table STRING, `group` STRING, time_us BIGINT, rows BIGINT, payload BINARY"


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


def state_function(rules: AnyRules) -> Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]:
    """The function for `applyInPandasWithState`, by group."""

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
    """The group of no key is called in every batch; and, where time is to be reckoned with, once more when that which
    it told has passed. Otherwise nothing is kept, so nothing fires."""
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
        *_, kept, waiting = group.get
        state = rules.decode_state(bytes(kept))
        if waiting:
            held.append(bytes(waiting))
    ready, later = rules.decode_rows([*held, *values]), None
    if plan.has_disorder and not plan.is_one_batch:
        ready, later = _split_at_watermark(rules, ready, watermark)
    state, chunks = rules.step(name, state, ready, _horizon(rules.times_us(ready), watermark, plan))
    _save_state(group, rules, state, later, watermark)
    return chunks


def _split_at_watermark(rules: Rules[State, Rows], arrived: Rows, watermark: int) -> tuple[Rows, Rows | None]:
    """What no earlier event can follow any more, and what must wait. Strictly before the watermark, as timers are: so
    all groups of a batch have let go of the same past."""
    now = rules.times_us(arrived) // 1000 < watermark
    if now.all():
        return arrived, None
    return rules.select(arrived, now), rules.select(arrived, ~now)


def _horizon(ready_us: Any, watermark: int, plan: Plan) -> int:
    """Up to where a group's past is settled. Nothing comes any more once the watermark has passed the trace's end."""
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
        # A timer must lie after the epoch, too.
        group.setTimeoutTimestamp(max(wake, watermark, 1))


# What goes wrong in a batch's Python function, told to Spark in few words.
#
# When a query is stopped in mid-batch, Spark asks whether an error is only its own interruption: it searches the
# error's text with a regular expression that takes a frame of the stack for each letter. The text of an error that has
# come through Java and Python holds both stacks, tens of thousands of letters: the search itself then ends in a
# StackOverflowError, on the terminal and in place of the answer. So stacks are left out (`--verbose` logs them).


log = logging.getLogger(__name__)

Write = Callable[["DataFrame", int], None]

# A search through so many takes a small part of a JVM's usual stack.
MAX_ERROR_CHARS = 1_500
_MAX_LINE_CHARS = 400
_STACK_FRAME_PREFIXES = ("\tat ", "\t... ", "  File ", "    ")


class BatchError(Exception):
    """What happened, and each of its causes, without any stack."""


def shorten_errors(write: Write) -> Write:
    """The function for `foreachBatch`, whose errors are short."""

    @functools.wraps(write)
    def run(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except UserError:
            raise
        except Exception as error:
            log.debug("batch %s", number, exc_info=True)
            raise BatchError(shorten_text(f"{type(error).__module__}.{type(error).__name__}: {error}")) from None

    return run


def shorten_text(text: str) -> str:
    """The text's lines that are no frames of a stack, each once; of very many the first and, since it is the cause,
    the last."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(_STACK_FRAME_PREFIXES))
    brief = "\n".join(dict.fromkeys(line[:_MAX_LINE_CHARS] for line in lines))
    if len(brief) <= MAX_ERROR_CHARS:
        return brief
    half = MAX_ERROR_CHARS // 2
    return f"{brief[:half]} …\n… {brief[-half:]}"

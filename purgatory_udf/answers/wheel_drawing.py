"""Small simulations of Kafka's timing wheels and watcher lists, and charts of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer, TimerTask

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Alarm(TimerTask):
    """A task without an action."""

    def run(self, now_ms: int) -> None:
        """Do nothing."""


class _Waiting(DelayedOperation):
    """An operation that completes only by `force_complete`."""

    def try_complete(self, now_us: int) -> bool:
        return False

    def on_complete(self, now_us: int) -> None:
        """Do nothing: there is no response."""

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: there is no meter."""


def wheel_steps(deadlines_ms: Sequence[int], start_ms: int = 1000) -> pd.DataFrame:
    """Return the bucket of each task over time: a row for each change, and one at the deadline.

    `bucket_begins_ms` is the time at which the bucket expires and its tasks move to a finer wheel. It is never later
    than the task's deadline.

    Args:
        deadlines_ms: Deadlines of the tasks, in milliseconds of the clock; equal ones count once.
        start_ms: The clock at which all tasks are added.
    """
    timer = SystemTimer(start_ms)
    tasks = {deadline: _Alarm(deadline) for deadline in sorted(deadlines_ms)}
    for task in tasks.values():
        timer.add(task)
    rows: list[tuple[int, int, int]] = []
    waits_in: dict[int, int | None] = {}
    for clock_ms in range(start_ms, max(tasks) + 1):
        timer.advance_clock(clock_ms)
        for deadline, task in tasks.items():
            begins = task.bucket.expiration_ms if task.bucket else None
            if waits_in.get(deadline, -1) != begins:
                rows.append((deadline, clock_ms, deadline if begins is None else begins))
                waits_in[deadline] = begins
    return pd.DataFrame(rows, columns=["deadline_ms", "clock_ms", "bucket_begins_ms"])


def draw_wheel(steps: pd.DataFrame) -> alt.LayerChart:
    """Return a chart of the start of each task's bucket against the clock, from the coarsest wheel to the deadline."""
    named = steps.assign(task="due at " + steps["deadline_ms"].astype(str))
    base = alt.Chart(named, width=620, height=260)
    scale = alt.Scale(zero=False)
    lines = base.mark_line(interpolate="step-after", point=True).encode(
        x=alt.X("clock_ms:Q", title="clock, ms", scale=scale),
        y=alt.Y("bucket_begins_ms:Q", title="start of its bucket, ms", scale=scale),
        color=alt.Color("task:N", title=None),
        tooltip=["task", "clock_ms", "bucket_begins_ms"],
    )
    now = base.mark_line(strokeDash=[4, 4], color="grey").encode(x="clock_ms:Q", y="clock_ms:Q")
    return now + lines


def list_steps(operations: int = 60, keys: int = 3, purge_interval: int = 20, expired_of: int = 4) -> pd.DataFrame:
    """Return a purgatory's gauges over time while operations arrive, complete and expire.

    No event checks the watcher lists, so entries of ended operations stay until the purge.

    Args:
        operations: Number of operations; one arrives every 10 ms.
        keys: Number of keys on which each operation is watched.
        purge_interval: The purge interval, in operations.
        expired_of: One of this number of operations expires; events complete the others.
    """
    purgatory = DelayedOperationPurgatory[_Waiting]("Fetch", SystemTimer(0), purge_interval)
    rows = list(_live(purgatory, operations, keys, expired_of))
    return pd.DataFrame(rows, columns=["ms", "PurgatorySize", "NumDelayedOperations", "purged"])


def _live(
    purgatory: DelayedOperationPurgatory[_Waiting], operations: int, keys: int, expired_of: int
) -> Iterator[tuple[int, int, int, int]]:
    waiting: list[_Waiting] = []
    for number in range(operations):
        now_ms = 10 * number
        purged = purgatory.purged
        purgatory.advance_clock(now_ms)
        operation = _Waiting(now_ms * 1000, 50)
        purgatory.try_complete_else_watch(operation, [f"t-{key}" for key in range(keys)], now_ms * 1000)
        waiting.append(operation)
        if number >= 3 and number % expired_of:
            waiting[number - 3].force_complete(now_ms * 1000)
        yield now_ms, purgatory.watched(), purgatory.num_delayed(), purgatory.purged - purged


def draw_lists(steps: pd.DataFrame) -> alt.LayerChart:
    """Return a chart of PurgatorySize and NumDelayedOperations over time, with a mark at each purge of dead entries."""
    gauges = ["PurgatorySize", "NumDelayedOperations"]
    long = steps.melt(["ms", "purged"], gauges, "gauge", "reads")
    lines = (
        alt.Chart(long, width=620, height=240)
        .mark_line(interpolate="step-after")
        .encode(x=alt.X("ms:Q", title="clock, ms"), y="reads:Q", color=alt.Color("gauge:N", title=None))
    )
    purges = (
        alt.Chart(steps[steps["purged"] > 0])
        .mark_point(shape="triangle-down", size=80, filled=True, color="#cc79a7")
        .encode(x="ms:Q", y="PurgatorySize:Q", tooltip=["ms", "purged"])
    )
    return lines + purges

"""When a purgatory's reaper wakes because a bucket of its timing wheels begins: every wake-up of a whole run at once.

A task's way through the wheels follows from its deadline alone, once it is known which wheel it was first put into:

    deadline 1404, put into wheel 3 (ticks of 400)    buckets begin at 1200, 1400 (wheel 2), 1404 (wheel 1)

that is, at the deadline cut to 400, to 20 and to 1; each time if the task was still alive when the bucket before began.
A bucket stays queued when its tasks are cancelled, so the first one always wakes the reaper.

Which wheel comes first depends on the clock of the wheels at that moment, and that is the beginning of the latest
bucket that began, of whatever task. It lags behind the time where little happens. So the answer depends on earlier
answers; but hardly ever, since wheels are coarse. All are guessed (a clock without lag) and guessed again from the
buckets that follow, until nothing changes: task n cannot be wrong after n rounds, and a few rounds are usual.

Where the clock lags, a bucket may have begun before a task was put into it. The reaper then wakes at once: after the
event that brought the task, before the next one, be it of the same millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.timeline.moments import BY_CLOCK, HANDLED, Timeline, distinct

BUCKETS = 20
_LONG_AGO = -(2**62)


def wake_ups(tasks: Frame, start_ms: int, turn: int) -> Timeline:
    """Every wake-up by a bucket. `tasks` in order of arrival: `t`, `seq`, `sub`, `deadline` and `until`, the last
    millisecond in which the task is alive when the clock comes to it. `turn`: the reaper's among those of a broker."""
    arrival = tasks.t // 1000
    by_clock = tasks.seq == BY_CLOCK
    # What comes in a turn of the clock before the reaper's own, comes before the buckets of that millisecond.
    begun_by = np.where(by_clock & (tasks.sub < turn), arrival - 1, arrival)
    moment = _moments(tasks)
    wheel = _wheels(arrival, tasks.deadline)
    while True:
        begun = _begun(tasks, begun_by, wheel)
        found = _wheels(begun.clock(begun_by, moment, start_ms), tasks.deadline)
        if (found == wheel).all():
            break
        wheel = found
    at_once = begun.on_arrival > _LONG_AGO
    later = np.full(len(begun.later), BY_CLOCK)
    next_turn = tasks.sub + (tasks.sub % 2 != turn)
    return Timeline.of_one(
        np.concatenate([begun.later * 1000, tasks.t[at_once]]),
        np.concatenate([later, tasks.seq[at_once]]),
        np.concatenate([np.full_like(later, turn), np.where(by_clock, next_turn, HANDLED + turn)[at_once]]),
    )


def _moments(tasks: Frame) -> Array:
    """By task: the place of the first one that came in the same step. Reapers wake between steps only."""
    step = np.where(tasks.seq == BY_CLOCK, tasks.sub, 0)
    begins = np.ones(len(step), dtype=bool)
    begins[1:] = (np.diff(tasks.t) != 0) | (np.diff(tasks.seq) != 0) | (np.diff(step) != 0)
    first: Array = np.maximum.accumulate(np.where(begins, np.arange(len(step)), 0))
    return first


def _wheels(clock: Array, deadline: Array) -> Array:
    """The number of the first wheel that reaches to each deadline by that clock; -1: due already, so put into none."""
    wheel = np.zeros(len(deadline), dtype=np.int64)
    reach, tick = clock + BUCKETS, 1
    beyond = np.flatnonzero(deadline >= reach)
    while len(beyond):
        wheel[beyond] += 1
        tick *= BUCKETS
        reach = clock[beyond] // tick * tick + tick * BUCKETS
        beyond = beyond[deadline[beyond] >= reach]
    wheel[deadline <= clock] = -1
    return wheel


@dataclass
class _Begun:
    later: Array  # beginnings of buckets that began after their tasks had come, each once, in order
    on_arrival: Array  # by task: the latest beginning among its buckets that had begun before

    def clock(self, begun_by: Array, moment: Array, start_ms: int) -> Array:
        """The clock of the wheels when each task comes: the events of its millisecond follow the buckets of it."""
        before = np.concatenate([[start_ms], self.later])[np.searchsorted(self.later, begun_by, side="right")]
        earlier = np.concatenate([[_LONG_AGO], np.maximum.accumulate(self.on_arrival)])[moment]
        return np.array(np.maximum(before, earlier))


def _begun(tasks: Frame, begun_by: Array, wheel: Array) -> _Begun:
    """`begun_by`: of each task the last millisecond whose buckets had all begun before it came."""
    deadline, until = tasks.deadline, tasks.until
    later = []
    on_arrival = np.full(len(deadline), _LONG_AGO, dtype=np.int64)
    tick = 1
    for number in range(int(wheel.max(initial=-1)) + 1):
        above = deadline // (tick * BUCKETS) * (tick * BUCKETS)
        queued = (wheel == number) | ((wheel > number) & (above <= until))
        begins = deadline // tick * tick
        late = queued & (begins <= begun_by)
        on_arrival[late] = np.maximum(on_arrival[late], begins[late])
        later.append(distinct(begins[queued & ~late]))
        tick *= BUCKETS
    return _Begun(distinct(np.concatenate([np.zeros(0, dtype=np.int64), *later])), on_arrival)

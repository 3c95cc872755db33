"""When the reaper wakes for a bucket: each task's way down through the wheels, and the lag of their clock."""

from __future__ import annotations

import numpy as np

from purgatory_udf.frames.frame import Frame
from purgatory_udf.purgatory.timer import SystemTimer
from purgatory_udf.purgatory.timer_task import TimerTask
from purgatory_udf.timeline.reaper_times import wake_ups

Moment = tuple[int, int]

BY_CLOCK = -1
ALIVE = 10**9


def wakes(start_ms: int, *tasks: tuple[int, int, int]) -> list[Moment]:
    """Tasks are (arrival, deadline, last ms alive); wake-ups (ms, number of the task that woke at once, or -1)."""
    arrival, deadline, until = np.array(tasks, dtype=np.int64).reshape(-1, 3).T
    columns = {"t": arrival * 1000, "seq": np.arange(len(tasks)), "sub": 0 * arrival, "deadline": deadline}
    rows = wake_ups(Frame({**columns, "until": np.minimum(deadline, until)}), start_ms, turn=0).rows
    return [(t // 1000, seq) for t, seq in zip(rows.t.tolist(), rows.seq.tolist(), strict=True)]


def test_a_task_comes_down_from_wheel_to_wheel_to_its_deadline() -> None:
    assert wakes(1003, (1003, 1404, ALIVE)) == [(1200, BY_CLOCK), (1400, BY_CLOCK), (1404, BY_CLOCK)]


def test_a_wheel_on_whose_border_the_deadline_lies_is_its_last() -> None:
    assert wakes(1003, (1003, 1600, ALIVE)) == [(1600, BY_CLOCK)]


def test_a_near_task_goes_into_the_first_wheel_though_a_coarser_bucket_would_begin_before() -> None:
    assert wakes(15, (15, 30, ALIVE)) == [(30, BY_CLOCK)]


def test_a_cancelled_task_leaves_its_bucket_queued_but_never_reaches_the_next() -> None:
    assert wakes(1003, (1003, 1404, 1100)) == [(1200, BY_CLOCK)]
    assert wakes(1003, (1003, 1404, 1200)) == [(1200, BY_CLOCK), (1400, BY_CLOCK)], "events come after the bucket"


def test_a_bucket_that_begins_is_one_wake_up_for_all_its_tasks() -> None:
    assert wakes(0, (0, 5, ALIVE), (1, 5, ALIVE), (5, 9, ALIVE)) == [(5, BY_CLOCK), (9, BY_CLOCK)]


def test_where_the_clock_lags_a_bucket_has_begun_before_its_task_came_and_wakes_at_once() -> None:
    # The clock stands at 0: 1010 is beyond the second wheel, and [800, 1200) of the third has begun. Then so has
    # [1000, 1020) of the second: the same wake-up flushes both.
    assert wakes(0, (1005, 1010, ALIVE)) == [(1005, 0), (1010, BY_CLOCK)]


def test_a_task_that_has_woken_the_reaper_at_once_has_moved_the_clock_for_the_next_one() -> None:
    assert wakes(0, (1005, 1010, ALIVE), (1005, 1010, ALIVE)) == [(1005, 0), (1010, BY_CLOCK)]


def test_a_task_without_delay_wakes_nobody_unless_the_clock_lags() -> None:
    assert wakes(7, (7, 7, ALIVE)) == []
    assert wakes(7, (8, 8, ALIVE)) == [(8, 0)]


def test_no_tasks_no_wake_ups() -> None:
    assert wakes(0) == []


class Task(TimerTask):
    def run(self) -> None:
        """Nothing depends on what it does."""


def test_what_another_purgatory_s_turn_has_put_into_the_wheels_came_before_their_buckets_of_that_millisecond() -> None:
    """A session expires at 1205 and begins a round, whose reaper has its turn after the sessions': by then its wheels
    stand at 1200, and 1221 lies beyond the first of them. In a turn after its own they would stand at 1205.

        turn 0: sessions    ─────────────────────── 1205 begins 1221 ────────
        turn 1: rounds      1180 ── 1190 ── 1200 ── 1205 ────── 1220 ── 1221
    """
    timer, woken = SystemTimer(1180), []
    timer.add(Task(1205))
    for now_ms in range(1190, 1230):
        if now_ms == 1205:
            timer.add(Task(1221))
        if timer.next_wake_ms() == now_ms:
            woken.append(now_ms)
            timer.advance_clock(now_ms)
    assert woken == [1200, 1205, 1220, 1221]

    assert _in_turn(1, begun_in_turn=0) == [(ms, 1) for ms in woken]
    assert _in_turn(1, begun_in_turn=1) == [(1200, 1), (1205, 1), (1221, 1)]
    assert _in_turn(0, begun_in_turn=0) == [(1200, 0), (1205, 0), (1221, 0)]


def test_a_reaper_that_wakes_at_once_for_another_turn_of_the_clock_does_so_in_its_own_next_one() -> None:
    """The clock stands at 0, so the bucket of 1010 has begun long since."""
    for begun_in_turn, woken_in_turn in ((0, 1), (1, 1), (2, 3)):
        rows = wake_ups(_by_clock((1005, begun_in_turn, 1010)), 0, turn=1).rows
        moments = zip(rows.t.tolist(), rows.seq.tolist(), rows.sub.tolist(), strict=True)
        assert list(moments) == [(1_005_000, BY_CLOCK, woken_in_turn), (1_010_000, BY_CLOCK, 1)]


def _in_turn(turn: int, begun_in_turn: int) -> list[Moment]:
    """(ms, turn) in which a reaper wakes for a task of 1190 and one that the clock begins at 1205."""
    rows = wake_ups(_by_clock((1190, 0, 1205), (1205, begun_in_turn, 1221)), 1180, turn).rows
    return [(t // 1000, sub) for t, sub in zip(rows.t.tolist(), rows.sub.tolist(), strict=True)]


def _by_clock(*tasks: tuple[int, int, int]) -> Frame:
    """(arrival, turn, deadline) of tasks that no event brings about."""
    arrival, sub, deadline = np.array(tasks, dtype=np.int64).T
    columns = {"t": arrival * 1000, "seq": np.full(len(tasks), BY_CLOCK), "sub": sub, "deadline": deadline}
    return Frame(columns | {"until": deadline})

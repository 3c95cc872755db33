"""The timing wheels: exact to the millisecond on every level, even after late advances of the clock."""

from __future__ import annotations

import pytest

from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer, TimerTask


class Task(TimerTask):
    """Writes its name and deadline to a log when it runs."""

    def __init__(self, name: str, deadline_ms: int, log: list[tuple[str, int]]) -> None:
        super().__init__(deadline_ms)
        self.name = name
        self._log = log

    def run(self, now_ms: int) -> None:
        self._log.append((self.name, self.deadline_ms))


class Clock:
    """Advances a timer millisecond by millisecond and logs which task ran when."""

    def __init__(self, start_ms: int) -> None:
        self.timer = SystemTimer(start_ms)
        self.now_ms = start_ms
        self.ran: list[tuple[str, int]] = []

    def add(self, name: str, deadline_ms: int) -> Task:
        task = Task(name, deadline_ms, self.ran)
        self.timer.add(task)
        return task

    def advance_to(self, now_ms: int) -> list[tuple[str, int]]:
        """Return name and time of every task that ran on the way."""
        seen: list[tuple[str, int]] = []
        while True:
            before = len(self.ran)
            self.timer.advance_clock(self.now_ms)
            seen += [(name, self.now_ms) for name, _ in self.ran[before:]]
            if self.now_ms == now_ms:
                return seen
            self.now_ms += 1


def wakes_of(task: Task) -> list[int]:
    """Return when a timer that started at 1003 wakes for its only task."""
    timer = SystemTimer(1003)
    timer.add(task)
    wakes = []
    while (wake := timer.next_wake_ms()) is not None:
        wakes.append(wake)
        timer.advance_clock(wake)
    return wakes


@pytest.mark.parametrize("delay_ms", [1, 19, 20, 21, 399, 400, 401, 7999, 8000, 8001, 12_345])
def test_task_of_any_wheel_runs_at_deadline(delay_ms: int) -> None:
    clock = Clock(1003)
    clock.add("task", 1003 + delay_ms)
    assert clock.advance_to(1003 + delay_ms - 1) == []
    assert clock.timer.size() == 1
    assert clock.advance_to(1003 + delay_ms + 500) == [("task", 1003 + delay_ms)]
    assert clock.timer.size() == 0


def test_far_deadline_wakes_once_per_wheel() -> None:
    ran: list[tuple[str, int]] = []
    #     buckets of         8 s    400 ms  20 ms   1 ms
    assert wakes_of(Task("far", 161_004, ran)) == [160_000, 160_800, 161_000, 161_004]
    assert ran == [("far", 161_004)]


@pytest.mark.parametrize(
    ("deadline_ms", "expected"),
    [
        pytest.param(1022, [1022], id="19 ms ahead: the first wheel"),
        pytest.param(1023, [1020, 1023], id="20 ms ahead: the second"),
        pytest.param(1399, [1380, 1399], id="the last that the second wheel reaches from 1000"),
        pytest.param(1400, [1200, 1400], id="the first of the third"),
    ],
)
def test_wheel_reaches_just_short_of_interval(deadline_ms: int, expected: list[int]) -> None:
    assert wakes_of(Task("task", deadline_ms, [])) == expected


def test_worked_example_of_timing_wheel() -> None:
    ran: list[tuple[str, int]] = []
    assert wakes_of(Task("task", 1404, ran)) == [1200, 1400, 1404]
    assert ran == [("task", 1404)]


def test_tasks_run_by_deadline_then_insertion() -> None:
    clock = Clock(0)
    for name, deadline_ms in [("d", 500), ("b", 30), ("a", 5), ("c", 30), ("e", 500)]:
        clock.add(name, deadline_ms)
    assert clock.advance_to(600) == [("a", 5), ("b", 30), ("c", 30), ("d", 500), ("e", 500)]


def test_late_advance_runs_missed_tasks_in_order() -> None:
    clock = Clock(0)
    for name, deadline_ms in [("c", 9000), ("b", 450), ("a", 21)]:
        clock.add(name, deadline_ms)
    clock.timer.advance_clock(10_000)
    assert clock.ran == [("a", 21), ("b", 450), ("c", 9000)]


def test_due_task_runs_without_entering_wheel() -> None:
    clock = Clock(100)
    clock.add("now", 100)
    clock.add("past", 7)
    assert (clock.timer.size(), clock.timer.next_wake_ms()) == (0, None)
    assert clock.timer.run_due() is True
    assert clock.ran == [("now", 100), ("past", 7)]
    assert clock.timer.run_due() is False


def test_cancelled_task_leaves_its_bucket_queued() -> None:
    clock = Clock(0)
    task = clock.add("cancelled", 50)
    task.cancel()
    assert clock.timer.size() == 0
    assert clock.timer.next_wake_ms() == 40, "the emptied bucket still wakes the reaper"
    assert clock.advance_to(100) == []
    assert clock.timer.next_wake_ms() is None


def test_task_cancelled_before_add_never_runs() -> None:
    clock = Clock(0)
    for deadline_ms in (0, 5, 5000):
        task = Task("cancelled", deadline_ms, clock.ran)
        task.cancel()
        clock.timer.add(task)
    assert clock.timer.size() == 0
    assert clock.advance_to(6000) == []


def test_deadlines_hold_in_lagging_wheel() -> None:
    clock = Clock(1003)
    clock.now_ms = 900_017
    clock.add("soon", 900_022)
    clock.add("later", 930_017)
    # The wheel clock is still at 1003, so both tasks are in a bucket of 160 s that has already expired.
    assert clock.timer.next_wake_ms() == 800_000
    assert clock.advance_to(930_020) == [("soon", 900_022), ("later", 930_017)]


def test_buckets_are_reused() -> None:
    clock = Clock(0)
    seen = []
    for round_start in range(0, 100, 20):
        clock.add(f"round {round_start}", round_start + 7)
        seen += clock.advance_to(round_start + 20)
    assert seen == [(f"round {start}", start + 7) for start in range(0, 100, 20)]


def test_shut_down_timer_runs_nothing() -> None:
    clock = Clock(0)
    clock.add("open", 5)
    clock.add("due", 0)
    clock.timer.shutdown()
    assert clock.advance_to(50) == []
    assert clock.timer.next_wake_ms() is None

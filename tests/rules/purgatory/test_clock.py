"""The expiration reapers: when they wake, and in which order."""

from __future__ import annotations

from purgatory_udf.rules.purgatory.clock import ExpiredOperationReaper, Pauses, Reapers
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer
from tests.rules.purgatory.mock_operation import Operation, purgatory


def test_reaper_wakes_for_bucket_or_after_200_ms() -> None:
    """An emptied bucket still wakes the reaper."""
    waiting = purgatory()
    operation = Operation("cancelled", 50)
    waiting.try_complete_else_watch(operation, ["a"], 0)
    operation.force_complete(1)
    reaper = ExpiredOperationReaper(waiting, 0, 0, Pauses())
    wakes = []
    for _ in range(3):
        wakes.append(reaper.next_wake_ms(0))
        reaper.wake(wakes[-1])
    assert wakes == [40, 240, 440]


def test_reapers_wake_by_time_then_creation() -> None:
    woken: list[tuple[str, int]] = []

    class Logged(DelayedOperationPurgatory[Operation]):
        def advance_clock(self, now_ms: int) -> None:
            woken.append((self.name, now_ms))
            super().advance_clock(now_ms)

    reapers = Reapers(0)
    heartbeats, joins = Logged("Heartbeat", SystemTimer(0)), Logged("Rebalance", SystemTimer(0))
    reapers.add(heartbeats)
    reapers.add(joins)
    joins.try_complete_else_watch(Operation("join", 5), ["group"], 0)
    heartbeats.try_complete_else_watch(Operation("heartbeat", 10), ["member"], 0)
    joins.try_complete_else_watch(Operation("join", 10), ["group"], 0)
    reapers.advance_to(250)
    assert woken == [("Rebalance", 5), ("Heartbeat", 10), ("Rebalance", 10), ("Heartbeat", 210), ("Rebalance", 210)]


def test_late_reaper_keeps_rhythm_of_start() -> None:
    reapers = Reapers(1000)
    reapers.advance_to(1950)
    late = purgatory()
    reapers.add(late)
    woken: list[int] = []
    late.advance_clock = woken.append  # type: ignore[method-assign, assignment]
    reapers.advance_to(2250)
    assert woken == [2000, 2200]


def test_due_operation_added_by_expiration_runs_at_once() -> None:
    """The operation may be added to any purgatory."""
    reapers = Reapers(0)
    joins, heartbeats = purgatory(), purgatory()
    reapers.add(joins)
    reapers.add(heartbeats)
    chained = Operation("chained", 0, 7000)

    class Starts(Operation):
        def on_expiration(self, now_us: int) -> None:
            joins.try_complete_else_watch(chained, ["group"], now_us)

    heartbeats.try_complete_else_watch(Starts("heartbeat", 7), ["member"], 0)
    reapers.advance_to(7)
    assert (chained.expired, chained.ended_us) == (True, 7000)

"""Sessions that end in one millisecond end in the order in which they were armed."""

from __future__ import annotations

from purgatory_udf.coordinator.heartbeat import DelayedHeartbeat
from purgatory_udf.purgatory.timer import Timer
from purgatory_udf.purgatory.timer_task import TimerTask


class InTurn:
    """A timer whose due sessions are collected, then ended in their turn.

    In which order a timing wheel comes by the tasks of one millisecond depends on the wheels in which they waited, and
    so on everything else that goes on at the broker. For most operations that decides nothing. But of two members that
    fail together, the first starts a round which the second then leaves. What becomes of a group must depend on nothing
    but its own events; so the order is that of arming.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._fired: list[DelayedHeartbeat] = []

    def fired(self, session: DelayedHeartbeat) -> None:
        self._fired.append(session)

    def add(self, task: TimerTask) -> None:
        self._timer.add(task)

    def advance_clock(self, now_ms: int) -> bool:
        ran = self._timer.advance_clock(now_ms)
        return self._end_fired() or ran

    def run_due(self) -> bool:
        ran = self._timer.run_due()
        return self._end_fired() or ran

    def next_wake_ms(self) -> int | None:
        return self._timer.next_wake_ms()

    def size(self) -> int:
        return self._timer.size()

    def shutdown(self) -> None:
        self._timer.shutdown()

    def _end_fired(self) -> bool:
        fired = sorted(self._fired, key=lambda session: (session.deadline_ms, session.turn))
        self._fired.clear()
        for session in fired:
            session.end()
        return bool(fired)

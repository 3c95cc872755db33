"""The clock of one group, and a timeline of its operations in the order of the whole trace.

The timers of the clock's two purgatories are heaps, which can be restored from a snapshot. Timing wheels
(`purgatory.timing_wheel`) also track how far each wheel lags. The lag decides when a purge happens and what a gauge
reads, but no outcomes, so the clock of a group needs only deadlines. The timeline records starts, ends and checks as
`Moment`s, from which the gauges are computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_operations import GroupOperation, JoinKey, MemberKey, SyncKey
from purgatory_udf.rules.coordinator.rebalance import CONVERTED
from purgatory_udf.rules.engine.loop.codes import UNKNOWN
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout
from purgatory_udf.rules.groups.group_rows import FOREVER, KIND_OF, RULE_OF
from purgatory_udf.rules.purgatory.clock import Clock, Pauses
from purgatory_udf.rules.purgatory.delayed_operation import (
    BROKER_STOPPED,
    TIMEOUT,
    DelayedOperationPurgatory,
    Watchers,
)
from purgatory_udf.rules.purgatory.timing_wheel import Alarm, Timer, TimerTask

# The `seq` of what the clock causes, as opposed to an event. It sorts before all events of its millisecond.
BY_CLOCK = UNKNOWN


class Moment(NamedTuple):
    """A position in the order of the trace: time in microseconds, event (`BY_CLOCK` for a timer), and step.

    A timer that runs may start an operation that is due at once, in either purgatory. The two purgatories therefore
    alternate, and the step counts their turns: even for sessions, odd for joins and syncs. The event itself is step 0;
    turns that follow from it within its millisecond count from 1.
    """

    t: int
    seq: int
    sub: int


class DeadlineTimer:
    """A timer without wheels. It orders tasks by deadline, and tasks of one millisecond by insertion."""

    def __init__(self) -> None:
        self.alarm = Alarm()
        self.resumed_ms = 0
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._added = 0

    def add(self, task: TimerTask) -> None:
        if not task.cancelled:
            self._added += 1
            heappush(self._heap, (task.deadline_ms, self._added, task))

    def advance_clock(self, now_ms: int) -> bool:
        ran = False
        while (next_ms := self.next_wake_ms()) is not None and next_ms <= now_ms:
            ran = True
            task = heappop(self._heap)[2]
            task.run(max(task.deadline_ms, self.resumed_ms))
        return ran

    def run_due(self) -> bool:
        return False

    def next_wake_ms(self) -> int | None:
        while self._heap and self._heap[0][2].cancelled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def size(self) -> int:
        return sum(not task.cancelled for _, _, task in self._heap)

    def shutdown(self) -> None:
        self._heap.clear()


class RestorablePurgatory(DelayedOperationPurgatory[Any]):
    """A purgatory to which open operations can be restored without trying them again.

    `fruitless_checks` lists the keys of checks that completed no operation. The timeline clears it.
    """

    def __init__(self, name: str, timer: Timer, purge_interval: int) -> None:
        super().__init__(name, timer, purge_interval)
        self.fruitless_checks: list[Any] = []

    def shutdown(self) -> None:
        super().shutdown()
        self._watchers_by_key.clear()

    def restore(self, operation: Any) -> None:
        """Watch an open operation of an earlier call."""
        watchers = self._watchers_by_key.get(operation.key)
        if watchers is None:
            watchers = self._watchers_by_key[operation.key] = Watchers()
        watchers.watch(operation)
        operation.watched = self.used = True
        self.timer.add(operation)

    def try_complete_else_watch(self, operation: Any, keys: Iterable[Any], now_us: int) -> bool:
        """Try the operation once, and watch it on its only key if it is still open."""
        if operation.maybe_try_complete(now_us):
            return True
        self.restore(operation)
        return False

    def check_and_complete(self, key: Any, now_us: int) -> int:
        watchers = self._watchers_by_key.get(key)
        # A list that becomes empty is kept, because most members get their next session at once.
        completed = watchers.try_complete_watched(key, now_us) if watchers is not None else 0
        if not completed:
            self.fruitless_checks.append(key)
        return completed


class GroupClock(Clock):
    """A clock without wheels, reapers and gauges. Each timer runs at its own millisecond, or when `broker` resumes.

    `on_step` is called after each step in which operations may have started or ended.
    """

    def __init__(self, on_step: Callable[[Moment], None], broker: int, pauses: Pauses | None = None) -> None:
        super().__init__(0, pauses)
        self._broker = broker
        self.purgatories: list[RestorablePurgatory] = []
        self._timers: list[Timer] = []
        self._on_step = on_step
        self._event = Moment(-1, BY_CLOCK, 0)

    def new_purgatory(
        self, broker_id: int, name: str, purge_interval: int, timer: Timer | None = None
    ) -> RestorablePurgatory:
        """Create a purgatory. Heartbeat is created first, so sessions expire before joins and syncs.

        The purgatories of the new coordinator share one `timer`, which decides the order.
        """
        timer = timer or DeadlineTimer()
        if timer not in self._timers:
            self._timers.append(timer)
        self.purgatories.append(RestorablePurgatory(name, timer, purge_interval))
        return self.purgatories[-1]

    def next_deadline_ms(self) -> int:
        """Return the earliest deadline, or `FOREVER`."""
        return min((self._wake_ms(purgatory) for purgatory in self.purgatories), default=FOREVER)

    def on_event(self, t: int, seq: int) -> None:
        """Record that the event at `t` (epoch microseconds) with the number `seq` has just been applied."""
        self._event = Moment(t, seq, 0)
        self._on_step(self._event)

    def advance_to(self, now_ms: int) -> None:
        """Run all timers up to `now_ms`, one millisecond and one purgatory at a time.

        A timer may add another that is due by `now_ms`, to either purgatory.
        """
        last_ms, turn = -1, 0
        while self._may_be_due(now_ms):
            due_ms, place = min((self._wake_ms(purgatory), place) for place, purgatory in enumerate(self.purgatories))
            if due_ms > now_ms or due_ms == FOREVER:
                return
            turn = place if due_ms != last_ms else turn + (turn % 2 != place)
            last_ms = due_ms
            timer = self.purgatories[place].timer
            if timer.next_wake_ms() != due_ms:
                timer.resumed_ms = due_ms
            timer.advance_clock(due_ms)
            self._on_step(self._moment(due_ms, turn))

    def _may_be_due(self, now_ms: int) -> bool:
        """Return whether a timer is due by `now_ms`, unless a pause delays it."""
        for timer in self._timers:
            wake_ms = timer.next_wake_ms()
            if wake_ms is not None and wake_ms <= now_ms:
                return True
        return False

    def _moment(self, due_ms: int, turn: int) -> Moment:
        """Return the moment at which a timer that is due at `due_ms` runs, in the reaper's turn `turn`.

        A timer that is due by the millisecond of the last event was started by that event.
        """
        if due_ms * 1000 <= self._event.t:
            return self._event._replace(sub=1 + turn)
        return Moment(due_ms * 1000, BY_CLOCK, turn)

    def _wake_ms(self, purgatory: RestorablePurgatory) -> int:
        wake_ms = purgatory.timer.next_wake_ms()
        return FOREVER if wake_ms is None else self.pauses.fires_ms(self._broker, wake_ms)


# Checks that completed no operation. `list` is a `WatcherList`.
WALKS = FrameLayout(numbers=("list", "t", "seq", "sub"), texts=("member_id",))


class WatcherList(IntEnum):
    """The kinds of watcher lists of a group: one list for each member's sessions, one for joins, one for syncs."""

    SESSIONS = 0
    JOINS = 1
    SYNCS = 2


@dataclass(eq=False)
class OperationTimeline:
    """The moments at which operations started and ended, including restored ones, and all checks without effect.

    The moments are attributes of the operations. The checks, which completed no operation, are rows of `WALKS`.
    """

    journal: GroupJournal
    ended: list[GroupOperation] = field(default_factory=list)
    walks: list[tuple[int | str, ...]] = field(default_factory=list)
    purgatories: Sequence[RestorablePurgatory] = ()
    _recorded: int = 0
    _recorded_ends: int = 0

    def restore(self, operation: GroupOperation, started: Moment) -> None:
        """Add an open operation of an earlier call."""
        self.journal.operations.append(operation)
        self._recorded += 1
        operation.start_moment, operation.ends = started, self.ended

    def record(self, moment: Moment) -> None:
        """Record the operations that started or ended since the last call, and the checks, at this moment."""
        operations = self.journal.operations
        if len(operations) > self._recorded:
            for operation in operations[self._recorded :]:
                operation.start_moment, operation.ends = moment, self.ended
                if operation.ended_us is not None:
                    self.ended.append(operation)
            self._recorded = len(operations)
        if len(self.ended) > self._recorded_ends:
            for operation in self.ended[self._recorded_ends :]:
                operation.end_moment = moment
            self._recorded_ends = len(self.ended)
        for purgatory in self.purgatories:
            if purgatory.fruitless_checks:
                self.walks += [_walk_row(key, moment) for key in purgatory.fruitless_checks]
                purgatory.fruitless_checks.clear()

    def clear(self) -> None:
        """Drop all operations."""
        self.ended.clear()

    @property
    def still_open(self) -> Iterator[GroupOperation]:
        """The open operations, in the order in which they started."""
        return (operation for operation in self.journal.operations if operation.ended_us is None)


def _walk_row(key: MemberKey | JoinKey | SyncKey, moment: Moment) -> tuple[int | str, ...]:
    if isinstance(key, MemberKey):
        return (WatcherList.SESSIONS, *moment, key.member_id)
    return (WatcherList.JOINS if isinstance(key, JoinKey) else WatcherList.SYNCS, *moment, "")


# Operations that have ended. `t` and `end_t` are microseconds, `deadline` is milliseconds. With `seq` and `sub`, or
# `end_seq` and `end_sub`, they are the `Moment` of start and end. `triggered`: a check of its own key completed it.
# `member_id` belongs to sessions; joins and syncs have the group as their key.
ENDED = FrameLayout(
    numbers=(
        *("op", "kind", "t", "seq", "sub", "end_t", "end_seq", "end_sub"),
        *("deadline", "expired", "watched", "rule", "triggered"),
    ),
    texts=("member_id", "request_id", "client_id"),
)

# The kinds of ends.
COMPLETED, EXPIRED, CANCELLED = 0, 1, 2
_ABANDONED = [RULE_OF[BROKER_STOPPED], RULE_OF[CONVERTED]]


def end_kinds(ended: Frame) -> Array:
    """Return COMPLETED, EXPIRED or CANCELLED for each row of `ENDED`."""
    return np.where(ended.expired > 0, EXPIRED, np.where(np.isin(ended.rule, _ABANDONED), CANCELLED, COMPLETED))


def ended_row(operation: GroupOperation) -> tuple[int | str, ...]:
    """Return an operation that has ended as a row of `ENDED`."""
    request = operation.request
    assert operation.ended_us is not None, "the operation has ended"
    return (
        request.operation_id,
        KIND_OF[request.kind],
        request.started_us,
        operation.start_moment[1],
        operation.start_moment[2],
        operation.ended_us,
        operation.end_moment[1],
        operation.end_moment[2],
        operation.deadline_ms,
        operation.expired,
        operation.watched,
        RULE_OF[TIMEOUT if operation.expired else operation.completed_by],
        operation.trigger is not None,
        operation.member_id,
        request.request_id or "",
        request.client_id or "",
    )

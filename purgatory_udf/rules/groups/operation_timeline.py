"""When, in the order of the whole trace, a machine's operations began and ended, and its lists were walked in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_operations import GroupOperation, JoinKey, MemberKey, SyncKey
from purgatory_udf.rules.coordinator.member_sessions import DelayedHeartbeat
from purgatory_udf.rules.engine.loop.codes import UNKNOWN
from purgatory_udf.rules.groups.frames import Array, Frame, FrameLayout
from purgatory_udf.rules.groups.group_codes import FOREVER, KIND_OF, RULE_OF
from purgatory_udf.rules.purgatory.clock import Clock
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED
from purgatory_udf.rules.purgatory.delayed_operation_purgatory import DelayedOperationPurgatory, Watchers
from purgatory_udf.rules.purgatory.timing_wheel import TimerTask

# The time of one group: two purgatories, whose timers are heaps that can be filled anew from a kept state.
#
# Timing wheels (`purgatory.timing_wheel`) keep more than the deadlines (how far each lags behind), which decides when
# a purge happens and what a gauge reads, not how an operation ends. A group's own clock needs the deadlines only, and
# says of everything when in the order of the whole trace it happened (`Moment`): the gauges follow from that,
# afterwards.


# Instead of an event, of what the clock alone brings about: it comes before all events of its millisecond.
BY_CLOCK = UNKNOWN


class Moment(NamedTuple):
    """Time, event (`BY_CLOCK` if none), and a step of what that event or the clock brings about at that time.

    A timer that runs may begin what is due at once, in the other purgatory as well. The purgatories take turns, and the
    steps of the clock count the turns: even ones are the sessions', odd ones those of rounds and syncs. So it is after
    an event, too, for what it begins without delay: the event itself is step 0, and the turns are counted from 1.
    """

    t: int
    seq: int
    sub: int


class DeadlineTimer:
    """A timer: tasks by deadline, those of one millisecond in the order in which they were added."""

    def __init__(self) -> None:
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
            heappop(self._heap)[2].run()
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
    """A purgatory that takes back operations which were watched before: they are not tried again by that.

    `walked` are the keys whose list was walked without completing anything, since somebody last emptied it.
    """

    def __init__(self, name: str, timer: DeadlineTimer, purge_interval: int) -> None:
        super().__init__(name, timer, purge_interval)
        self.walked: list[Any] = []

    def watch_again(self, operation: Any) -> None:
        self._watchers_by_key.setdefault(operation.key, Watchers()).watch(operation)
        operation.watched = self.used = True
        self.timer.add(operation)

    def check_and_complete(self, key: Any, now_us: int) -> int:
        completed = super().check_and_complete(key, now_us)
        if not completed:
            self.walked.append(key)
        return completed


class GroupClock(Clock):
    """A clock without wheels, reapers and gauges. Time is what it is told; a timer runs at its own millisecond.

    `happened` is called after each step in which something may have happened.
    """

    def __init__(self, happened: Callable[[Moment], None]) -> None:
        super().__init__(start_ms=0)
        self.purgatories: list[RestorablePurgatory] = []
        self._happened = happened
        self._event = Moment(-1, BY_CLOCK, 0)

    def new_purgatory(self, broker_id: int, name: str, purge_interval: int) -> RestorablePurgatory:
        """Sessions come first, since their purgatory is made first: so they end before rounds and syncs do."""
        self.purgatories.append(RestorablePurgatory(name, DeadlineTimer(), purge_interval))
        return self.purgatories[-1]

    def next_deadline_ms(self) -> int:
        """When the next timer runs; `FOREVER` if there is none."""
        return min((self._wake_ms(purgatory) for purgatory in self.purgatories), default=FOREVER)

    def event(self, t: int, seq: int) -> None:
        """This event has just been applied."""
        self._event = Moment(t, seq, 0)
        self._happened(self._event)

    def advance_to(self, now_ms: int) -> None:
        """Timers in their order up to `now_ms`, one millisecond and one purgatory at a time: a timer that runs may add
        another, to any purgatory, that is due by `now_ms` as well."""
        last_ms, turn = -1, 0
        while self.purgatories:
            due_ms, place = min((self._wake_ms(purgatory), place) for place, purgatory in enumerate(self.purgatories))
            if due_ms > now_ms or due_ms == FOREVER:
                return
            turn = place if due_ms != last_ms else turn + (turn % 2 != place)
            last_ms = due_ms
            self.purgatories[place].timer.advance_clock(due_ms)
            self._happened(self._moment(due_ms, turn))

    def _moment(self, due_ms: int, turn: int) -> Moment:
        """What is due by the last event's millisecond was begun by it."""
        if due_ms * 1000 <= self._event.t:
            return self._event._replace(sub=1 + turn)
        return Moment(due_ms * 1000, BY_CLOCK, turn)

    @staticmethod
    def _wake_ms(purgatory: RestorablePurgatory) -> int:
        wake_ms = purgatory.timer.next_wake_ms()
        return FOREVER if wake_ms is None else wake_ms


# Walks of lists that completed nothing.
WALKS = FrameLayout(numbers=("list", "t", "seq", "sub"), texts=("member_id",))


class WatcherList(IntEnum):
    """A group's lists: one per member of its sessions, one of its rounds, one of its generations' syncs."""

    SESSIONS = 0
    JOINS = 1
    SYNCS = 2


@dataclass(eq=False)
class OperationTimeline:
    """`began` and `ended` by operation, those that are taken back included; `walks` as rows of `WALKS`."""

    journal: GroupJournal
    began: dict[GroupOperation, Moment] = field(default_factory=dict)
    ended: dict[GroupOperation, Moment] = field(default_factory=dict)
    walks: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    purgatories: Sequence[RestorablePurgatory] = ()
    _open: dict[GroupOperation, None] = field(default_factory=dict)
    _noted: int = 0

    def take_back(self, operation: GroupOperation, began: Moment) -> None:
        """An operation that began in an earlier call."""
        self.journal.operations.append(operation)
        self._noted += 1
        self.began[operation] = began
        self._open[operation] = None

    def note(self, moment: Moment) -> None:
        """Whatever has happened since the last note happened at this moment."""
        for operation in self.journal.operations[self._noted :]:
            self.began[operation] = moment
            self._open[operation] = None
        self._noted = len(self.journal.operations)
        for operation in [operation for operation in self._open if operation.completed]:
            self.ended[operation] = moment
            del self._open[operation]
        for purgatory in self.purgatories:
            self.walks += [_walk_row(key, moment) for key in purgatory.walked]
            purgatory.walked.clear()

    @property
    def still_open(self) -> Iterator[GroupOperation]:
        """In the order in which they began."""
        return iter(self._open)


def _walk_row(key: MemberKey | JoinKey | SyncKey, moment: Moment) -> tuple[int, int, int, int, str]:
    if isinstance(key, MemberKey):
        return (WatcherList.SESSIONS, *moment, key.member_id)
    return (WatcherList.JOINS if isinstance(key, JoinKey) else WatcherList.SYNCS, *moment, "")


# Operations that have ended, in columns: what `completions` and `expirations` say of a group.


# `t` and `end_t` are microseconds, `deadline` is milliseconds. `triggered`: a check of its own key completed it.
# `seq` and `sub`, `end_seq` and `end_sub` place beginning and end among what happened at the same time (`Moment`).
# `member_id` is a session's; a round's key is the group alone.
ENDED = FrameLayout(
    numbers=(
        *("op", "kind", "t", "seq", "sub", "end_t", "end_seq", "end_sub"),
        *("deadline", "expired", "watched", "rule", "triggered"),
    ),
    texts=("member_id", "request_id", "client_id"),
)

# How an operation may have ended.
COMPLETED, EXPIRED, CANCELLED = 0, 1, 2
_BY_STOP = RULE_OF[BROKER_STOPPED]


def end_kinds(ended: Frame) -> Array:
    """Which of the three, row by row."""
    return np.where(ended.expired > 0, EXPIRED, np.where(ended.rule == _BY_STOP, CANCELLED, COMPLETED))


def ended_frame(chronicle: OperationTimeline) -> Frame:
    """Of the state machine's operations."""
    return ENDED.of(
        [_ended_row(operation, chronicle.began[operation], end) for operation, end in chronicle.ended.items()]
    )


def _ended_row(operation: GroupOperation, begin: Moment, end: Moment) -> tuple[int | str, ...]:
    outcome = operation.outcome()
    return (
        outcome.operation_id,
        KIND_OF[outcome.kind],
        outcome.started_us,
        begin.seq,
        begin.sub,
        outcome.ended_us,
        end.seq,
        end.sub,
        outcome.deadline_us // 1000,
        outcome.expired,
        outcome.watched,
        RULE_OF[outcome.completed_by],
        outcome.trigger is not None,
        operation.member_id if isinstance(operation, DelayedHeartbeat) else "",
        outcome.request_id or "",
        outcome.client_id or "",
    )

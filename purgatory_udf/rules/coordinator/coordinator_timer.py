"""The timer of the new group coordinator (Kafka 4.0), and the timers of members of consumer groups (KIP-848).

The old coordinator has a timer in each of its two purgatories. The new one schedules everything in one `SystemTimer`;
a due task puts an event on the coordinator's queue (`CoordinatorTimerImpl`). Deadlines are exact in both. Tasks
that are due in the same millisecond run in the order of the wheel's bucket, and that is not always the order in which
they were started:

    a, started at 0 for 10,000       waits in a bucket of 8 s, from 8,000 on in a bucket of 400 ms, …
    b, started at 5,000 for 10,000   is less than 8 s ahead: in that bucket of 400 ms at once, so it runs before a

`wheel_order` computes the order from start and deadline. It assumes that the wheel's clock does not lag, so the order
depends on the group's own events only.

A member of a consumer group that sends no heartbeat before its session's deadline is fenced:
`consumer_group_coordinator` removes it. For members of classic groups see `classic_sessions`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.group_operations import CoordinatedGroup, GroupOperation, MemberKey, OperationStart
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation
from purgatory_udf.rules.purgatory.timing_wheel import TICK_MS, WHEEL_SIZE, Alarm, TimerTask


def wheel_order(start_ms: int, deadline_ms: int) -> tuple[int, ...]:
    """Return the sort key of a task among tasks with the same deadline: when it enters its buckets, finest wheel first.

    The last entry is the start of the task. Times are doubled, and the start is made odd, because tasks that move from
    a coarser bucket precede tasks that are started in the same millisecond.

    Args:
        start_ms: When the task was started, in epoch milliseconds.
        deadline_ms: Its deadline, in epoch milliseconds.
    """
    entered = [2 * start_ms + 1]
    at_ms = start_ms
    while (tick_ms := _tick_ms(at_ms, deadline_ms)) > TICK_MS:
        at_ms = deadline_ms - deadline_ms % tick_ms
        entered.append(2 * at_ms)
    return tuple(reversed(entered))


def _tick_ms(now_ms: int, deadline_ms: int) -> int:
    """Return the bucket size, in milliseconds, of the wheel into which a task is put at `now_ms`."""
    tick_ms = TICK_MS
    while deadline_ms >= now_ms - now_ms % tick_ms + tick_ms * WHEEL_SIZE:
        tick_ms *= WHEEL_SIZE
    return tick_ms


class CoordinatorTimer:
    """A timer that runs tasks by deadline, and tasks of one millisecond in the order of a timing wheel."""

    def __init__(self) -> None:
        self.alarm = Alarm()
        self.resumed_ms = 0
        self._heap: list[tuple[int, tuple[int, ...], int, TimerTask]] = []
        self._added = 0

    def add(self, task: TimerTask) -> None:
        """Schedule an operation. Its timeout counts from the operation's start."""
        assert isinstance(task, DelayedOperation), "only an operation knows its start"
        self.schedule(task, task.started_us // 1000)

    def schedule(self, task: TimerTask, start_ms: int) -> None:
        """Schedule a task. Its start (epoch milliseconds) determines the order among tasks with the same deadline."""
        if not task.cancelled:
            self._added += 1
            heappush(self._heap, (task.deadline_ms, wheel_order(start_ms, task.deadline_ms), self._added, task))
            self.alarm.bring_forward(task.deadline_ms)

    def advance_clock(self, now_ms: int) -> bool:
        ran = False
        while (next_ms := self.next_wake_ms()) is not None and next_ms <= now_ms:
            ran = True
            task = heappop(self._heap)[-1]
            task.run(max(task.deadline_ms, self.resumed_ms))
        return ran

    def run_due(self) -> bool:
        return False

    def next_wake_ms(self) -> int | None:
        while self._heap and self._heap[0][-1].cancelled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def size(self) -> int:
        return sum(not task.cancelled for *_, task in self._heap)

    def shutdown(self) -> None:
        self._heap.clear()


SESSION, RECONCILIATION, JOIN, SYNC = "session", "reconciliation", "join", "sync"


class MemberTimer(GroupOperation):
    """A timer of a member. `epoch` is the member's epoch when the timer was started."""

    def __init__(
        self,
        kind: str,
        group: CoordinatedGroup,
        member_id: str,
        start: OperationStart,
        timeout_ms: int,
        epoch: int,
        on_deadline: Callable[[MemberTimer, int], None],
    ) -> None:
        super().__init__(group, MemberKey(group.name, member_id), start, timeout_ms)
        self.request.kind = kind
        self.member_id = member_id
        self.epoch = epoch
        self.watched = True
        self._on_deadline = on_deadline

    def try_complete(self, now_us: int) -> bool:
        return False

    def run(self, now_ms: int) -> None:
        if not self.completed:
            self._on_deadline(self, now_ms * 1000)

    def expire(self, now_us: int) -> None:
        """End the timer: its member failed."""
        if self.force_complete(now_us):
            self.expired = True


class MemberTimers:
    """The timers of the members of a broker's consumer groups.

    A member has at most one of each kind; another one replaces it.

    | kind | armed by | at its deadline |
    |---|---|---|
    | `session` | every accepted heartbeat, except that of a static member that leaves | the member is fenced |
    | `reconciliation` | an answer that takes partitions away | the member is fenced if it is still in that epoch |
    | `join` | a classic member is requested to rejoin | the member is fenced |
    | `sync` | a classic member has joined | the member is fenced |

    Kafka: `GroupMetadataManager.scheduleConsumerGroupSessionTimeout` and similar methods.
    """

    def __init__(
        self, timer: CoordinatorTimer, journal: GroupJournal, on_deadline: Callable[[MemberTimer, int], None]
    ) -> None:
        self._timer, self._journal, self._on_deadline = timer, journal, on_deadline
        self._running: dict[tuple[str, str, str], MemberTimer] = {}

    def schedule(
        self,
        kind: str,
        group: CoordinatedGroup,
        member_id: str,
        start: OperationStart,
        timeout_ms: int,
        rule: str,
        epoch: int = 0,
    ) -> None:
        """Start a timer. It replaces a running timer of the same kind.

        Args:
            kind: The kind of timer, see the table above.
            group: The group of the member.
            member_id: The member.
            start: The operation that the timer belongs to. Its start is the start of the timeout.
            timeout_ms: The timeout in milliseconds.
            rule: The `completed_by` of the timer that is replaced.
            epoch: The member's epoch. The deadline of a `reconciliation` has no effect if the member has moved to a
                later epoch.
        """
        self.cancel(kind, group, member_id, rule, start.at_us)
        timer = MemberTimer(kind, group, member_id, start, timeout_ms, epoch, self._on_deadline)
        self._journal.operations.append(timer)
        self.restore(timer)

    def restore(self, timer: MemberTimer) -> None:
        """Start a timer again that an earlier call started."""
        self._running[timer.request.kind, timer.key.group, timer.member_id] = timer
        self._timer.add(timer)

    def clear(self) -> None:
        """Forget all timers, without ending them."""
        self._running.clear()

    def is_running(self, kind: str, group: CoordinatedGroup, member_id: str) -> bool:
        return (kind, group.name, member_id) in self._running

    def cancel(self, kind: str, group: CoordinatedGroup, member_id: str, rule: str, now_us: int) -> None:
        """Complete a member's timer of this kind by `rule`, if one is running."""
        timer = self._running.pop((kind, group.name, member_id), None)
        if timer is not None:
            timer.complete_by(rule, now_us)

    def cancel_all(self, group: CoordinatedGroup, member_id: str, rule: str, now_us: int) -> None:
        """Complete all running timers of a member by `rule`."""
        for kind in (SESSION, RECONCILIATION, JOIN, SYNC):
            self.cancel(kind, group, member_id, rule, now_us)

    def cancel_group(self, group: str, rule: str, now_us: int) -> None:
        """End all timers of a group without effect. `rule` is their `completed_by`."""
        for key in [key for key in self._running if key[1] == group]:
            self._running.pop(key).abandon(now_us, rule)

    def forget(self, timer: MemberTimer) -> None:
        """Remove a timer that has reached its deadline."""
        key = (timer.request.kind, timer.key.group, timer.member_id)
        if self._running.get(key) is timer:
            del self._running[key]

"""Sessions of members of consumer groups (KIP-848), and their other timers at the new coordinator.

A member that sends no heartbeat before its session's deadline is fenced: `consumer_group_coordinator` removes it. For
members of classic groups see `classic_sessions`.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory_udf.rules.coordinator.coordinator_journal import GroupJournal
from purgatory_udf.rules.coordinator.coordinator_timer import CoordinatorTimer
from purgatory_udf.rules.coordinator.group_operations import CoordinatedGroup, GroupOperation, MemberKey, OperationStart

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

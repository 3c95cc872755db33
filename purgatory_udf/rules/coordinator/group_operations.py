"""What the delayed operations of a group have in common: how they begin, and what they are watched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_requests import GroupRequest
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest, TraceRequest


@dataclass(frozen=True, slots=True)
class JoinKey:
    group: str

    def __str__(self) -> str:
        return self.group


@dataclass(frozen=True, slots=True)
class SyncKey:
    group: str

    def __str__(self) -> str:
        return self.group


@dataclass(frozen=True, slots=True)
class MemberKey:
    group: str
    member_id: str

    def __str__(self) -> str:
        return f"{self.group}-{self.member_id}"


class OperationStart(NamedTuple):
    """When an operation begins, under which id, and by which request, if by one."""

    operation_id: int
    at_us: int
    request: GroupRequest | None

    @classmethod
    def of(cls, request: GroupRequest) -> OperationStart:
        """The operation that the request begins for itself: at most one, which has its `seq`."""
        return cls(request.seq, request.time_us, request)

    @classmethod
    def derived(cls, group: Group, at_us: int, request: GroupRequest | None = None) -> OperationStart:
        """Any further operation, and any that a timer begins."""
        return cls(group.derived_operation_id(), at_us, request)


class GroupOperation(DelayedRequest):
    """One entry of a purgatory. The members' requests that wait on it are answered by what its end sets off."""

    kind: ClassVar[str] = ""

    def __init__(
        self, group: Group, key: JoinKey | SyncKey | MemberKey, beginning: OperationStart, delay_ms: int
    ) -> None:
        operation_id, at_us, by = beginning
        request_id, client_id = (by.request_id, by.client_id) if by is not None else (None, None)
        super().__init__(
            TraceRequest(operation_id, self.kind, group.broker, at_us, request_id, client_id, str(key)), delay_ms
        )
        self.group = group
        self.key = key

    def effective_us(self, now_us: int) -> int:
        """When what follows from the end happens: a deadline in whole milliseconds may lie before the start."""
        return max(now_us, self.started_us)

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return ()

    def on_expiration(self, now_us: int) -> None:
        """For most, all is done by the answer."""


# DelayedJoin: a round of the group. Everybody has to join again before the next generation begins.


class JoinCompletion(Protocol):
    def complete_join(self, ended: DelayedJoin, now_us: int) -> None:
        """The round is over: remove who did not come, and begin the next generation with those who did."""


class DelayedJoin(GroupOperation):
    """One per round, on which the joins of all members wait. Its delay is the greatest rebalance timeout of them all.

    It completes when every member waits in a join and no id is pending, or when nobody is left. When it expires, the
    round goes on with those who came. Of a group that was unloaded meanwhile it just expires.
    """

    kind = "join"

    def __init__(self, group: Group, beginning: OperationStart, timeout_ms: int, round_: JoinCompletion) -> None:
        super().__init__(group, JoinKey(group.name), beginning, timeout_ms)
        self._round = round_

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD or not self.group.has_all_members_joined():
            return False
        return self.complete_by("all_joined" if self.group.members else "no_members", now_us)

    def on_complete(self, now_us: int) -> None:
        super().on_complete(now_us)
        self._round.complete_join(self, self.effective_us(now_us))


# InitialDelayedJoin: an empty group waits for more members before its first round ends (Kafka 0.11, KIP-134).
#
# With a delay of 3 s and a rebalance timeout of 10 s, while members keep coming:
#
#     0 s            3 s            6 s            9 s    10 s
#     a joins, b     c              d              e      the round ends with all of them
#     │ window of 3  │ window of 3  │ window of 3  │ of 1 │
#     │ 7 s remain   │ 4 s remain   │ 1 s remains  │ none │


@dataclass(frozen=True, slots=True)
class DelayWindow:
    """How long this one lasts, and how much time remains after it."""

    delay_ms: int
    remaining_ms: int

    @classmethod
    def first(cls, delay_ms: int, rebalance_timeout_ms: int) -> DelayWindow:
        return cls(delay_ms, max(rebalance_timeout_ms - delay_ms, 0))

    def next(self, configured_delay_ms: int) -> DelayWindow:
        return DelayWindow(min(configured_delay_ms, self.remaining_ms), max(self.remaining_ms - self.delay_ms, 0))


class InitialJoinCompletion(JoinCompletion, Protocol):
    def extend(self, group: Group, ended: DelayWindow, now_us: int) -> None:
        """Wait for another window."""


class InitialDelayedJoin(DelayedJoin):
    """One per window. It never completes early, even if everybody has come, so its deadline always ends it."""

    kind = "initial_join"

    def __init__(
        self, group: Group, beginning: OperationStart, window: DelayWindow, initial_round: InitialJoinCompletion
    ) -> None:
        super().__init__(group, beginning, window.delay_ms, initial_round)
        self.window = window
        self._initial_round = initial_round

    def try_complete(self, now_us: int) -> bool:
        return False

    def on_complete(self, now_us: int) -> None:
        dead = self.group.state is GroupState.DEAD
        if not dead and self.group.new_member_added and self.window.remaining_ms > 0:
            self.group.new_member_added = False
            self._initial_round.extend(self.group, self.window, self.effective_us(now_us))
        else:
            super().on_complete(now_us)


# DelayedSync: every member of a new generation has to ask for its assignment in time (Kafka 3.0, KAFKA-12890).


class DelayedSync(GroupOperation):
    """Begun with each generation, for one rebalance timeout, whether or not the leader's assignment comes meanwhile.

    It completes when every member has synced, when another round begins, or when the group is unloaded. When it
    expires, those that have not synced are removed, however alive their heartbeats say they are, and another round
    begins.
    """

    kind = "sync"

    def __init__(
        self, group: Group, beginning: OperationStart, timeout_ms: int, expired: Callable[[Group, int], None]
    ) -> None:
        super().__init__(group, SyncKey(group.name), beginning, timeout_ms)
        self._expired = expired

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD:
            return self.complete_by("unloaded", now_us)
        if self.group.state is GroupState.PREPARING_REBALANCE:
            return self.complete_by("rebalance", now_us)
        return not self.group.pending_syncs and self.complete_by("all_synced", now_us)

    def on_expiration(self, now_us: int) -> None:
        self._expired(self.group, self.effective_us(now_us))

"""The delayed operations of a rebalance: DelayedJoin, InitialDelayedJoin and DelayedSync, and their watch keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

from msgspec import Struct

from purgatory_udf.contract.outcome import PartitionOutcome
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_requests import GroupRequest
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED, DelayedRequest, TraceRequest


class JoinKey(Struct, frozen=True):
    """The watch key of a group's join (GroupJoinKey)."""

    group: str

    def __str__(self) -> str:
        return self.group


class SyncKey(Struct, frozen=True):
    """The watch key of a group's sync (GroupSyncKey)."""

    group: str

    def __str__(self) -> str:
        return self.group


class MemberKey(Struct, frozen=True):
    """The watch key of a member's session."""

    group: str
    member_id: str

    def __str__(self) -> str:
        return f"{self.group}-{self.member_id}"


class CoordinatedGroup(Protocol):
    """Interface of classic groups and of consumer groups of Kafka 4.0, as far as delayed operations use them."""

    broker: int
    name: str

    def next_derived_operation_id(self) -> int: ...


class OperationStart(NamedTuple):
    """Id and start of an operation, and the request that started it, or None."""

    operation_id: int
    at_us: int
    request: GroupRequest | None

    @classmethod
    def from_request(cls, request: GroupRequest) -> OperationStart:
        """Use the request's `seq` as the id. At most one operation of each request may do so."""
        return cls(request.seq, request.time_us, request)

    @classmethod
    def derived(cls, group: CoordinatedGroup, at_us: int, request: GroupRequest | None = None) -> OperationStart:
        """Use a derived id, for any further operation of a request and for operations started by a timer."""
        return cls(group.next_derived_operation_id(), at_us, request)


class GroupOperation(DelayedRequest):
    """An operation in one of the coordinator's purgatories.

    Requests of members are not operations. They wait for an operation, and are answered when the operation completes.
    """

    kind: ClassVar[str] = ""
    # The member of a session or timer.
    member_id: str = ""
    # If set, the operation appends itself to this list on completion, expiration or cancellation.
    ends: list[GroupOperation] | None = None
    # The positions of its start and end in the order of the trace, if a timeline records them.
    start_moment: tuple[int, int, int]
    end_moment: tuple[int, int, int]

    def __init__(
        self, group: CoordinatedGroup, key: JoinKey | SyncKey | MemberKey, start: OperationStart, delay_ms: int
    ) -> None:
        operation_id, at_us, request = start
        request_id, client_id = (request.request_id, request.client_id) if request is not None else (None, None)
        super().__init__(
            TraceRequest(operation_id, self.kind, group.broker, at_us, request_id, client_id, key), delay_ms
        )
        self.key = key

    def force_complete(self, now_us: int) -> bool:
        if self.ends is not None and self.ended_us is None:
            self.ends.append(self)
        return super().force_complete(now_us)

    def abandon(self, now_us: int, rule: str = BROKER_STOPPED) -> None:
        super().abandon(now_us, rule)
        if self.ends is not None:
            self.ends.append(self)

    def effective_us(self, now_us: int) -> int:
        """Return the time at which a completion at `now_us` takes effect: not before the operation's start.

        A deadline in whole milliseconds may precede the start, which is in microseconds.
        """
        return max(now_us, self.started_us)

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return ()

    def on_expiration(self, now_us: int) -> None:
        """Do nothing, because `on_complete` also handles expirations. Syncs and sessions override this method."""


class JoinCompletion(Protocol):
    """Interface for the callback of a join."""

    def on_complete_join(self, ended: DelayedJoin, now_us: int) -> None:
        """Remove the members that did not rejoin, and start the next generation with the others."""


class DelayedJoin(GroupOperation):
    """The join phase of a rebalance: every member's join waits for it (DelayedJoin).

    Its delay is the greatest rebalance timeout of the members. It completes when every member waits in a join and no id
    is pending, or when no member is left. When it expires, the rebalance continues with the members that rejoined. The
    join of an unloaded group expires without effect.
    """

    kind = "join"

    def __init__(self, group: Group, start: OperationStart, timeout_ms: int, completion: JoinCompletion) -> None:
        super().__init__(group, JoinKey(group.name), start, timeout_ms)
        self.group = group
        self._completion = completion

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD or not self.group.has_all_members_joined():
            return False
        return self.complete_by("all_joined" if self.group.members else "no_members", now_us)

    def on_complete(self, now_us: int) -> None:
        super().on_complete(now_us)
        self._completion.on_complete_join(self, self.effective_us(now_us))


class DelayWindow(Struct, frozen=True):
    """One window of the initial rebalance delay: its length, and the time that remains after it."""

    delay_ms: int
    remaining_ms: int

    @classmethod
    def first(cls, delay_ms: int, rebalance_timeout_ms: int) -> DelayWindow:
        return cls(delay_ms, max(rebalance_timeout_ms - delay_ms, 0))

    def next(self, configured_delay_ms: int) -> DelayWindow:
        return DelayWindow(min(configured_delay_ms, self.remaining_ms), max(self.remaining_ms - self.delay_ms, 0))


class InitialJoinCompletion(JoinCompletion, Protocol):
    """Interface for the callbacks of an initial join."""

    def extend(self, group: Group, ended: DelayWindow, now_us: int) -> None:
        """Wait for another window, because members joined during the one that has `ended`."""


class InitialDelayedJoin(DelayedJoin):
    """The first join phase of an empty group, which waits for more members (InitialDelayedJoin; Kafka 0.11, KIP-134).

    Each window is one operation. It never completes early, even if every member has joined, so its deadline always ends
    it. An exception of the new coordinator: a member that fails ends it if all others have joined. With a delay of 3 s
    and a rebalance timeout of 10 s, while members keep joining:

        0 s            3 s            6 s            9 s    10 s
        a joins, b     c              d              e      the rebalance completes with all five
        │ window of 3  │ window of 3  │ window of 3  │ of 1 │
        │ 7 s remain   │ 4 s remain   │ 1 s remains  │ none │
    """

    kind = "initial_join"

    def __init__(
        self, group: Group, start: OperationStart, window: DelayWindow, completion: InitialJoinCompletion
    ) -> None:
        super().__init__(group, start, window.delay_ms, completion)
        self.window = window
        self._initial_completion = completion

    def try_complete(self, now_us: int) -> bool:
        return self.group.is_removing and super().try_complete(now_us)

    def on_complete(self, now_us: int) -> None:
        ends = self.group.state is GroupState.DEAD or self.group.is_removing
        if not ends and self.group.new_member_added and self.window.remaining_ms > 0:
            self.group.new_member_added = False
            self._initial_completion.extend(self.group, self.window, self.effective_us(now_us))
        else:
            super().on_complete(now_us)


class DelayedSync(GroupOperation):
    """The sync phase of a generation: every member has to request its assignment (DelayedSync; Kafka 3.0, KAFKA-12890).

    It starts with the generation and lasts one rebalance timeout, whether or not the leader's assignment arrives. It
    completes when every member has synced, when another rebalance starts, or when the group is unloaded. When it
    expires, members that have not synced are removed, even if they send heartbeats, and another rebalance starts.
    """

    kind = "sync"

    def __init__(
        self, group: Group, start: OperationStart, timeout_ms: int, on_expire: Callable[[Group, int], None]
    ) -> None:
        super().__init__(group, SyncKey(group.name), start, timeout_ms)
        self.group = group
        self._on_expire = on_expire

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD:
            return self.complete_by("unloaded", now_us)
        if self.group.state is GroupState.PREPARING_REBALANCE:
            return self.complete_by("rebalance", now_us)
        return not self.group.pending_syncs and self.complete_by("all_synced", now_us)

    def on_expiration(self, now_us: int) -> None:
        self._on_expire(self.group, self.effective_us(now_us))

"""A consumer group (GroupMetadata): members, state, generation and leader, without the rules that change them."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from hashlib import blake2b
from operator import attrgetter

from msgspec import Struct

from purgatory_udf.rules.coordinator.group_requests import JoinGroup, SyncGroup


class Member(Struct, omit_defaults=True, rename={"liveness_signal": "sign_of_life"}):
    """A member of a group (MemberMetadata). A restarted static member gets a new `member_id`, not a new `instance_id`.

    `liveness_signal` is None from the start of a session until the session can be completed. Then it is the API of the
    request that proved the member alive, or the reason of its removal.

    The state of a group contains its members as JSON, by the names of these fields.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str | None = None
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[str, ...] = ()
    awaiting_join: JoinGroup | None = None
    awaiting_sync: SyncGroup | None = None
    is_new: bool = False
    topics: tuple[str, ...] | None = None
    liveness_signal: str | None = None

    @classmethod
    def joining(cls, request: JoinGroup, member_id: str) -> Member:
        """Return a new member with the id `member_id`, which waits for the answer to its first join, `request`."""
        member = cls(member_id, request.instance_id, request.client_id, is_new=True)
        member.update(request)
        return member

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def update(self, request: JoinGroup) -> None:
        """Apply a join and let it wait. It replaces a join that already waits, which is then never answered."""
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols
        self.topics = request.topics
        self.awaiting_join = request

    def heartbeat_satisfied_by(self) -> str | None:
        """Return why no heartbeat is due (`hasSatisfiedHeartbeat`), or None if one is due.

        No heartbeat is due while a member waits for an answer, because its client cannot send any. The exception is a
        new member's first join. Its session lasts five minutes, because its client may have disconnected.
        """
        if self.liveness_signal is not None or self.is_new:
            return self.liveness_signal
        if self.awaiting_join is not None:
            return "awaiting_join"
        if self.awaiting_sync is not None:
            return "awaiting_sync"
        return None


class GroupState(Enum):
    """The states of a group. Kafka 0.10 called CompletingRebalance AwaitingSync and started groups in Stable.

        Empty ──first join──► PreparingRebalance ──all joined, or timeout───► CompletingRebalance
          ▲                      │          ▲  ▲                                │            │
          └────no members left───┘          │  └──────member joined or left─────┘     leader's assignment
                                            └───────member joined or left─────── Stable ◄────┘

    Any state becomes Dead when the coordinator unloads the group (`group_unloaded`). A loaded group (`group_loaded`)
    starts in Stable or Empty. A group also dies with its last offset, but no trace records that.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    @property
    def valid_previous_states(self) -> frozenset[GroupState]:
        return _VALID_PREVIOUS_STATES[self]


_VALID_PREVIOUS_STATES = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


class Group:
    """A group at its coordinator.

    Members are ordered by when they joined; a static member that restarts keeps its place. A group can be rebuilt from
    its public attributes, with its members added in order by `restore_member`.
    """

    def __init__(self, broker: int, name: str) -> None:
        self.broker = broker
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        # Ids assigned with MEMBER_ID_REQUIRED and not used yet. A rebalance waits for them.
        self.pending_members: set[str] = set()
        # Members that have not synced in this generation.
        self.pending_syncs: set[str] = set()
        self.new_member_added = False
        # Whether the group was Empty before the current rebalance.
        self.is_initial_rebalance = False
        # Set while a failed member is removed at the new coordinator: an initial join then completes early if all
        # others have joined.
        self.is_removing = False
        # Whether the leader replaces a removed one only until the rebalance elects a leader.
        self.leader_is_provisional = False
        # The leader's sync whose assignment the new coordinator has appended but not committed.
        self.uncommitted_sync: SyncGroup | None = None
        # The assignment that the leader provided: member, topic and partition.
        self.assignments: tuple[tuple[str, str, int], ...] = ()
        # When the group was loaded from the coordinator's log; 0 if it was created at this coordinator.
        self.loaded_us = 0
        # The number of derived operation ids handed out so far.
        self.derived_operations = 0
        self._static_members: dict[str, str] = {}

    # Members.

    def add(self, member: Member) -> None:
        """Add a new member. The first one becomes the leader."""
        if self.leader is None:
            self._set_leader(member.member_id)
        self.restore_member(member)
        self.pending_members.discard(member.member_id)

    def restore_member(self, member: Member) -> None:
        """Append a member without side effects on the group."""
        if member.instance_id is not None:
            self._static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or pending id. Return the member, or None if the id was not a member's."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._static_members[member.instance_id]
        if self.leader == member_id:
            self._set_leader(next(iter(self.members), None), provisional=True)
        self.pending_members.discard(member_id)
        self.pending_syncs.discard(member_id)
        return member

    def replace_static_member(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id. Its place and its leadership stay.

        Kafka does not rename the id in the set of pending syncs (`replaceStaticMember`), and neither does this.
        """
        member = self.members[old_id]
        assert member.instance_id is not None, f"{old_id} is not a static member"
        member.member_id = new_id
        self.members = {new_id if known == old_id else known: other for known, other in self.members.items()}
        self._static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def static_member_id(self, instance_id: str) -> str | None:
        return self._static_members.get(instance_id)

    def validate_member(self, member_id: str, instance_id: str | None) -> str | None:
        """Return the error for a request of this member (`validateCurrentMember`), or None if it is valid.

        A static member, with an `instance_id`, must send the member id that the instance has now.
        """
        if instance_id is not None:
            current_id = self._static_members.get(instance_id)
            if current_id is not None and current_id != member_id:
                return "FENCED_INSTANCE_ID"
            if current_id is None:
                return "UNKNOWN_MEMBER_ID"
        return None if member_id in self.members else "UNKNOWN_MEMBER_ID"

    def sorted_member_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def members_awaiting_join(self) -> list[Member]:
        return [member for member in self.members.values() if member.awaiting_join is not None]

    def not_yet_rejoined_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.awaiting_join is None]

    def has_all_members_joined(self) -> bool:
        return not self.pending_members and all(map(_awaiting_join, self.members.values()))

    # Leader.

    def _set_leader(self, member_id: str | None, *, provisional: bool = False) -> None:
        self.leader = member_id
        self.leader_is_provisional = provisional and member_id is not None

    def maybe_elect_new_joined_leader(self) -> bool:
        """Elect a leader among the members that rejoined, unless the leader did. Return False if no member rejoined.

        Kafka picks *any* member, by the hash order of random ids. Here the recorded answers to the waiting joins
        decide. Without them, the member that joined the group first becomes the leader.
        """
        waiting = {member.member_id: member.awaiting_join for member in self.members_awaiting_join()}
        if not waiting or self.leader is None:
            return False
        if self.leader_is_provisional or self.leader not in waiting:
            self._set_leader(_recorded_leader(waiting) or next(iter(waiting)))
        return True

    # Protocols.

    def supports_protocols(self, protocols: tuple[str, ...]) -> bool:
        """Return whether at least one of these protocols is supported by every member."""
        if self.state is GroupState.EMPTY:
            return bool(protocols)
        return bool(set(protocols).intersection(*set(map(_protocols, self.members.values()))))

    def select_protocol(self) -> str:
        """Return the protocol with the most votes, the earliest vote first in a tie.

        Each member votes for the first of its protocols that all members support.
        """
        lists = Counter(map(_protocols, self.members.values()))
        votes = Counter[str]()
        for protocols, members in lists.items():
            votes[next(name for name in protocols if self.supports_protocols((name,)))] += members
        return votes.most_common(1)[0][0]

    # State.

    def can_rebalance(self) -> bool:
        return self.state in GroupState.PREPARING_REBALANCE.valid_previous_states

    def transition_to(self, state: GroupState) -> None:
        assert self.state in state.valid_previous_states, f"{self.name}: {state.value} cannot follow {self.state.value}"
        self.is_initial_rebalance = self.state is GroupState.EMPTY
        self.state = state

    def init_next_generation(self) -> None:
        """Complete a join phase. The generation increases even if the group is empty."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY)

    # Operations.

    def next_derived_operation_id(self) -> int:
        """Return an id for an operation that cannot use the `seq` of an event. It is negative, so it never equals one.

        The id is a hash of broker, group and the number of derived ids of the group so far. It is therefore the same in
        every replay, independently of other groups. Two ids collide with a probability of 2**-63.
        """
        self.derived_operations += 1
        return derived_operation_id(self.broker, self.name, self.derived_operations)


_awaiting_join, _protocols = attrgetter("awaiting_join"), attrgetter("protocols")


def derived_operation_id(broker: int, group: str, number: int) -> int:
    """Return the derived id with this number: see `Group.next_derived_operation_id`."""
    digest = blake2b(f"{broker}/{group}/{number}".encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "big") >> 1)


def _recorded_leader(waiting: dict[str, JoinGroup | None]) -> str | None:
    named = (request.leader_member_id for request in waiting.values() if request is not None)
    return next((leader for leader in named if leader in waiting), None)

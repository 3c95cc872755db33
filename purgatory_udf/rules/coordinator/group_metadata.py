"""A consumer group: its members, state, generation and leader. What may happen when is for the coordinator to say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from purgatory_udf.rules.coordinator.group_requests import JoinGroup, SyncGroup

# One member of a group: its timeouts and protocols, and which of its requests waits for an answer.


@dataclass(slots=True)
class Member:
    """`member_id` changes when a static member restarts; its `instance_id` stays.

    `sign_of_life` is what the member's session waits for: the api of the request that proved it alive, or why it is
    gone. It is None from the moment a session is armed.
    """

    member_id: str
    instance_id: str | None
    client_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[str, ...]
    awaiting_join: JoinGroup | None = None
    awaiting_sync: SyncGroup | None = None
    is_new: bool = True
    sign_of_life: str | None = None

    @classmethod
    def joining(cls, request: JoinGroup, member_id: str) -> Member:
        member = cls(member_id, request.instance_id, request.client_id, 0, 0, ())
        member.update(request)
        return member

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def update(self, request: JoinGroup) -> None:
        """Take over what a join says, and let it wait. A join that waits already is given up: it is never answered."""
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols
        self.awaiting_join = request

    def alive_by(self) -> str | None:
        """Why no heartbeat is owed right now, or None if one is.

        A member that waits for an answer owes none: its client cannot know whether it is to go on. The exception is a
        new member's first join, which has five minutes: its client may be gone, and nobody would notice.
        """
        if self.sign_of_life is not None or self.is_new:
            return self.sign_of_life
        if self.awaiting_join is not None:
            return "awaiting_join"
        if self.awaiting_sync is not None:
            return "awaiting_sync"
        return None


# The states of a group, and which may follow which.


class GroupState(Enum):
    """Kafka 0.10's machine, as in the seed documents, calls CompletingRebalance AwaitingSync and begins in Stable.

        Empty ──first join──► PreparingRebalance ──all came, or time is up──► CompletingRebalance
          ▲                      │          ▲  ▲                                │            │
          └────nobody is left────┘          │  └──────somebody came or went─────┘     leader's assignment
                                            └───────somebody came or went─────── Stable ◄────┘

    Any state becomes Dead when the coordinator gives the group away (`group_unloaded`); what it loads (`group_loaded`)
    begins in Stable or Empty. That a group's last offset has expired, which makes it Dead too, no trace says.
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
    """Members stand in the order in which they joined; one that restarts with its instance id keeps its place.

    A group can be put together again from its public attributes, its members by `take_back` in their order.
    """

    def __init__(self, broker: int, name: str) -> None:
        self.broker = broker
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        # Ids given away by MEMBER_ID_REQUIRED and not used yet: a round waits for them.
        self.pending_members: set[str] = set()
        # Who has not synced in this generation.
        self.pending_syncs: set[str] = set()
        self.new_member_added = False
        # Whether the leader only stands in for one that went, until a round has elected one.
        self.leader_is_stopgap = False
        # When it was read from the coordinator's log; a group that was made here was not.
        self.loaded_us = 0
        # How many operations have got a derived id.
        self.operations_begun = 0
        self._static_members: dict[str, str] = {}

    # Members.

    def add(self, member: Member) -> None:
        if self.leader is None:
            self._lead_by(member.member_id)
        self.take_back(member)
        self.pending_members.discard(member.member_id)

    def take_back(self, member: Member) -> None:
        """Put a member in its place after the others; nothing follows from that."""
        if member.instance_id is not None:
            self._static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member

    def remove(self, member_id: str) -> Member | None:
        """Forget the id, be it a member's or a pending one; the member that it was, if it was one."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._static_members[member.instance_id]
        if self.leader == member_id:
            self._lead_by(next(iter(self.members), None), stopgap=True)
        self.pending_members.discard(member_id)
        self.pending_syncs.discard(member_id)
        return member

    def replace_static(self, old_id: str, new_id: str) -> Member:
        """The instance has a new id: everything else stays, the place and the leadership included.

        Kafka forgets to rename the id in the list of pending syncs, and so does this.
        """
        member = self.members[old_id]
        assert member.instance_id is not None, f"{old_id} is not a static member"
        member.member_id = new_id
        self.members = {new_id if known == old_id else known: fellow for known, fellow in self.members.items()}
        self._static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def static_member_id(self, instance_id: str) -> str | None:
        return self._static_members.get(instance_id)

    def refuses(self, member_id: str, instance_id: str | None) -> str | None:
        """The error for a request that claims to come from this member, or None if it is one."""
        if instance_id is not None:
            current_id = self._static_members.get(instance_id)
            if current_id is not None and current_id != member_id:
                return "FENCED_INSTANCE_ID"
            if current_id is None:
                return "UNKNOWN_MEMBER_ID"
        return None if member_id in self.members else "UNKNOWN_MEMBER_ID"

    def sorted_member_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def waiting_in_join(self) -> list[Member]:
        return [member for member in self.members.values() if member.awaiting_join is not None]

    def not_yet_rejoined(self) -> list[Member]:
        return [member for member in self.members.values() if member.awaiting_join is None]

    def has_all_members_joined(self) -> bool:
        return not self.not_yet_rejoined() and not self.pending_members

    # Leader.

    def _lead_by(self, member_id: str | None, *, stopgap: bool = False) -> None:
        self.leader = member_id
        self.leader_is_stopgap = stopgap and member_id is not None

    def elect_joined_leader(self) -> bool:
        """At the end of a round the leader is kept if it came. False if there is nobody to lead, or nobody came.

        Where Kafka takes *any* member, by the hash order of random ids (the leader went, or did not come back), the
        recorded answers to the waiting joins say whom it took. Where they do not, it is who is longest in the group.
        """
        waiting = {member.member_id: member.awaiting_join for member in self.waiting_in_join()}
        if not waiting or self.leader is None:
            return False
        if self.leader_is_stopgap or self.leader not in waiting:
            self._lead_by(_recorded_leader(waiting) or next(iter(waiting)))
        return True

    # Protocols.

    def supports(self, protocols: tuple[str, ...]) -> bool:
        """Is one of the protocols known to every member?"""
        if self.state is GroupState.EMPTY:
            return bool(protocols)
        return any(all(name in member.protocols for member in self.members.values()) for name in protocols)

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know. Most votes win, or the earliest cast."""
        votes = Counter(
            next(name for name in member.protocols if self.supports((name,))) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    # State.

    def can_rebalance(self) -> bool:
        return self.state in GroupState.PREPARING_REBALANCE.valid_previous_states

    def transition_to(self, state: GroupState) -> None:
        assert self.state in state.valid_previous_states, f"{self.name}: {state.value} cannot follow {self.state.value}"
        self.state = state

    def init_next_generation(self) -> None:
        """A round has ended. An empty group counts a generation too."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY)

    # Operations.

    def derived_operation_id(self) -> int:
        """An id for an operation that no request began for itself: negative, so never the `seq` of an event.

        It is a hash of the broker, the group, and how many such operations the group has begun. So it is the same in
        every replay, whatever the other groups do, and two are equal about as often as one in 2**63 pairs.
        """
        self.operations_begun += 1
        name = f"{self.broker}/{self.name}/{self.operations_begun}"
        digest = blake2b(name.encode(), digest_size=8).digest()
        return -1 - (int.from_bytes(digest, "big") >> 1)


def _recorded_leader(waiting: dict[str, JoinGroup | None]) -> str | None:
    named = (request.leader_member_id for request in waiting.values() if request is not None)
    return next((leader for leader in named if leader in waiting), None)

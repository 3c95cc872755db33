"""A consumer group (ConsumerGroup): members, epochs, target assignment, state, and the reconciliation of members.

Reconciliation moves a member from its current assignment to the target, step by step (CurrentAssignmentBuilder):

    STABLE                  the target has another epoch: compute the next assignment
    UNREVOKED_PARTITIONS    the member reports that it owns none of the partitions to give up: compute the next
    UNRELEASED_PARTITIONS   compute the next: some of the partitions may be free by now

The next assignment keeps the assigned partitions that are in the target. If that leaves partitions that the member
still owns, it has to give them up first and stays in its epoch. Otherwise it moves to the target's epoch and gets all
partitions that no other member owns. If some are still owned by others, it waits in UNRELEASED_PARTITIONS.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from purgatory_udf.rules.coordinator.group_metadata import derived_operation_id
from purgatory_udf.rules.coordinator.java_hash_order import TimelineOrder

# A set of topic-partitions.
Partitions = frozenset[tuple[str, int]]
NO_PARTITIONS: Partitions = frozenset()
NO_TOPICS: frozenset[str] = frozenset()

LEFT_STATIC_EPOCH = -2


class RefusedError(Exception):
    """Raised if the coordinator refuses a request. It answers with this error and changes nothing."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class MemberState(Enum):
    """The states of a member.

    STABLE ──target takes partitions away──► UNREVOKED_PARTITIONS ──given up──► UNRELEASED_PARTITIONS ──free──► STABLE
    """

    STABLE = "STABLE"
    UNREVOKED_PARTITIONS = "UNREVOKED_PARTITIONS"
    UNRELEASED_PARTITIONS = "UNRELEASED_PARTITIONS"


class ClassicProtocol(Struct, frozen=True):
    """The session timeout and the supported protocols with which a classic member has joined a consumer group."""

    session_timeout_ms: int
    protocols: tuple[str, ...]


class ConsumerMember(Struct, frozen=True):
    """A member of a consumer group (ConsumerGroupMember).

    The member owns the partitions in `assigned` and those in `revoking`, which it has to give up. `classic` is set for
    a member that uses the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = NO_TOPICS
    regex: str | None = None
    assignor: str | None = None
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    classic: ClassicProtocol | None = None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_epoch(self, epoch: int) -> ConsumerMember:
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


class ConsumerGroupState(Enum):
    """The states of a group, as in Kafka.

    EMPTY: no members. ASSIGNING: a new target is to be computed. RECONCILING: some members have not reached the target.
    STABLE: all members have.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """A consumer group at its coordinator. Its first member raises the epoch to 2."""

    FIRST_EPOCH: ClassVar[int] = 1

    def __init__(self, broker: int, name: str, epoch: int = FIRST_EPOCH, target_epoch: int = 0) -> None:
        self.broker = broker
        self.name = name
        self.epoch = epoch
        self.target_epoch = target_epoch
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Partitions] = {}
        # Partition counts of the subscribed topics when the group epoch last rose.
        self.topics: dict[str, int] = {}
        # When the target was last computed, or None if it never was.
        self.assigned_ms: int | None = None
        self.derived_operations = 0
        # State, epoch, target epoch and member ids when a transition was last recorded, and the members then.
        self.recorded: tuple[str, int, int, tuple[str, ...]] | None = None
        self.recorded_members: dict[str, ConsumerMember] = {}
        self.order = TimelineOrder()
        # How many members ask for each assignor.
        self.assignors: dict[str, int] = {}

    # Members.

    def put(self, member: ConsumerMember, records: int = 1) -> None:
        """Add or replace a member. `records` is the number of records with which Kafka does so.

        Each record is one insertion into Kafka's hash table; its size depends on them.
        """
        known = self.members.get(member.member_id)
        self.assignors = assignor_counts(self.assignors, known, member)
        self.members[member.member_id] = member
        for _ in range(records):
            self.order.put(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member and its target assignment."""
        self.assignors = assignor_counts(self.assignors, self.members.pop(member_id, None), None)
        self.target.pop(member_id, None)
        self.order.remove(member_id)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def sorted_member_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def owners(self) -> dict[tuple[str, int], str]:
        """Return the owner of each partition: the member to which it is assigned, or that has not given it up yet."""
        return {
            partition: member.member_id
            for member in self.members.values()
            for partition in (*member.assigned, *member.revoking)
        }

    def awaits_release(self, member: ConsumerMember) -> bool:
        """Return whether another member still owns a partition of the member's target."""
        owners = self.owners()
        target = self.target.get(member.member_id, NO_PARTITIONS)
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            partition in owners for partition in target - member.assigned
        )

    def subscribed_topics(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the existing topics that any member subscribes to, with their partition counts."""
        return existing_topics(self.members.values(), counts)

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def next_derived_operation_id(self) -> int:
        """Return an id for an operation that cannot use the `seq` of an event."""
        self.derived_operations += 1
        return derived_operation_id(self.broker, self.name, self.derived_operations)


def existing_topics(members: Iterable[ConsumerMember], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the topics in `counts` to which any of the members subscribes, with their partition counts."""
    names = NO_TOPICS.union(*{member.topics for member in members})
    return {topic: counts[topic] for topic in sorted(names) if topic in counts}


def assignor_counts(
    counts: Mapping[str, int], before: ConsumerMember | None, after: ConsumerMember | None
) -> dict[str, int]:
    """Return how many members request each assignor, after a member has changed (`maybeUpdateServerAssignors`).

    `counts` are the numbers before the change; `before` is None for a new member, `after` for a removed one.
    The counts are in the order of the `HashMap` in which Kafka compares them. Kafka copies the previous counts to it in
    the order of a `TimelineHashMap`, and `compute` puts a new assignor in front of the others in its bucket.
    """
    if before is not None and after is not None and before.assignor == after.assignor and len(counts) <= 1:
        return dict(counts)
    updated = {name: counts[name] for name in TimelineOrder(counts).in_order()}
    if before is not None and before.assignor is not None:
        updated[before.assignor] -= 1
        if not updated[before.assignor]:
            del updated[before.assignor]
    if after is not None and after.assignor is not None:
        if after.assignor in updated:
            updated[after.assignor] += 1
        else:
            updated = {after.assignor: 1, **updated}
    return updated


# Attributes of a group that are stored unchanged.
_FIELDS = ("epoch", "target_epoch", "topics", "assigned_ms", "derived_operations")


def to_document(group: ConsumerGroup) -> dict[str, Any]:
    """Return the group as a JSON document.

    The group's changes must have been recorded (`ChangeRecorder`), because the last recorded state is not stored.
    """
    return {
        **{name: getattr(group, name) for name in _FIELDS},
        "state": group.recorded[0] if group.recorded is not None else None,
        "order": list(group.order.keys),
        "order_size": group.order.size,
        "target": {member_id: sorted(partitions) for member_id, partitions in group.target.items()},
        "members": [_member_document(member) for member in group.members.values()],
    }


def from_document(document: dict[str, Any], broker: int, name: str) -> ConsumerGroup:
    """Restore the group from the document of `to_document`."""
    group = ConsumerGroup(broker, name)
    for field in _FIELDS:
        setattr(group, field, document[field])
    group.target = {member_id: _partitions(listed) for member_id, listed in document["target"].items()}
    for member in map(_member, document["members"]):
        group.members[member.member_id] = member
        group.assignors = assignor_counts(group.assignors, None, member)
    group.order = TimelineOrder(document["order"], document["order_size"])
    group.recorded_members = dict(group.members)
    if document["state"] is not None:
        group.recorded = (document["state"], group.epoch, group.target_epoch, group.sorted_member_ids())
    return group


def _member_document(member: ConsumerMember) -> dict[str, Any]:
    classic = member.classic
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "epoch": member.epoch,
        "previous": member.previous_epoch,
        "state": member.state.value,
        "rebalance_ms": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
        "assigned": sorted(member.assigned),
        "revoking": sorted(member.revoking),
        "classic": None if classic is None else [classic.session_timeout_ms, list(classic.protocols)],
    }


def _member(document: dict[str, Any]) -> ConsumerMember:
    classic = document["classic"]
    return ConsumerMember(
        document["id"],
        document["instance"],
        document["client"],
        document["epoch"],
        document["previous"],
        MemberState(document["state"]),
        document["rebalance_ms"],
        frozenset(document["topics"]),
        document["regex"],
        document["assignor"],
        _partitions(document["assigned"]),
        _partitions(document["revoking"]),
        None if classic is None else ClassicProtocol(classic[0], tuple(classic[1])),
    )


def _partitions(listed: list[list[Any]]) -> Partitions:
    return frozenset((topic, number) for topic, number in listed)


def reconciled(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    reported: Partitions | None,
    owned_by_others: Container[tuple[str, int]],
    subscription_changed: bool = False,
) -> ConsumerMember:
    """Return the member after one step towards the target, or the same member if it cannot move.

    Args:
        member: The member.
        target_epoch: The epoch of the target.
        target: The target of the member.
        reported: The owned partitions in the member's heartbeat, or None if it has none.
        owned_by_others: The partitions that other members own or have not given up.
        subscription_changed: Whether this request changed the topics that the member subscribes to.
    """
    waits = member.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(member.revoking, reported)
    if waits or member.is_reconciled_to(target_epoch):
        return _without_unsubscribed(member, reported) if subscription_changed else member
    target = _subscribed(member, target)
    kept = member.assigned & target
    to_revoke = member.assigned - kept
    if to_revoke and _still_owns(to_revoke, reported):
        return _unrevoked(member, kept, to_revoke)
    free = frozenset(partition for partition in target - kept if partition not in owned_by_others)
    state = MemberState.STABLE if kept | free == target else MemberState.UNRELEASED_PARTITIONS
    return replace(member.with_epoch(target_epoch), state=state, assigned=kept | free, revoking=NO_PARTITIONS)


def _without_unsubscribed(member: ConsumerMember, reported: Partitions | None) -> ConsumerMember:
    """Return the member without the partitions of topics that it no longer subscribes to; it gives these up at once."""
    kept = _subscribed(member, member.assigned)
    if kept == member.assigned:
        return member
    to_revoke = member.revoking | (member.assigned - kept)
    if _still_owns(to_revoke, reported):
        return _unrevoked(member, kept, to_revoke)
    return replace(member.with_epoch(member.epoch), assigned=kept)


def _unrevoked(member: ConsumerMember, kept: Partitions, to_revoke: Partitions) -> ConsumerMember:
    state = MemberState.UNREVOKED_PARTITIONS
    return replace(member.with_epoch(member.epoch), state=state, assigned=kept, revoking=to_revoke)


def _subscribed(member: ConsumerMember, partitions: Partitions) -> Partitions:
    """Return the partitions of subscribed topics; all if the member subscribes by a regular expression.

    Which topics match an expression is not known.
    """
    if member.regex is not None:
        return partitions
    return frozenset(partition for partition in partitions if partition[0] in member.topics)


def _still_owns(revoked: Partitions, reported: Partitions | None) -> bool:
    return reported is None or not revoked.isdisjoint(reported)

"""Reconciliation: a member's way from its present assignment to the target (CurrentAssignmentBuilder).

    STABLE                  the target has another epoch: compute the next assignment
    UNREVOKED_PARTITIONS    the member reports that it owns none of the partitions to give up: compute the next
    UNRELEASED_PARTITIONS   compute the next: some of the partitions may be free by now

The next assignment keeps the assigned partitions that are in the target. If that leaves partitions that the member
still owns, it has to give them up first and stays in its epoch. Otherwise it moves to the target's epoch and gets all
partitions that no other member owns. If some are still owned by others, it waits in UNRELEASED_PARTITIONS.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from purgatory_udf.rules.coordinator.consumer_group import (
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    Partitions,
)


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
    """Take partitions of topics away that the member no longer subscribes to, without waiting for the next target."""
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
    """Return the partitions of subscribed topics. Which topics match a regular expression is not known."""
    if member.regex is not None:
        return partitions
    return frozenset(partition for partition in partitions if partition[0] in member.topics)


def _still_owns(revoked: Partitions, reported: Partitions | None) -> bool:
    return reported is None or not revoked.isdisjoint(reported)

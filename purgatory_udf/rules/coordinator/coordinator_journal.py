"""The journal of the coordinators: answers, removed members, and transitions of groups and members, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct, structs

from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.consumer_group import (
    NO_PARTITIONS,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
)
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_operations import CoordinatedGroup, GroupOperation
from purgatory_udf.rules.coordinator.group_requests import ConsumerHeartbeat, GroupRequest, JoinGroup

NONE = "NONE"
# The state of a member that is no longer in its group.
REMOVED = "REMOVED"


class Answer(Struct, frozen=True):
    """The answer to one request. A request that is superseded, or still waits at the end of the trace, has none.

    `member_id` is the id in the answer, "" for none. Only answers to joins have `generation` and `leader`, which are -1
    and None with an error.

    The answer to a `consumer_group_heartbeat` has the member epoch as its `generation`, and the `assignment` if one was
    sent: partitions in the form `orders:0,1;users:3`.

    `at_us` is the time at which the coordinator decided. If `awaits_commits`, the new coordinator sends the answer only
    when all records that it had appended before are committed (`answers_after_commits`).
    """

    broker: int
    group: str
    seq: int
    request_id: str | None
    api: str
    requested_us: int
    at_us: int
    error: str
    member_id: str
    generation: int | None
    leader: str | None
    awaits_commits: bool = False
    assignment: str | None = None

    @property
    def wait_ms(self) -> int:
        return self.at_us // 1000 - self.requested_us // 1000


class Removal(Struct, frozen=True):
    """A member that was removed from its group, or a pending member id that was dropped.

    | reason | meaning |
    |---|---|
    | `session` | the session expired |
    | `pending` | an id assigned with MEMBER_ID_REQUIRED was not used within one session timeout |
    | `rejoin` | the member did not rejoin within the rebalance timeout |
    | `sync` | the member did not sync within the rebalance timeout of the generation, or of its join |
    | `leave` | the member left |
    | `replaced` | its instance id now belongs to a newer member id |
    | `size` | the member rejoined a full group |
    | `rebalance` | the member of a consumer group did not give up partitions within its rebalance timeout |
    | `join` | the classic member of a consumer group did not rejoin within its rebalance timeout |
    """

    broker: int
    group: str
    at_us: int
    member_id: str
    reason: str


class Write(Struct, frozen=True):
    """Journal entry: the new coordinator appended records of the group to its partition of the offsets topic."""

    broker: int
    group: str
    at_us: int


class StateChange(Struct, frozen=True):
    """A state transition, and the group's leader at that moment.

    Of a consumer group, every change of its state, epochs or members is recorded. `target_epoch` is the epoch of its
    target assignment; None for a classic group.
    """

    transition: Transition
    leader: str | None
    target_epoch: int | None = None


class MemberChange(Struct, frozen=True):
    """Journal entry: the state, epoch or assignment of a member of a consumer group changed.

    `from_state` is None for a new member, `to_state` is `REMOVED` after a member has left. `held_by` lists the
    partitions of its target that other members have not given up: topic, partition, and owner.
    """

    broker: int
    group: str
    at_us: int
    member_id: str
    from_state: str | None
    to_state: str
    epoch: int
    assigned: Partitions
    revoking: Partitions
    held_by: tuple[tuple[str, int, str], ...]
    is_classic: bool
    reason: str


class Conversion(Struct, frozen=True):
    """Journal entry: the group was converted to the protocol `consumer` or `classic` (KIP-848)."""

    broker: int
    group: str
    at_us: int
    protocol: str


Entry = Answer | Removal | StateChange | Write | MemberChange | Conversion


class GroupJournal:
    """Everything that the coordinators did in one trace. `operations` includes open ones."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.operations: list[GroupOperation] = []

    @property
    def answers(self) -> list[Answer]:
        return [entry for entry in self.entries if isinstance(entry, Answer)]

    @property
    def changes(self) -> list[StateChange]:
        return [entry for entry in self.entries if isinstance(entry, StateChange)]

    def record_answer(
        self,
        request: GroupRequest,
        error: str,
        now_us: int,
        member_id: str | None = None,
        awaits_commits: bool = False,
    ) -> None:
        """Record an answer that has only an error code.

        Args:
            request: The request that is answered.
            error: The error code, NONE for success.
            now_us: The time of the decision.
            member_id: The id in the answer, "" for none; by default the sender's.
            awaits_commits: See `Answer`.
        """
        generation = -1 if isinstance(request, JoinGroup) else None
        member_id = request.member_id if member_id is None else member_id
        self._record_answer(request, error, now_us, member_id, generation, None, awaits_commits)

    def record_join(
        self,
        request: JoinGroup,
        group: Group,
        member_id: str,
        leader: str | None,
        now_us: int,
        awaits_commits: bool = False,
    ) -> None:
        """Record the answer to a successful join: the member is in the group's current generation.

        Args:
            request: The join, which may have waited.
            group: The group, already in the generation of the answer.
            member_id: The id in the answer; a new member learns its id from it.
            leader: The leader in the answer.
            now_us: The time of the decision.
            awaits_commits: See `Answer`.
        """
        self._record_answer(request, NONE, now_us, member_id, group.generation, leader, awaits_commits)

    def record_member(self, change: MemberChange) -> None:
        self.entries.append(change)

    def record_consumer_group(self, transition: Transition, target_epoch: int) -> None:
        self.entries.append(StateChange(transition, None, target_epoch))

    def record_conversion(self, group: Group, protocol: str, now_us: int) -> None:
        self.entries.append(Conversion(group.broker, group.name, now_us, protocol))

    def record_write(self, group: CoordinatedGroup, now_us: int) -> None:
        self.entries.append(Write(group.broker, group.name, now_us))

    def record_removal(self, group: CoordinatedGroup, member_id: str, reason: str, now_us: int) -> None:
        self.entries.append(Removal(group.broker, group.name, now_us, member_id, reason))

    def record_transition(self, group: Group, from_state: GroupState, reason: str, now_us: int) -> None:
        transition = Transition(
            group=group.name,
            broker=group.broker,
            at_us=now_us,
            from_state=from_state.value,
            to_state=group.state.value,
            reason=reason,
            generation=group.generation,
            members=group.sorted_member_ids(),
        )
        self.entries.append(StateChange(transition, group.leader))

    def record_loaded_member(self, group: Group) -> None:
        """Add a member that has just been loaded to the group's latest transitions, back to its transition from Dead.

        Members are loaded one by one, but in Kafka a group loads as a whole.
        """
        for place in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[place]
            if isinstance(entry, StateChange) and entry.transition.group == group.name:
                transition = replace(entry.transition, members=group.sorted_member_ids())
                self.entries[place] = structs.replace(entry, transition=transition)
                if transition.from_state == GroupState.DEAD.value:
                    return

    def record_classic_join(self, request: JoinGroup, member_id: str, epoch: int, now_us: int) -> None:
        """Record the answer to a join of a classic member of a consumer group.

        The group has no leader; the member epoch is the answer's generation.
        """
        self._record_answer(request, NONE, now_us, member_id, epoch, None, True)

    def record_epoch(
        self, request: ConsumerHeartbeat, member_id: str, epoch: int, now_us: int, assignment: str | None
    ) -> None:
        """Record the answer to a heartbeat of the consumer protocol.

        Args:
            request: The heartbeat.
            member_id: The id in the answer.
            epoch: The member epoch in the answer; the one in the request when the member leaves.
            now_us: The time of the decision.
            assignment: Partitions in the form `orders:0,1;users:3`; None if the answer has none.
        """
        self._record_answer(request, NONE, now_us, member_id, epoch, None, True, assignment)

    def _record_answer(
        self,
        request: GroupRequest,
        error: str,
        now_us: int,
        member_id: str,
        generation: int | None,
        leader: str | None,
        awaits_commits: bool,
        assignment: str | None = None,
    ) -> None:
        answer = Answer(
            broker=request.broker,
            group=request.group,
            seq=request.seq,
            request_id=request.request_id,
            api=request.api,
            requested_us=request.time_us,
            at_us=now_us,
            error=error,
            member_id=member_id,
            generation=generation,
            leader=leader,
            awaits_commits=awaits_commits,
            assignment=assignment,
        )
        self.entries.append(answer)
        if request.respond is not None:
            request.respond(answer)


def answers_after_commits(entries: Iterable[Entry], commit_delay_ms: int) -> list[Answer]:
    """Return the answers with the times at which the new coordinator sends them.

    It sends an answer when the records that it appended before are committed. In Kafka, the groups of one partition of
    the offsets topic wait for each other's records; here, all groups of a broker do.

    Args:
        entries: The entries of every group, in the order in which the coordinator made them.
        commit_delay_ms: The time from the append of a record to its commit.
    """
    committed_us: dict[int, int] = {}
    answers = []
    for entry in entries:
        if isinstance(entry, Write):
            committed_us[entry.broker] = entry.at_us // 1000 * 1000 + commit_delay_ms * 1000
        elif isinstance(entry, Answer):
            after_us = committed_us.get(entry.broker, 0) if entry.awaits_commits else 0
            answers.append(structs.replace(entry, at_us=after_us) if after_us > entry.at_us else entry)
    return answers


class ChangeRecorder:
    """Records the changes of a group since it was last recorded. The group keeps that state in its `recorded`."""

    def __init__(self, journal: GroupJournal) -> None:
        self._journal = journal

    def record(self, group: ConsumerGroup, reason: str, now_us: int) -> None:
        """Record the changes of the group and its members since the last call, with `reason` as their cause."""
        before = group.recorded_members
        if group.members == before and group.recorded is not None:
            _, epoch, target_epoch, _ = group.recorded
            if (epoch, target_epoch) == (group.epoch, group.target_epoch):
                return
        for member in group.members.values():
            known = before.get(member.member_id)
            if known is not member and (known is None or _visible(known) != _visible(member)):
                self._journal.record_member(_change(group, known, member, reason, now_us))
        for gone in before.values():
            if gone.member_id not in group.members:
                self._journal.record_member(_removal(group, gone, reason, now_us))
        group.recorded_members = dict(group.members)
        after = (group.state.value, group.epoch, group.target_epoch, group.sorted_member_ids())
        if after == group.recorded or group.epoch == ConsumerGroup.FIRST_EPOCH:
            return
        from_state = group.recorded[0] if group.recorded is not None else "Empty"
        group.recorded = after
        self._journal.record_consumer_group(
            Transition(
                group=group.name,
                broker=group.broker,
                at_us=now_us,
                from_state=from_state,
                to_state=group.state.value,
                reason=reason,
                generation=group.epoch,
                members=group.sorted_member_ids(),
            ),
            group.target_epoch,
        )

    def record_end(self, group: ConsumerGroup, reason: str, now_us: int) -> None:
        """Record that the group ended as a consumer group, with the members it had."""
        for member in group.recorded_members.values():
            self._journal.record_member(_removal(group, member, reason, now_us))
        group.recorded_members = {}


def _visible(member: ConsumerMember) -> tuple[object, ...]:
    return (member.state, member.epoch, member.assigned, member.revoking, member.classic is not None)


def _change(
    group: ConsumerGroup, before: ConsumerMember | None, member: ConsumerMember, reason: str, now_us: int
) -> MemberChange:
    return MemberChange(
        broker=group.broker,
        group=group.name,
        at_us=now_us,
        member_id=member.member_id,
        from_state=None if before is None else before.state.value,
        to_state=member.state.value,
        epoch=member.epoch,
        assigned=member.assigned,
        revoking=member.revoking,
        held_by=_held_by(group, member),
        is_classic=member.classic is not None,
        reason=reason,
    )


def _removal(group: ConsumerGroup, member: ConsumerMember, reason: str, now_us: int) -> MemberChange:
    successor = group.static_member(member.instance_id) if member.instance_id is not None else None
    if successor is not None and successor.member_id != member.member_id:
        reason = f"replaced by {successor.member_id}, which has its instance id"
    return MemberChange(
        broker=group.broker,
        group=group.name,
        at_us=now_us,
        member_id=member.member_id,
        from_state=member.state.value,
        to_state=REMOVED,
        epoch=member.epoch,
        assigned=NO_PARTITIONS,
        revoking=NO_PARTITIONS,
        held_by=(),
        is_classic=member.classic is not None,
        reason=reason,
    )


def _held_by(group: ConsumerGroup, member: ConsumerMember) -> tuple[tuple[str, int, str], ...]:
    """Return (topic, partition, owner's member id) for each partition of its target that the member waits for."""
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return ()
    owners = group.owners()
    wanted = group.target.get(member.member_id, NO_PARTITIONS) - member.assigned
    return tuple((*partition, owners[partition]) for partition in sorted(wanted) if partition in owners)

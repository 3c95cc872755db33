"""What the coordinators did, in order: the answers it gave, the members it lost, the states its groups went through."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_operations import GroupOperation
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup

NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and what it was told. A request that was given up, or still waits at the end, has none.

    `member_id` is the id that the answer names, "" for none. `generation` and `leader` are a join's: -1 and None with
    an error, both None for any other api.
    """

    broker: int
    group: str
    seq: int
    request_id: str | None
    api: str
    asked_us: int
    at_us: int
    error: str
    member_id: str
    generation: int | None
    leader: str | None

    @property
    def wait_ms(self) -> int:
        return self.at_us // 1000 - self.asked_us // 1000


@dataclass(frozen=True, slots=True)
class Removal:
    """A member that is no longer in the group, or an id that is no longer expected.

    | reason | |
    |---|---|
    | `session` | no sign of life in time |
    | `pending` | an id given with MEMBER_ID_REQUIRED, not used within a session timeout |
    | `rejoin` | not back when the rebalance timeout was over |
    | `sync` | no sync when the rebalance timeout was over once more |
    | `leave` | asked to |
    | `replaced` | its instance id belongs to a newer member id now |
    | `size` | came back to a full group |
    """

    broker: int
    group: str
    at_us: int
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StateChange:
    """A transition, and who led the group at that instant."""

    transition: Transition
    leader: str | None


class GroupJournal:
    """Everything of one trace, as it happened. `operations` has all that were begun, those still open included."""

    def __init__(self) -> None:
        self.entries: list[Answer | Removal | StateChange] = []
        self.operations: list[GroupOperation] = []

    @property
    def answers(self) -> list[Answer]:
        return [entry for entry in self.entries if isinstance(entry, Answer)]

    @property
    def changes(self) -> list[StateChange]:
        return [entry for entry in self.entries if isinstance(entry, StateChange)]

    def answered(self, request: GroupRequest, error: str, now_us: int, member_id: str | None = None) -> None:
        """An answer that says no more than how it went; it names the sender unless told otherwise."""
        generation = -1 if isinstance(request, JoinGroup) else None
        self._answered(request, error, now_us, request.member_id if member_id is None else member_id, generation, None)

    def joined(self, request: JoinGroup, group: Group, member_id: str, leader: str | None, now_us: int) -> None:
        """A join that was granted: the member is in this generation, which that leader leads."""
        self._answered(request, NONE, now_us, member_id, group.generation, leader)

    def removed(self, group: Group, member_id: str, reason: str, now_us: int) -> None:
        self.entries.append(Removal(group.broker, group.name, now_us, member_id, reason))

    def changed(self, group: Group, from_state: GroupState, reason: str, now_us: int) -> None:
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

    def _answered(
        self,
        request: GroupRequest,
        error: str,
        now_us: int,
        member_id: str,
        generation: int | None,
        leader: str | None,
    ) -> None:
        answer = Answer(
            broker=request.broker,
            group=request.group,
            seq=request.seq,
            request_id=request.request_id,
            api=request.api,
            asked_us=request.time_us,
            at_us=now_us,
            error=error,
            member_id=member_id,
            generation=generation,
            leader=leader,
        )
        self.entries.append(answer)
        if request.respond is not None:
            request.respond(answer)

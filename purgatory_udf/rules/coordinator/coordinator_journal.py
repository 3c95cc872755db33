"""The journal of the coordinators: their answers, removed members, and the state transitions of groups, in order."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState
from purgatory_udf.rules.coordinator.group_operations import GroupOperation
from purgatory_udf.rules.coordinator.group_requests import GroupRequest, JoinGroup

NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request. A request that is superseded, or still waits when the trace ends, has none.

    `member_id` is the id in the answer, "" for none. `generation` and `leader` belong to a join's answer: -1 and None
    with an error, both None for any other API.
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

    @property
    def wait_ms(self) -> int:
        return self.at_us // 1000 - self.requested_us // 1000


@dataclass(frozen=True, slots=True)
class Removal:
    """A member that was removed from its group, or a pending member id that was dropped.

    | reason | meaning |
    |---|---|
    | `session` | the session expired |
    | `pending` | an id assigned with MEMBER_ID_REQUIRED was not used within one session timeout |
    | `rejoin` | the member did not rejoin within the rebalance timeout |
    | `sync` | the member did not sync within the rebalance timeout of the generation |
    | `leave` | the member left |
    | `replaced` | its instance id now belongs to a newer member id |
    | `size` | the member rejoined a full group |
    """

    broker: int
    group: str
    at_us: int
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StateChange:
    """A state transition, and the group's leader at that instant."""

    transition: Transition
    leader: str | None


class GroupJournal:
    """Everything that the coordinators did in one trace. `operations` includes open ones."""

    def __init__(self) -> None:
        self.entries: list[Answer | Removal | StateChange] = []
        self.operations: list[GroupOperation] = []

    @property
    def answers(self) -> list[Answer]:
        return [entry for entry in self.entries if isinstance(entry, Answer)]

    @property
    def changes(self) -> list[StateChange]:
        return [entry for entry in self.entries if isinstance(entry, StateChange)]

    def record_answer(self, request: GroupRequest, error: str, now_us: int, member_id: str | None = None) -> None:
        """Record an answer that carries an error code only. It names the sender unless `member_id` is given."""
        generation = -1 if isinstance(request, JoinGroup) else None
        self._record_answer(
            request, error, now_us, request.member_id if member_id is None else member_id, generation, None
        )

    def record_join(self, request: JoinGroup, group: Group, member_id: str, leader: str | None, now_us: int) -> None:
        """Record the answer to a successful join: the member is in the group's current generation."""
        self._record_answer(request, NONE, now_us, member_id, group.generation, leader)

    def record_removal(self, group: Group, member_id: str, reason: str, now_us: int) -> None:
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

    def _record_answer(
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
            requested_us=request.time_us,
            at_us=now_us,
            error=error,
            member_id=member_id,
            generation=generation,
            leader=leader,
        )
        self.entries.append(answer)
        if request.respond is not None:
            request.respond(answer)

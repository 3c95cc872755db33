"""The coordinator for one group, taken up from what was kept of it and put down again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from purgatory_udf.config import GroupSettings as GroupConfig
from purgatory_udf.coordinator.coordinator import GroupCoordinator
from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.heartbeat import DelayedHeartbeat, MemberHeartbeat, PendingHeartbeat
from purgatory_udf.coordinator.initial_join import InitialDelayedJoin, Window
from purgatory_udf.coordinator.join import DelayedJoin
from purgatory_udf.coordinator.member import Member
from purgatory_udf.coordinator.operation import Beginning, GroupOperation
from purgatory_udf.coordinator.request import group_request
from purgatory_udf.coordinator.state import GroupState
from purgatory_udf.coordinator.sync import DelayedSync
from purgatory_udf.frames.frame import Frame
from purgatory_udf.groups.answers import AnswerJournal
from purgatory_udf.groups.chronicle import Chronicle
from purgatory_udf.groups.clock import GroupClock, Moment
from purgatory_udf.groups.kept import PENDING, SESSIONS, KeptGroup, KeptRound
from purgatory_udf.groups.rows import parts_of


class GroupMachine:
    """Its journal and chronicle have what happened since it was taken up. Nobody else may use the `KeptGroup` that it
    was made from."""

    def __init__(self, key: str, config: GroupConfig, kept: KeptGroup) -> None:
        broker, self._name = parts_of(key)
        self._config = config
        self.journal = AnswerJournal()
        self.chronicle = Chronicle(self.journal)
        self.clock = GroupClock(self.chronicle.note)
        self._coordinator = GroupCoordinator(broker, self.clock, config, self.journal)
        self.chronicle.purgatories = self.clock.purgatories
        if kept.group is not None:
            self._coordinator.groups[self._name] = kept.group
            self._take_up(kept, kept.group)

    @property
    def group(self) -> Group | None:
        return self._coordinator.groups.get(self._name)

    def apply(self, event: Mapping[str, Any]) -> None:
        """Before an event, everything that is due by its millisecond happens."""
        self.clock.advance_to(event["time_us"] // 1000)
        self._coordinator.handle(group_request(event, self._config))
        self.clock.event(event["time_us"], event["seq"])

    def put_down(self) -> KeptGroup:
        """What has to be kept: with it, a new machine goes on as this one would."""
        sessions, rounds = [], []
        for operation in self.chronicle.still_open:
            if isinstance(operation, DelayedHeartbeat):
                sessions.append(operation)
            else:
                dead = operation.group is not self.group
                rounds.append(_kept_round(operation, self.chronicle.began[operation], dead))
        owners = list(self.group.members.values()) if self.group is not None else []
        places = {id(member): place for place, member in enumerate(owners)}
        former: list[Member] = []
        owner = []
        for session in sessions:
            member = session.member if isinstance(session, MemberHeartbeat) else None
            if member is not None and id(member) not in places:
                places[id(member)] = len(places)
                former.append(member)
            owner.append(PENDING if member is None else places[id(member)])
        return KeptGroup(self.group, _frame(sessions, owner, self.chronicle.began), rounds, former)

    # -- taking up ----------------------------------------------------------------------------------------------------

    def _take_up(self, kept: KeptGroup, group: Group) -> None:
        heartbeats, rebalances = self.clock.purgatories
        # Those of one deadline end in the order of their turns: before any that this machine begins, as they stand.
        first_turn, owners, keeper = -len(kept.sessions), kept.owners, self._coordinator.rounds.sessions
        rows = zip(*(kept.sessions.columns[name].tolist() for name in SESSIONS.names), strict=True)
        for place, (owner, operation_id, t, seq, sub, deadline, member_id, request_id, client_id) in enumerate(rows):
            beginning, delay, turn = Beginning(operation_id, t, None), deadline - t // 1000, first_turn + place
            session: DelayedHeartbeat
            if owner == PENDING:
                session = PendingHeartbeat(group, member_id, beginning, delay, keeper, turn)
            else:
                session = MemberHeartbeat(group, owners[owner], beginning, delay, keeper, turn, armed_as=member_id)
            heartbeats.watch_again(self._known(session, Moment(t, seq, sub), request_id or None, client_id or None))
        for kept_round in kept.rounds:
            began = Moment(kept_round.started_us, kept_round.seq, kept_round.sub)
            rebalances.watch_again(
                self._known(self._round(kept_round, group), began, kept_round.request_id, kept_round.client_id)
            )

    def _round(self, kept: KeptRound, group: Group) -> GroupOperation:
        beginning, rounds = Beginning(kept.operation_id, kept.started_us, None), self._coordinator.rounds
        if kept.dead:
            group = Group(group.broker, group.name)
            group.state = GroupState.DEAD
        delay_ms = kept.deadline_ms - kept.started_us // 1000
        if kept.kind == InitialDelayedJoin.kind:
            return InitialDelayedJoin(group, beginning, Window(delay_ms, kept.remaining_ms), rounds)
        if kept.kind == DelayedJoin.kind:
            return DelayedJoin(group, beginning, delay_ms, rounds)
        return DelayedSync(group, beginning, delay_ms, rounds.sync_expired)

    def _known(
        self, operation: GroupOperation, began: Moment, request_id: str | None, client_id: str | None
    ) -> GroupOperation:
        operation.request = replace(operation.request, request_id=request_id, client_id=client_id)
        self.chronicle.take_back(operation, began)
        return operation


def _kept_round(operation: GroupOperation, began: Moment, dead: bool) -> KeptRound:
    request = operation.request
    remaining_ms = operation.window.remaining_ms if isinstance(operation, InitialDelayedJoin) else 0
    return KeptRound(
        operation.kind,
        operation.operation_id,
        operation.started_us,
        began.seq,
        began.sub,
        operation.deadline_ms,
        request.request_id,
        request.client_id,
        remaining_ms,
        dead,
    )


def _frame(sessions: list[DelayedHeartbeat], owner: list[int], began: Mapping[GroupOperation, Moment]) -> Frame:
    if not sessions:
        return SESSIONS.empty()
    numbers = {
        "owner": owner,
        "op": [session.operation_id for session in sessions],
        "t": [session.started_us for session in sessions],
        "seq": [began[session].seq for session in sessions],
        "sub": [began[session].sub for session in sessions],
        "deadline": [session.deadline_ms for session in sessions],
    }
    texts = {
        "member_id": [session.member_id for session in sessions],
        "request_id": [session.request.request_id or "" for session in sessions],
        "client_id": [session.request.client_id or "" for session in sessions],
    }
    columns = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    return Frame(columns | {name: np.array(values, dtype=object) for name, values in texts.items()})

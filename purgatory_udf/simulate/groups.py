"""The groups' side of the brokers: coordinators, assignments that leaders have handed in, and committed offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.reference.group_journal import Answer
from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.messages import NONE, Coordinator, FetchCommitted, GroupAnswer, GroupMessage, Offsets
from purgatory_udf.simulate.network import Reply
from purgatory_udf.simulate.world import World

IsUp = Callable[[int], bool]


class GroupServer:
    """Shared by all brokers, as the offsets topic is. A group stays at its coordinator until that broker fails."""

    def __init__(self, world: World, brokers: list[int], is_up: IsUp) -> None:
        self._world = world
        self._brokers = brokers
        self._is_up = is_up
        self._coordinators: dict[str, int] = {}
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._assignments: dict[tuple[int, str, int], dict[str, list[TopicPartition]]] = {}

    def coordinator_of(self, group: str) -> Coordinator:
        broker = self._coordinators.get(group)
        if broker is None or not self._is_up(broker):
            known = len(self._coordinators)
            # Spread over the brokers in the order in which groups are first asked for.
            candidates = [self._brokers[(known + at) % len(self._brokers)] for at in range(len(self._brokers))]
            broker = next((one for one in candidates if self._is_up(one)), None)
            if broker is not None:
                self._coordinators[group] = broker
        return Coordinator(broker)

    def handle(self, broker: int, message: GroupMessage, reply: Reply) -> int | None:
        if self._coordinators.get(message.group) != broker:
            reply(GroupAnswer("NOT_COORDINATOR"), 0)
            return None
        if message.type == "sync_group" and message.assignment is not None:
            self._assignments[broker, message.group, message.fields["generation"]] = message.assignment

        def respond(answer: Answer) -> None:
            reply(self._answer(broker, message, answer), 0)

        return self._world.record(
            message.type,
            broker,
            respond,
            request_id=message.request_id,
            client_id=message.client_id,
            group=message.group,
            **message.fields,
        )

    def committed(self, message: FetchCommitted) -> Offsets:
        found = {key: self._offsets.get((message.group, key)) for key in message.keys}
        return Offsets({key: offset for key, offset in found.items() if offset is not None})

    def _answer(self, broker: int, message: GroupMessage, answer: Answer) -> GroupAnswer:
        members: tuple[str, ...] = ()
        assigned: tuple[TopicPartition, ...] = ()
        if message.type == "join_group" and answer.error == NONE and answer.leader == answer.member_id:
            members = tuple(self._world.engine.coordinator(broker).groups[message.group].members)
        elif message.type == "sync_group" and answer.error == NONE:
            assignment = self._assignments.get((broker, message.group, message.fields["generation"]), {})
            assigned = tuple(assignment.get(answer.member_id, ()))
        elif message.type == "offset_commit" and answer.error == NONE:
            self._store(message.group, message.fields["partitions"])
        generation = -1 if answer.generation is None else answer.generation
        return GroupAnswer(answer.error, answer.member_id, generation, answer.leader, members, assigned)

    def _store(self, group: str, partitions: list[dict[str, Any]]) -> None:
        for part in partitions:
            self._offsets[group, TopicPartition(part["topic"], part["partition"])] = part["offset"]

"""The groups' side of the brokers: coordinators, assignments that leaders have handed in, and committed offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.rules.coordinator.coordinator_journal import Answer
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client, Reply
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.environment import ProcessGenerator, World
from purgatory_udf.simulation.messages import (
    NONE,
    Batch,
    CoordinatorResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    GroupRequest,
    GroupResponse,
    OffsetFetchRequest,
    OffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from purgatory_udf.simulation.scenario import Brokers

IsUp = Callable[[int], bool]

_JOIN_FIELDS = ("session_timeout_ms", "rebalance_timeout_ms", "protocols")
# Of an empty group.
_EMPTY_GROUP_MEMBER: dict[str, Any] = {
    "member_id": "",
    "session_timeout_ms": 0,
    "rebalance_timeout_ms": 0,
    "protocols": [],
}


@dataclass(frozen=True)
class StoredGroup:
    """What the coordinators' log has of a group: written when its leader's assignment has come."""

    generation: int = 0
    leader: str | None = None
    members: tuple[dict[str, Any], ...] = ()


class GroupCoordinators:
    """Shared by all brokers, as the offsets topic is. A group stays at its coordinator until that broker fails; the
    next one loads what was stored of it, when a member first asks for its coordinator."""

    def __init__(self, world: World, brokers: list[int], is_up: IsUp) -> None:
        self._world = world
        self._brokers = brokers
        self._is_up = is_up
        self._coordinators: dict[str, int] = {}
        # Whose coordinator is gone, and what was stored of them.
        self._lost: dict[str, StoredGroup] = {}
        self._stored: dict[str, StoredGroup] = {}
        # What a member asked for in its last join, by group and client: sessions may be replayed with others.
        self._timeouts: dict[tuple[str, str], dict[str, Any]] = {}
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._assignments: dict[tuple[int, str, int], dict[str, list[TopicPartition]]] = {}

    def coordinator_of(self, group: str) -> CoordinatorResponse:
        broker = self._coordinators.get(group)
        if broker is None or group in self._lost:
            known = len(self._coordinators)
            # Spread over the brokers in the order in which groups are first asked for.
            candidates = [self._brokers[(known + at) % len(self._brokers)] for at in range(len(self._brokers))]
            broker = next((candidate for candidate in candidates if self._is_up(candidate)), None)
            if broker is not None:
                self._load(group, broker)
                self._coordinators[group] = broker
        return CoordinatorResponse(broker)

    def resign(self, broker: int) -> None:
        """The broker gives its groups away; who waits is told so."""
        for group in self._lose(broker):
            self._world.record("group_unloaded", broker, group=group)

    def stop(self, broker: int) -> None:
        """The broker is gone, with whatever was parked there, of groups too that it had given away before."""
        self._lose(broker)
        for group in list(self._world.engine.coordinator(broker).groups):
            self._world.record("group_stopped", broker, group=group)

    def _lose(self, broker: int) -> list[str]:
        """The groups that were at this broker until now; what was stored of each is kept for the next one."""
        mine = [group for group, at in self._coordinators.items() if at == broker and group not in self._lost]
        for group in mine:
            known = self._world.engine.coordinator(broker).groups.get(group)
            empty = known is not None and known.state is GroupState.EMPTY
            stored = (
                StoredGroup(known.generation) if known is not None and empty else self._stored.get(group, StoredGroup())
            )
            self._lost[group] = stored
        return mine

    def _load(self, group: str, broker: int) -> None:
        stored = self._lost.pop(group, None)
        if stored is None:
            return
        before = self._coordinators[group]
        assignment = self._assignments.get((before, group, stored.generation))
        if assignment is not None:
            self._assignments[broker, group, stored.generation] = assignment
        for member in stored.members or (_EMPTY_GROUP_MEMBER,):
            self._world.record(
                "group_loaded",
                broker,
                group=group,
                generation=stored.generation,
                leader_member_id=stored.leader,
                **member,
            )

    def _keep(self, broker: int, name: str) -> None:
        group = self._world.engine.coordinator(broker).groups[name]
        members = tuple(
            {
                "client_id": member.client_id,
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                **self._timeouts[name, member.client_id or ""],
            }
            for member in group.members.values()
        )
        self._stored[name] = StoredGroup(group.generation, group.leader, members)

    def handle(self, broker: int, message: GroupRequest, reply: Reply) -> int | None:
        if self._coordinators.get(message.group) != broker or message.group in self._lost:
            reply(GroupResponse("NOT_COORDINATOR"), 0)
            return None
        if message.type == "sync_group" and message.assignment is not None:
            self._assignments[broker, message.group, message.fields["generation"]] = message.assignment
        if message.type == "join_group":
            self._timeouts[message.group, message.client_id] = {name: message.fields[name] for name in _JOIN_FIELDS}

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

    def committed(self, message: OffsetFetchRequest) -> OffsetsResponse:
        offsets = {key: self._offsets.get((message.group, key)) for key in message.keys}
        return OffsetsResponse({key: offset for key, offset in offsets.items() if offset is not None})

    def _answer(self, broker: int, message: GroupRequest, answer: Answer) -> GroupResponse:
        members: tuple[str, ...] = ()
        protocol: str | None = None
        assigned: tuple[TopicPartition, ...] = ()
        if message.type == "join_group" and answer.error == NONE and answer.leader == answer.member_id:
            group = self._world.engine.coordinator(broker).groups[message.group]
            members, protocol = tuple(group.members), group.protocol
        elif message.type == "sync_group" and answer.error == NONE:
            assignment = self._assignments.get((broker, message.group, message.fields["generation"]), {})
            assigned = tuple(assignment.get(answer.member_id, ()))
            if message.assignment is not None:
                self._keep(broker, message.group)
        elif message.type == "offset_commit" and answer.error == NONE:
            self._store(message.group, message.fields["partitions"])
        generation = -1 if answer.generation is None else answer.generation
        return GroupResponse(answer.error, answer.member_id, generation, answer.leader, members, assigned, protocol)

    def _store(self, group: str, partitions: list[dict[str, Any]]) -> None:
        for part in partitions:
            self._offsets[group, TopicPartition(part["topic"], part["partition"])] = part["offset"]


# Transactions' coordinators: they decide how a transaction ends, and have its partitions' leaders write so.
#
#     producer     ──END_TXN──► coordinator ──answer, once the decision is stored
#                                    └──WRITE_TXN_MARKERS──► each partition's leader, until all have written
#
# Kafka: `TransactionCoordinator.endTransaction`, `TransactionMarkerChannelManager`. A transaction's next one of the
# same producer begins when its markers are written (before that it is answered CONCURRENT_TRANSACTIONS). What the
# coordinator stores in its own topic is a delay here, and no event.


# A batch of one end marker; how long a leader may wait for replicas to have it (`request.timeout.ms` of a broker).
MARKER_BYTES, MARKER_TIMEOUT_MS = 78, 30_000


class TransactionCoordinators:
    """Of all brokers; a transactional id has one of those that are up. A broker that fails ends none of what was
    decided: the next one goes on with it."""

    def __init__(
        self,
        world: World,
        controller: Controller,
        settings: Brokers,
        is_up: Callable[[int], bool],
        sender: Callable[[int], Client],
    ) -> None:
        """`sender` makes the client by which that broker sends markers."""
        self._world = world
        self._controller = controller
        self._settings = settings
        self._is_up = is_up
        self._sender = sender
        self._senders: dict[int, Client] = {}
        self._known: dict[str, int] = {}
        self._chance = world.chance("transactions")

    def coordinator_of(self, name: str) -> CoordinatorResponse:
        place, count = self._known.setdefault(name, len(self._known)), self._settings.count
        candidates = [(place + at) % count + 1 for at in range(count)]
        return CoordinatorResponse(next((broker for broker in candidates if self._is_up(broker)), None))

    def end(self, broker: int, message: EndTransactionRequest, reply: Reply) -> None:
        """Answered when the decision has been stored, which takes as long as a follower needs to have it."""
        stored_us = self._chance.delay_us(self._settings.network) + self._chance.delay_us(self._settings.append)
        self._world.env.process(self._end(broker, message, reply, stored_us))

    def _end(self, broker: int, message: EndTransactionRequest, reply: Reply, stored_us: int) -> ProcessGenerator[None]:
        yield self._world.sleep_us(stored_us)
        written = self._world.env.event()
        reply(EndTransactionResponse(written), 0)
        yield from self._write_all(broker, message)
        written.succeed()

    def _write_all(self, broker: int, message: EndTransactionRequest) -> ProcessGenerator[None]:
        pending = list(message.keys)
        client = self._senders.get(broker)
        if client is None:
            client = self._senders[broker] = self._sender(broker)
        while pending:
            by_leader: dict[int, list[TopicPartition]] = {}
            for key in pending:
                leader = self._controller.partitions[key].leader
                if leader is not None:
                    by_leader.setdefault(leader, []).append(key)
            for leader, keys in by_leader.items():
                answer = yield from client.ask(leader, self._markers(client, message.name, keys), MARKER_TIMEOUT_MS)
                if isinstance(answer, ProduceResponse):
                    done = {key for key in keys if answer.errors[key] == NONE}
                    pending = [key for key in pending if key not in done]
            if pending:
                yield self._world.sleep_ms(RETRY_BACKOFF_MS)

    def _markers(self, client: Client, name: str, keys: list[TopicPartition]) -> ProduceRequest:
        batches = [
            Batch(key, self._world.now_us, records=1, bytes=MARKER_BYTES, transaction=name, ends=True) for key in keys
        ]
        return ProduceRequest(
            client_id=client.client_id,
            request_id=client.next_request_id(),
            acks=-1,
            timeout_ms=MARKER_TIMEOUT_MS,
            batches=batches,
        )

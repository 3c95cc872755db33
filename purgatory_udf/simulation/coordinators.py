"""The coordinators of consumer groups and of transactions, each shared by all brokers.

Ending a transaction (Kafka: `TransactionCoordinator.endTransaction`, `TransactionMarkerChannelManager`):

    producer     ──END_TXN──► coordinator ──response, once the decision is stored
                                   └──WRITE_TXN_MARKERS──► each partition's leader, until all have the marker

Until the markers are written, the producer's next transaction is refused (CONCURRENT_TRANSACTIONS). The write of the
decision to the coordinator's internal topic takes simulated time, but is not an event of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.coordinator.coordinator_journal import Answer
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client, Reply
from purgatory_udf.simulation.controller import Controller
from purgatory_udf.simulation.messages import (
    NONE,
    Batch,
    EndTransactionRequest,
    EndTransactionResponse,
    FindCoordinatorResponse,
    GroupCoordinatorRequest,
    GroupCoordinatorResponse,
    OffsetFetchRequest,
    OffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from purgatory_udf.simulation.scenario import Brokers
from purgatory_udf.simulation.simpy_environment import Environment, ProcessGenerator

IsUp = Callable[[int], bool]

_JOIN_FIELDS = ("session_timeout_ms", "rebalance_timeout_ms", "protocols")
# The member fields of a `group_loaded` event for an empty group.
_EMPTY_GROUP_MEMBER: dict[str, Any] = {
    "member_id": "",
    "session_timeout_ms": 0,
    "rebalance_timeout_ms": 0,
    "protocols": [],
}


@dataclass(frozen=True)
class StoredGroup:
    """A group's record in the offsets topic, written when the leader's assignment arrives."""

    generation: int = 0
    leader: str | None = None
    members: tuple[dict[str, Any], ...] = ()


class GroupCoordinators:
    """Assigns groups to brokers, and stores groups, assignments and committed offsets, like the offsets topic.

    A group stays at its coordinator until that broker stops. The next coordinator loads the stored group when a member
    first looks for it.
    """

    def __init__(self, environment: Environment, brokers: list[int], is_up: IsUp) -> None:
        self._environment = environment
        self._brokers = brokers
        self._is_up = is_up
        self._coordinators: dict[str, int] = {}
        # Groups without a coordinator, as they were stored.
        self._unloaded: dict[str, StoredGroup] = {}
        self._stored: dict[str, StoredGroup] = {}
        # The timeouts and protocols of each member's last join, by (group, client id); `group_loaded` records them.
        self._join_fields: dict[tuple[str, str], dict[str, Any]] = {}
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._assignments: dict[tuple[int, str, int], dict[str, list[TopicPartition]]] = {}

    def coordinator_of(self, group: str) -> FindCoordinatorResponse:
        """Return the group's coordinator, assigning one and loading the group if necessary."""
        broker = self._coordinators.get(group)
        if broker is None or group in self._unloaded:
            known = len(self._coordinators)
            # Assigned round robin, in the order in which groups are first looked up.
            candidates = [self._brokers[(known + at) % len(self._brokers)] for at in range(len(self._brokers))]
            broker = next((candidate for candidate in candidates if self._is_up(candidate)), None)
            if broker is not None:
                self._load(group, broker)
                self._coordinators[group] = broker
        return FindCoordinatorResponse(broker)

    def unload(self, broker: int) -> None:
        """Unload the broker's groups. Their waiting members receive NOT_COORDINATOR."""
        for group in self._remove_coordinator(broker):
            self._environment.record("group_unloaded", broker, group=group)

    def stop(self, broker: int) -> None:
        """Record the stop of every group at the broker, including groups that it has already unloaded."""
        self._remove_coordinator(broker)
        for group in list(self._environment.engine.coordinator(broker).groups):
            self._environment.record("group_stopped", broker, group=group)

    def _remove_coordinator(self, broker: int) -> list[str]:
        """Remove the broker as coordinator and return its groups; their stored state is kept."""
        groups = [group for group, at in self._coordinators.items() if at == broker and group not in self._unloaded]
        for group in groups:
            known = self._environment.engine.coordinator(broker).groups.get(group)
            empty = known is not None and known.state is GroupState.EMPTY
            stored = (
                StoredGroup(known.generation) if known is not None and empty else self._stored.get(group, StoredGroup())
            )
            self._unloaded[group] = stored
        return groups

    def _load(self, group: str, broker: int) -> None:
        stored = self._unloaded.pop(group, None)
        if stored is None:
            return
        before = self._coordinators[group]
        assignment = self._assignments.get((before, group, stored.generation))
        if assignment is not None:
            self._assignments[broker, group, stored.generation] = assignment
        for member in stored.members or (_EMPTY_GROUP_MEMBER,):
            self._environment.record(
                "group_loaded",
                broker,
                group=group,
                generation=stored.generation,
                leader_member_id=stored.leader,
                **member,
            )

    def _store_group(self, broker: int, name: str) -> None:
        group = self._environment.engine.coordinator(broker).groups[name]
        members = tuple(
            {
                "client_id": member.client_id,
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                **self._join_fields[name, member.client_id or ""],
            }
            for member in group.members.values()
        )
        self._stored[name] = StoredGroup(group.generation, group.leader, members)

    def handle(self, broker: int, request: GroupCoordinatorRequest, reply: Reply) -> int | None:
        """Handle a group request at a broker.

        Returns the `seq` of its event, or None if the broker is not the group's coordinator.
        """
        if self._coordinators.get(request.group) != broker or request.group in self._unloaded:
            reply(GroupCoordinatorResponse("NOT_COORDINATOR"), 0)
            return None
        if request.type == "sync_group" and request.assignment is not None:
            self._assignments[broker, request.group, request.fields["generation"]] = request.assignment
        if request.type == "join_group":
            self._join_fields[request.group, request.client_id] = {name: request.fields[name] for name in _JOIN_FIELDS}

        def respond(response: Answer) -> None:
            reply(self._to_response(broker, request, response), 0)

        return self._environment.record(
            request.type,
            broker,
            respond,
            request_id=request.request_id,
            client_id=request.client_id,
            group=request.group,
            **request.fields,
        )

    def committed_offsets(self, request: OffsetFetchRequest) -> OffsetsResponse:
        """Return the committed offsets of the requested partitions that have one."""
        offsets = {key: self._offsets.get((request.group, key)) for key in request.keys}
        return OffsetsResponse({key: offset for key, offset in offsets.items() if offset is not None})

    def _to_response(self, broker: int, request: GroupCoordinatorRequest, response: Answer) -> GroupCoordinatorResponse:
        members: tuple[str, ...] = ()
        protocol: str | None = None
        assigned: tuple[TopicPartition, ...] = ()
        if request.type == "join_group" and response.error == NONE and response.leader == response.member_id:
            group = self._environment.engine.coordinator(broker).groups[request.group]
            members, protocol = tuple(group.members), group.protocol
        elif request.type == "sync_group" and response.error == NONE:
            assignment = self._assignments.get((broker, request.group, request.fields["generation"]), {})
            assigned = tuple(assignment.get(response.member_id, ()))
            if request.assignment is not None:
                self._store_group(broker, request.group)
        elif request.type == "offset_commit" and response.error == NONE:
            self._store_offsets(request.group, request.fields["partitions"])
        generation = -1 if response.generation is None else response.generation
        return GroupCoordinatorResponse(
            response.error, response.member_id, generation, response.leader, members, assigned, protocol
        )

    def _store_offsets(self, group: str, partitions: list[dict[str, Any]]) -> None:
        for part in partitions:
            self._offsets[group, TopicPartition(part["topic"], part["partition"])] = part["offset"]


# The size of a record batch with one end marker, and how long a leader waits for its replication (the brokers'
# `request.timeout.ms`).
MARKER_BYTES, MARKER_TIMEOUT_MS = 78, 30_000


class TransactionCoordinators:
    """Commits and aborts transactions. A transactional id is assigned to one of the brokers that are up.

    When a coordinator fails, its successor continues to write the missing markers.
    """

    def __init__(
        self,
        environment: Environment,
        controller: Controller,
        settings: Brokers,
        is_up: Callable[[int], bool],
        sender: Callable[[int], Client],
    ) -> None:
        """Create the coordinators; `sender` creates the client with which a broker sends markers."""
        self._environment = environment
        self._controller = controller
        self._settings = settings
        self._is_up = is_up
        self._sender = sender
        self._senders: dict[int, Client] = {}
        self._coordinator_index: dict[str, int] = {}
        self._random = environment.random_stream("transactions")

    def coordinator_of(self, name: str) -> FindCoordinatorResponse:
        """Return the coordinator of a transactional id. It does not change as long as that broker is up."""
        place, count = self._coordinator_index.setdefault(name, len(self._coordinator_index)), self._settings.count
        candidates = [(place + at) % count + 1 for at in range(count)]
        return FindCoordinatorResponse(next((broker for broker in candidates if self._is_up(broker)), None))

    def end_transaction(self, broker: int, request: EndTransactionRequest, reply: Reply) -> None:
        """Call `reply` when the decision is stored, then write the markers.

        Storing it takes a network latency and a follower's append.
        """
        stored_us = self._random.delay_us(self._settings.network) + self._random.delay_us(self._settings.append)
        self._environment.env.process(self._end_transaction(broker, request, reply, stored_us))

    def _end_transaction(
        self, broker: int, request: EndTransactionRequest, reply: Reply, stored_us: int
    ) -> ProcessGenerator[None]:
        yield self._environment.sleep_us(stored_us)
        written = self._environment.env.event()
        reply(EndTransactionResponse(written), 0)
        yield from self._write_markers(broker, request)
        written.succeed()

    def _write_markers(self, broker: int, request: EndTransactionRequest) -> ProcessGenerator[None]:
        pending = list(request.keys)
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
                response = yield from client.request(leader, self._markers(client, request, keys), MARKER_TIMEOUT_MS)
                if isinstance(response, ProduceResponse):
                    done = {key for key in keys if response.errors[key] == NONE}
                    pending = [key for key in pending if key not in done]
            if pending:
                yield self._environment.sleep_ms(RETRY_BACKOFF_MS)

    def _markers(self, client: Client, end: EndTransactionRequest, keys: list[TopicPartition]) -> ProduceRequest:
        now_us, name, aborts = self._environment.now_us, end.name, not end.commits
        batches = [
            Batch(key, now_us, records=1, bytes=MARKER_BYTES, transaction=name, is_end_marker=True, aborts=aborts)
            for key in keys
        ]
        return ProduceRequest(
            client_id=client.client_id,
            request_id=client.next_request_id(),
            acks=-1,
            timeout_ms=MARKER_TIMEOUT_MS,
            batches=batches,
        )

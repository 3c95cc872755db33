"""A consumer's membership in its group (Kafka: `AbstractCoordinator`, `ConsumerCoordinator`).

The member finds the coordinator, joins, syncs, sends heartbeats, commits, and leaves.
"""

from __future__ import annotations

from typing import Any

import simpy

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulation.fetchers import ASSIGNORS, Subscription
from purgatory_udf.simulation.messages import (
    NONE,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinatorRequest,
    GroupCoordinatorResponse,
)
from purgatory_udf.simulation.scenario import Consumers
from purgatory_udf.simulation.simpy_environment import ProcessGenerator

NO_GENERATION = -1
COORDINATOR_CHANNEL = "coordinator"


class GroupMembership:
    """A member of a consumer group. `needs_to_join` is whether it must join before the next poll."""

    def __init__(
        self, client: Client, settings: Consumers, subscription: Subscription, instance_id: str | None
    ) -> None:
        self.needs_to_join = True
        self.fenced = False
        self.member_id = ""
        self.generation = NO_GENERATION
        self.last_poll_us = client.environment.now_us
        self._client = client
        self._environment = client.environment
        self._settings = settings
        self._subscription = subscription
        self._instance_id = instance_id
        self._coordinator: int | None = None
        self._is_leader = False
        self._assignment_snapshot: list[TopicPartition] = []

    @property
    def is_stable(self) -> bool:
        return self.generation != NO_GENERATION and not self.needs_to_join

    def partitions_changed(self) -> bool:
        """Whether this member leads the group, and its topics have other partitions than at the last assignment."""
        return self._is_leader and self._subscription.partitions(self._client.metadata) != self._assignment_snapshot

    def ensure_active_group(self) -> ProcessGenerator[None]:
        """Join and sync until the member has an assignment or is fenced."""
        while self.needs_to_join and not self.fenced:
            joined = yield from self._join()
            if joined is not None:
                yield from self._sync(joined)

    def _join(self) -> ProcessGenerator[GroupCoordinatorResponse | None]:
        """Return the response of a successful join; None if the member has to join again."""
        response = yield from self._request(
            "join_group",
            member_id=self.member_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            protocols=list(self._settings.assignors),
        )
        match response:
            case GroupCoordinatorResponse(error="NONE"):
                self.member_id, self.generation = response.member_id, response.generation
                return response
            case GroupCoordinatorResponse(error="MEMBER_ID_REQUIRED"):
                self.member_id = response.member_id
            case _:
                yield from self._recover(response)
        return None

    def _sync(self, joined: GroupCoordinatorResponse) -> ProcessGenerator[None]:
        """Sync in the new generation. The leader also sends the assignment of every member."""
        self._is_leader = joined.leader == self.member_id
        assignment = None
        if self._is_leader:
            self._assignment_snapshot = self._subscription.partitions(self._client.metadata)
            assignment = ASSIGNORS[joined.protocol or self._settings.assignors[0]](
                self._assignment_snapshot, joined.members
            )
        response = yield from self._request(
            "sync_group", assignment, member_id=self.member_id, generation=self.generation, leader=self._is_leader
        )
        if isinstance(response, GroupCoordinatorResponse) and response.error == NONE:
            self._subscription.assign(list(response.assigned))
            self.needs_to_join = False
        else:
            yield from self._recover(response)

    def heartbeats(self) -> ProcessGenerator[None]:
        """Run the member's heartbeat thread (a SimPy process) until it is interrupted."""
        try:
            yield from self._heartbeats()
        except simpy.Interrupt:
            return

    def _heartbeats(self) -> ProcessGenerator[None]:
        """Send heartbeats; leave the group if the application has not polled for `max_poll_interval_ms`."""
        while not self.fenced:
            yield self._environment.sleep_ms(self._settings.heartbeat_interval_ms)
            if not self.is_stable:
                continue
            if self._environment.now_us - self.last_poll_us > self._settings.max_poll_interval_ms * 1000:
                yield from self.leave()
                continue
            generation = self.generation
            response = yield from self._request("heartbeat", member_id=self.member_id, generation=generation)
            if generation == self.generation and not self.needs_to_join:
                yield from self.handle_response(response)

    def handle_response(self, response: Any) -> ProcessGenerator[None]:
        """Rejoin or recover, if the response to a heartbeat or commit has an error."""
        if isinstance(response, GroupCoordinatorResponse) and response.error == "REBALANCE_IN_PROGRESS":
            self.needs_to_join = True
        elif not isinstance(response, GroupCoordinatorResponse) or response.error != NONE:
            yield from self._recover(response)

    def commit(self, partitions: list[dict[str, Any]]) -> ProcessGenerator[Any]:
        """Commit offsets as this member, or without a member id if the partitions were assigned by hand."""
        return (
            yield from self._request(
                "offset_commit", member_id=self.member_id, generation=self.generation, partitions=partitions
            )
        )

    def leave(self) -> ProcessGenerator[None]:
        """Leave the group. A static member sends no request, and stays in the group until its session expires."""
        if self._instance_id is None and self.member_id:
            yield from self._request("leave_group", member_id=self.member_id)
            self._reset_generation()

    def find_coordinator(self) -> ProcessGenerator[int]:
        """Return the group's coordinator, looked up at one broker after the other until one is known."""
        while self._coordinator is None:
            for broker in self._client.brokers:
                request = FindCoordinatorRequest(
                    client_id=self._client.client_id,
                    request_id=self._client.next_request_id(),
                    group=self._settings.group_id,
                )
                response = yield from self._client.request(broker, request, channel="metadata")
                if isinstance(response, FindCoordinatorResponse) and response.broker is not None:
                    self._coordinator = response.broker
                    break
            else:
                yield self._environment.sleep_ms(RETRY_BACKOFF_MS)
        return self._coordinator

    def mark_coordinator_unknown(self) -> None:
        """Look up the coordinator before the next request, because another broker may have taken over."""
        self._coordinator = None

    def _request(
        self, type: str, assignment: dict[str, list[TopicPartition]] | None = None, **fields: Any
    ) -> ProcessGenerator[Any]:
        coordinator = yield from self.find_coordinator()
        if self._instance_id is not None:
            fields["group_instance_id"] = self._instance_id
        request = GroupCoordinatorRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            type=type,
            group=self._settings.group_id,
            fields=fields,
            assignment=assignment,
        )
        # A join may take the whole rebalance timeout. A separate connection keeps fetches from queueing
        # behind it; heartbeats are suspended until it is answered.
        return (yield from self._client.request(coordinator, request, channel=COORDINATOR_CHANNEL))

    def _recover(self, response: Any) -> ProcessGenerator[None]:
        """Handle an error: rejoin, as the same member or as a new one. A fenced static member does not rejoin.

        After a lost connection, only the coordinator is looked up again, because its successor loads the group with
        this member (Kafka: `AbstractCoordinator.markCoordinatorUnknown`).
        """
        needed_to_join, self.needs_to_join = self.needs_to_join, self._subscription.is_auto_assigned
        match response:
            case GroupCoordinatorResponse(error="FENCED_INSTANCE_ID"):
                self.fenced = True
                return
            case GroupCoordinatorResponse(error="REBALANCE_IN_PROGRESS"):
                return
            case GroupCoordinatorResponse(error="UNKNOWN_MEMBER_ID" | "ILLEGAL_GENERATION"):
                self._reset_generation()
            case _:
                self.needs_to_join = needed_to_join
                self.mark_coordinator_unknown()
        yield self._environment.sleep_ms(RETRY_BACKOFF_MS)

    def _reset_generation(self) -> None:
        self.member_id, self.generation = "", NO_GENERATION
        self.needs_to_join = self._subscription.is_auto_assigned

"""A consumer's part in its group: it finds the coordinator, joins, syncs, heartbeats, and leaves (Kafka:
AbstractCoordinator and ConsumerCoordinator)."""

from __future__ import annotations

from typing import Any

import simpy

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulation.consumer_fetcher import ASSIGNORS, Subscription
from purgatory_udf.simulation.environment import ProcessGenerator
from purgatory_udf.simulation.messages import (
    NONE,
    CoordinatorResponse,
    FindCoordinatorRequest,
    GroupRequest,
    GroupResponse,
)
from purgatory_udf.simulation.scenario import Consumers

NO_GENERATION = -1
COORDINATOR_CHANNEL = "coordinator"


class GroupMembership:
    def __init__(
        self, client: Client, settings: Consumers, subscription: Subscription, instance_id: str | None
    ) -> None:
        self.needs_to_join = True
        self.fenced = False
        self.member_id = ""
        self.generation = NO_GENERATION
        self.polled_us = client.world.now_us
        self._client = client
        self._world = client.world
        self._settings = settings
        self._subscription = subscription
        self._instance_id = instance_id
        self._coordinator: int | None = None
        self._leads = False
        self._seen: list[TopicPartition] = []

    @property
    def is_stable(self) -> bool:
        return self.generation != NO_GENERATION and not self.needs_to_join

    # Before every poll.

    def partitions_changed(self) -> bool:
        """For the leader: whether what is subscribed to has other partitions than when it was assigned."""
        return self._leads and self._subscription.partitions(self._client.metadata) != self._seen

    def ensure_active_group(self) -> ProcessGenerator[None]:
        """Join, as often as it takes, and have an assignment."""
        while self.needs_to_join and not self.fenced:
            joined = yield from self._join()
            if joined is not None:
                yield from self._sync(joined)

    def _join(self) -> ProcessGenerator[GroupResponse | None]:
        """The answer that makes this consumer a member of a generation; None if it has to try again."""
        answer = yield from self._request(
            "join_group",
            member_id=self.member_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            protocols=list(self._settings.assignors),
        )
        match answer:
            case GroupResponse(error="NONE"):
                self.member_id, self.generation = answer.member_id, answer.generation
                return answer
            case GroupResponse(error="MEMBER_ID_REQUIRED"):
                self.member_id = answer.member_id
            case _:
                yield from self._recover(answer)
        return None

    def _sync(self, joined: GroupResponse) -> ProcessGenerator[None]:
        """The leader hands in everybody's assignment; each gets its own."""
        self._leads = joined.leader == self.member_id
        assignment = None
        if self._leads:
            self._seen = self._subscription.partitions(self._client.metadata)
            assignment = ASSIGNORS[joined.protocol or self._settings.assignors[0]](self._seen, joined.members)
        answer = yield from self._request(
            "sync_group", assignment, member_id=self.member_id, generation=self.generation, leader=self._leads
        )
        if isinstance(answer, GroupResponse) and answer.error == NONE:
            self._subscription.assign(list(answer.assigned))
            self.needs_to_join = False
        else:
            yield from self._recover(answer)

    # Beside the polls.

    def heartbeats(self) -> ProcessGenerator[None]:
        """The background thread, until it is interrupted."""
        try:
            yield from self._heartbeats()
        except simpy.Interrupt:
            return

    def _heartbeats(self) -> ProcessGenerator[None]:
        """One now and then, unless the application has stopped polling: then the group is better off without it."""
        while not self.fenced:
            yield self._world.sleep_ms(self._settings.heartbeat_interval_ms)
            if not self.is_stable:
                continue
            if self._world.now_us - self.polled_us > self._settings.max_poll_interval_ms * 1000:
                yield from self.leave()
                continue
            generation = self.generation
            answer = yield from self._request("heartbeat", member_id=self.member_id, generation=generation)
            if generation == self.generation and not self.needs_to_join:
                yield from self.heed(answer)

    def heed(self, answer: Any) -> ProcessGenerator[None]:
        """What an answer says of this consumer's membership."""
        if isinstance(answer, GroupResponse) and answer.error == "REBALANCE_IN_PROGRESS":
            self.needs_to_join = True
        elif not isinstance(answer, GroupResponse) or answer.error != NONE:
            yield from self._recover(answer)

    def commit(self, partitions: list[dict[str, Any]]) -> ProcessGenerator[Any]:
        """Store offsets as this member, or in nobody's name where there is no group to be a member of."""
        return (
            yield from self._request(
                "offset_commit", member_id=self.member_id, generation=self.generation, partitions=partitions
            )
        )

    def leave(self) -> ProcessGenerator[None]:
        """A static member does not: its place is kept until its session ends."""
        if self._instance_id is None and self.member_id:
            yield from self._request("leave_group", member_id=self.member_id)
            self._forget()

    # The coordinator.

    def find_coordinator(self) -> ProcessGenerator[int]:
        while self._coordinator is None:
            for broker in self._client.brokers:
                request = FindCoordinatorRequest(
                    client_id=self._client.client_id,
                    request_id=self._client.next_request_id(),
                    group=self._settings.group_id,
                )
                answer = yield from self._client.ask(broker, request, channel="metadata")
                if isinstance(answer, CoordinatorResponse) and answer.broker is not None:
                    self._coordinator = answer.broker
                    break
            else:
                yield self._world.sleep_ms(RETRY_BACKOFF_MS)
        return self._coordinator

    def lose_coordinator(self) -> None:
        """It does not answer: another broker may have taken its place."""
        self._coordinator = None

    def _request(
        self, type: str, assignment: dict[str, list[TopicPartition]] | None = None, **fields: Any
    ) -> ProcessGenerator[Any]:
        coordinator = yield from self.find_coordinator()
        if self._instance_id is not None:
            fields["group_instance_id"] = self._instance_id
        request = GroupRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            type=type,
            group=self._settings.group_id,
            fields=fields,
            assignment=assignment,
        )
        # A join may take a rebalance timeout, in which nobody sends heartbeats: it has the coordinator's ear alone.
        return (yield from self._client.ask(coordinator, request, channel=COORDINATOR_CHANNEL))

    def _recover(self, answer: Any) -> ProcessGenerator[None]:
        """After an error: join again, as the same member or as a new one. Who has lost its coordinator only looks for
        the next, which knows the group from its log (Kafka: `AbstractCoordinator.markCoordinatorUnknown`)."""
        needed_to_join, self.needs_to_join = self.needs_to_join, self._subscription.needs_a_group
        match answer:
            case GroupResponse(error="FENCED_INSTANCE_ID"):
                self.fenced = True
                return
            case GroupResponse(error="REBALANCE_IN_PROGRESS"):
                return
            case GroupResponse(error="UNKNOWN_MEMBER_ID" | "ILLEGAL_GENERATION"):
                self._forget()
            case _:
                self.needs_to_join = needed_to_join
                self.lose_coordinator()
        yield self._world.sleep_ms(RETRY_BACKOFF_MS)

    def _forget(self) -> None:
        self.member_id, self.generation = "", NO_GENERATION
        self.needs_to_join = self._subscription.needs_a_group

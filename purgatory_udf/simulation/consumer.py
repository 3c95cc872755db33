"""A consumer: Kafka's poll model, as in `KafkaConsumer.poll` and `pollOnce` (Kafka 1.x).

poll(timeout)
  until the timeout:  poll_once(remaining)
    coordinator:      auto-commit if due; join the group and receive partitions if subscribed
    positions:        the committed offset, else the `reset` policy
    records fetched already?            return them
    else send fetches, and wait for a response
    has the group rebalanced?           return nothing: rejoin first
  records?            send the next fetches before returning them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import simpy

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulation.consumer_membership import COORDINATOR_CHANNEL, GroupMembership
from purgatory_udf.simulation.fetchers import ConsumerFetcher, Subscription
from purgatory_udf.simulation.messages import (
    NONE,
    GroupCoordinatorResponse,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetsResponse,
)
from purgatory_udf.simulation.scenario import Consumers
from purgatory_udf.simulation.simpy_environment import Environment, ProcessGenerator

# Kafka's `default.api.timeout.ms`: how long a synchronous commit is retried.
COMMIT_SYNC_TIMEOUT_MS = 60_000
FATAL_COMMIT_ERRORS = {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID"}


class OffsetCommitter:
    """Commits positions to the group's coordinator: automatically, synchronously, asynchronously, or never."""

    def __init__(
        self, environment: Environment, settings: Consumers, subscription: Subscription, membership: GroupMembership
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._subscription = subscription
        self._membership = membership
        self._committed: dict[object, int] = {}
        self._next_auto_us = environment.now_us + settings.auto_commit_interval_ms * 1000

    def commit_after_processing(self) -> ProcessGenerator[None]:
        """Commit positions after the application has processed the records of a poll, if it commits itself."""
        if self._settings.commit == "sync":
            yield from self.commit_sync()
        elif self._settings.commit == "async":
            self.commit_async()

    def maybe_auto_commit(self) -> None:
        """Auto-commit before a poll if the interval has passed."""
        if self._settings.commit == "automatic" and self._environment.now_us >= self._next_auto_us:
            self._next_auto_us = self._environment.now_us + self._settings.auto_commit_interval_ms * 1000
            self.commit_async()

    def commit_before_rejoining(self) -> ProcessGenerator[None]:
        """Auto-commit before giving up partitions, so that their next owner continues at these offsets."""
        if self._settings.commit == "automatic" and self._membership.member_id:
            yield from self._send()

    def commit_sync(self) -> ProcessGenerator[None]:
        """Commit, and retry until the commit succeeds, fails with a fatal error, or the timeout passes."""
        deadline_us = self._environment.now_us + COMMIT_SYNC_TIMEOUT_MS * 1000
        while self._environment.now_us < deadline_us:
            error = yield from self._send()
            if error == NONE or error in FATAL_COMMIT_ERRORS:
                return
            yield self._environment.sleep_ms(RETRY_BACKOFF_MS)

    def commit_async(self) -> None:
        """Commit in the background, without retry."""
        self._environment.env.process(self._send())

    def _send(self) -> ProcessGenerator[str]:
        positions = {
            key: offset
            for key, offset in self._subscription.positions.items()
            if offset is not None and self._committed.get(key) != offset
        }
        if not positions:
            return NONE
        partitions = [
            {"topic": key.topic, "partition": key.partition, "offset": offset} for key, offset in positions.items()
        ]
        response = yield from self._membership.commit(partitions)
        if isinstance(response, GroupCoordinatorResponse) and response.error == NONE:
            self._committed.update(positions)
            return NONE
        yield from self._membership.handle_response(response)
        return response.error if isinstance(response, GroupCoordinatorResponse) else "DISCONNECTED"


Records = dict[TopicPartition, int]


class NoOffsetForPartitionError(Exception):
    """No offset is committed, and the `reset` policy does not allow a default."""


class Consumer:
    """One run of a consumer, from its start to its close or crash.

    `records` counts consumed records. `failed` is the reason why the run failed, None if it was closed.
    """

    def __init__(self, client: Client, settings: Consumers) -> None:
        self.records = 0
        self.closing = False
        self.failed: str | None = None
        self.subscription = Subscription(settings)
        instance_id = client.client_id if settings.static_members else None
        self.membership = GroupMembership(client, settings, self.subscription, instance_id)
        self._client = client
        self._environment = client.environment
        self._settings = settings
        self._fetcher = ConsumerFetcher(client, settings, self.subscription)
        self._commits = OffsetCommitter(client.environment, settings, self.subscription, self.membership)

    def run(self) -> ProcessGenerator[None]:
        """Run the application (a SimPy process): poll, process and commit until the consumer is closed."""
        heartbeats = self._environment.env.process(self.membership.heartbeats())
        try:
            yield from self._client.refresh_metadata()
            while not self.closing and not self.membership.fenced:
                records = yield from self.poll(self._settings.poll_timeout_ms)
                if records:
                    count = sum(records.values())
                    self.records += count
                    yield self._environment.sleep_us(round(count * self._settings.process_us))
                    yield from self._commits.commit_after_processing()
                elif self._settings.idle_ms:
                    yield self._environment.sleep_ms(self._settings.idle_ms)
            yield from self._close()
        except NoOffsetForPartitionError as error:
            self.failed = str(error)
            yield from self.membership.leave()
        except simpy.Interrupt:
            self.failed = "crashed"
        finally:
            if heartbeats.is_alive:
                heartbeats.interrupt()
            self._client.disconnect()

    def poll(self, timeout_ms: int) -> ProcessGenerator[Records]:
        """Return fetched records, or nothing after `timeout_ms`.

        `poll(0)` returns the records that have arrived, and sends the next fetches. As in Kafka's `poll(long)`, the
        timeout does not bound the time to join the group. (`poll(Duration)` would return, and continue with the join in
        the next call.)
        """
        until_us = self._environment.now_us + timeout_ms * 1000
        while True:
            records = yield from self._poll_once(max(0, until_us - self._environment.now_us))
            if records:
                self._fetcher.send_fetches()
                return records
            if self._environment.now_us >= until_us:
                return {}

    def _poll_once(self, timeout_us: int) -> ProcessGenerator[Records]:
        yield from self._poll_coordinator()
        if self.subscription.missing_positions:
            yield from self._update_fetch_positions()
        records = self._fetcher.fetched_records()
        if records:
            return records
        self._fetcher.send_fetches()
        if not self._fetcher.has_completed_fetches:
            yield self._fetcher.response_received | self._environment.sleep_us(timeout_us)
        if self.membership.needs_to_join and self.subscription.is_auto_assigned:
            return {}
        return self._fetcher.fetched_records()

    def _poll_coordinator(self) -> ProcessGenerator[None]:
        self.membership.last_poll_us = self._environment.now_us
        if self._needs_metadata():
            yield from self._client.refresh_metadata()
        if not self.subscription.is_auto_assigned:
            self._commits.maybe_auto_commit()
            return
        if self.membership.partitions_changed():
            self.membership.needs_to_join = True
        if self.membership.needs_to_join:
            yield from self._commits.commit_before_rejoining()
            yield from self.membership.ensure_active_group()
        self._commits.maybe_auto_commit()

    def _needs_metadata(self) -> bool:
        if self._fetcher.metadata_is_stale:
            self._fetcher.metadata_is_stale = False
            return True
        refreshed_us = self._client.metadata_at_us
        age_us = self._settings.metadata_max_age_ms * 1000
        return refreshed_us is None or self._environment.now_us - refreshed_us >= age_us

    def _update_fetch_positions(self) -> ProcessGenerator[None]:
        """Set missing positions to the committed offsets, else by the `reset` policy.

        Raises:
            NoOffsetForPartitionError: The policy is `none`, and a partition has no committed offset.
        """
        missing = self.subscription.missing_positions
        coordinator = yield from self.membership.find_coordinator()
        request = OffsetFetchRequest(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            group=self._settings.group_id,
            keys=missing,
        )
        response = yield from self._client.request(coordinator, request, channel=COORDINATOR_CHANNEL)
        if not isinstance(response, OffsetsResponse):
            self.membership.mark_coordinator_unknown()
            yield self._environment.sleep_ms(RETRY_BACKOFF_MS)
            return
        self._set_positions(response)
        missing = self.subscription.missing_positions
        if missing and self._settings.reset == "none":
            raise NoOffsetForPartitionError(f"no offset committed for {missing[0]} (reset: none)")
        yield from self._reset_positions(missing)

    def _reset_positions(self, missing: list[TopicPartition]) -> ProcessGenerator[None]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in missing:
            leader = self._client.metadata.leaders.get(key)
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(key)
        for broker, keys in by_leader.items():
            request = ListOffsetsRequest(
                client_id=self._client.client_id,
                request_id=self._client.next_request_id(),
                keys=keys,
                earliest=self._settings.reset == "earliest",
                isolation=self._settings.isolation,
            )
            response = yield from self._client.request(broker, request, channel="metadata")
            if isinstance(response, OffsetsResponse):
                self._set_positions(response)
        if self.subscription.missing_positions:
            yield self._environment.sleep_ms(RETRY_BACKOFF_MS)
            yield from self._client.refresh_metadata()

    def _set_positions(self, offsets: OffsetsResponse) -> None:
        for key, offset in offsets.offsets.items():
            if key in self.subscription.positions:
                self.subscription.positions[key] = offset

    def _close(self) -> ProcessGenerator[None]:
        yield from self._commits.commit_before_rejoining()
        yield from self.membership.leave()


ClientFactory = Callable[[str, int], Client]


class ConsumerRun(Protocol):
    """One run of a consumer or a worker of a share group; see `Consumer`."""

    records: int
    closing: bool
    failed: str | None

    def run(self) -> ProcessGenerator[None]:
        """Consume until the run is closed or crashes."""


class ConsumerInstance:
    """A consumer that may be started, closed, crashed, paused and started again.

    Every run has the same `client_id`, and a static member the same instance id.
    """

    def __init__(self, client_id: str, new_client: ClientFactory, new_run: Callable[[Client], ConsumerRun]) -> None:
        self.client_id = client_id
        self.runs: list[ConsumerRun] = []
        self._new_client = new_client
        self._new_run = new_run
        self._client: Client | None = None
        self._process: simpy.Process | None = None

    @property
    def records(self) -> int:
        return sum(consumer.records for consumer in self.runs)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start a new run unless one is running."""
        if self.is_running:
            return
        self._client = self._new_client(self.client_id, len(self.runs) + 1)
        self.runs.append(self._new_run(self._client))
        self._process = self._client.environment.env.process(self.runs[-1].run())

    def close(self) -> ProcessGenerator[None]:
        """Close the consumer: it finishes its poll, commits, and leaves the group."""
        if self._process is not None and self._process.is_alive:
            self.runs[-1].closing = True
            yield self._process

    def crash(self) -> None:
        """Stop the process without leaving the group."""
        if self._process is not None and self._process.is_alive:
            self._process.interrupt()

    def pause(self, until_us: int) -> None:
        """Stop sending and receiving until `until_us`."""
        if self._client is not None:
            self._client.paused_until_us = max(self._client.paused_until_us, until_us)

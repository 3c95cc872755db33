"""A consumer: Kafka's poll model, as `KafkaConsumer.poll` and `pollOnce` have it.

poll(timeout)
  until the timeout:  poll_once(remaining)
    coordinator:      commit if it is time; join the group if subscribed, and have partitions assigned
    positions:        the committed offset, else as `reset` says
    records fetched already?            hand them over
    else send fetches, and wait for one
    the group has changed meanwhile?    nothing: join again first
  records?            the next fetches go out before they are handed over
"""

from __future__ import annotations

import simpy

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.client import RETRY_BACKOFF_MS, Client
from purgatory_udf.simulate.commits import Commits
from purgatory_udf.simulate.fetcher import Fetcher
from purgatory_udf.simulate.membership import CHANNEL, Membership
from purgatory_udf.simulate.messages import FetchCommitted, ListOffsets, Offsets
from purgatory_udf.simulate.scenario import Consumers
from purgatory_udf.simulate.subscription import Subscription
from purgatory_udf.simulate.world import Steps

Records = dict[TopicPartition, int]


class NoOffsetForPartitionError(Exception):
    """`reset: none`, and nothing is committed."""


class Consumer:
    """One life of a consumer, from its start to its close or crash."""

    def __init__(self, client: Client, settings: Consumers, instance_id: str | None) -> None:
        self.records = 0
        self.closing = False
        self.failed: str | None = None
        self.subscription = Subscription(settings)
        self.membership = Membership(client, settings, self.subscription, instance_id)
        self._client = client
        self._world = client.world
        self._settings = settings
        self._fetcher = Fetcher(client, settings, self.subscription)
        self._commits = Commits(client.world, settings, self.subscription, self.membership)

    def run(self) -> Steps[None]:
        """The application: poll, process, commit, until it is closed."""
        heartbeats = self._world.env.process(self.membership.heartbeats())
        try:
            yield from self._client.refresh_metadata()
            while not self.closing and not self.membership.fenced:
                records = yield from self.poll(self._settings.poll_timeout_ms)
                if records:
                    count = sum(records.values())
                    self.records += count
                    yield self._world.sleep_us(round(count * self._settings.process_us))
                    yield from self._commits.after_records()
                elif self._settings.idle_ms:
                    yield self._world.sleep_ms(self._settings.idle_ms)
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

    def poll(self, timeout_ms: int) -> Steps[Records]:
        """Once at least: `poll(0)` takes what has come, and sends for more. Joining its group is not bounded by the
        time-out (as of `poll(long)`; `poll(Duration)` comes back and goes on with it)."""
        until_us = self._world.now_us + timeout_ms * 1000
        while True:
            records = yield from self._poll_once(max(0, until_us - self._world.now_us))
            if records:
                self._fetcher.send_fetches()
                return records
            if self._world.now_us >= until_us:
                return {}

    def _poll_once(self, timeout_us: int) -> Steps[Records]:
        yield from self._poll_coordinator()
        if self.subscription.missing_positions:
            yield from self._update_fetch_positions()
        records = self._fetcher.fetched_records()
        if records:
            return records
        self._fetcher.send_fetches()
        if not self._fetcher.has_completed_fetches:
            yield self._fetcher.arrived | self._world.sleep_us(timeout_us)
        if self.membership.needs_to_join and self.subscription.needs_a_group:
            return {}
        return self._fetcher.fetched_records()

    def _poll_coordinator(self) -> Steps[None]:
        self.membership.polled_us = self._world.now_us
        if self._metadata_is_old():
            yield from self._client.refresh_metadata()
        if not self.subscription.needs_a_group:
            self._commits.maybe_auto_commit()
            return
        if self.membership.partitions_changed():
            self.membership.needs_to_join = True
        if self.membership.needs_to_join:
            yield from self._commits.before_rejoining()
            yield from self.membership.ensure_active_group()
        self._commits.maybe_auto_commit()

    def _metadata_is_old(self) -> bool:
        if self._fetcher.metadata_is_stale:
            self._fetcher.metadata_is_stale = False
            return True
        asked_us = self._client.metadata_at_us
        age_us = self._settings.metadata_max_age_ms * 1000
        return asked_us is None or self._world.now_us - asked_us >= age_us

    def _update_fetch_positions(self) -> Steps[None]:
        """The committed offsets; where there is none, what `reset` says."""
        missing = self.subscription.missing_positions
        coordinator = yield from self.membership.find_coordinator()
        request = FetchCommitted(
            client_id=self._client.client_id,
            request_id=self._client.next_request_id(),
            group=self._settings.group_id,
            keys=missing,
        )
        answer = yield from self._client.ask(coordinator, request, channel=CHANNEL)
        if not isinstance(answer, Offsets):
            self.membership.lose_coordinator()
            yield self._world.sleep_ms(RETRY_BACKOFF_MS)
            return
        self._take_positions(answer)
        missing = self.subscription.missing_positions
        if missing and self._settings.reset == "none":
            raise NoOffsetForPartitionError(f"no offset committed for {missing[0]} (reset: none)")
        yield from self._reset_positions(missing)

    def _reset_positions(self, missing: list[TopicPartition]) -> Steps[None]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in missing:
            leader = self._client.metadata.leaders.get(key)
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(key)
        for broker, keys in by_leader.items():
            request = ListOffsets(
                client_id=self._client.client_id,
                request_id=self._client.next_request_id(),
                keys=keys,
                earliest=self._settings.reset == "earliest",
                isolation=self._settings.isolation,
            )
            answer = yield from self._client.ask(broker, request, channel="metadata")
            if isinstance(answer, Offsets):
                self._take_positions(answer)
        if self.subscription.missing_positions:
            yield self._world.sleep_ms(RETRY_BACKOFF_MS)
            yield from self._client.refresh_metadata()

    def _take_positions(self, offsets: Offsets) -> None:
        for key, offset in offsets.offsets.items():
            if key in self.subscription.positions:
                self.subscription.positions[key] = offset

    def _close(self) -> Steps[None]:
        yield from self._commits.before_rejoining()
        yield from self.membership.leave()

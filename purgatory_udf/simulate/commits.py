"""How far a consumer has come, told to its coordinator: synchronously, asynchronously, or now and then by itself."""

from __future__ import annotations

from purgatory_udf.simulate.client import RETRY_BACKOFF_MS
from purgatory_udf.simulate.membership import Membership
from purgatory_udf.simulate.messages import NONE, GroupAnswer
from purgatory_udf.simulate.scenario import Consumers
from purgatory_udf.simulate.subscription import Subscription
from purgatory_udf.simulate.world import Steps, World

# default.api.timeout.ms: for so long a synchronous commit is tried again.
SYNC_TIMEOUT_MS = 60_000
HOPELESS = {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID"}


class Commits:
    def __init__(self, world: World, settings: Consumers, subscription: Subscription, membership: Membership) -> None:
        self._world = world
        self._settings = settings
        self._subscription = subscription
        self._membership = membership
        self._committed: dict[object, int] = {}
        self._next_auto_us = world.now_us + settings.auto_commit_interval_ms * 1000

    def after_records(self) -> Steps[None]:
        """What the application does when it has processed what a poll gave it."""
        if self._settings.commit == "sync":
            yield from self.commit_sync()
        elif self._settings.commit == "async":
            self.commit_async()

    def maybe_auto_commit(self) -> None:
        """Before a poll, when the interval is over."""
        if self._settings.commit == "automatic" and self._world.now_us >= self._next_auto_us:
            self._next_auto_us = self._world.now_us + self._settings.auto_commit_interval_ms * 1000
            self.commit_async()

    def before_rejoining(self) -> Steps[None]:
        """Somebody else may go on with these partitions."""
        if self._settings.commit == "automatic" and self._membership.member_id:
            yield from self._send()

    def commit_sync(self) -> Steps[None]:
        give_up_us = self._world.now_us + SYNC_TIMEOUT_MS * 1000
        while self._world.now_us < give_up_us:
            error = yield from self._send()
            if error == NONE or error in HOPELESS:
                return
            yield self._world.sleep_ms(RETRY_BACKOFF_MS)

    def commit_async(self) -> None:
        self._world.env.process(self._send())

    def _send(self) -> Steps[str]:
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
        answer = yield from self._membership.commit(partitions)
        if isinstance(answer, GroupAnswer) and answer.error == NONE:
            self._committed.update(positions)
            return NONE
        yield from self._membership.heed(answer)
        return answer.error if isinstance(answer, GroupAnswer) else "DISCONNECTED"

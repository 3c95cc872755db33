"""DelayedSync: every member of a new generation has to ask for its assignment in time (Kafka 3.0, KAFKA-12890)."""

from __future__ import annotations

from collections.abc import Callable

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.operation import Beginning, GroupOperation, SyncKey
from purgatory_udf.coordinator.state import GroupState


class DelayedSync(GroupOperation):
    """Begun with each generation, for one rebalance timeout, whether or not the leader's assignment comes meanwhile.

    It completes when every member has synced, when another round begins, or when the group is unloaded. When it
    expires, those that have not synced are removed, however alive their heartbeats say they are, and another round
    begins.
    """

    kind = "sync"

    def __init__(
        self, group: Group, beginning: Beginning, timeout_ms: int, expired: Callable[[Group, int], None]
    ) -> None:
        super().__init__(group, SyncKey(group.name), beginning, timeout_ms)
        self._expired = expired

    def try_complete(self, now_us: int) -> bool:
        if self.group.state is GroupState.DEAD:
            return self.complete_by("unloaded", now_us)
        if self.group.state is GroupState.PREPARING_REBALANCE:
            return self.complete_by("rebalance", now_us)
        return not self.group.pending_syncs and self.complete_by("all_synced", now_us)

    def on_expiration(self, now_us: int) -> None:
        self._expired(self.group, self.effective_us(now_us))

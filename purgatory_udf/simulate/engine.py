"""The reference, made to answer: what becomes of a request is told to whoever sent it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.config import Config
from purgatory_udf.coordinator.coordinator import GroupCoordinator
from purgatory_udf.coordinator.request import GROUP_EVENTS, group_request
from purgatory_udf.purgatory.request import DelayedRequest
from purgatory_udf.reference.cluster import Cluster
from purgatory_udf.reference.replay import Event, Replayer
from purgatory_udf.reference.requests import create_topics, delete_records, fetch, produce
from purgatory_udf.reference.triggers import apply_change

Respond = Callable[[Any], None]

REQUESTS: dict[str, Callable[[Cluster, Event, Respond | None], DelayedRequest]] = {
    "produce": produce,
    "fetch": fetch,
    "delete_records": delete_records,
    "create_topics": create_topics,
}


class LiveReference(Replayer):
    """Applies events as a replay does. Its outcomes are the truth about the trace that the events make."""

    def __init__(self, config: Config, start_ms: int) -> None:
        super().__init__(config, start_ms)
        self._coordinators: dict[int, GroupCoordinator] = {}
        self._passed_ms = start_ms
        self._due_now = False

    def submit(self, event: Event, respond: Respond | None = None) -> None:
        """Apply an event; `respond` is told its answer, now or when a later event or the time ends the wait."""
        self._last_event_ms = now_ms = event["time_us"] // 1000
        self.pass_time(now_ms)
        kind = event["type"]
        if kind in REQUESTS:
            operation = REQUESTS[kind](self.cluster, event, respond)
            self.operations.append(operation)
            self._due_now = not operation.completed and operation.deadline_ms <= now_ms
        elif kind in GROUP_EVENTS:
            self.coordinator(event["broker"]).handle(group_request(event, self.config.group, respond))
            self._due_now = True
        elif kind == "partition":
            apply_change(self.cluster, event)
        self.pass_time(now_ms)

    def pass_time(self, now_ms: int) -> None:
        """Expire what is due: a wait of no time is, in the millisecond in which it began."""
        if self._due_now or now_ms > self._passed_ms:
            self._due_now = False
            self._passed_ms = now_ms
            self.cluster.clock.advance_to(now_ms)

    def next_due_ms(self) -> int | None:
        """Nothing expires before."""
        return self.cluster.clock.next_expiration_ms()

    def coordinator(self, broker: int) -> GroupCoordinator:
        known = self._coordinators.get(broker)
        if known is None:
            journal = self.coordinators.journal
            known = GroupCoordinator(broker, self.cluster.clock, self.config.group, journal)
            self._coordinators[broker] = known
        return known

"""The group coordinators of all brokers of a trace, on one clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purgatory_udf.config import GroupSettings as GroupConfig
from purgatory_udf.coordinator.coordinator import GroupCoordinator
from purgatory_udf.coordinator.journal import Answer, GroupJournal
from purgatory_udf.coordinator.request import group_request
from purgatory_udf.purgatory.clock import Clock


class Coordinators:
    """Each broker is a world of its own: the same group at two brokers is two groups."""

    def __init__(self, clock: Clock, config: GroupConfig) -> None:
        self.journal = GroupJournal()
        self._clock = clock
        self._config = config
        self._by_broker: dict[int, GroupCoordinator] = {}

    def handle(self, event: Mapping[str, Any], respond: Callable[[Answer], None] | None = None) -> None:
        """An event of one of `GROUP_EVENTS`. `respond` is told the answer, perhaps later, perhaps never."""
        request = group_request(event, self._config, respond)
        coordinator = self._by_broker.get(request.broker)
        if coordinator is None:
            coordinator = GroupCoordinator(request.broker, self._clock, self._config, self.journal)
            self._by_broker[request.broker] = coordinator
        coordinator.handle(request)

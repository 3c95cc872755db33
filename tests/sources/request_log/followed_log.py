"""Follows a log step by step in this process, with tables in memory instead of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.importing.carried_state import CARRIED_ROWS, CarriedState, StepState
from purgatory_udf.sources.request_log.importing.follow_step import FollowStep
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS
from purgatory_udf.sources.request_log.logged_request import Request
from tests.sources.request_log.translate import Event, event_of, keep_rows, number_rows, read_rows


@dataclass
class FollowedLog:
    """A followed log; `step` takes the requests of a step, in the order in which they are logged."""

    hold_us: int
    given: GivenMetadata = field(default_factory=GivenMetadata)
    carried: CarriedState = field(default_factory=CarriedState)
    _requests: pa.Table = field(default_factory=REQUESTS.empty_table)
    _rows: pa.Table = field(default_factory=CARRIED_ROWS.empty_table)

    @property
    def late(self) -> int:
        """Number of lines that were rejected as late."""
        return self.carried.counts.get("late_lines", 0)

    def step(self, requests: Iterable[Request]) -> list[Event]:
        """Process more requests and return the events that are settled now, in order."""
        step = FollowStep(LocalBackend(), self.given, self.hold_us, "run", str, keep_rows)
        state = StepState(self.carried, LocalDataset.of(self._requests), LocalDataset.of(self._rows))
        result = step.run(state, LocalDataset.of(read_rows(requests, self.carried.until_us)))
        events = [event_of(row) for row in number_rows(result.finished.events) if row["rule"] is None]
        self._requests, self._rows = result.state.requests.collect(), result.state.rows.collect()
        self.carried = CarriedState.resumed(json.loads(json.dumps(result.state.carried.snapshot())))
        return events

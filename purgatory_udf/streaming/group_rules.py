"""`Rules` for consumer groups: sessions, joins and syncs, and the reports from which their gauges are computed.

A call decides one consumer group, or all consumer groups of a shard, up to its horizon, including timers that other
timers start. The gauges of a broker's coordinator depend on all of its consumer groups. Each call therefore reports how
its watcher lists change, and the sink combines the reports.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.engine.key_shards import grouping_function
from purgatory_udf.rules.groups.compiled_groups import ClassicGroups
from purgatory_udf.rules.groups.group_outcome_tables import SCHEMAS, GroupOutput, GroupTables, group_outputs
from purgatory_udf.rules.groups.group_rows import COLUMNS, FOREVER, ROWS, RequestBatch
from purgatory_udf.rules.groups.group_state_store import GroupStateStore
from purgatory_udf.rules.groups.group_step import StepResult, StepResults, step, step_stable_groups
from purgatory_udf.rules.groups.group_waits import GroupWaits, open_operation_ids
from purgatory_udf.streaming.stateful_adapter import CLOCK, STATUS, WAITS, InputChunk, OutputChunk, Plan, Rules, Scalars
from purgatory_udf.streaming.status_update import GroupStatusUpdate, is_rebalancing

# The counter in the status file that counts the rows of a table.
_COUNTER_OF_TABLE = {**{table: table for table in ENDS}, "group_transitions": "transitions"}

# More groups at once would not be faster, but their snapshots and records take memory.
_GROUPS_AT_ONCE = 1000


@dataclass(frozen=True)
class GroupRules(Rules[GroupStateStore, RequestBatch]):
    """The rules of the query for consumer groups."""

    plan: Plan
    config: Config
    # Gauges are read up to the horizon, which rises with the watermark even if no consumer group has events.
    needs_clock_timer: ClassVar[bool] = True

    def input_columns(self, names: Sequence[str]) -> list[str]:
        return [name for name in COLUMNS if name in names]

    def split_by_group(self, events: pa.Table) -> Iterator[InputChunk]:
        # Consumer groups of one broker are independent, so grouping by broker is not needed.
        by = "partition" if self.config.grouping == "partition" else "shard"
        for name, requests in RequestBatch.from_events(events).split(
            grouping_function(by, self.config.grouping_shards)
        ):
            yield InputChunk(name, int(requests.rows.t.max()), requests.to_bytes())

    def decode_rows(self, values: Sequence[bytes]) -> RequestBatch:
        return RequestBatch.concat([RequestBatch.from_bytes(value) for value in values])

    def encode_rows(self, rows: RequestBatch) -> bytes:
        return rows.to_bytes()

    def times_us(self, rows: RequestBatch) -> npt.NDArray[np.int64]:
        return rows.rows.t

    def select(self, rows: RequestBatch, which: npt.NDArray[np.bool_]) -> RequestBatch:
        return rows.filter(which)

    def decode_state(self, value: bytes | None) -> GroupStateStore:
        return GroupStateStore() if value is None else GroupStateStore.from_bytes(value)

    def encode_state(self, state: GroupStateStore) -> bytes:
        return state.to_bytes()

    def scalars(self, state: GroupStateStore) -> Scalars:
        wake = state.next_deadline_ms
        return Scalars(state.sessions, None, wake if wake < FOREVER else None, len(state), wake)

    def step(
        self, group: str, state: GroupStateStore, rows: RequestBatch, horizon_ms: int
    ) -> tuple[GroupStateStore, Iterator[OutputChunk]]:
        """Decide the consumer groups that have requests or due timers. The other groups stay serialized.

        `state` is updated and returned. `rows` may be empty; then only timers that are due by `horizon_ms` run.
        """
        # Each collection would scan the operations of all groups. Their garbage is limited to those of one call.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._step(state, rows, horizon_ms)
        finally:
            if was_enabled:
                gc.enable()

    def _step(
        self, state: GroupStateStore, rows: RequestBatch, horizon_ms: int
    ) -> tuple[GroupStateStore, Iterator[OutputChunk]]:
        waits, update = GroupWaits(), GroupStatusUpdate()
        by_key: dict[str, StepResult] = {}
        bounds, no_rows = rows.bounds(), ROWS.empty()
        due = list(state.due(horizon_ms))
        together = [step_stable_groups(state, rows, horizon_ms, self.plan.pauses)]
        for key, snapshot in together[0].snapshots.items():
            state.put(key, snapshot)
        others = [key for key in dict.fromkeys([*bounds, *due]) if key not in together[0].snapshots]
        classic = None if self.plan.pauses.exist else ClassicGroups(rows, self.config.group)
        for begin in range(0, len(others), _GROUPS_AT_ONCE):
            snapshots = {key: state.get(key) for key in others[begin : begin + _GROUPS_AT_ONCE]}
            was_rebalancing = {key: is_rebalancing(snapshot) for key, snapshot in snapshots.items()}
            if classic is not None:
                decided = classic.decide(snapshots, horizon_ms)
                together.append(decided)
                for key, snapshot in decided.snapshots.items():
                    del snapshots[key]
                    state.put(key, snapshot)
                if self.plan.is_followed:
                    update.add_together(was_rebalancing, decided)
            for key, snapshot in snapshots.items():
                before = open_operation_ids(snapshot)
                after, result = step(
                    key,
                    snapshot,
                    rows.rows.take(bounds[key]) if key in bounds else no_rows,
                    horizon_ms,
                    self.config.group,
                    topics=self.plan.topics,
                    pauses=self.plan.pauses,
                )
                state.put(key, after)
                waits.record_open(key, before, after)
                if self.plan.is_followed:
                    update.add(key, was_rebalancing[key], after, result.transitions, result.operations)
                if result:
                    by_key[key] = result
        results = StepResults(by_key)
        for decided in together:
            waits.record_together(decided)
        waits.record_steps(results)
        return state, self._chunks(group_outputs(results, together), waits, update, horizon_ms)

    def _chunks(
        self, outputs: list[GroupOutput], waits: GroupWaits, update: GroupStatusUpdate, horizon_ms: int
    ) -> Iterator[OutputChunk]:
        for table, latest_us, rows, payload in outputs:
            yield OutputChunk(table, "", latest_us, rows, payload)
        wait_changes = waits.to_bytes()
        if wait_changes is not None:
            yield OutputChunk(WAITS, "", 0, 0, wait_changes)
        if self.plan.is_followed and (outputs or wait_changes is not None):
            counts: dict[str, Any] = {
                _COUNTER_OF_TABLE[output.table]: output.rows for output in outputs if output.table in _COUNTER_OF_TABLE
            }
            yield OutputChunk(STATUS, "", 0, 0, json.dumps(counts | update.to_dict()).encode())

    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[OutputChunk]:
        yield OutputChunk(WAITS, CLOCK, min(horizon_ms, FOREVER // 1000) * 1000, 0, b"")

    def schema(self, table: str) -> pa.Schema:
        return SCHEMAS[table]

    def decode_table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table `name` from the payloads of its output chunks, which are decoded together."""
        tables = GroupTables(self.plan.run_id, self.plan.trace_end_us)
        yield from tables.rows(name, [payload.to_pybytes() for payload in payloads]).to_batches()

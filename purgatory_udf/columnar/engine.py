"""The columnar core in one process, without Spark: what the stream does, batch by batch, group by group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from purgatory_udf.columnar.explode import ROWS, explode
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.columnar.partition import State, step
from purgatory_udf.columnar.pending import Packet, Pending, by_bucket, merge, packet_of
from purgatory_udf.columnar.records import outcome_tables
from purgatory_udf.columnar.settle import Settled
from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.tables import COMPLETIONS, EVENTS, EXPIRATIONS

END_OF_TIME_MS = 2**52


@dataclass
class Engine:
    """Feed batches of events in time order, then `drain`. `groups` is how many groups of keys have their own state.

    `keep_walks`: hold every check of a watcher list in `walks`, for the gauges.
    """

    config: Config
    groups: int = 1
    buckets: int = 1
    through_bytes: bool = False
    retain_bytes: int = INT32_MAX
    run_id: str = "core"
    keep_walks: bool = False
    states: dict[int, State] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    walks: list[tuple[Frame, list[str]]] = field(default_factory=list)
    _group_of: dict[str, int] = field(default_factory=dict)

    def feed(self, events: pa.Table) -> list[tuple[Settled, list[str]]]:
        """One micro-batch; its last millisecond is the horizon."""
        exploded = explode(events, self.config)
        horizon = int(events["time_us"].to_numpy().max()) // 1000 if len(events) else 0
        groups = np.array([self._group(key) for key in exploded.keys], dtype=np.int64)
        of_row = groups[exploded.rows.key] if len(exploded.rows) else groups
        handed_on: list[Packet] = []
        for group in np.flatnonzero(np.bincount(of_row)):
            rows = exploded.rows.take(of_row == group)
            used = np.flatnonzero(np.bincount(rows.key))
            names = [exploded.keys[key] for key in used]
            rows = rows.with_columns(key=np.searchsorted(used, rows.key))
            state = self.states.get(int(group), State())
            handed_on += self._step(int(group), state, names, rows, horizon)
        return self._settle(handed_on)

    def drain(self) -> list[tuple[Settled, list[str]]]:
        """Let the clock run past every deadline."""
        handed_on: list[Packet] = []
        for group, state in list(self.states.items()):
            handed_on += self._step(group, state, [], ROWS.empty(), END_OF_TIME_MS)
        return self._settle(handed_on)

    def _group(self, key: str) -> int:
        return self._group_of.setdefault(key, len(self._group_of) % self.groups)

    def _step(self, group: int, state: State, names: list[str], rows: Frame, horizon: int) -> list[Packet]:
        found = step(state, names, rows, horizon, self.retain_bytes)
        if self.keep_walks:
            self.walks.append((found.walks, state.keys))
        self.states[group] = State.from_bytes(state.to_bytes()) if self.through_bytes else state
        packet = packet_of(found, state.keys)
        return [] if packet is None else [self._carried(packet)]

    def _settle(self, handed_on: list[Packet]) -> list[tuple[Settled, list[str]]]:
        results = []
        for bucket, packet in by_bucket(merge(handed_on), self.buckets).items():
            pending = self.pending.setdefault(bucket, Pending())
            if self.through_bytes:
                pending = self.pending[bucket] = Pending.from_bytes(pending.to_bytes())
            settled, names = pending.add([self._carried(packet)])
            if len(settled.operations):
                results.append((settled, names))
        return results

    def _carried(self, packet: Packet) -> Packet:
        return Packet.from_bytes(packet.to_bytes()) if self.through_bytes else packet


def replay(batches: Iterable[pa.Table], engine: Engine, trace_end_us: int | None = None) -> tuple[pa.Table, pa.Table]:
    """Completions and expirations of all batches and the drain."""
    results = [result for batch in batches for result in engine.feed(batch)] + engine.drain()
    tables = [outcome_tables(settled, keys, engine.run_id, trace_end_us) for settled, keys in results]
    if not tables:
        return COMPLETIONS.empty_table(), EXPIRATIONS.empty_table()
    return pa.concat_tables([table[0] for table in tables]), pa.concat_tables([table[1] for table in tables])


def event_table(events: list[dict[str, object]]) -> pa.Table:
    """Contract events as the `events` table holds them."""
    return pa.Table.from_pylist(events, schema=EVENTS)

"""The loop in one process, without Spark: what the stream does, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.loop.explode import explode
from purgatory_udf.loop.outcomes import outcome_tables
from purgatory_udf.loop.state import Found, Limits, State, step
from purgatory_udf.loop.words import FOREVER, Code
from purgatory_udf.tables import COMPLETIONS, EVENTS, EXPIRATIONS


def purge_intervals(config: Config) -> dict[Code, int]:
    return {
        Code.PRODUCE: config.produce.purge_interval,
        Code.FETCH: config.fetch.purge_interval,
        Code.DELETE_RECORDS: config.delete_records.purge_interval,
        Code.CREATE_TOPICS: config.create_topics.purge_interval,
        Code.HEARTBEAT: config.group.purge_interval,
        Code.REBALANCE: config.group.purge_interval,
    }


@dataclass
class Engine:
    """Feed batches of events in time order, then `drain`."""

    config: Config
    began_ms: int = 0
    retain_bytes: int = INT32_MAX
    state: State = field(default_factory=State)

    @property
    def limits(self) -> Limits:
        return Limits(purge_intervals(self.config), self.began_ms, self.retain_bytes)

    def feed(self, events: pa.Table) -> Found:
        """One micro-batch; its last millisecond is the horizon."""
        horizon = int(events["time_us"].to_numpy().max()) // 1000 if len(events) else 0
        return step(self.state, explode(events, self.config), horizon, self.limits)

    def drain(self) -> Found:
        """Let the clock run past every deadline."""
        from purgatory_udf.loop.call import Call

        return step(self.state, Call(), FOREVER, self.limits)


def replay(batches: Iterable[pa.Table], engine: Engine, trace_end_us: int | None = None) -> tuple[pa.Table, pa.Table]:
    """Completions and expirations of all batches and the drain."""
    results = [engine.feed(batch) for batch in batches] + [engine.drain()]
    tables = [outcome_tables(found, "core", trace_end_us) for found in results]
    if not tables:
        return COMPLETIONS.empty_table(), EXPIRATIONS.empty_table()
    return pa.concat_tables([table[0] for table in tables]), pa.concat_tables([table[1] for table in tables])


def event_table(events: list[dict[str, object]]) -> pa.Table:
    """Contract events as the `events` table holds them."""
    return pa.Table.from_pylist(events, schema=EVENTS)

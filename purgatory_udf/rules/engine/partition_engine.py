"""The loop in one process, without Spark: what the stream does, batch by batch, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.contract.tables import CANCELLATIONS, COMPLETIONS, EVENTS, EXPIRATIONS, PURGATORY_GAUGES, WATCHES
from purgatory_udf.rules.engine.columns.explode import explode
from purgatory_udf.rules.engine.columns.outcome_tables import Ended, gauge_table
from purgatory_udf.rules.engine.key_shards import (
    GroupOf,
    apart,
    by_broker,
    decided_apart,
    decided_here,
    together,
    undecidable,
    whole,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, Code
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.loop.engine_state import Decisions, Limits, State, step
from purgatory_udf.rules.engine.loop.state_codec import call_bytes, call_of, state_bytes, state_of


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
    """Feed batches of events in time order, then `drain`. `grouping`: by broker, one group decides everything;
    otherwise groups decide what is all theirs, and their broker's group behind them the rest."""

    config: Config
    began_ms: int = 0
    grouping: GroupOf = by_broker
    through_bytes: bool = False
    retain_bytes: int = INT32_MAX
    states: dict[str, State] = field(default_factory=dict)
    behind: dict[str, State] = field(default_factory=dict)

    def feed(self, events: pa.Table) -> list[Decisions]:
        """One micro-batch; its last millisecond is the horizon."""
        horizon = int(events["time_us"].to_numpy().max()) // 1000 if len(events) else 0
        return list(self._fed(explode(events, self.config), horizon))

    def drain(self) -> list[Decisions]:
        """Let the clock run past every deadline."""
        decided = [self._step(self.states, group, Call(), FOREVER) for group in list(self.states)]
        if self.grouping is not by_broker:
            decided = [decided_here(each) for each in decided]
            decided += [decided_apart(self._step(self.behind, group, Call(), FOREVER)) for group in list(self.behind)]
        return decided

    def _fed(self, call: Call, horizon: int) -> Iterator[Decisions]:
        if not len(call):
            return
        relayed: dict[str, list[Call]] = {}
        for group, share in apart(call, self.grouping):
            if self.grouping is by_broker:
                yield self._step(self.states, group, share, horizon)
                continue
            yield decided_here(self._step(self.states, group, undecidable(share), horizon))
            for broker, part in apart(share, by_broker):
                relayed.setdefault(broker, []).append(self._carried(part))
        for broker, parts in relayed.items():
            yield decided_apart(self._step(self.behind, broker, whole(together(parts)), horizon))

    def _step(self, states: dict[str, State], group: str, call: Call, horizon: int) -> Decisions:
        state = states.setdefault(group, State())
        decided = step(state, self._carried(call), horizon, self.limits)
        if self.through_bytes:
            states[group] = state_of(state_bytes(state))
        return decided

    @property
    def limits(self) -> Limits:
        return Limits(purge_intervals(self.config), self.began_ms, self.retain_bytes)

    def _carried(self, call: Call) -> Call:
        return call_of(call_bytes(call)) if self.through_bytes and len(call) else call


@dataclass
class Tables:
    """What a replay has found, as the tables have it."""

    completions: pa.Table
    expirations: pa.Table
    cancellations: pa.Table
    watches: pa.Table
    gauges: pa.Table

    @staticmethod
    def of(decided: Iterable[Decisions], run_id: str = "loop", trace_end_us: int | None = None) -> Tables:
        tables = []
        for each in decided:
            ended = Ended(each, run_id, trace_end_us)
            tables.append((*ended.outcomes(), ended.watches(), gauge_table(each, run_id)))
        schemas = (COMPLETIONS, EXPIRATIONS, CANCELLATIONS, WATCHES, PURGATORY_GAUGES)
        return Tables(
            *(
                pa.concat_tables([schema.empty_table(), *(each[place] for each in tables)])
                for place, schema in enumerate(schemas)
            )
        )


def replay(batches: Iterable[pa.Table], engine: Engine, trace_end_us: int | None = None) -> Tables:
    """All batches and the drain."""
    decided = [each for batch in batches for each in engine.feed(batch)] + engine.drain()
    return Tables.of(decided, trace_end_us=trace_end_us)


def event_table(events: list[dict[str, object]]) -> pa.Table:
    """Contract events as the `events` table holds them."""
    return pa.Table.from_pylist(events, schema=EVENTS)

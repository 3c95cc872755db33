"""The engine in one process, without Spark: event tables in, outcome tables out.

It does what the streaming queries do, batch by batch and group by group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.contract.tables import CANCELLATIONS, COMPLETIONS, EVENTS, EXPIRATIONS, PURGATORY_GAUGES, WATCHES
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.key_shards import (
    Grouping,
    by_broker,
    defer_split_fetches,
    keep_split,
    keep_whole,
    mark_split,
    split_call,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, Code
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.loop.engine_state import Decisions, EngineSettings, State, step
from purgatory_udf.rules.engine.loop.state_codec import decode_call, decode_state, encode_call, encode_state
from purgatory_udf.rules.engine.outcome_tables import OutcomeColumns, gauge_table
from purgatory_udf.rules.purgatory.clock import Pauses


def engine_settings(
    config: Config,
    trace_start_ms: int,
    retain_bytes: int = INT32_MAX,
    smallest_limit: int = 0,
    pauses: Pauses | None = None,
) -> EngineSettings:
    """Return the engine's settings for a configuration.

    Args:
        config: The configuration.
        trace_start_ms: Time of the trace's first event, in epoch milliseconds.
        retain_bytes: See `EngineSettings`.
        smallest_limit: See `EngineSettings`.
        pauses: The times at which brokers stood still.
    """
    remote = config.remote_fetch
    return EngineSettings(
        purge_intervals(config),
        trace_start_ms,
        retain_bytes,
        smallest_limit,
        remote_wait_ms=remote.broker_wait_ms,
        reads_all=remote.reads == "all",
        pauses=pauses or Pauses(),
    )


def purge_intervals(config: Config) -> dict[Code, int]:
    """Return the purge interval of each kind of purgatory, in operations."""
    return {
        Code.PRODUCE: config.produce.purge_interval,
        Code.FETCH: config.fetch.purge_interval,
        Code.DELETE_RECORDS: config.delete_records.purge_interval,
        Code.CREATE_TOPICS: config.create_topics.purge_interval,
        Code.REMOTE_FETCH: config.remote_fetch.purge_interval,
        Code.LIST_OFFSETS: config.list_offsets.purge_interval,
        Code.HEARTBEAT: config.group.purge_interval,
        Code.REBALANCE: config.group.purge_interval,
    }


@dataclass
class Engine:
    """The engine's groups and their states. `feed` batches in time order, then `drain`.

    Attributes:
        config: The configuration.
        trace_start_ms: Time of the trace's first event, in epoch milliseconds.
        grouping: Which keys are processed together (`key_shards`).
        serialize: Whether to serialize states and calls between steps, as Spark does.
        retain_bytes: See `EngineSettings`.
        smallest_limit: See `EngineSettings`.
        pauses: The times at which brokers stood still.
        states: The states of the groups.
        broker_states: The states of the brokers' groups that decide split operations; empty if `grouping` is
            `by_broker`.
    """

    config: Config
    trace_start_ms: int = 0
    grouping: Grouping = by_broker
    serialize: bool = False
    retain_bytes: int = INT32_MAX
    smallest_limit: int = 0
    pauses: Pauses = field(default_factory=Pauses)
    states: dict[str, State] = field(default_factory=dict)
    broker_states: dict[str, State] = field(default_factory=dict)

    def feed(self, events: pa.Table) -> list[Decisions]:
        """Process one micro-batch, and return the decisions of each call.

        `events` are rows of `events`, none earlier than those of the previous batch. The millisecond of the latest one
        is the horizon.
        """
        horizon = int(events["time_us"].to_numpy().max()) // 1000 if len(events) else 0
        return list(self._process(explode(events, self.config), horizon))

    def drain(self) -> list[Decisions]:
        """Advance the clock past every deadline, so that all open operations expire; return the decisions by call."""
        decided = [self._step(self.states, group, Call(), FOREVER) for group in list(self.states)]
        if self.grouping is not by_broker:
            decided = [keep_whole(each) for each in decided]
            decided += [
                keep_split(self._step(self.broker_states, group, Call(), FOREVER)) for group in list(self.broker_states)
            ]
        return decided

    def _process(self, call: Call, horizon: int) -> Iterator[Decisions]:
        if not len(call):
            return
        if self.grouping is by_broker:
            for broker, part in split_call(call, by_broker):
                yield self._step(self.states, broker, part, horizon)
            return
        for group, part in split_call(call, self.grouping):
            yield keep_whole(self._step(self.states, group, defer_split_fetches(part), horizon))
        for broker, part in split_call(mark_split(call, self.grouping), by_broker):
            yield keep_split(self._step(self.broker_states, broker, part, horizon))

    def _step(self, states: dict[str, State], group: str, call: Call, horizon: int) -> Decisions:
        state = states.setdefault(group, State())
        decided = step(state, self._round_trip(call), horizon, self.settings)
        if self.serialize:
            states[group] = decode_state(encode_state(state))
        return decided

    @property
    def settings(self) -> EngineSettings:
        limits = (self.retain_bytes, self.smallest_limit)
        return engine_settings(self.config, self.trace_start_ms, *limits, pauses=self.pauses)

    def _round_trip(self, call: Call) -> Call:
        return decode_call(encode_call(call)) if self.serialize and len(call) else call


@dataclass
class Tables:
    """The tables of a replay: outcomes by how operations ended, watches, and gauge readings."""

    completions: pa.Table
    expirations: pa.Table
    cancellations: pa.Table
    watches: pa.Table
    gauges: pa.Table

    @staticmethod
    def of(decided: Iterable[Decisions], run_id: str = "loop", trace_end_us: int | None = None) -> Tables:
        """Build the tables of these decisions, in their order.

        Args:
            decided: The decisions of each call.
            run_id: The run's id, for the tables.
            trace_end_us: Time of the trace's last event in epoch microseconds, if known.
        """
        tables = []
        for each in decided:
            ended = OutcomeColumns(each, run_id, trace_end_us)
            tables.append((*ended.outcomes(), ended.watches(), gauge_table(each, run_id)))
        schemas = (COMPLETIONS, EXPIRATIONS, CANCELLATIONS, WATCHES, PURGATORY_GAUGES)
        return Tables(
            *(
                pa.concat_tables([schema.empty_table(), *(each[index] for each in tables)])
                for index, schema in enumerate(schemas)
            )
        )


def replay(batches: Iterable[pa.Table], engine: Engine, trace_end_us: int | None = None) -> Tables:
    """Feed all batches, drain, and return the tables.

    Args:
        batches: Tables of events, in time order.
        engine: A new engine.
        trace_end_us: Time of the trace's last event in epoch microseconds, if known; later expirations are `after_end`.
    """
    decided = [each for batch in batches for each in engine.feed(batch)] + engine.drain()
    return Tables.of(decided, trace_end_us=trace_end_us)


def event_table(events: list[dict[str, object]]) -> pa.Table:
    """Return events of the contract as an `events` table."""
    return pa.Table.from_pylist(events, schema=EVENTS)

"""`Rules` for partitions and topics: the compiled engine behind the interface of the streaming queries.

If groups are brokers, one query decides every operation. If they are TopicPartitions or shards, an operation may have
keys in several groups. One query then decides the operations that are whole in one group. A second query reads the same
events, grouped by broker, decides the split operations and reads the gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.rules.engine.calls_from_events import explode, present_columns
from purgatory_udf.rules.engine.key_shards import (
    by_broker,
    concat_calls,
    defer_split_fetches,
    grouping_function,
    keep_split,
    keep_whole,
    mark_split,
    split_call,
)
from purgatory_udf.rules.engine.loop.codes import Code
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.loop.engine_state import Decisions, EngineSettings, State, step
from purgatory_udf.rules.engine.loop.state_codec import decode_call, decode_state, encode_call, encode_state
from purgatory_udf.rules.engine.outcome_tables import OutcomeColumns, gauge_table
from purgatory_udf.streaming.stateful_adapter import CLOCK, STATUS, InputChunk, OutputChunk, Plan, Rules, Scalars
from purgatory_udf.streaming.status_update import event_count_update, partition_update

OUTPUT_TABLES = (*ENDS, "watches", "purgatory_gauges")

_ROWS_PER_CHUNK = 1 << 17
# Chunks with at least this many rows are compressed: Spark holds several copies between the rules and the table.
_MIN_COMPRESSED_ROWS = 1 << 10
_COMPRESSED, _UNCOMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4"), pa.ipc.IpcWriteOptions()


class OperationScope(Enum):
    """The operations that a query decides.

    `ALL` if groups are brokers. Otherwise the first query decides `WHOLE` operations, which have all keys in one group,
    and the second query decides `SPLIT` operations, which have keys in several.
    """

    ALL = "all"
    WHOLE = "whole"
    SPLIT = "split"


@dataclass(frozen=True)
class PartitionRules(Rules[State, Call]):
    """The rules of one query. A group is a broker, a TopicPartition or a shard."""

    plan: Plan
    config: Config
    limits: EngineSettings
    scope: OperationScope = OperationScope.ALL

    def input_columns(self, names: Sequence[str]) -> list[str]:
        return present_columns(names)

    def split_by_group(self, events: pa.Table) -> Iterator[InputChunk]:
        call = explode(events, self.config)
        group = grouping_function(self.config.grouping, self.config.grouping_shards)
        if self.scope is OperationScope.SPLIT:
            call, group = mark_split(call, group), by_broker
        if len(call):
            for name, part in split_call(call, group):
                yield InputChunk(name, int(part.events["t"].max()), encode_call(part))

    def decode_rows(self, values: Sequence[bytes]) -> Call:
        return concat_calls([decode_call(value) for value in values])

    def encode_rows(self, rows: Call) -> bytes:
        return encode_call(rows)

    def times_us(self, rows: Call) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = rows.events["t"]
        return times

    def select(self, rows: Call, which: npt.NDArray[np.bool_]) -> Call:
        return rows.select(which)

    def decode_state(self, value: bytes | None) -> State:
        return State() if value is None else decode_state(value)

    def encode_state(self, state: State) -> bytes:
        return encode_state(state)

    def scalars(self, state: State) -> Scalars:
        open_, wake = state.open_operations, state.next_deadline_ms
        oldest = int(open_["t"].min()) // 1000 if len(open_) else None
        deadline = wake if len(open_) else None
        if self.scope is not OperationScope.WHOLE:
            # Without a further event or deadline of the group, only a timer causes this reading.
            wake = min(wake, state.next_reading_ms)
        return Scalars(len(state.parts), oldest, deadline, len(state.names), wake)

    def step(self, group: str, state: State, rows: Call, horizon_ms: int) -> tuple[State, Iterator[OutputChunk]]:
        if self.scope is OperationScope.WHOLE:
            decided = keep_whole(step(state, defer_split_fetches(rows), horizon_ms, self.limits))
        elif self.scope is OperationScope.SPLIT:
            decided = keep_split(step(state, rows, horizon_ms, self.limits))
        else:
            decided = step(state, rows, horizon_ms, self.limits)
        return state, self._chunks(group, state, decided, horizon_ms)

    def _chunks(self, group: str, state: State, decided: Decisions, horizon_ms: int) -> Iterator[OutputChunk]:
        if len(decided.ended):
            ended = OutcomeColumns(decided, self.plan.run_id, self.plan.trace_end_us)
            for table, ends in zip(ENDS, ended.outcomes(), strict=True):
                yield from _to_chunks(table, ends, ended.latest_us)
            if self.config.write_watches:
                yield from _to_chunks("watches", ended.watches())
            elif (decided.all_operations["code"][decided.ended] == Code.REMOTE_FETCH).any():
                watches = ended.watches()
                yield from _to_chunks("watches", watches.filter(pc.equal(watches["kind"], "remote_fetch")))
        if len(decided.readings):
            yield from _to_chunks("purgatory_gauges", gauge_table(decided, self.plan.run_id))
        if self.plan.is_followed:
            update = partition_update(state, decided, has_gauges=self.scope is not OperationScope.WHOLE)
            yield OutputChunk(STATUS, group, horizon_ms * 1000, 0, update)

    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[OutputChunk]:
        # The query of whole operations counts the same events.
        if self.plan.is_followed and events and self.scope is not OperationScope.SPLIT:
            yield OutputChunk(STATUS, CLOCK, latest_us, 0, event_count_update(events))

    def schema(self, table: str) -> pa.Schema:
        return TABLES[table]

    def decode_table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        for payload in payloads:
            with pa.ipc.open_stream(payload) as stream:
                yield from stream


def _to_chunks(name: str, table: pa.Table, latest_us: int = 0) -> Iterator[OutputChunk]:
    """Serialize a table as Arrow streams of at most `_ROWS_PER_CHUNK` rows."""
    for begin in range(0, len(table), _ROWS_PER_CHUNK):
        part = table.slice(begin, _ROWS_PER_CHUNK)
        sink = pa.BufferOutputStream()
        options = _COMPRESSED if len(part) >= _MIN_COMPRESSED_ROWS else _UNCOMPRESSED
        with pa.ipc.new_stream(sink, part.schema, options=options) as writer:
            writer.write_table(part)
        yield OutputChunk(name, "", latest_us, len(part), sink.getvalue().to_pybytes())

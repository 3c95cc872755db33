"""Adapter between Spark's group state and the rules (`applyInPandasWithState`), and the interface `Rules`.

    events ─ split_by_group ─► InputChunk ─► shuffle ─► rows ─┐
                                                              ├─ step ─► OutputChunk ─ decode_table ─► rows of tables
                                       Spark's state ─ state ─┘    └───► state

`partition_rules` implements the interface `Rules` for partitions and topics, `group_rules` for consumer groups, and
`share_rules` for share groups. The rest of the pipeline does not depend on what the rules decide.

Each call restores a group's state, runs one `step` of the rules and stores the new state, with an event-time timeout if
time alone can change it. A timeout must not be earlier than the watermark. `step` first expires everything that is due;
the timeout is then the earliest remaining deadline, or the watermark if that is later. A call for a timeout has to
update or remove the state: Spark would otherwise repeat it.

If events may be out of order, they are kept in the state until the watermark has passed them, and are then decided in
order.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.spark_workers import retain_freed_memory
from purgatory_udf.contract.tables import TIMESTAMP
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.rules.purgatory.clock import STEP_MS, Pauses

if TYPE_CHECKING:
    import pandas as pd

# Values of `OutputChunk.table` that are not tables: an update of the status file, and changes of watcher lists for
# gauges that span several groups.
STATUS, WAITS = "status", "waits"

# Schema of the input of the stateful operator.
INPUT_SCHEMA = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The clock group: each of its rows has the number of events of an Arrow batch and their latest time, in microseconds.
CLOCK = ""
TICK_FORMAT = "<qq"

State = TypeVar("State")
Rows = TypeVar("Rows")
# The scalars repeat facts of the serialized `state`, so that queries on the state store need not decode it.
STATE_SCHEMA = "open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, keys BIGINT, state BINARY, waiting BINARY"
OUTPUT_SCHEMA = "table STRING, `group` STRING, time_us BIGINT, rows BIGINT, payload BINARY"


class InputChunk(NamedTuple):
    """The events of one group in one Arrow batch, serialized. `time_us` is the time of the last one."""

    group: str
    time_us: int
    payload: bytes


class OutputChunk(NamedTuple):
    """Serialized rows of one table that one call has produced.

    Attributes:
        table: The table, or one of `STATUS`, `WAITS`.
        group: Of a `STATUS`, the group it describes; else empty.
        time_us: When the last operation in it ended. Of `STATUS` and `WAITS`: the time up to which events are decided,
            or 0.
        rows: The number of rows; 0 for `STATUS` and `WAITS`.
        payload: The serialized rows.
    """

    table: str
    group: str
    time_us: int
    rows: int
    payload: bytes


class Scalars(NamedTuple):
    """Figures about a state that are stored next to its serialized form. Times are epoch milliseconds.

    Attributes:
        open: The number of open watches or sessions.
        oldest_ms: When the oldest open operation started.
        next_deadline_ms: The earliest deadline.
        keys: The number of keys.
        wake_ms: When the state next changes without an event, or `FOREVER`. It is not stored.
    """

    open: int
    oldest_ms: int | None
    next_deadline_ms: int | None
    keys: int
    wake_ms: int


@dataclass(frozen=True)
class Plan:
    """Properties of the run that all calls depend on.

    Attributes:
        run_id: The id of the run.
        has_disorder: Whether events may be out of order.
        trace_end_us: The time of the last event; None if the table is followed.
        is_one_batch: Whether the whole trace is one micro-batch, so that a call has all events of its group.
        is_followed: Whether the replay follows a growing table.
        topics: The topics of the cluster, for assignments of consumer groups.
        pauses: The times at which brokers stood still.
    """

    run_id: str
    has_disorder: bool
    trace_end_us: int | None
    is_one_batch: bool = False
    is_followed: bool = False
    topics: ClusterTopics = field(default_factory=ClusterTopics)
    pauses: Pauses = field(default_factory=Pauses)


class Rules(ABC, Generic[State, Rows]):
    """Interface of the rules for one kind of group.

    `Rows` are events of one group in time order. `step` may change the `State` in place, so the caller must not use a
    state again after the call.
    """

    plan: Plan
    # Whether `tick` is called once more when the watermark has passed the last event of a batch.
    needs_clock_timer: ClassVar[bool] = False

    @abstractmethod
    def input_columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read from events that have the columns `names`."""

    @abstractmethod
    def split_by_group(self, events: pa.Table) -> Iterator[InputChunk]:
        """Yield the events of each group."""

    @abstractmethod
    def decode_rows(self, values: Sequence[bytes]) -> Rows:
        """Deserialize payloads of input chunks and results of `encode_rows`, and merge them in time order."""

    @abstractmethod
    def encode_rows(self, rows: Rows) -> bytes:
        """Serialize rows that must wait for the watermark."""

    @abstractmethod
    def times_us(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the time of each row."""

    @abstractmethod
    def select(self, rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows for which `which` is true."""

    @abstractmethod
    def decode_state(self, value: bytes | None) -> State:
        """Return the state that was serialized as `value`, or an empty one for None."""

    @abstractmethod
    def encode_state(self, state: State) -> bytes:
        """Serialize a state for Spark's state store; `decode_state` restores it."""

    @abstractmethod
    def scalars(self, state: State) -> Scalars:
        """Return the figures that are stored next to the state."""

    @abstractmethod
    def step(self, group: str, state: State, rows: Rows, horizon_ms: int) -> tuple[State, Iterable[OutputChunk]]:
        """Decide all rows and all timers up to the horizon.

        Args:
            group: Name of the group.
            state: State after the group's last call.
            rows: New events of the group, in order of time.
            horizon_ms: Time up to which the group's events are complete, in epoch milliseconds.
        """

    @abstractmethod
    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[OutputChunk]:
        """Return the output of the clock group for a batch.

        The clock group is an additional group without keys. It is called once in each batch with events, for output
        that does not belong to a single group, such as the number of events.

        Args:
            events: Number of events in the batch.
            latest_us: Time of the latest of them, in epoch microseconds.
            horizon_ms: Time up to which all events are complete, in epoch milliseconds.
        """

    @abstractmethod
    def schema(self, table: str) -> pa.Schema:
        """Return the schema of a table."""

    @abstractmethod
    def decode_table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows from the payloads of its output chunks, in their order."""


AnyRules = Rules[Any, Any]


def input_chunk_function(rules: AnyRules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that packs events into input chunks, and adds a row for the clock group.

    Spark then shuffles one row per group and Arrow batch, instead of one per event.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack_tables(rules, (pa.Table.from_batches([batch]) for batch in batches))

    return run


def pack_tables(rules: AnyRules, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Pack each table of events into input chunks, and a row for the clock group."""
    retain_freed_memory()
    for events in tables:
        if len(events):
            now_us = int(events["time_us"].to_numpy().max())
            tick = (CLOCK, now_us, struct.pack(TICK_FORMAT, len(events), now_us))
            yield input_batch([tick, *rules.split_by_group(events)])


def input_batch(rows: Iterable[tuple[str, int, bytes]]) -> pa.RecordBatch:
    """Return tuples of group, time and payload as a batch of `INPUT_SCHEMA`."""
    names, times, payloads = (list(column) for column in zip(*rows, strict=True))
    latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT_SCHEMA)


def decode_ticks(values: Iterable[bytes]) -> tuple[int, int]:
    """Return the number of events of a batch, and the latest time in microseconds (0 without events)."""
    batches = [struct.unpack(TICK_FORMAT, value) for value in values]
    return sum(events for events, _ in batches), max((us for _, us in batches), default=0)


# The column with the time of a row.
_TIME = {
    "completions": "completed_at",
    "expirations": "expired_at",
    "cancellations": "cancelled_at",
    "watches": "ended_at",
    "purgatory_gauges": "at",
    "share_deliveries": "ended_at",
    "group_transitions": "at",
    "member_transitions": "at",
    "group_answers": "answered_at",
}


def rows_until(rows: pa.RecordBatch, table: str, end_ms: int) -> pa.RecordBatch:
    """Return the rows of an output table up to the end of the millisecond `end_ms`.

    Watches that ended without expiring are always kept.
    """
    by_then = pc.less(rows.column(_TIME[table]).cast(pa.int64()), (end_ms + 1) * 1000)
    if table == "watches":
        by_then = pc.or_(by_then, pc.not_equal(rows.column("status"), "expired"))
    return rows.filter(by_then)


def closing_ms(last_us: int, latest_us: int | None) -> int:
    """Return the time in epoch milliseconds of the first gauge reading after the trace and every operation have ended.

    Args:
        last_us: Time of the last event, in epoch microseconds.
        latest_us: When the last operation ended; None without operations.
    """
    return -(-max((latest_us or 0) // 1000, last_us // 1000 + 1) // STEP_MS) * STEP_MS


class SparkGroupState(Protocol):
    """The part of pyspark's `GroupState` that the adapter uses."""

    @property
    def exists(self) -> bool: ...
    @property
    def hasTimedOut(self) -> bool: ...  # noqa: N802
    @property
    def get(self) -> tuple[Any, ...]: ...
    def update(self, value: tuple[Any, ...]) -> None: ...
    def remove(self) -> None: ...
    def setTimeoutTimestamp(self, ms: int) -> None: ...  # noqa: N802
    def getCurrentWatermarkMs(self) -> int: ...  # noqa: N802


def state_function(rules: AnyRules) -> Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]:
    """Return the function for `applyInPandasWithState`, which Spark calls for each group."""

    def run(key: Any, frames: Iterator[pd.DataFrame], group: SparkGroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        retain_freed_memory()
        values = [bytes(value) for frame in frames for value in frame["payload"] if value]
        chunks = call_rules(rules, key[0], values, group)
        if chunks:
            yield pd.DataFrame(chunks, columns=list(OutputChunk._fields))

    return run


def call_rules(rules: AnyRules, name: str, values: list[bytes], group: SparkGroupState) -> list[OutputChunk]:
    """Call the rules for a group with the payloads of its input chunks; return its output."""
    call = _call_clock if name == CLOCK else _call_group
    return list(call(name, values, group, rules))


def _call_clock(_: str, values: list[bytes], group: SparkGroupState, rules: AnyRules) -> Iterator[OutputChunk]:
    """Call the rules for the clock group (`Rules.tick`), which has a row in every batch with events.

    If the rules need it, a timeout calls them once more when the watermark has passed the batch's last event.
    """
    watermark = group.getCurrentWatermarkMs()
    if group.hasTimedOut:
        group.remove()
    elif rules.needs_clock_timer and not rules.plan.is_one_batch:
        group.update((0, None, None, 0, b"", None))
        group.setTimeoutTimestamp(max(watermark, 1))
    return rules.tick(*decode_ticks(values), _horizon([], watermark, rules.plan))


def _call_group(
    name: str, values: list[bytes], group: SparkGroupState, rules: Rules[State, Rows]
) -> Iterable[OutputChunk]:
    plan, watermark = rules.plan, group.getCurrentWatermarkMs()
    state, held = rules.decode_state(None), []
    if group.exists:
        *_, serialized, waiting = group.get
        state = rules.decode_state(bytes(serialized))
        if waiting:
            held.append(bytes(waiting))
    ready, later = rules.decode_rows([*held, *values]), None
    if plan.has_disorder and not plan.is_one_batch:
        ready, later = _split_at_watermark(rules, ready, watermark)
    state, chunks = rules.step(name, state, ready, _horizon(rules.times_us(ready), watermark, plan))
    _save_state(group, rules, state, later, watermark)
    return chunks


def _split_at_watermark(rules: Rules[State, Rows], arrived: Rows, watermark: int) -> tuple[Rows, Rows | None]:
    """Split the rows at the watermark (epoch milliseconds).

    Returns:
        The rows before the watermark, which are complete, and the later rows, which must wait, or None.
        The bound is exclusive, like that of Spark's timeouts, so all groups of a batch decide the same range of time.
    """
    now = rules.times_us(arrived) // 1000 < watermark
    if now.all():
        return arrived, None
    return rules.select(arrived, now), rules.select(arrived, ~now)


def _horizon(ready_us: Any, watermark: int, plan: Plan) -> int:
    """Return the time up to which the group's events are complete, in epoch milliseconds; `FOREVER` after the trace.

    Args:
        ready_us: Times of the rows that the call decides, in epoch microseconds; an array.
        watermark: Spark's watermark, in epoch milliseconds.
        plan: Properties of the run.
    """
    if plan.is_one_batch or (plan.trace_end_us is not None and watermark > plan.trace_end_us // 1000):
        return FOREVER
    if not plan.has_disorder and len(ready_us):
        return max(watermark, int(ready_us.max()) // 1000)
    return watermark


def _save_state(
    group: SparkGroupState, rules: Rules[State, Rows], state: State, later: Rows | None, watermark: int
) -> None:
    *scalars, wake = rules.scalars(state)
    held = None
    if later is not None:
        held = rules.encode_rows(later)
        wake = min(wake, int(rules.times_us(later).min()) // 1000)
    group.update((*scalars, rules.encode_state(state), held))
    if wake < FOREVER:
        # Spark requires a positive timestamp.
        group.setTimeoutTimestamp(max(wake, watermark, 1))

"""The contract between Spark and the rules: values in, values out.

    events ─ shares ─► the shuffle ─► rows ─┐
                                            ├─ step ─► chunks ─ table ─► rows of tables
                       Spark's state ─ state ┘    └─► state

There are two who keep it: `partition_rules`, of partitions and topics, and `group_rules`, of consumer groups. Whoever
else is to wait on Spark keeps it, too; nothing else of the pipeline knows what the rules are about.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.common.worker_memory import retain_freed_memory
from purgatory_udf.contract.tables import TIMESTAMP

# What a call may say beside rows of tables: a share for a group of the next query; what it knows for `top`, while a
# table is followed; and what began to wait and waited no longer, for gauges that no call sees whole.
RELAY, STATUS, WAITS = "relay", "live", "waits"


State = TypeVar("State")
Rows = TypeVar("Rows")


class InputChunk(NamedTuple):
    """What a batch brings for a group, as one value; and its latest time."""

    group: str
    time_us: int
    payload: bytes


class OutputChunk(NamedTuple):
    """A call's rows of one table, as one value: how many, and when the last of them ended. Of the other things that a
    call says `group` says for whom, or of whom."""

    table: str
    group: str
    time_us: int
    rows: int
    payload: bytes


class Scalars(NamedTuple):
    """What a state is about, to be seen without opening it; and when time alone changes something."""

    open: int
    oldest_ms: int | None
    next_deadline_ms: int | None
    keys: int
    wake_ms: int


@dataclass(frozen=True)
class Plan:
    """What a call needs to know of the run."""

    run_id: str
    has_disorder: bool
    # None of a table that still grows.
    trace_end_us: int | None
    # All of the trace comes in one batch: nothing follows what a call is given.
    is_one_batch: bool = False
    is_followed: bool = False


class Rules(ABC, Generic[State, Rows]):
    """Rows are in order of time; a state is used up by the step that it is given to."""

    plan: Plan
    # Whether the group of no key is called again when nothing but time has passed.
    needs_clock_timer: ClassVar[bool] = False

    @abstractmethod
    def input_columns(self, names: Sequence[str]) -> list[str]:
        """What is read of events with these columns."""

    @abstractmethod
    def split_by_group(self, events: pa.Table) -> Iterator[InputChunk]: ...

    @abstractmethod
    def decode_rows(self, values: Sequence[bytes]) -> Rows:
        """Shares of one group, and rows that have waited, together and in order."""

    @abstractmethod
    def encode_rows(self, rows: Rows) -> bytes:
        """Rows that have to wait, as a value."""

    @abstractmethod
    def times_us(self, rows: Rows) -> npt.NDArray[np.int64]: ...

    @abstractmethod
    def select(self, rows: Rows, which: npt.NDArray[np.bool_]) -> Rows: ...

    @abstractmethod
    def decode_state(self, value: bytes | None) -> State:
        """A state of this value; the first one of all without."""

    @abstractmethod
    def encode_state(self, state: State) -> bytes: ...

    @abstractmethod
    def scalars(self, state: State) -> Scalars: ...

    @abstractmethod
    def step(self, group: str, state: State, rows: Rows, horizon_ms: int) -> tuple[State, Iterable[OutputChunk]]:
        """Decide everything that is decided by the horizon: no earlier row can come for this group."""

    @abstractmethod
    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[OutputChunk]:
        """What the group of no key says, which is called in every batch."""

    @abstractmethod
    def schema(self, table: str) -> pa.Schema: ...

    @abstractmethod
    def decode_table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        """A table's rows, of its chunks in their order."""


AnyRules = Rules[Any, Any]


# Before the shuffle: events become one value per group and Arrow batch, so that Spark moves few rows.


INPUT_SCHEMA = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The group of no key: its row only tells the time, and how many events there were.
CLOCK = ""
TICK_FORMAT = "<qq"


def input_chunk_function(rules: AnyRules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events in, groups' shares out; one more row tells the batch's latest time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        retain_freed_memory()
        for batch in batches:
            if batch.num_rows:
                events = pa.Table.from_batches([batch])
                now_us = int(events["time_us"].to_numpy().max())
                yield input_batch(
                    [(CLOCK, now_us, struct.pack(TICK_FORMAT, batch.num_rows, now_us)), *rules.split_by_group(events)]
                )

    return run


def input_batch(rows: Iterable[tuple[str, int, bytes]]) -> pa.RecordBatch:
    names, times, payloads = (list(column) for column in zip(*rows, strict=True))
    latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT_SCHEMA)


def decode_ticks(values: Iterable[bytes]) -> tuple[int, int]:
    """How many events a batch had, and when the last of them was."""
    batches = [struct.unpack(TICK_FORMAT, value) for value in values]
    return sum(events for events, _ in batches), max((us for _, us in batches), default=0)

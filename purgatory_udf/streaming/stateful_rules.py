"""The contract between Spark and the rules: values in, values out.

    events ─ shares ─► the shuffle ─► rows ─┐
                                            ├─ step ─► parcels ─ table ─► rows of tables
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
RELAY, LIVE, WAITS = "relay", "live", "waits"


State = TypeVar("State")
Rows = TypeVar("Rows")


class Share(NamedTuple):
    """What a batch brings for a group, as one value; and its latest time."""

    group: str
    time_us: int
    payload: bytes


class Parcel(NamedTuple):
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
    disorder: bool
    # None of a table that still grows.
    trace_end_us: int | None
    # All of the trace comes in one batch: nothing follows what a call is given.
    at_once: bool = False
    follows: bool = False


class Rules(ABC, Generic[State, Rows]):
    """Rows are in order of time; a state is used up by the step that it is given to."""

    plan: Plan
    # Whether the group of no key is called again when nothing but time has passed.
    reckon_time: ClassVar[bool] = False

    @abstractmethod
    def columns(self, names: Sequence[str]) -> list[str]:
        """What is read of events with these columns."""

    @abstractmethod
    def shares(self, events: pa.Table) -> Iterator[Share]: ...

    @abstractmethod
    def rows(self, values: Sequence[bytes]) -> Rows:
        """Shares of one group, and rows that have waited, together and in order."""

    @abstractmethod
    def held(self, rows: Rows) -> bytes:
        """Rows that have to wait, as a value."""

    @abstractmethod
    def times_us(self, rows: Rows) -> npt.NDArray[np.int64]: ...

    @abstractmethod
    def only(self, rows: Rows, which: npt.NDArray[np.bool_]) -> Rows: ...

    @abstractmethod
    def state(self, value: bytes | None) -> State:
        """A state of this value; the first one of all without."""

    @abstractmethod
    def value(self, state: State) -> bytes: ...

    @abstractmethod
    def scalars(self, state: State) -> Scalars: ...

    @abstractmethod
    def step(self, group: str, state: State, rows: Rows, horizon_ms: int) -> tuple[State, Iterable[Parcel]]:
        """Decide everything that is decided by the horizon: no earlier row can come for this group."""

    @abstractmethod
    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[Parcel]:
        """What the group of no key says, which is called in every batch."""

    @abstractmethod
    def schema(self, table: str) -> pa.Schema: ...

    @abstractmethod
    def table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        """A table's rows, of its parcels in their order."""


AnyRules = Rules[Any, Any]


# Before the shuffle: events become one value per group and Arrow batch, so that Spark moves few rows.


PACKED = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The group of no key: its row only tells the time, and how many events there were.
CLOCK = ""
TICK = "<qq"


def packer(rules: AnyRules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events in, groups' shares out; one more row tells the batch's latest time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        retain_freed_memory()
        for batch in batches:
            if batch.num_rows:
                events = pa.Table.from_batches([batch])
                now_us = int(events["time_us"].to_numpy().max())
                yield packed([(CLOCK, now_us, struct.pack(TICK, batch.num_rows, now_us)), *rules.shares(events)])

    return run


def packed(rows: Iterable[tuple[str, int, bytes]]) -> pa.RecordBatch:
    names, times, payloads = (list(column) for column in zip(*rows, strict=True))
    latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def ticks(values: Iterable[bytes]) -> tuple[int, int]:
    """How many events a batch had, and when the last of them was."""
    batches = [struct.unpack(TICK, value) for value in values]
    return sum(events for events, _ in batches), max((us for _, us in batches), default=0)

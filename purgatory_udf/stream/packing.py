"""Before the shuffle: events become one value per group and Arrow batch, so that Spark moves few rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from purgatory_udf.memory import keep_freed
from purgatory_udf.tables import TIMESTAMP

if TYPE_CHECKING:
    from purgatory_udf.stream.rules import AnyRules

PACKED = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The group of no key: its row only tells the time, and how many events there were.
CLOCK = ""
TICK = "<qq"


def packer(rules: AnyRules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events in, groups' shares out; one more row tells the batch's latest time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_freed()
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

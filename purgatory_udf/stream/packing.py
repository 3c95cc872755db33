"""Before the shuffle: events become one value per group of keys and Arrow batch, so that Spark moves few rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from purgatory_udf.config import Config
from purgatory_udf.loop.call import Call
from purgatory_udf.loop.codec import call_bytes
from purgatory_udf.loop.explode import explode
from purgatory_udf.loop.grouping import GroupOf, apart
from purgatory_udf.loop.memory import keep_freed
from purgatory_udf.tables import TIMESTAMP

PACKED = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The group of no key: its row only tells the time, and how many events there were.
CLOCK = ""
TICK = "<qq"


def packer(config: Config, group: GroupOf) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events in, packed groups out; one more row tells the batch's latest time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_freed()
        for batch in batches:
            if batch.num_rows:
                events = pa.Table.from_batches([batch])
                now_us = int(events["time_us"].to_numpy().max())
                yield packed(
                    [
                        (CLOCK, now_us, struct.pack(TICK, batch.num_rows, now_us)),
                        *shares(explode(events, config), group),
                    ]
                )

    return run


def shares(call: Call, group: GroupOf) -> Iterator[tuple[str, int, bytes]]:
    """A call's share for each group: its name, its latest time, and the share as a value."""
    if len(call):
        for name, share in apart(call, group):
            yield name, int(share.events["t"].max()), call_bytes(share)


def packed(rows: Iterable[tuple[str, int, bytes]]) -> pa.RecordBatch:
    names, times, payloads = (list(column) for column in zip(*rows, strict=True))
    latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)

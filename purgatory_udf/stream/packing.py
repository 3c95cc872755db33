"""Before the shuffle: events become one packed value per group and Arrow batch.

Spark's price is per row and per group, not per byte: a micro-batch of a key crosses the shuffle as one row. Its
`event_time` is that of the packed rows' latest event. One more row, of no group, carries the batch's latest time:
events that touch no partition (groups, `clock`) move the watermark too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.explode import ROWS, Exploded, explode
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.config import Config
from purgatory_udf.tables import TIMESTAMP

PACKED = pa.schema([("group", pa.string()), ("event_time", TIMESTAMP), ("payload", pa.binary())])

# The group of no key: its row only tells the time.
CLOCK = ""


def group_of(key: str, config: Config) -> str:
    """A key's group: itself, or the shard that its hash falls in."""
    if config.grouping == "partition":
        return key
    return f"shard-{zlib.crc32(key.encode('utf-8')) % config.grouping_shards}"


def packer(config: Config) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events in, packed groups out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _pack(pa.Table.from_batches([batch]), config)

    return run


def _pack(events: pa.Table, config: Config) -> pa.RecordBatch:
    exploded = explode(events, config)
    names, times, payloads = [CLOCK], [int(events["time_us"].to_numpy().max())], [b""]
    for group, part in _by_group(exploded, config):
        names.append(group)
        times.append(int(part.rows.t.max()))
        payloads.append(encode(part))
    columns = [pa.array(names, pa.string()), _times(times), pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _times(us: list[int]) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)


def _by_group(exploded: Exploded, config: Config) -> Iterator[tuple[str, Exploded]]:
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(exploded.keys):
        groups.setdefault(group_of(name, config), []).append(place)
    rows = exploded.rows
    begin = np.searchsorted(rows.key, np.arange(len(exploded.keys) + 1))
    for group, members in groups.items():
        if len(members) == 1:
            only = members[0]
            mine = rows.take(slice(int(begin[only]), int(begin[only + 1])))
            yield group, Exploded([exploded.keys[only]], mine.with_columns(key=np.zeros(len(mine), dtype=np.int64)))
            continue
        at = np.concatenate([np.arange(begin[key], begin[key + 1]) for key in members])
        number = np.repeat(np.arange(len(members)), [begin[key + 1] - begin[key] for key in members])
        yield group, Exploded([exploded.keys[key] for key in members], rows.take(at).with_columns(key=number))


def encode(part: Exploded) -> bytes:
    """One group's rows as a value."""
    return pack({"keys": Frame({"name": np.array(part.keys, dtype=object)}), "rows": part.rows})


def decode(payload: bytes) -> Exploded:
    frames = unpack(payload)
    return Exploded(list(frames["keys"].name), frames["rows"])


def together(parts: list[Exploded]) -> Exploded:
    """Several values of one group, in the order of their keys, then of their events."""
    parts = [part for part in parts if len(part.rows)]
    if len(parts) == 1:
        return parts[0]
    names: dict[str, int] = {}
    frames = []
    for part in parts:
        number = np.array([names.setdefault(name, len(names)) for name in part.keys], dtype=np.int64)
        frames.append(part.rows.with_columns(key=number[part.rows.key]))
    if not frames:
        return Exploded([], ROWS.empty())
    rows = Frame.concat(frames)
    return Exploded(list(names), rows.take(np.lexsort((rows.sub, rows.seq, rows.t, rows.key))))

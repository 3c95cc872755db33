"""Between the two partition queries: what the calls of many groups handed on, sorted into buckets of operations.

A call hands on one value. Splitting it there and then would cost every call as many small values as there are buckets;
here the values of a whole Arrow batch are put together first, and split once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from purgatory_udf.columnar.pending import Packet, by_bucket, merge

BUCKETED = pa.schema([("bucket", pa.int32()), ("payload", pa.binary())])


# Packets are put together by about so many bytes, packed: enough to be quick, and little memory.
_PORTION_BYTES = 8 << 20


def in_portions(values: list[bytes]) -> Iterator[list[Packet]]:
    """Packets, some megabytes at a time."""
    portion: list[Packet] = []
    size = 0
    for value in values:
        portion.append(Packet.from_bytes(value))
        size += len(value)
        if size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def splitter(buckets: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: values of `keyed` in, values for `settling` by bucket out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packets in in_portions(batch.column("payload").to_pylist()):
                yield split(packets, buckets)

    return run


def split(packets: list[Packet], buckets: int) -> pa.RecordBatch:
    parts = by_bucket(merge(packets), buckets)
    numbers = pa.array(list(parts), pa.int32())
    payloads = pa.array([part.to_bytes() for part in parts.values()], pa.binary())
    return pa.RecordBatch.from_arrays([numbers, payloads], schema=BUCKETED)

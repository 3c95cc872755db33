"""Events of which no more is to be decided, in their order: packed until the moment they are written.

    packed, piece by piece ─► placed, cut at the files' borders ─► (by file) ─► sorted ─► rows

Where the ends of the pieces cannot tell that nothing is late and no `seq` repeats, or one moment has too many events
for a task, `placing` and `verdicts` do the same, row by row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.ingest.columns import FIELDS
from purgatory_udf.ingest.judge import EVENTS_JUDGED, PieceEnd, pack, unpack
from purgatory_udf.ingest.placing import SEQ_PER_FILE, seq_may_repeat, starts
from purgatory_udf.query import functions as sf
from purgatory_udf.query import is_local
from purgatory_udf.tables import EVENTS, TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]

CUT = pa.schema([("place", pa.int32()), ("packed", pa.binary())])
# How much larger than asked a file may get where one millisecond holds so many events: a task sorts a file in memory.
MOST_TIMES_AS_LARGE = 10
# Rows that are handed to Spark at once.
ROWS = 10_000


def may_be_late(ends: Sequence[PieceEnd], max_disorder_ms: int) -> bool:
    """Whether an event could lie too far behind an earlier line of its file, as far as the pieces' ends tell."""
    allowed = max_disorder_ms * 1000
    return any(
        end.events and (end.behind_us > allowed or start.latest_before - end.first_us > allowed)
        for start, end in zip(starts(ends), ends, strict=True)
    )


def borders(ends: Sequence[PieceEnd], per_file: int) -> list[int] | None:
    """The times at which another file begins, each a whole millisecond; None where a file would get too large."""
    times = sorted(time for end in ends for time in end.times)
    count = sum(end.events for end in ends)
    files = max(1, -(-count // per_file))
    cuts = sorted({times[place * len(times) // files] // 1000 * 1000 for place in range(1, files)} - {0})
    edges = [0, *(bisect_left(times, cut) for cut in cuts), len(times)]
    largest = max(after - before for before, after in pairwise(edges)) / max(1, len(times)) * count
    return cuts if largest <= MOST_TIMES_AS_LARGE * max(per_file, ROWS) else None


def nothing_is_left_to_decide(ends: Sequence[PieceEnd], max_disorder_ms: int) -> bool:
    return not may_be_late(ends, max_disorder_ms) and not seq_may_repeat(ends)


def in_order(
    staged: DataFrame, ends: Sequence[PieceEnd], sources: Sequence[str], run_id: str, cuts: Sequence[int]
) -> DataFrame:
    """Rows of the table, each file's in a task of its own, in the order of time."""
    before = {(start.file, start.piece): start.lines_before for start in starts(ends)}
    packed = staged.where("packed IS NOT NULL").select("packed")
    cut = packed.mapInArrow(_cut(before, list(sources), run_id, np.array(cuts, np.int64)), from_arrow_schema(CUT))
    if is_local():
        return cut.mapInArrow(_sorted, from_arrow_schema(EVENTS))
    return cut.repartitionById(len(cuts) + 1, sf.col("place")).mapInArrow(_sorted, from_arrow_schema(EVENTS))


def unpacked(staged: DataFrame) -> DataFrame:
    """The events as rows of Spark's."""

    def work(batches: Batches) -> Batches:
        for batch in batches:
            yield from map(unpack, batch.column("packed").to_pylist())

    return staged.where("packed IS NOT NULL").select("packed").mapInArrow(work, from_arrow_schema(EVENTS_JUDGED))


def _cut(before: Mapping[tuple[int, int], int], sources: list[str], run_id: str, cuts: np.ndarray) -> Work:
    def work(batches: Batches) -> Batches:
        for batch in batches:
            for packed in batch.column("packed").to_pylist():
                events = _placed(unpack(packed), before, sources, run_id)
                place = np.searchsorted(cuts, events.column("time_us").to_numpy(), side="right")
                for one in np.unique(place).tolist():
                    own = events if (place == one).all() else events.filter(pa.array(place == one))
                    yield pa.RecordBatch.from_pylist([{"place": one, "packed": pack(own)}], schema=CUT)

    return work


def _placed(
    events: pa.RecordBatch, before: Mapping[tuple[int, int], int], sources: list[str], run_id: str
) -> pa.RecordBatch:
    """Rows of the table, of one piece's events."""
    file, count = events.column("file")[0].as_py(), events.num_rows
    line = pc.add(events.column("line"), before[file, events.column("piece")[0].as_py()])
    own = {name: events.column(name) for name in FIELDS.names}
    own["seq"] = pc.coalesce(own["seq"], pc.add(line, file * SEQ_PER_FILE))
    own["event_time"] = own["time_us"].cast(pa.timestamp("us")).cast(TIMESTAMP)
    own["run_id"] = pa.repeat(pa.scalar(run_id), count)
    own["source"] = pa.repeat(pa.scalar(sources[file]), count)
    own["line"] = line
    return pa.RecordBatch.from_arrays([own[name] for name in EVENTS.names], schema=EVENTS)


def _sorted(batches: Batches) -> Batches:
    together = [unpack(packed) for batch in batches for packed in batch.column("packed").to_pylist()]
    if together:
        events = pa.Table.from_batches(together).combine_chunks()
        order = pc.sort_indices(events.select(["time_us", "seq"]), [("time_us", "ascending"), ("seq", "ascending")])
        yield from events.take(order).to_batches(max_chunksize=ROWS)

"""Sorts the events of the pieces by time and cuts them into files. They stay serialized until they are written.

    serialized, by piece ─► cut at the borders of files ─► (by file) ─► sorted ─► rows

This works if the totals of the pieces rule out late events and repeated `seq`, and no moment has too many events for
one task. Otherwise, `rejected_lines` finds late and repeated events: Spark compares rows, and this process serialized
events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset, LocalDataset, Part
from purgatory_udf.backend.spark_dataset import SparkDataset
from purgatory_udf.contract.tables import EVENTS, TIMESTAMP
from purgatory_udf.sources.trace_files.piece_validation import (
    SEQ_PER_FILE,
    VALIDATED_EVENTS,
    Batches,
    PieceTotals,
    Work,
    pack,
    packed_events,
    piece_buffers,
    piece_starts,
    seq_may_repeat,
    seq_of,
    unpack,
)
from purgatory_udf.sources.trace_files.rejected_lines import RefusedEvents
from purgatory_udf.sources.trace_files.typed_columns import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_file_lines(rows: DataFrame, totals: Sequence[PieceTotals], sources: Sequence[str]) -> DataFrame:
    """Return the rows with `source`, and with `line` and `latest` counted from the start of the file.

    Args:
        rows: VALIDATED rows, in which `line` and `latest` count from the start of the piece.
        totals: Totals of the pieces, in input order.
        sources: Names of the files, by their index.
    """
    from pyspark.sql import functions as sf

    placed_starts = [
        (start.file, start.piece, start.lines_before, start.latest_before, sources[start.file])
        for start in piece_starts(totals)
    ]
    before = rows.sparkSession.createDataFrame(
        placed_starts, "file INT, piece INT, lines_before BIGINT, latest_before BIGINT, source STRING"
    )
    line = sf.col("line") + sf.col("lines_before")
    latest = sf.greatest("latest", "latest_before")
    placed = rows.join(sf.broadcast(before), ["file", "piece"]).withColumns({"line": line, "latest": latest})
    return placed.drop("lines_before", "latest_before")


def assign_seq(placed: DataFrame) -> DataFrame:
    """Assign `seq` by input order to events without one. The column `own_seq` shows whether an event had one."""
    from pyspark.sql import functions as sf

    input_place = sf.col("file").cast("long") * SEQ_PER_FILE + sf.col("line")
    return placed.withColumns({"own_seq": sf.col("seq").isNotNull(), "seq": sf.coalesce("seq", input_place)})


CUT = pa.schema([("place", pa.int32()), ("packed", pa.binary())])
# Limit of a file relative to the requested size, because a task sorts it in memory; a millisecond is never split.
MAX_FILE_RATIO = 10
# Most rows of a record batch for Spark.
ROWS = 10_000
# Later than any event.
NEVER = 2**63 - 1


def may_be_late(totals: Sequence[PieceTotals], max_disorder_ms: int) -> bool:
    """Return whether some event may be later than allowed, judging by the totals of the pieces.

    An event is late if its time is more than `max_disorder_ms` before that of an earlier line of its file.
    """
    allowed = max_disorder_ms * 1000
    return any(
        piece.events and (piece.behind_us > allowed or start.latest_before - piece.first_us > allowed)
        for start, piece in zip(piece_starts(totals), totals, strict=True)
    )


def file_start_times(totals: Sequence[PieceTotals], per_file: int) -> list[int] | None:
    """Return the start times of files after the first, in whole milliseconds; None if a file would be too large.

    `per_file` is the number of events that a file should have. Times are cut by the samples in `totals`.
    """
    times = sorted(time for piece in totals for time in piece.times)
    count = sum(piece.events for piece in totals)
    files = max(1, -(-count // per_file))
    cuts = sorted({times[place * len(times) // files] // 1000 * 1000 for place in range(1, files)} - {0})
    edges = [0, *(bisect_left(times, cut) for cut in cuts), len(times)]
    largest = max(after - before for before, after in pairwise(edges)) / max(1, len(times)) * count
    return cuts if largest <= MAX_FILE_RATIO * max(per_file, ROWS) else None


def totals_suffice(totals: Sequence[PieceTotals], max_disorder_ms: int) -> bool:
    """Return whether the totals of the pieces rule out late events and repeated `seq`.

    If so, no event has to be checked individually.
    """
    return not may_be_late(totals, max_disorder_ms) and not seq_may_repeat(totals)


def in_order(
    staged: SparkDataset, totals: Sequence[PieceTotals], sources: Sequence[str], run_id: str, cuts: Sequence[int]
) -> DataFrame:
    """Return the rows of the table in time order, one task per file.

    Args:
        staged: VALIDATED rows.
        totals: Totals of the pieces, in input order.
        sources: Names of the files, by their index.
        run_id: Name of the import.
        cuts: Start times of the files after the first, as `file_start_times` returns them.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.types import from_arrow_schema

    work = _cut(_RowPlacement.of(totals, sources, run_id), np.array(cuts, np.int64))
    cut = packed_events(staged).map(work, CUT)
    assert isinstance(cut, SparkDataset)
    return cut.frame.repartitionById(len(cuts) + 1, sf.col("place")).mapInArrow(_sorted, from_arrow_schema(EVENTS))


def parts_in_order(
    staged: Dataset,
    totals: Sequence[PieceTotals],
    sources: Sequence[str],
    run_id: str,
    cuts: Sequence[int],
    refused: RefusedEvents | None = None,
) -> list[Callable[[], pa.Table]]:
    """Return for each file a function that makes its rows in this process.

    Args:
        staged: VALIDATED rows.
        totals: Totals of the pieces, in input order.
        sources: Names of the files, by their index.
        run_id: Name of the import.
        cuts: Start times of the files after the first, as `file_start_times` returns them.
        refused: Events to omit, if any.
    """
    packed = packed_events(staged)
    assert isinstance(packed, LocalDataset)
    spans = [(read, *span) for read in packed.readers() if (span := _span(piece_buffers(read))) is not None]
    placement = _RowPlacement.of(totals, sources, run_id)
    parts: list[Callable[[], pa.Table]] = []
    for begin, end in pairwise([0, *cuts, NEVER]):
        overlapping = [read for read, first, last in spans if first < end and last >= begin]
        parts.append(partial(_part, overlapping, begin, end, placement, refused))
    return parts


def _span(packed: Iterable[pa.Buffer]) -> tuple[int, int] | None:
    """Return the least and the greatest `time_us` of serialized events (see `pack`); None without events."""
    only = pa.ipc.IpcReadOptions(included_fields=[VALIDATED_EVENTS.get_field_index("time_us")])
    spans = []
    for buffer in packed:
        with pa.ipc.open_stream(buffer, options=only) as reader:
            spans.append(pc.min_max(reader.read_next_batch().column(0)))
    if not spans:
        return None
    return min(span["min"].as_py() for span in spans), max(span["max"].as_py() for span in spans)


def _part(
    readers: Iterable[Part], begin: int, end: int, placement: _RowPlacement, refused: RefusedEvents | None
) -> pa.Table:
    """Return the rows of one file of `events` in time order: the events with `begin` <= `time_us` < `end`."""
    batches = []
    for piece in chain.from_iterable(map(piece_buffers, readers)):
        events = unpack(piece)
        times = events.column("time_us").to_numpy()
        within = (times >= begin) & (times < end)
        if refused is not None:
            within &= ~refused.is_refused(events.column("file")[0].as_py(), placement.lines(events).to_numpy())
        if within.any():
            batches.append(placement.placed(events if within.all() else events.filter(pa.array(within))))
    return _in_order(batches)


def unpack_events(staged: SparkDataset) -> DataFrame:
    """Deserialize the events in VALIDATED rows to a DataFrame with the schema VALIDATED_EVENTS."""

    def work(batches: Batches) -> Batches:
        for batch in batches:
            yield from map(unpack, batch.column("packed").to_pylist())

    rows = packed_events(staged).map(work, VALIDATED_EVENTS)
    assert isinstance(rows, SparkDataset)
    return rows.frame


def _cut(placement: _RowPlacement, cuts: np.ndarray) -> Work:
    def work(batches: Batches) -> Batches:
        for batch in batches:
            for packed in batch.column("packed").to_pylist():
                events = placement.placed(unpack(packed))
                place = np.searchsorted(cuts, events.column("time_us").to_numpy(), side="right")
                for number in np.unique(place).tolist():
                    part = events if (place == number).all() else events.filter(pa.array(place == number))
                    yield pa.RecordBatch.from_pylist([{"place": number, "packed": pack(part)}], schema=CUT)

    return work


@dataclass(frozen=True)
class _RowPlacement:
    """Converts the validated events of pieces to rows of `events`.

    `before` has the number of lines before each piece of a file, by (file, piece); `sources` the names of the files.
    """

    before: Mapping[tuple[int, int], int]
    sources: Sequence[str]
    run_id: str

    @classmethod
    def of(cls, totals: Sequence[PieceTotals], sources: Sequence[str], run_id: str) -> _RowPlacement:
        before = {(start.file, start.piece): start.lines_before for start in piece_starts(totals)}
        return cls(before, list(sources), run_id)

    def lines(self, events: pa.RecordBatch) -> pa.Array:
        """Return the line numbers of the events of one piece, from the start of the file."""
        return pc.add(
            events.column("line"), self.before[events.column("file")[0].as_py(), events.column("piece")[0].as_py()]
        )

    def placed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for the VALIDATED_EVENTS of one piece. An event without `seq` gets one by file and line."""
        file, count = events.column("file")[0].as_py(), events.num_rows
        line = self.lines(events)
        columns = {name: events.column(name) for name in FIELDS.names}
        columns["seq"] = seq_of(columns["seq"], line, file)
        columns["event_time"] = columns["time_us"].cast(pa.timestamp("us")).cast(TIMESTAMP)
        columns["run_id"] = pa.repeat(pa.scalar(self.run_id), count)
        columns["source"] = pa.repeat(pa.scalar(self.sources[file]), count)
        columns["line"] = line
        return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)


def _sorted(batches: Batches) -> Batches:
    batches_of_file = [unpack(packed) for batch in batches for packed in batch.column("packed").to_pylist()]
    if batches_of_file:
        yield from _in_order(batches_of_file).to_batches(max_chunksize=ROWS)


def _in_order(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    events = pa.Table.from_batches(batches, EVENTS).combine_chunks()
    order = pc.sort_indices(events.select(["time_us", "seq"]), [("time_us", "ascending"), ("seq", "ascending")])
    return events.take(order)

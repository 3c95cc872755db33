"""Sorts the events of the pieces by time and cuts them into files. They stay serialized until they are written.

    serialized, by piece ─► cut at the borders of files ─► (by file) ─► sorted ─► rows

This works if the totals of the pieces rule out late events and repeated `seq`, and no moment has too many events for
one task. Otherwise, `trace_import` compares the events as rows. Without Spark, late and repeated events are found while
serialized.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset, LocalDataset, Part, SparkDataset
from purgatory_udf.contract.tables import EVENTS, REJECTED_EVENTS, TIMESTAMP
from purgatory_udf.sources.trace_files.piece_validation import VALIDATED_EVENTS, PieceTotals, pack, unpack
from purgatory_udf.sources.trace_files.typed_columns import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]

# Pieces are read in parallel, with line numbers and latest times of their own. Lines and latest time before a piece
# follow from the last rows of the pieces before it in the file:
#
#     piece       lines  latest         lines before it   latest time before it
#     a.jsonl 0     400    12:07                       0      –
#     a.jsonl 1     380    12:05                     400  12:07
#     a.jsonl 2     410    12:31                     780  12:07
#     b.jsonl 0     ...                                0      –


# Each file has its own range of `seq`, larger than the number of its lines.
SEQ_PER_FILE = 2**40
END_COLUMNS = [field.name for field in fields(PieceTotals)]


@dataclass(frozen=True, slots=True)
class PieceStart:
    """Number of lines and latest time before a piece in its file."""

    file: int
    piece: int
    lines_before: int
    latest_before: int


def piece_totals(validated: Dataset) -> list[PieceTotals]:
    """Return the totals of the pieces, in input order."""
    rows = validated.where_null("rows", null=False).select(*END_COLUMNS).collect().to_pylist()
    return sorted((PieceTotals(**row) for row in rows), key=lambda piece: (piece.file, piece.piece))


def piece_starts(totals: Sequence[PieceTotals]) -> list[PieceStart]:
    """Return the start of each piece, given the totals of the pieces in input order."""
    found = []
    file = lines = latest = -1
    for piece in totals:
        if piece.file != file:
            file, lines, latest = piece.file, 0, 0
        found.append(PieceStart(piece.file, piece.piece, lines, latest))
        lines, latest = lines + piece.line, max(latest, piece.latest)
    return found


def seq_may_repeat(totals: Sequence[PieceTotals]) -> bool:
    """Return whether two events could have the same `seq`, judging by the totals of the pieces.

    Assigned `seq` are unique. Given `seq` are unique if they increase within each piece and the ranges of the pieces do
    not overlap.
    """
    with_events = [piece for piece in totals if piece.events]
    if not any(piece.given for piece in with_events):
        return False
    if not all(piece.given == piece.events and piece.rising for piece in with_events):
        return True
    ranges = sorted((piece.first_seq, piece.last_seq) for piece in with_events)
    return any(before[1] >= after[0] for before, after in pairwise(ranges))


def rejections(totals: Sequence[PieceTotals], sources: Sequence[str], run_id: str) -> Work:
    """Return the step that turns rejected lines (PLACE) into rows of `rejected_events`.

    Args:
        totals: Totals of the pieces, in input order.
        sources: Names of the files, by their index.
        run_id: Name of the import.
    """
    before = {(start.file, start.piece): start.lines_before for start in piece_starts(totals)}
    names = list(sources)

    def step(batches: Batches) -> Batches:
        for batch in batches:
            files, pieces = batch.column("file").to_pylist(), batch.column("piece").to_pylist()
            lines_before = pa.array([before[place] for place in zip(files, pieces, strict=True)], pa.int64())
            columns = {
                "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
                "raw": batch.column("raw"),
                "reason": batch.column("reason"),
                "source": pa.array([names[file] for file in files], pa.string()),
                "line": pc.add(batch.column("line"), lines_before),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in REJECTED_EVENTS.names], schema=REJECTED_EVENTS)

    return step


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
    cut = _packed(staged).map(work, CUT)
    assert isinstance(cut, SparkDataset)
    return cut.frame.repartitionById(len(cuts) + 1, sf.col("place")).mapInArrow(_sorted, from_arrow_schema(EVENTS))


# Rules by which an import refuses events that are valid on their own.
LATE, DUPLICATE = "late", "duplicate seq"


@dataclass(frozen=True)
class RefusedEvents:
    """The late events and those with a repeated `seq` of an import without Spark, and what remains.

    Attributes:
        by_file: The refused events of each file, in order of lines: an array with the columns of `_REFUSED`.
        pieces: The pieces with refused events, as (file, piece).
        by_rule: Number of refused events by rule, without rules that refuse none.
        taken: Number of other events.
        first_us: Time of the first of these; None if there is none.
        last_us: Time of the last of these.
    """

    by_file: Mapping[int, np.ndarray]
    pieces: frozenset[tuple[int, int]]
    by_rule: Mapping[str, int]
    taken: int
    first_us: int | None
    last_us: int | None

    def rejected(self, max_disorder_ms: int, sources: Sequence[str], run_id: str) -> Work:
        """Return the step that turns the text of lines (TEXTS) into rows of `rejected_events` for refused ones."""

        def step(batches: Batches) -> Batches:
            for batch in batches:
                files, numbers = (batch.column(name).to_numpy() for name in ("file", "line"))
                for file in np.unique(files).tolist():
                    found, places = self._places(file, numbers)
                    found &= files == file
                    refused = self.by_file.get(file, _NONE)[places[found]]
                    columns = {
                        "run_id": pa.repeat(pa.scalar(run_id), len(refused)),
                        "raw": batch.column("text").filter(pa.array(found)),
                        "reason": pa.array([_reason(row, max_disorder_ms, sources) for row in refused], pa.string()),
                        "source": pa.repeat(pa.scalar(sources[file]), len(refused)),
                        "line": pa.array(refused["line"]),
                    }
                    rows = [columns[name] for name in REJECTED_EVENTS.names]
                    yield pa.RecordBatch.from_arrays(rows, schema=REJECTED_EVENTS)

        return step

    def is_refused(self, file: int, lines: np.ndarray) -> np.ndarray:
        """Return a mask of the lines of a file, as numbers from its start, that are refused."""
        return self._places(file, lines)[0]

    def _places(self, file: int, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the lines are refused, and their places in `by_file`."""
        refused = self.by_file.get(file, _NONE)["line"]
        places = np.searchsorted(refused, lines)
        found = places < len(refused)
        found[found] = refused[places[found]] == lines[found]
        return found, places


# A refused event. A late one has its time in `value` and the latest time before it in `other`. One that repeats a `seq`
# has that `seq` in `value`, and the event that has it first in `first_file` and `other`, its line.
_REFUSED = np.dtype(
    [
        ("line", np.int64),
        ("late", np.bool_),
        ("value", np.int64),
        ("other", np.int64),
        ("first_file", np.int32),
        ("given", np.bool_),
    ]
)
_NONE = np.empty(0, _REFUSED)
# An event that is not late.
_PUNCTUAL = np.dtype(
    [("seq", np.int64), ("file", np.int32), ("piece", np.int32), ("line", np.int64), ("us", np.int64), ("given", "?")]
)


def _reason(refused: np.void, max_disorder_ms: int, sources: Sequence[str]) -> str:
    value, other = int(refused["value"]), int(refused["other"])
    if not refused["late"]:
        origin = "" if refused["given"] else " (this line has no seq; its place in the input is used)"
        return f"seq: {value}: already used at {sources[refused['first_file']]}:{other}{origin}"
    return (
        f"late: time_us {value} is {other - value} us behind {other}, the greatest before it in the file "
        f"(max_disorder_ms is {max_disorder_ms})"
    )


def refused_events(staged: Dataset, totals: Sequence[PieceTotals], max_disorder_ms: int) -> RefusedEvents:
    """Return the events that are late, and of the others those with the `seq` of an earlier event in input order.

    Args:
        staged: VALIDATED rows, in this process.
        totals: Totals of the pieces, in input order.
        max_disorder_ms: Maximum out-of-orderness, in milliseconds. An event that is more behind an earlier line of its
            file is late.
    """
    packed = _packed(staged)
    assert isinstance(packed, LocalDataset)
    starts = {(start.file, start.piece): start for start in piece_starts(totals)}
    may_repeat = seq_may_repeat(totals)
    refused: dict[int, list[np.ndarray]] = {}
    pieces, taken, late, spans, punctual = set(), 0, 0, [], []
    for buffer in chain.from_iterable(map(_buffers, packed.readers())):
        events = unpack(buffer)
        start = starts[events.column("file")[0].as_py(), events.column("piece")[0].as_py()]
        times, lines = events.column("time_us").to_numpy(), events.column("line").to_numpy() + start.lines_before
        latest = np.maximum(events.column("latest").to_numpy(), start.latest_before)
        is_late = latest - times > max_disorder_ms * 1000
        if count := int(is_late.sum()):
            of_piece = np.zeros(count, _REFUSED)
            of_piece["line"], of_piece["late"] = lines[is_late], True
            of_piece["value"], of_piece["other"] = times[is_late], latest[is_late]
            refused.setdefault(start.file, []).append(of_piece)
            pieces.add((start.file, start.piece))
            late += count
        if may_repeat:
            rows = np.zeros(len(times) - count, _PUNCTUAL)
            given = events.column("seq")
            rows["seq"] = _seq(given, lines, start.file).to_numpy()[~is_late]
            rows["file"], rows["piece"], rows["line"] = start.file, start.piece, lines[~is_late]
            rows["us"], rows["given"] = times[~is_late], given.is_valid().to_numpy(zero_copy_only=False)[~is_late]
            punctual.append(rows)
        elif not is_late.all():
            taken += len(times) - count
            spans.append((int(times[~is_late].min()), int(times[~is_late].max())))
    repeated = 0
    if punctual and len(rows := np.concatenate(punctual)):
        places, first = _repeated(rows)
        repeated, others = len(places), np.delete(rows["us"], places)
        taken = len(others)
        # The first event of a `seq` is never refused.
        spans = [(int(others.min()), int(others.max()))]
        again = rows[places]
        pieces.update(set(zip(again["file"].tolist(), again["piece"].tolist(), strict=True)))
        for file in np.unique(again["file"]).tolist():
            of_file = again["file"] == file
            columns = np.zeros(int(of_file.sum()), _REFUSED)
            columns["line"], columns["value"], columns["given"] = (
                again[name][of_file] for name in ("line", "seq", "given")
            )
            columns["first_file"], columns["other"] = (rows[name][first[of_file]] for name in ("file", "line"))
            refused.setdefault(file, []).append(columns)
    counts = {LATE: late, DUPLICATE: repeated}
    return RefusedEvents(
        {file: np.sort(np.concatenate(parts), order="line") for file, parts in refused.items()},
        frozenset(pieces),
        {rule: number for rule, number in counts.items() if number},
        taken,
        min((first for first, _ in spans), default=None),
        max((last for _, last in spans), default=None),
    )


def _repeated(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the events with the `seq` of an earlier line, and those of the first event of each `seq`."""
    order = np.lexsort((events["line"], events["file"], events["seq"]))
    seq = events["seq"][order]
    is_first = np.append(True, seq[1:] != seq[:-1])
    first = order[np.maximum.accumulate(np.where(is_first, np.arange(len(seq)), 0))]
    return order[~is_first], first[~is_first]


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
    packed = _packed(staged)
    assert isinstance(packed, LocalDataset)
    spans = [(read, *span) for read in packed.readers() if (span := _span(_buffers(read))) is not None]
    placement = _RowPlacement.of(totals, sources, run_id)
    parts: list[Callable[[], pa.Table]] = []
    for begin, end in pairwise([0, *cuts, NEVER]):
        overlapping = [read for read, first, last in spans if first < end and last >= begin]
        parts.append(partial(_part, overlapping, begin, end, placement, refused))
    return parts


def _buffers(read: Part) -> Iterator[pa.Buffer]:
    for batch in read():
        for packed in batch.column("packed"):
            yield packed.as_buffer()


def _packed(staged: Dataset) -> Dataset:
    return staged.where_null("packed", null=False).select("packed")


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
    for piece in chain.from_iterable(map(_buffers, readers)):
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

    rows = _packed(staged).map(work, VALIDATED_EVENTS)
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
        columns["seq"] = _seq(columns["seq"], line, file)
        columns["event_time"] = columns["time_us"].cast(pa.timestamp("us")).cast(TIMESTAMP)
        columns["run_id"] = pa.repeat(pa.scalar(self.run_id), count)
        columns["source"] = pa.repeat(pa.scalar(self.sources[file]), count)
        columns["line"] = line
        return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)


def _seq(given: pa.Array, lines: Any, file: int) -> pa.Array:
    """Return `seq` of the events on lines of a file: the given one, or one by file and line."""
    return pc.coalesce(given, pc.add(pa.array(lines), file * SEQ_PER_FILE))


def _sorted(batches: Batches) -> Batches:
    batches_of_file = [unpack(packed) for batch in batches for packed in batch.column("packed").to_pylist()]
    if batches_of_file:
        yield from _in_order(batches_of_file).to_batches(max_chunksize=ROWS)


def _in_order(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    events = pa.Table.from_batches(batches, EVENTS).combine_chunks()
    order = pc.sort_indices(events.select(["time_us", "seq"]), [("time_us", "ascending"), ("seq", "ascending")])
    return events.take(order)

"""Validates the lines of a piece: yields rows of serialized events, a row for each rejected line, and a row of totals.

Pieces are read in parallel, so `line` counts within the piece, and `latest` is the greatest time before the line in the
piece. The totals of the pieces are sufficient to combine the pieces without reading them again.

Events stay serialized as Arrow until they are written, because one Spark row per event would cost more than the whole
validation.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset, Part
from purgatory_udf.contract import Rejection
from purgatory_udf.sources.trace_files.text_lines import Chunk, Piece
from purgatory_udf.sources.trace_files.typed_columns import FIELDS, decode_lines

PLACE = pa.schema(
    [
        ("file", pa.int32()),
        ("piece", pa.int32()),
        ("line", pa.int64()),
        ("latest", pa.int64()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)
END = pa.schema(
    [
        ("rows", pa.int64()),
        ("events", pa.int64()),
        ("given", pa.int64()),
        ("rising", pa.bool_()),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("first_us", pa.int64()),
        ("behind_us", pa.int64()),
        ("by_rule", pa.string()),
        ("times", pa.list_(pa.int64())),
    ]
)
# `packed`: a batch of VALIDATED_EVENTS.
VALIDATED = pa.schema([*PLACE, *END, ("packed", pa.binary())])
VALIDATED_EVENTS = pa.schema([*(PLACE.field(name) for name in ("file", "piece", "line", "latest")), *FIELDS])

# The totals of a piece have the time of one in this number of events.
SAMPLE_INTERVAL = 256
_LIGHT = pa.ipc.IpcWriteOptions(compression="lz4")

Read = Callable[[Any], dict[str, Any] | None]
Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]


@dataclass(slots=True)
class PieceTotals:
    """Totals of a piece of an input file. Times are microseconds since the epoch.

    Attributes:
        line: Number of lines.
        latest: Greatest time of an event, 0 without events.
        rows: Number of lines that are not blank.
        events: Number of events.
        given: Number of events with a `seq`.
        rising: Whether the given `seq` increase from line to line, from `first_seq` to `last_seq`.
        first_us: Least time of an event, 0 without events.
        behind_us: How far events go back in time: the most by which one is before an earlier line, in microseconds.
        by_rule: Rejected lines by rule, as JSON.
        times: A sample of the events' times, one for every `SAMPLE_INTERVAL` events.
    """

    file: int
    piece: int
    line: int = 0
    latest: int = 0
    rows: int = 0
    events: int = 0
    given: int = 0
    rising: bool = True
    first_seq: int = 0
    last_seq: int = 0
    first_us: int = 0
    behind_us: int = 0
    by_rule: str = "{}"
    times: list[int] = field(default_factory=list)

    def count(
        self, times: np.ndarray, latest: np.ndarray, seqs: np.ndarray, sample_interval: int = SAMPLE_INTERVAL
    ) -> None:
        """Add events to the totals, in the order of their lines.

        Args:
            times: Time of each event, in epoch microseconds.
            latest: Greatest time before each event in the piece.
            seqs: The given `seq`, of the events that have one.
            sample_interval: Interval of the sampled times.
        """
        self.times += np.sort(times)[::sample_interval].tolist()
        self.first_us = min([int(times.min()), *([self.first_us] if self.events else [])])
        self.behind_us = max(self.behind_us, int((latest - times).max()))
        self.latest = max(self.latest, int(times.max()))
        self.events += len(times)
        if len(seqs):
            after = seqs[0] > self.last_seq if self.given else True
            self.rising = bool(self.rising and after and (np.diff(seqs) > 0).all())
            self.first_seq = self.first_seq if self.given else int(seqs[0])
            self.last_seq = int(seqs[-1])
            self.given += len(seqs)

    def batch(self, rules: Counter[str]) -> pa.RecordBatch:
        values = {name: getattr(self, name) for name in self.__slots__}
        return pa.RecordBatch.from_pylist([{**values, "by_rule": json.dumps(rules)}], schema=VALIDATED)


def validate_piece(
    piece: Piece,
    chunks: Iterable[Chunk],
    read: Read,
    as_text: Callable[[Any], str],
    as_line: Callable[[Any], bytes] | None = None,
    sample_interval: int = SAMPLE_INTERVAL,
    required: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Validate the items of a piece, and yield VALIDATED rows.

    Args:
        piece: The piece.
        chunks: Its items.
        read: Returns the event of an item, or None if it is blank. Raises `Rejection`.
        as_text: Returns the raw text of an item.
        as_line: Returns an item as a line of JSON. Most lines are decoded in bulk; `read` gets the others.
        sample_interval: Interval of the sampled times.
        required: Fields without a default, although their event type has one.
    """
    totals = PieceTotals(piece.file, piece.index)
    rules: Counter[str] = Counter()
    for chunk in chunks:
        with _no_garbage_collection():
            events, rejected = _validate_chunk(chunk, read, as_line, required)
            line = totals.line
            latest = _add(totals, events, sample_interval)
            rows = [
                {
                    "file": piece.file,
                    "piece": piece.index,
                    "line": line + number + 1,
                    "latest": latest(number),
                    "rule": rejection.rule,
                    "reason": rejection.reason,
                    "raw": as_text(chunk.items[number]),
                }
                for number, rejection in rejected
            ]
            packed = pack(_placed(events, piece, line)) if events.numbers.size else None
        rules.update(rejection.rule for _, rejection in rejected)
        totals.line += len(chunk.items)
        totals.rows += len(rejected) + events.numbers.size
        if packed is not None:
            rows.append({"file": piece.file, "piece": piece.index, "packed": packed})
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=VALIDATED)
    yield totals.batch(rules)


@dataclass(slots=True)
class _Events:
    """The events among the items of a chunk, as rows (FIELDS) in any order.

    `numbers` has the item of each row. `_add` sets `latest`, the greatest time before each event.
    """

    rows: pa.Table
    numbers: np.ndarray
    latest: np.ndarray


def _validate_chunk(
    chunk: Chunk, read: Read, as_line: Callable[[Any], bytes] | None, required: Collection[str]
) -> tuple[_Events, list[tuple[int, Rejection]]]:
    """Return the events of a chunk, and (number, rejection) of its rejected items, in order."""
    last = len(chunk.items) - 1 if chunk.broken else len(chunk.items)
    batches: list[pa.RecordBatch] = []
    numbers: list[np.ndarray] = []
    left: Sequence[int] = range(last)
    if as_line is not None:
        items = [b"" if number in chunk.cut else as_line(chunk.items[number]) for number in left]
        batches, numbers, left = decode_lines(items, required)
    rejected: list[tuple[int, Rejection]] = []
    others: list[dict[str, Any]] = []
    kept: list[int] = []
    for number in left:
        try:
            if number in chunk.cut:
                raise chunk.cut[number]
            event = read(chunk.items[number])
        except Rejection as rejection:
            rejected.append((number, rejection))
        else:
            if event is not None:
                others.append(event)
                kept.append(number)
    if chunk.broken:
        rejected.append((last, chunk.broken))
    if others:
        arrays = [pa.array([event.get(column.name) for event in others], column.type) for column in FIELDS]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=FIELDS))
        numbers.append(np.array(kept))
    together = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    return _Events(pa.Table.from_batches(batches, FIELDS), together, together), rejected


def _add(totals: PieceTotals, events: _Events, sample_interval: int) -> Callable[[int], int]:
    """Add events to the totals, and return a function from an item's number to the greatest time before the item."""
    before = totals.latest
    if not events.numbers.size:
        return lambda _: before
    order = np.argsort(events.numbers)
    times = events.rows["time_us"].to_numpy()[order]
    greatest = np.maximum.accumulate(np.concatenate([[before], times]))
    events.latest = np.empty_like(times)
    events.latest[order] = greatest[:-1]
    seqs = events.rows["seq"]
    given = seqs.is_valid().to_numpy()[order]
    totals.count(times, greatest[:-1], seqs.fill_null(0).to_numpy()[order][given], sample_interval)
    numbers = events.numbers[order]
    return lambda number: int(greatest[np.searchsorted(numbers, number)])


def _placed(events: _Events, piece: Piece, line: int) -> pa.RecordBatch:
    """Return the events with their place as VALIDATED_EVENTS; `line` is the number of lines before the chunk."""
    count = events.numbers.size
    place = [
        pa.repeat(pa.scalar(piece.file, pa.int32()), count),
        pa.repeat(pa.scalar(piece.index, pa.int32()), count),
        pa.array(events.numbers + (line + 1), pa.int64()),
        pa.array(events.latest, pa.int64()),
    ]
    (rows,) = events.rows.combine_chunks().to_batches()
    return pa.RecordBatch.from_arrays([*place, *rows.columns], schema=VALIDATED_EVENTS)


def pack(batch: pa.RecordBatch) -> bytes:
    """Serialize a batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_LIGHT) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def unpack(packed: bytes | pa.Buffer) -> pa.RecordBatch:
    """Return the batch that `pack` serialized."""
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()


def piece_buffers(read: Part) -> Iterator[pa.Buffer]:
    """Yield the serialized events of a part of `packed_events`."""
    for batch in read():
        for packed in batch.column("packed"):
            yield packed.as_buffer()


def packed_events(staged: Dataset) -> Dataset:
    """Return the serialized events in VALIDATED rows, as rows with the column `packed`."""
    return staged.where_null("packed", null=False).select("packed")


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


def seq_of(given: pa.Array, lines: Any, file: int) -> pa.Array:
    """Return `seq` of the events on lines of a file: the given one, or one by file and line."""
    return pc.coalesce(given, pc.add(pa.array(lines), file * SEQ_PER_FILE))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the `with` block.

    Reading creates many small objects without cycles, and is a quarter faster this way.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

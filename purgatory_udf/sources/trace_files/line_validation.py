"""Pieces in, judged rows out: the events of some lines packed together, one row a rejected line, one at a piece's end.

A line's place is told within its piece, because a task knows no other: `line` counts in the piece, and `latest` is the
greatest time before the line, in the piece. The last row of a piece (`rows` is not null there, and only there) tells of
the whole piece what is needed to put the pieces together without reading them again.

Events stay packed as Arrow until they are written: a row of Spark's for each would cost more than all that is done
here.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.contract import Rejection
from purgatory_udf.sources.trace_files.text_lines import Chunk, Piece
from purgatory_udf.sources.trace_files.typed_columns import FIELDS, take

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
# `packed`: a batch of EVENTS_JUDGED.
JUDGED = pa.schema([*PLACE, *END, ("packed", pa.binary())])
EVENTS_JUDGED = pa.schema([*(PLACE.field(name) for name in ("file", "piece", "line", "latest")), *FIELDS])

# Of how many events a piece's end tells the time of one.
EACH = 256
_LIGHT = pa.ipc.IpcWriteOptions(compression="lz4")

Read = Callable[[Any], dict[str, Any] | None]


@dataclass(slots=True)
class PieceEnd:
    """What a piece has come to: `line` lines, `rows` of them not blank, `events` of these events, `given` with a `seq`.

    `latest` is the greatest time and `first_us` the least (0: none); `behind_us`: how far an event lies behind the
    greatest time before it, at most; `rising`: each given `seq` is greater than the one before it, from `first_seq` to
    `last_seq`; `by_rule`: rejected lines (JSON); `times`: of one event in `EACH`.
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

    def count(self, times: np.ndarray, latest: np.ndarray, seqs: np.ndarray, each: int = EACH) -> None:
        """More events, in the order of their lines; `seqs` are the given ones."""
        self.times += np.sort(times)[::each].tolist()
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
        return pa.RecordBatch.from_pylist([{**values, "by_rule": json.dumps(rules)}], schema=JUDGED)


def judged(
    piece: Piece,
    chunks: Iterable[Chunk],
    read: Read,
    as_text: Callable[[Any], str],
    lines: bool = False,
    each: int = EACH,
) -> Iterator[pa.RecordBatch]:
    """`read` makes an event of an item, None of a blank one; `as_text` is its raw text. The items may be `lines` of
    JSON: then most are taken many at once."""
    end = PieceEnd(piece.file, piece.index)
    rules: Counter[str] = Counter()
    for chunk in chunks:
        with _no_garbage_collection():
            events, rejected = _judge(chunk, read, lines)
            line = end.line
            latest = _add(end, events, each)
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
        end.line += len(chunk.items)
        end.rows += len(rejected) + events.numbers.size
        if packed is not None:
            rows.append({"file": piece.file, "piece": piece.index, "packed": packed})
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=JUDGED)
    yield end.batch(rules)


@dataclass(slots=True)
class _Events:
    """Rows (FIELDS) of the items `numbers`, in no order; `latest` of each once they have been added."""

    rows: pa.Table
    numbers: np.ndarray
    latest: np.ndarray


def _judge(chunk: Chunk, read: Read, lines: bool) -> tuple[_Events, list[tuple[int, Rejection]]]:
    """The events of a chunk, and (number, why not) of its other items, in order."""
    last = len(chunk.items) - 1 if chunk.broken else len(chunk.items)
    batches: list[pa.RecordBatch] = []
    numbers: list[np.ndarray] = []
    left: Sequence[int] = range(last)
    if lines:
        batches, numbers, left = take([b"" if number in chunk.cut else chunk.items[number] for number in left])
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


def _add(end: PieceEnd, events: _Events, each: int) -> Callable[[int], int]:
    """Tells what the greatest time was before an item, after the events have been counted."""
    before = end.latest
    if not events.numbers.size:
        return lambda _: before
    order = np.argsort(events.numbers)
    times = events.rows["time_us"].to_numpy()[order]
    greatest = np.maximum.accumulate(np.concatenate([[before], times]))
    events.latest = np.empty_like(times)
    events.latest[order] = greatest[:-1]
    seqs = events.rows["seq"]
    given = seqs.is_valid().to_numpy()[order]
    end.count(times, greatest[:-1], seqs.fill_null(0).to_numpy()[order][given], each)
    numbers = events.numbers[order]
    return lambda number: int(greatest[np.searchsorted(numbers, number)])


def _placed(events: _Events, piece: Piece, line: int) -> pa.RecordBatch:
    """EVENTS_JUDGED of the events."""
    count = events.numbers.size
    place = [
        pa.repeat(pa.scalar(piece.file, pa.int32()), count),
        pa.repeat(pa.scalar(piece.index, pa.int32()), count),
        pa.array(events.numbers + (line + 1), pa.int64()),
        pa.array(events.latest, pa.int64()),
    ]
    (rows,) = events.rows.combine_chunks().to_batches()
    return pa.RecordBatch.from_arrays([*place, *rows.columns], schema=EVENTS_JUDGED)


def pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_LIGHT) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def unpack(packed: bytes | pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Reading makes many small objects and no cycles: looking for cycles costs a quarter of the time and finds none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

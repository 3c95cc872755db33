"""Pieces in, judged rows out: one row an input line, event or rejected, and one at the end of each piece.

A row's place is told within its piece, because a task knows no other: `line` counts in the piece, and `latest` is the
greatest time before the line, in the piece. The last row of a piece (`rows` is not null there, and only there) tells of
the whole piece what is needed to put the pieces together without reading them again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from purgatory_udf.contract import Rejection
from purgatory_udf.ingest.pieces import Chunk, Piece
from purgatory_udf.tables import EVENTS

# What an event's row takes from its place in the input or from the run, not from its own fields.
PLACED = ("run_id", "event_time", "source", "line")
FIELDS = pa.schema([field for field in EVENTS if field.name not in PLACED])

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
    ]
)
JUDGED = pa.schema([*PLACE, *END, *FIELDS])

_NO_EVENT: dict[str, Any] = {}


@dataclass(slots=True)
class PieceEnd:
    """What a piece has come to: `line` lines, `rows` of them not blank, `events` of these events, `given` with a `seq`.

    `latest` is the greatest time (0: none); `rising`: each given `seq` is greater than the one before it, from
    `first_seq` to `last_seq`.
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

    def count(self, event: dict[str, Any]) -> None:
        self.events += 1
        self.latest = max(self.latest, event["time_us"])
        seq = event["seq"]
        if seq is None:
            return
        if not self.given:
            self.first_seq = seq
        elif seq <= self.last_seq:
            self.rising = False
        self.last_seq = seq
        self.given += 1


def judged(
    piece: Piece,
    chunks: Iterable[Chunk],
    read: Callable[[Any], dict[str, Any] | None],
    as_text: Callable[[Any], str],
) -> Iterator[pa.RecordBatch]:
    """A batch for each chunk. `read` makes an event of an item, None of a blank one; `as_text` is its raw text."""
    end = PieceEnd(piece.file, piece.index)
    for chunk in chunks:
        rows = _Rows(piece)
        last = len(chunk.items) if chunk.broken else 0
        with _no_garbage_collection():
            for number, item in enumerate(chunk.items, start=1):
                try:
                    if number == last and chunk.broken:
                        raise chunk.broken
                    event = read(item)
                except Rejection as rejection:
                    rows.add(end.line + number, end.latest, _NO_EVENT, as_text(item), rejection.rule, rejection.reason)
                    continue
                if event is not None:
                    rows.add(end.line + number, end.latest, event, as_text(item))
                    end.count(event)
        end.line += len(chunk.items)
        end.rows += len(rows)
        yield rows.batch()
    yield pa.RecordBatch.from_pylist([asdict(end)], schema=JUDGED)


class _Rows:
    """Rows on their way into a batch."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._lines: list[int] = []
        self._latest: list[int] = []
        self._rules: list[str | None] = []
        self._reasons: list[str | None] = []
        self._raw: list[str | None] = []
        self._events: list[dict[str, Any]] = []

    def add(
        self,
        line: int,
        latest: int,
        event: dict[str, Any],
        raw: str | None = None,
        rule: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._lines.append(line)
        self._latest.append(latest)
        self._rules.append(rule)
        self._reasons.append(reason)
        self._raw.append(raw)
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._lines)

    def batch(self) -> pa.RecordBatch:
        count = len(self._lines)
        place = [
            [self._piece.file] * count,
            [self._piece.index] * count,
            self._lines,
            self._latest,
            self._rules,
            self._reasons,
            self._raw,
            *([None] * count for _ in END),
        ]
        fields = [[event.get(name) for event in self._events] for name in FIELDS.names]
        arrays = [pa.array(values, field.type) for values, field in zip([*place, *fields], JUDGED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=JUDGED)


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

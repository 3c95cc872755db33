"""The input cut into pieces that tasks read side by side, and the items that come out of a piece, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract import Rejection
from purgatory_udf.ingest.inputs import InputFile

# At about 100,000 lines/s a task reads this in a second or two: long against its start, short against a restart.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one file: bytes [start, end) of a plain text, the whole of a compressed one, a row group of Parquet.

    `file` is the file's place in the input, `index` the piece's place in the file.
    """

    file: int
    index: int
    source: InputFile
    start: int
    end: int


@dataclass(slots=True)
class Chunk:
    """Some items of a piece, as many as make a batch; `broken` says why the last one is only what is left of it."""

    items: list[Any]
    broken: Rejection | None = None


def byte_pieces(files: Sequence[InputFile], piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Plain files in stretches of equal length; those that only their beginning can open, whole."""
    for place, file in enumerate(files):
        if file.name.endswith((".gz", ".zst")):
            yield Piece(place, 0, file, 0, file.size)
            continue
        for index, start in enumerate(range(0, file.size, piece_bytes)):
            yield Piece(place, index, file, start, min(start + piece_bytes, file.size))


def in_tasks(pieces: Iterable[Piece], task_bytes: int = PIECE_BYTES) -> list[list[Piece]]:
    """Pieces by task: small ones together, so that ten thousand small files are not ten thousand tasks."""
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        size = piece.end - piece.start
        if not tasks or size > room:
            tasks.append([])
            room = task_bytes
        tasks[-1].append(piece)
        room -= size
    return tasks

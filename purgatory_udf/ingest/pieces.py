"""The input cut into pieces that tasks read side by side, and the items that come out of a piece, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.contract import Rejection
from purgatory_udf.ingest.inputs import CODECS, InputFile

# At about 100,000 lines/s a task reads this in a second or two: long against its start, short against a restart.
PIECE_BYTES = 32 << 20
# Where a task is begun by a fork, little is lost by more of them, and no core waits long for the other.
HERE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What a file may ask of a task's memory and time: a line's length, and how many times its size a packed file may
    unpack to (a small one always to `ALWAYS_UNPACKED`)."""

    line_bytes: int = 16 << 20
    unpacked: int = 200

    def settings(self) -> dict[str, int]:
        """Those that are not the usual ones, by the names that they are set by."""
        named = {"max_line_bytes": self.line_bytes, "max_unpacked": self.unpacked}
        usual = {"max_line_bytes": USUAL.line_bytes, "max_unpacked": USUAL.unpacked}
        return {name: value for name, value in named.items() if value != usual[name]}


ALWAYS_UNPACKED = 1 << 30
USUAL = FileLimits()


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
    limits: FileLimits = USUAL


@dataclass(slots=True)
class Chunk:
    """Some items of a piece, as many as make a batch; `broken` says why the last one is only what is left of it. Of
    items that are too long to be read (`cut`: the number of each, and why) only the beginning is there."""

    items: list[Any]
    broken: Rejection | None = None
    cut: dict[int, Rejection] = field(default_factory=dict)


def byte_pieces(
    files: Sequence[InputFile], piece_bytes: int = PIECE_BYTES, limits: FileLimits = USUAL
) -> Iterator[Piece]:
    """Plain files in stretches of equal length; those that only their beginning can open, whole."""
    for place, file in enumerate(files):
        if file.name.endswith(tuple(CODECS)):
            yield Piece(place, 0, file, 0, file.size, limits)
            continue
        for index, start in enumerate(range(0, file.size, piece_bytes)):
            yield Piece(place, index, file, start, min(start + piece_bytes, file.size), limits)


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

"""The lines of a text file: of a stretch of it, or of a compressed one as far as it can be read."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import Rejection
from purgatory_udf.sources.trace_files.input_files import CODECS, InputFile

# The input cut into pieces that tasks read side by side, and the items that come out of a piece, in order.


# At about 100,000 lines/s a task reads this in a second or two: long against its start, short against a restart.
PIECE_BYTES = 32 << 20


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


# Enough lines for a batch, little enough for any number of tasks on a machine.
BLOCK = 1 << 20
BOM = b"\xef\xbb\xbf"
# How much is kept of a line that is too long.
KEPT = 4096

Read = Callable[[int], bytes]
# What Arrow says of a packed file that breaks off or is damaged, and what Python's own modules say.
_BROKEN = (OSError, EOFError, lzma.LZMAError)


def lines_of(piece: Piece) -> Iterator[Chunk]:
    """The piece's lines without their ends, `\\n` or `\\r\\n`; a byte order mark is no part of one."""
    codec = next((codec for ending, codec in CODECS.items() if piece.source.name.endswith(ending)), None)
    chunks = _compressed(piece, codec) if codec and piece.source.size else _plain(piece)
    for place, chunk in enumerate(chunks):
        if place == 0 and piece.index == 0 and chunk.items:
            chunk.items[0] = chunk.items[0].removeprefix(BOM)
        yield chunk


def _plain(piece: Piece) -> Iterator[Chunk]:
    """A line belongs to the stretch in which it begins, wherever it ends."""
    with _opened(piece) as file:
        at = piece.start
        # One byte back: a line that begins exactly at the start has its predecessor's end there.
        if at > 0:
            file.seek(at - 1)
            skipped = _skip_line(file.read)
            if skipped is None:
                return
            at += skipped - 1
            file.seek(at)
        yield from _until(file.read, piece.end - at, Pending(piece.limits.line_bytes))


def _skip_line(read: Read) -> int | None:
    """How many bytes there are up to and with the next line end; None if the file ends before."""
    passed = 0
    while block := read(BLOCK):
        end = block.find(b"\n")
        if end >= 0:
            return passed + end + 1
        passed += len(block)
    return None


def _until(read: Read, length: int, pending: Pending) -> Iterator[Chunk]:
    """The lines that begin in the next `length` bytes."""
    left = length
    while left > 0:
        block = read(min(BLOCK, left))
        if not block:
            break
        left -= len(block)
        lines = pending.add(block)
        if lines:
            yield pending.chunk(lines)
    # The last line that began in here ends in the next stretch.
    while pending.size:
        block = read(BLOCK)
        end = block.find(b"\n")
        if not block or end >= 0:
            pending.add(block[: max(end, 0)])
            yield pending.chunk(pending.rest())
            return
        pending.add(block)


def _compressed(piece: Piece, codec: str) -> Iterator[Chunk]:
    """All lines as far as the file can be unpacked; then, if it broke off, what was left, with the reason."""
    pending = Pending(piece.limits.line_bytes)
    unpacked = Unpacked(piece, codec)
    while block := unpacked.read():
        lines = pending.add(block)
        if lines:
            yield pending.chunk(lines)
    if unpacked.broken:
        yield Chunk(pending.rest() or [b""], Rejection("broken file", unpacked.broken))
    elif pending.size:
        yield pending.chunk(pending.rest())


class Pending:
    """Blocks in, whole lines out; the beginning of a line waits for its end. Of a line that gets longer than `most`
    only the beginning is kept, and never more than that in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._too_long = False
        self._cut: set[int] = set()
        self.size = 0

    def chunk(self, lines: list[bytes]) -> Chunk:
        """Of the lines that were given last."""
        reason = f"too long: more than {self._most:,} bytes (max_line_bytes)"
        return Chunk(lines, cut={number: Rejection("too long", reason) for number in sorted(self._cut)})

    def add(self, block: bytes) -> list[bytes]:
        head, newline, tail = block.rpartition(b"\n")
        if not newline:
            # Kept in parts: a line of a gigabyte must not be copied at each of its blocks.
            self._keep(tail)
            return []
        lines = self._lines(head)
        self._keep(tail)
        return lines

    def rest(self) -> list[bytes]:
        """The last line, which has no end; nothing if the text ended with one."""
        return self._lines(b"") if self.size else []

    def _lines(self, head: bytes) -> list[bytes]:
        """What was kept and `head`, which ends with the end of a line."""
        if self._too_long:
            _, newline, others = head.partition(b"\n")
            lines = [b"".join(self._parts), *(_split(others) if newline else [])]
        else:
            lines = _split(b"".join([*self._parts, head]))
        cut = {0} if self._too_long else set()
        if self.size + len(head) > self._most:
            cut |= {number for number, line in enumerate(lines) if len(line) > self._most}
            lines = [line[:KEPT] if number in cut else line for number, line in enumerate(lines)]
        self._parts, self.size, self._too_long, self._cut = [], 0, False, cut
        return lines

    def _keep(self, part: bytes) -> None:
        self.size += len(part)
        if part and not self._too_long:
            self._parts.append(part)
            if self.size > self._most:
                self._parts, self._too_long = [b"".join(self._parts)[:KEPT]], True


def _split(text: bytes) -> list[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return text.split(b"\n")


class Unpacked:
    """A compressed file's bytes, to the last one that can be had of a file that is cut off or damaged."""

    def __init__(self, piece: Piece, codec: str) -> None:
        self._piece = piece
        self._codec = codec
        self._stream = self._open()
        self._given = 0
        self._most = max(ALWAYS_UNPACKED, piece.limits.unpacked * piece.source.size)
        self.broken = ""

    def read(self) -> bytes:
        """The next block; empty at the end, and where it broke off: `broken` says which."""
        if self.broken:
            return b""
        try:
            block: bytes = self._stream.read(BLOCK)
        except _BROKEN:
            block = self._to_the_last_byte()
        self._given += len(block)
        if self._given > self._most:
            times = self._piece.limits.unpacked
            self.broken = f"too much {self._codec}: it unpacks to more than {times} times its size (max_unpacked)"
        return block

    def _to_the_last_byte(self) -> bytes:
        """A read that fails loses what it had unpacked before: unpack that again, and take it byte by byte."""
        self._stream = self._open()
        left = self._given
        while left > 0:
            left -= len(self._stream.read(min(left, BLOCK)))
        block = bytearray()
        try:
            while byte := self._stream.read(1):
                block += byte
        except _BROKEN as error:
            cut = isinstance(error, EOFError) or "Truncated" in str(error)
            self.broken = f"truncated {self._codec}: the data breaks off" if cut else f"damaged {self._codec}: {error}"
        return bytes(block)

    def _open(self) -> Any:
        file = _opened(self._piece)
        return lzma.LZMAFile(file) if self._codec == "xz" else pa.CompressedInputStream(file, self._codec)


def _opened(piece: Piece) -> Any:
    try:
        return piece.source.filesystem.open_input_file(piece.source.path)
    except OSError as error:
        raise UserError(f"{piece.source.name}: cannot be read: {str(error).splitlines()[0]}") from None

"""Lines of text files in pieces: of a range of bytes, or of a compressed file up to its first damage."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import read_totals
from purgatory_udf.contract import Rejection
from purgatory_udf.sources.trace_files.input_files import CODECS, InputFile

# At about 100,000 lines/s, a task reads a piece in 1 to 2 s: long compared with its start, short if it is repeated.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of the memory and time that a file may cost.

    Attributes:
        line_bytes: Maximum number of bytes in a line.
        unpacked: Maximum ratio of decompressed to compressed size; `ALWAYS_UNPACKED` bytes are always allowed.
    """

    line_bytes: int = 16 << 20
    unpacked: int = 200

    def settings(self) -> dict[str, int]:
        """Return the limits that differ from the defaults, by the names of their options."""
        named = {"max_line_bytes": self.line_bytes, "max_unpacked": self.unpacked}
        usual = {"max_line_bytes": USUAL.line_bytes, "max_unpacked": USUAL.unpacked}
        return {name: value for name, value in named.items() if value != usual[name]}


ALWAYS_UNPACKED = 1 << 30
USUAL = FileLimits()


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file: bytes [start, end) of plain text, a whole compressed file, or a row group of Parquet.

    `file` is the index of the file in the input, `index` that of the piece in the file.
    """

    file: int
    index: int
    source: InputFile
    start: int
    end: int
    limits: FileLimits = USUAL


@dataclass(slots=True)
class Chunk:
    """Consecutive items of a piece, enough for a batch.

    `broken` is set if the last item is incomplete, and is the reason. `cut` has the reason for each item that cannot be
    read as a whole, by its number: of a line that is too long, only the first bytes are kept, and of a row of Parquet
    with text that is not UTF-8, the readable characters.
    """

    items: Sequence[Any]
    broken: Rejection | None = None
    cut: dict[int, Rejection] = field(default_factory=dict)


def byte_pieces(
    files: Sequence[InputFile], piece_bytes: int = PIECE_BYTES, limits: FileLimits = USUAL
) -> Iterator[Piece]:
    """Yield each plain file in pieces of equal length, and each compressed file as one piece.

    Args:
        files: The files, in input order.
        piece_bytes: Largest length of a piece, in bytes.
        limits: Limits of each file.
    """
    for place, file in enumerate(files):
        if file.name.endswith(tuple(CODECS)):
            yield Piece(place, 0, file, 0, file.size, limits)
            continue
        count = -(-file.size // piece_bytes)
        for index in range(count):
            start, end = file.size * index // count, file.size * (index + 1) // count
            yield Piece(place, index, file, start, end, limits)


def in_tasks(pieces: Iterable[Piece], task_bytes: int = PIECE_BYTES) -> list[list[Piece]]:
    """Group pieces into tasks. Small pieces share a task, so that 10,000 small files do not become 10,000 tasks."""
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


# Bytes read at once: enough lines for a batch, and little memory per task.
BLOCK = 1 << 20
BOM = b"\xef\xbb\xbf"
# Bytes kept of a line that is too long.
KEPT = 4096
# Bytes read at once to find the end of a line.
_LINE_BLOCK = 1 << 16

Read = Callable[[int], bytes]
# Divides the first bytes of a text, as many as given: whole lines, which are separated by `\n`.
Divide = Callable[[bytes, int], Sequence[bytes]]
# Errors of Arrow and Python for a compressed file that is truncated or damaged.
_BROKEN = (OSError, EOFError, lzma.LZMAError)


def _divide(text: bytes, size: int) -> list[bytes]:
    return text[:size].split(b"\n")


def lines_of(piece: Piece, block_bytes: int = BLOCK, divide: Divide = _divide) -> Iterator[Chunk]:
    r"""Yield the lines of a piece without `\n` or `\r\n`, and without a byte order mark.

    Args:
        piece: The piece.
        block_bytes: Size of a block. A chunk has the lines of a block.
        divide: Divides a text into lines.
    """
    codec = next((codec for ending, codec in CODECS.items() if piece.source.name.endswith(ending)), None)
    buffer = LineBuffer(piece.limits.line_bytes, divide)
    chunks = (_compressed if codec and piece.source.size else _plain)(piece, codec or "", block_bytes, buffer)
    for place, chunk in enumerate(chunks):
        read_totals.add(0, len(chunk.items))
        if place == 0 and piece.index == 0 and chunk.items:
            first = chunk.items[0].removeprefix(BOM)
            chunk.items = chunk.items if len(first) == len(chunk.items[0]) else [first, *chunk.items[1:]]
        yield chunk


def _plain(piece: Piece, _: str, block_bytes: int, buffer: LineBuffer) -> Iterator[Chunk]:
    """Yield the lines that start in the piece; the last one may end in a later piece."""
    with open_piece(piece) as file:
        at = piece.start
        # Start one byte earlier, to see whether a line starts exactly at the start of the piece.
        if at > 0:
            file.seek(at - 1)
            skipped = _skip_line(file.read)
            if skipped is None:
                return
            at += skipped - 1
            file.seek(at)
        yield from _until(file.read, piece.end - at, buffer, block_bytes)


def _skip_line(read: Read) -> int | None:
    """Return the number of bytes up to and including the next line end; None if there is no further line end."""
    passed = 0
    while block := read(_LINE_BLOCK):
        end = block.find(b"\n")
        if end >= 0:
            return passed + end + 1
        passed += len(block)
    return None


def _until(read: Read, length: int, buffer: LineBuffer, block_bytes: int) -> Iterator[Chunk]:
    """Yield the lines that start in the next `length` bytes; the last one is read up to its end.

    `read` returns the next bytes of the file, at most the given number; `buffer` divides them into lines.
    """
    left = length
    while left > 0:
        wanted = min(block_bytes, left)
        is_last = wanted == left
        # The end of the last line may be in a later piece. A chunk of it alone would cost as much as a large one.
        block = read(wanted + (_LINE_BLOCK if is_last else 0))
        if not block:
            break
        size = min(len(block), left)
        left -= size
        read_totals.add(size, 0)
        end = block.find(b"\n", size - 1) if is_last else -1
        if is_last and end < 0 and len(block) < wanted + _LINE_BLOCK:
            end = len(block)
        lines = buffer.add(block) if end < 0 else buffer.whole(block, end)
        if lines:
            yield buffer.chunk(lines)
    while buffer.size:
        block = read(BLOCK)
        end = block.find(b"\n")
        if not block or end >= 0:
            buffer.add(block[: max(end, 0)])
            yield buffer.chunk(buffer.rest())
            return
        buffer.add(block)


def _compressed(piece: Piece, codec: str, block_bytes: int, buffer: LineBuffer) -> Iterator[Chunk]:
    """Yield the lines of a compressed file; if it is damaged, the last one is incomplete and has the reason."""
    unpacked = DecompressedFile(piece, codec, block_bytes)
    while block := unpacked.read():
        read_totals.add(len(block), 0)
        lines = buffer.add(block)
        if lines:
            yield buffer.chunk(lines)
    if unpacked.broken:
        yield Chunk(buffer.rest() or [b""], Rejection("broken file", unpacked.broken))
    elif buffer.size:
        yield buffer.chunk(buffer.rest())


class LineBuffer:
    """Buffer that takes blocks and returns whole lines.

    A line longer than `most` bytes is cut; the buffer never holds more of it. `divide` as in `lines_of`.
    """

    def __init__(self, most: int, divide: Divide) -> None:
        self._most = most
        self._divide = divide
        self._parts: list[bytes] = []
        self._too_long = False
        self._cut: set[int] = set()
        self.size = 0

    def chunk(self, lines: Sequence[bytes]) -> Chunk:
        """Return the lines of the last `add` or `rest` as a chunk, in which cut lines are rejected as too long."""
        reason = f"too long: more than {self._most:,} bytes (max_line_bytes)"
        return Chunk(lines, cut={number: Rejection("too long", reason) for number in sorted(self._cut)})

    def add(self, block: bytes) -> Sequence[bytes]:
        """Return the whole lines of the buffer and a block, and keep the rest of the block."""
        end = block.rfind(b"\n")
        if end < 0:
            # A list of blocks: a line of 1 GB must not be copied with each block.
            self._keep(block)
            return []
        lines = self.whole(block, end)
        self._keep(block[end + 1 :])
        return lines

    def rest(self) -> Sequence[bytes]:
        """Return the last line if it has no line end."""
        return self.whole(b"", 0) if self.size else []

    def whole(self, block: bytes, end: int) -> Sequence[bytes]:
        """Return the lines of the buffer and of a block up to `end`, where a line ends."""
        if self._too_long:
            lines: Sequence[bytes]
            _, newline, others = block[:end].partition(b"\n")
            lines = [b"".join(self._parts), *(self._divided(others, len(others)) if newline else [])]
        elif self._parts:
            text = b"".join([*self._parts, memoryview(block)[:end]])
            lines = self._divided(text, len(text))
        else:
            lines = self._divided(block, end)
        cut = {0} if self._too_long else set()
        if self.size + end > self._most:
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

    def _divided(self, text: bytes, size: int) -> Sequence[bytes]:
        if text.find(b"\r", 0, size) >= 0:
            text = text[:size].replace(b"\r\n", b"\n").removesuffix(b"\r")
            size = len(text)
        return self._divide(text, size)


class DecompressedFile:
    """The decompressed bytes of a file. If it is truncated or damaged, they end with the last readable byte."""

    def __init__(self, piece: Piece, codec: str, block_bytes: int = BLOCK) -> None:
        self._piece = piece
        self._codec = codec
        self._block_bytes = block_bytes
        self._stream = self._open()
        self._given = 0
        self._most = max(ALWAYS_UNPACKED, piece.limits.unpacked * piece.source.size)
        self.broken = ""

    def read(self) -> bytes:
        """Return the next block. It is empty at the end of the file and at damage; then `broken` is the reason."""
        if self.broken:
            return b""
        try:
            block: bytes = self._stream.read(self._block_bytes)
        except _BROKEN:
            block = self._to_the_last_byte()
        self._given += len(block)
        if self._given > self._most:
            times = self._piece.limits.unpacked
            self.broken = f"too much {self._codec}: it unpacks to more than {times} times its size (max_unpacked)"
        return block

    def _to_the_last_byte(self) -> bytes:
        """Decompress the last block again byte by byte, because a failed read loses the bytes before the damage."""
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
            self.broken = f"truncated {self._codec}: its end is missing" if cut else f"damaged {self._codec}: {error}"
        return bytes(block)

    def _open(self) -> Any:
        file = open_piece(self._piece)
        return _XzStream(file) if self._codec == "xz" else pa.CompressedInputStream(file, self._codec)


class _XzStream:
    """The decompressed bytes of concatenated xz streams.

    Python's `LZMAFile` ignores everything after a stream that it cannot decompress, so it loses a damaged stream.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor()

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. Raises one of `_BROKEN` if the next byte cannot be read."""
        while True:
            added = b""
            if self._decompressor.eof:
                added = self._next_stream()
                if not added:
                    return b""
                self._decompressor = lzma.LZMADecompressor()
            elif self._decompressor.needs_input:
                added = self._file.read(BLOCK)
                if not added:
                    raise EOFError("the end of the stream is missing")
            if block := self._decompressor.decompress(added, size):
                return block

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream; none at the end. Zeros may separate streams."""
        after: bytes = self._decompressor.unused_data
        while not (start := after.lstrip(b"\0")):
            after = self._file.read(BLOCK)
            if not after:
                return b""
        return start


def open_piece(piece: Piece) -> Any:
    """Open the file of a piece. Raises `UserError` if it cannot be opened."""
    try:
        return piece.source.filesystem.open_input_file(piece.source.path)
    except OSError as error:
        raise UserError(f"{piece.source.name}: cannot be read: {str(error).splitlines()[0]}") from None

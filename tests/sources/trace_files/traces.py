"""Small traces for single tests, and reading them without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from purgatory_udf.contract import as_text, read_line
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.piece_validation import unpack, validate_piece
from purgatory_udf.sources.trace_files.text_lines import BLOCK, Piece, byte_pieces, lines_of

Event = dict[str, Any]
Row = dict[str, Any]

# 2023-11-14 22:13:20 UTC, in microseconds.
START = 1_700_000_000_000_000


def clock(us: int = 0, **fields: Any) -> Event:
    """Return a clock event, the smallest one."""
    return {"time_us": START + us, "type": "clock", **fields}


def high_watermark(us: int, offset: int, **fields: Any) -> Event:
    return {**clock(us), "type": "partition", "topic": "t", "partition": 0, "change": "high_watermark"} | {
        "offset": offset,
        **fields,
    }


def as_lines(events: Iterable[Event]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write(path: Path, content: bytes | Iterable[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else as_lines(content))
    return path


def input_file(path: Path) -> InputFile:
    return InputFile(fs.LocalFileSystem(), str(path), str(path), path.stat().st_size)


def pieces_of(path: Path, piece_bytes: int = 1 << 20) -> list[Piece]:
    return list(byte_pieces([input_file(path)], piece_bytes))


def read_lines(path: Path, piece_bytes: int = 1 << 20, block_bytes: int = BLOCK) -> list[bytes]:
    """Return the lines of every piece, including blank and truncated ones."""
    chunks = chain.from_iterable(lines_of(piece, block_bytes) for piece in pieces_of(path, piece_bytes))
    return [line for chunk in chunks for line in chunk.items]


def validated_rows(path: Path, piece_bytes: int = 1 << 20, fast: bool = True) -> list[Row]:
    """Return the rows of a file after validation: the lines in order, then the end of each piece."""
    return [
        row
        for piece in pieces_of(path, piece_bytes)
        for row in unpacked_rows(validate_piece(piece, lines_of(piece), read_line, as_text, bytes if fast else None))
    ]


def unpacked_rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows of a piece by line with events unpacked, then its end; nulls are left out."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    *lines, end = [row for row in rows if row["packed"] is None]
    lines += [event for row in rows if row["packed"] for event in unpack(row["packed"]).to_pylist()]
    compact = [{name: value for name, value in row.items() if value is not None} for row in (*lines, end)]
    return [*sorted(compact[:-1], key=lambda row: row["line"]), compact[-1]]

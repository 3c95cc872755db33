"""Reads a trace, JSON Lines or Parquet, in pieces that are validated separately. Texts of lines can be read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import as_text, read_line, read_row
from purgatory_udf.sources.trace_files import parquet_files
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, PARQUET, InputFile, find_files
from purgatory_udf.sources.trace_files.line_validation import SAMPLE_INTERVAL, VALIDATED, validate_piece
from purgatory_udf.sources.trace_files.text_lines import Chunk, Piece, byte_pieces, in_tasks, lines_of

# Number of sampled times in the totals of the pieces, for each file of the table.
TIMES_A_FILE = 16

TEXTS = pa.schema([("file", pa.int32()), ("line", pa.int64()), ("text", pa.string())])


class _InputReader(Protocol):
    def chunks(self, piece: Piece) -> Iterator[Chunk]: ...

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]: ...

    def text(self, item: object) -> str: ...


class _JsonLines:
    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        return lines_of(piece)

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]:
        return validate_piece(piece, lines_of(piece), read_line, as_text, lines=True, sample_interval=sample_interval)

    def text(self, item: object) -> str:
        assert isinstance(item, bytes)
        return as_text(item)


class _Parquet:
    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        return parquet_files.rows_of(piece)

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]:
        return validate_piece(
            piece, parquet_files.rows_of(piece), read_row, parquet_files.row_as_text, sample_interval=sample_interval
        )

    def text(self, item: object) -> str:
        assert item is None or isinstance(item, dict)
        return parquet_files.row_as_text(item)


@dataclass(frozen=True)
class Source:
    """Pieces of the files, in input order, and the skipped links to files."""

    files: Sequence[InputFile]
    pieces: Sequence[Piece]
    reader: _InputReader
    task_bytes: int
    skipped: Sequence[str] = ()

    def validate(self, backend: Backend, per_file: int) -> Dataset:
        """Validate every line, and return the VALIDATED rows. A file of the table will have `per_file` events."""
        reader, sample_interval = self.reader, max(1, min(SAMPLE_INTERVAL, per_file // TIMES_A_FILE))
        return backend.run_tasks(
            self._tasks(self.pieces), lambda piece: reader.validate(piece, sample_interval), VALIDATED
        )

    def texts(self, backend: Backend, lines_before: Mapping[tuple[int, int], int]) -> Dataset:
        """Return the text of every line (TEXTS) of some pieces.

        `lines_before` has these pieces, by file and index, and the number of lines before each in its file.
        """
        reader, before = self.reader, dict(lines_before)

        def work(piece: Piece) -> Iterator[pa.RecordBatch]:
            line = before[piece.file, piece.index]
            for chunk in reader.chunks(piece):
                texts = [reader.text(item) for item in chunk.items]
                numbers = range(line + 1, line + 1 + len(texts))
                files = pa.repeat(pa.scalar(piece.file, pa.int32()), len(texts))
                yield pa.RecordBatch.from_arrays([files, pa.array(numbers, pa.int64()), pa.array(texts)], schema=TEXTS)
                line += len(texts)

        wanted = [piece for piece in self.pieces if (piece.file, piece.index) in before]
        return backend.run_tasks(self._tasks(wanted), work, TEXTS)

    def _tasks(self, pieces: Sequence[Piece]) -> list[list[Piece]]:
        return in_tasks(pieces, self.task_bytes)


def make_source(backend: Backend, options: IngestOptions, files: Sequence[InputFile] | None = None) -> Source:
    """Return the source of an import; `files` default to those of the options' paths."""
    skipped: list[str] = []
    if options.source == "jsonl":
        files = files or find_files(options.paths, JSON_LINES, skipped)
        piece_bytes = min(options.piece_bytes, backend.piece_bytes or options.piece_bytes)
        return Source(files, list(byte_pieces(files, piece_bytes, options.limits)), _JsonLines(), piece_bytes, skipped)
    files = files or find_files(options.paths, PARQUET, skipped)
    return Source(files, _row_groups(backend, files), _Parquet(), options.piece_bytes, skipped)


def _row_groups(backend: Backend, files: Sequence[InputFile]) -> list[Piece]:
    """Return the row groups of Parquet files. Raises `UserError` if a file is not a trace, before any row is read."""
    footers = [[(index, file)] for index, file in enumerate(files)]
    read = backend.run_tasks(
        footers, lambda footer: iter([parquet_files.footer_of(*footer)]), parquet_files.FOOTER
    ).collect()
    rows = read.sort_by([("file", "ascending"), ("row_group", "ascending")]).to_pylist()
    for problem in (row["problem"] for row in rows if row["problem"]):
        raise UserError(problem)
    return [Piece(row["file"], row["row_group"], files[row["file"]], 0, row["bytes"]) for row in rows]

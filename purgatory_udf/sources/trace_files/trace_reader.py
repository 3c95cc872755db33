"""Options and report of an import of JSON Lines or Parquet, and its input in pieces that are validated separately.

Texts of lines can be read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.common.console import counted
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.contract import Rejection, as_text, read_line, read_row
from purgatory_udf.contract.event_checks import FIELDS as FIELDS_OF
from purgatory_udf.contract.value_types import label
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, PARQUET, InputFile, find_files, skipped_links
from purgatory_udf.sources.trace_files.piece_validation import SAMPLE_INTERVAL, VALIDATED, validate_piece
from purgatory_udf.sources.trace_files.text_lines import (
    PIECE_BYTES,
    USUAL,
    Chunk,
    FileLimits,
    Piece,
    byte_pieces,
    in_tasks,
    lines_of,
    open_piece,
)
from purgatory_udf.sources.trace_files.typed_columns import FIELDS

EVENTS_PER_FILE = 50_000


@dataclass(frozen=True)
class IngestOptions:
    """Options of an ingest. `piece_bytes` is the size of the pieces that tasks read; it does not affect the tables."""

    paths: Sequence[str]
    out: str
    source: Literal["jsonl", "parquet"] = "jsonl"
    max_disorder_ms: int = 0
    overwrite: bool = False
    events_per_file: int = EVENTS_PER_FILE
    run_id: str | None = None
    piece_bytes: int = PIECE_BYTES
    limits: FileLimits = USUAL

    def run(self, files: Sequence[InputFile]) -> str:
        """Return the given run id, or one derived from input and options."""
        if self.run_id:
            return self.run_id
        asked = [self.source, self.max_disorder_ms, [(file.name, file.size, file.modified) for file in files]]
        return f"ingest-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}"

    def settings(self) -> dict[str, Any]:
        """Return the options that affect the tables, by name."""
        options = {name: getattr(self, name) for name in ("source", "max_disorder_ms", "events_per_file")}
        return {**options, **self.limits.settings()}


@dataclass(frozen=True)
class IngestReport:
    """Counts of the input lines that are not blank, and the times of the first and last event.

    `skipped` has the links to files that are read under another name.
    """

    run_id: str
    files: int
    lines: int
    accepted: int
    by_rule: dict[str, int] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int | None = None
    events: str = ""
    rejected_events: str = ""
    skipped: Sequence[str] = ()

    @property
    def rejected(self) -> int:
        return sum(self.by_rule.values())

    @property
    def late(self) -> int:
        return self.by_rule.get("late", 0)

    def counts(self) -> dict[str, Any]:
        """Return the counts for the `runs` table."""
        counts = {"files": self.files, "lines": self.lines, "events": self.accepted, "rejected": self.rejected}
        return {**counts, "rejected_by_rule": self.by_rule, "first_us": self.first_us, "last_us": self.last_us}

    def summary(self) -> list[str]:
        """Return lines of text: input, output with the tables' paths, and rejected lines by rule."""
        share = f" ({_percent(self.rejected, self.lines)} %)" if self.rejected else ""
        reasons = "; ".join(
            f"{count:,} {rule}" for rule, count in sorted(self.by_rule.items(), key=lambda reason: -reason[1])
        )
        lines = [
            f"input     {counted(self.lines, 'line')} of {counted(self.files, 'file')}",
            *skipped_links(self.skipped),
            f"events    {self.accepted:,}  {self.events}",
            f"rejected  {self.rejected:,}{share}  {self.rejected_events}",
        ]
        if reasons:
            lines.append(f"          {reasons}")
        if self.first_us is not None and self.last_us is not None:
            lines.append(f"time      {_moment(self.first_us)} to {_moment(self.last_us)}")
            unit = next((unit for unit, (low, high) in _OTHER_UNITS.items() if low <= self.first_us < high), None)
            if unit is not None:
                lines.append(f"          time_us seems to be in {unit}; it counts microseconds since 1970")
        return lines

    def require_complete(self) -> None:
        if self.accepted + self.rejected != self.lines:
            raise CheckFailedError(
                f"{self.lines:,} lines were read, but {self.accepted:,} events and {self.rejected:,} rejected lines "
                "written; repeat the import with --overwrite"
            )

    def require_few_rejected(self, max_rejected: float) -> None:
        """Raise `CheckFailedError` if more than `max_rejected` percent of the lines were rejected."""
        if self.rejected * 100 > max_rejected * self.lines:
            raise CheckFailedError(
                f"{self.rejected:,} of {counted(self.lines, 'line')} {'was' if self.rejected == 1 else 'were'} "
                f"rejected ({_percent(self.rejected, self.lines)} %), "
                f"more than max_rejected ({max_rejected:g} %); the reasons are in {self.rejected_events}"
            )


# Values of `time_us` that are times of 2001 to 2096 in another unit.
_OTHER_UNITS = {"seconds": (10**9, 4 * 10**9), "milliseconds": (10**12, 4 * 10**12)}


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g}"


def _moment(us: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00")


# Number of sampled times in the totals of the pieces, for each file of the table.
TIMES_A_FILE = 16

# Columns that a Parquet file needs; rows of it that become objects at once; what its footer shows, by row group.
REQUIRED = ("time_us", "type")
ROWS_AT_ONCE = 4096
FOOTER = pa.schema([("file", pa.int32()), ("row_group", pa.int32()), ("bytes", pa.int64()), ("problem", pa.string())])
# Columns of text that may have integers instead.
_LABELS = frozenset(field.name for fields in FIELDS_OF.values() for field in fields if field.check is label)

TEXTS = pa.schema([("file", pa.int32()), ("line", pa.int64()), ("text", pa.string())])


class _InputReader(Protocol):
    def chunks(self, piece: Piece) -> Iterator[Chunk]: ...

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]: ...

    def text(self, item: object) -> str: ...


class _JsonLines:
    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        return lines_of(piece)

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]:
        folders = field_folders(piece.source)
        read = partial(read_line, folders=folders)
        return validate_piece(piece, lines_of(piece), read, as_text, bytes, sample_interval, folders)

    def text(self, item: object) -> str:
        assert isinstance(item, bytes)
        return as_text(item)


class _Parquet:
    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        return rows_of(piece)

    def validate(self, piece: Piece, sample_interval: int) -> Iterator[pa.RecordBatch]:
        folders = field_folders(piece.source)
        read = partial(read_row, folders=folders)
        return validate_piece(piece, rows_of(piece), read, row_as_text, msgspec.json.encode, sample_interval, folders)

    def text(self, item: object) -> str:
        assert item is None or isinstance(item, dict)
        return row_as_text(item)


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
    _require_current(backend, files)
    return Source(files, _row_groups(backend, files), _Parquet(), options.piece_bytes, skipped)


def _require_current(backend: Backend, files: Sequence[InputFile]) -> None:
    """Raise `UserError` if one of the files is in the folder of a Delta table, but not in its newest version."""
    local = [file for file in files if isinstance(file.filesystem, fs.LocalFileSystem)]
    folders = {folder for file in local for folder in Path(file.path).parents}
    for table in (str(folder) for folder in folders if (folder / "_delta_log").is_dir()):
        if not backend.is_on_this_machine(table):
            continue
        from purgatory_udf.backend.local_delta import current_files

        current = current_files(table)
        if current is None:
            continue
        for file in local:
            if Path(file.path).is_relative_to(table) and os.path.realpath(file.path) not in current:
                raise UserError(
                    f"{file.name}: has rows that are not in the current version of the Delta table {table}; "
                    "give the current files only, or read the table with replay --events"
                )


def _row_groups(backend: Backend, files: Sequence[InputFile]) -> list[Piece]:
    """Return the row groups of Parquet files. Raises `UserError` if a file is not a trace, before any row is read."""
    footers = [[(index, file)] for index, file in enumerate(files)]
    read = backend.run_tasks(footers, lambda footer: iter([footer_of(*footer)]), FOOTER).collect()
    rows = read.sort_by([("file", "ascending"), ("row_group", "ascending")]).to_pylist()
    for problem in (row["problem"] for row in rows if row["problem"]):
        raise UserError(problem)
    return [Piece(row["file"], row["row_group"], files[row["file"]], 0, row["bytes"]) for row in rows]


# Columns of a Parquet file are checked before rows are read, and rows are validated like lines.


def footer_of(place: int, source: InputFile) -> pa.RecordBatch:
    """Return a row for each row group of a file, or one row with the reason why the file cannot be read.

    `place` is the number of the file in the input.
    """
    try:
        with source.filesystem.open_input_file(source.path) as file:
            parquet = pq.ParquetFile(file)
            problem = partition_problem(source, parquet.schema_arrow) or schema_problem(parquet.schema_arrow)
            sizes = [parquet.metadata.row_group(index).total_byte_size for index in range(parquet.num_row_groups)]
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        problem, sizes = f"not a Parquet file that can be read: {str(error).splitlines()[0]}", []
    if problem:
        return pa.RecordBatch.from_pylist([{"file": place, "problem": f"{source.name}: {problem}"}], schema=FOOTER)
    groups = [{"file": place, "row_group": group, "bytes": size} for group, size in enumerate(sizes)]
    return pa.RecordBatch.from_pylist(groups, schema=FOOTER)


def field_folders(source: InputFile) -> dict[str, str]:
    """Return the folders of a file that name a field and its value, such as `broker=1`, by the name of the field."""
    folders = [folder for folder in source.path.split("/")[:-1] if "=" in folder]
    named = {folder.partition("=")[0]: folder for folder in folders}
    return {name: folder for name, folder in named.items() if name in FIELDS.names}


def partition_problem(source: InputFile, schema: pa.Schema) -> str | None:
    """Return the reason why a file lacks a column whose value is in the name of a folder, such as `broker=1`; or None.

    Without this check, all events would have the default of the column.
    """
    for name, folder in field_folders(source).items():
        if name not in schema.names:
            return f"column {name} is missing, and only in the name of the folder {folder}; write it to the files, too"
    return None


def schema_problem(schema: pa.Schema) -> str | None:
    """Return the first difference between a file's columns and the contract, or None. Unknown columns are ignored."""
    for name in REQUIRED:
        if name not in schema.names:
            return f"column {name} is missing, expected {FIELDS.field(name).type}"
    return _fields_problem("", schema, FIELDS)


def _fields_problem(parent: str, fields: Iterable[pa.Field], expected: Iterable[pa.Field]) -> str | None:
    """Return the first difference between fields and the contract, or None. `parent` is the start of their names."""
    kinds: dict[str, list[pa.DataType]] = {}
    for given in fields:
        kinds.setdefault(given.name, []).append(given.type)
    for known in expected:
        name, found = f"{parent}{known.name}", kinds.get(known.name, [])
        problem = f"column {name} occurs {len(found)} times" if len(found) > 1 else None
        problem = problem or next((_type_problem(name, kind, known.type) for kind in found), None)
        if problem:
            return problem
    return None


def _type_problem(name: str, kind: pa.DataType, expected: pa.DataType) -> str | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_list(expected) and _is_list(kind):
        return _type_problem(f"{name}[]", kind.value_type, expected.value_type)
    if pa.types.is_struct(expected) and pa.types.is_struct(kind):
        return _fields_problem(f"{name}.", kind, expected)
    # Integers of any width: the contract validates the values row by row.
    if pa.types.is_integer(kind) and (pa.types.is_integer(expected) or name in _LABELS):
        return None
    if pa.types.is_string(expected) and _is_text(kind):
        return None
    return None if kind == expected else f"column {name} is {kind}, expected {expected}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def rows_of(piece: Piece) -> Iterator[Chunk]:
    """Yield the rows of a row group as objects without nulls. If the file is damaged, the last item is broken."""
    with open_piece(piece) as file:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            names = [name for name in parquet.schema_arrow.names if name in FIELDS.names]
            # Tasks are parallel already, possibly in forked processes.
            for batch in parquet.iter_batches(ROWS_AT_ONCE, [piece.index], names, use_threads=False):
                yield _objects_of({name: batch.column(name) for name in names})
        except (OSError, pa.ArrowException) as error:
            reason = f"damaged Parquet: row group {piece.index}: {str(error).splitlines()[0]}"
            yield Chunk([None], Rejection("broken file", reason))


def _objects_of(columns: Mapping[str, pa.Array]) -> Chunk:
    """Return rows as objects without nulls and unknown fields. Rows with text that is not UTF-8 are rejected."""
    with suppress(UnicodeDecodeError):
        return Chunk([_given(row) for row in _known(columns, as_bytes=False)])
    items: list[Any] = []
    not_utf8: dict[int, Rejection] = {}
    for number, row in enumerate(_known(columns, as_bytes=True)):
        problems: list[str] = []
        items.append(_given(_decoded("", row, problems)))
        if problems:
            not_utf8[number] = Rejection("not UTF-8", problems[0])
    return Chunk(items, cut=not_utf8)


def _known(columns: Mapping[str, pa.Array], as_bytes: bool) -> list[dict[str, Any]]:
    """Return the rows of columns, without unknown fields of nested records; with `as_bytes`, texts are not decoded."""
    known = []
    for name, column in columns.items():
        kind = _known_type(column.type, FIELDS.field(name).type, as_bytes)
        known.append(column if column.type == kind else column.cast(kind))
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(known, list(columns)).to_pylist()
    return rows


def _known_type(kind: pa.DataType, expected: pa.DataType, as_bytes: bool) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(expected) and _is_list(kind):
        return pa.list_(_known_type(kind.value_type, expected.value_type, as_bytes))
    if pa.types.is_struct(expected) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in expected}
        known = (field for field in kind if field.name in types)
        return pa.struct([(field.name, _known_type(field.type, types[field.name], as_bytes)) for field in known])
    return pa.large_binary() if as_bytes and _is_text(kind) else kind


def _decoded(path: str, value: Any, problems: list[str]) -> Any:
    """Return a value with its bytes as text; bytes that are not UTF-8 become U+FFFD, and a reason in `problems`."""
    if type(value) is dict:
        dot = "." if path else ""
        return {name: _decoded(f"{path}{dot}{name}", inner, problems) for name, inner in value.items()}
    if type(value) is list:
        return [_decoded(f"{path}[{place}]", inner, problems) for place, inner in enumerate(value)]
    if type(value) is not bytes:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8: byte 0x{value[error.start]:02x} at position {error.start + 1}")
        return as_text(value)


def row_as_text(row: dict[str, Any] | None) -> str:
    """Return the row as a line of JSON."""
    return "" if row is None else json.dumps(row, ensure_ascii=False)


def _given(value: Any) -> Any:
    if type(value) is dict:
        return {name: _given(inner) for name, inner in value.items() if inner is not None}
    return [_given(inner) for inner in value] if type(value) is list else value

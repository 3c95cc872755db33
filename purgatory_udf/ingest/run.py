"""An ingest from beginning to end: find the files, read and judge their lines, put them in order, write the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from purgatory_udf.contract import as_text, read_line, read_row
from purgatory_udf.errors import UserError
from purgatory_udf.ingest import parquet
from purgatory_udf.ingest.inputs import JSON_LINES, PARQUET, InputFile, find_files
from purgatory_udf.ingest.judge import JUDGED, judged
from purgatory_udf.ingest.lines import lines_of
from purgatory_udf.ingest.pieces import Piece, byte_pieces, in_tasks
from purgatory_udf.ingest.placing import ends_of, place, seq_may_repeat
from purgatory_udf.ingest.report import IngestOptions, IngestReport, counted
from purgatory_udf.ingest.tasks import spread
from purgatory_udf.ingest.verdicts import without_late, without_repeated_seq
from purgatory_udf.stream import delta, runs
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.runs import Run
from purgatory_udf.stream.staging import write_in_time_order
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

EVENTS, REJECTED = "events", "rejected_events"
STAGING = "_ingest"


def ingest(
    spark: SparkSession,
    options: IngestOptions,
    say: Callable[[str], None] = log.info,
    files: Sequence[InputFile] | None = None,
) -> IngestReport:
    """Read the recorded events and write `events` and `rejected_events` below `options.out`.

    `files` are those of the options' paths, unless they are given.

    The tables are a function of the input and the options: not of how the input was cut, or how many tasks read it.
    `events` is written last, so where there is one, the ingest that wrote it was finished. `say` hears each phase.
    """
    layout = Layout(options.out)
    _require_room(spark, layout, options.overwrite)
    files = files or find_files(options.paths, JSON_LINES if options.source == "jsonl" else PARQUET)
    sources = [file.name for file in files]
    run = Run(options.run(files), "ingest", {"paths": list(map(str, options.paths))}, options.settings())
    size = sum(file.size for file in files)
    say(f"reading {counted(len(files), 'file')}, {f'{size / 1e6:,.0f} MB' if size >= 1e6 else f'{size / 1e3:.0f} kB'}")
    rows = (_json_lines if options.source == "jsonl" else _parquet)(spark, files, options.piece_bytes)
    with _staged(spark, rows, layout.table(STAGING)) as staged:
        ends = ends_of(staged)
        lines = sum(end.rows for end in ends)
        if not lines:
            raise UserError(f"{', '.join(map(str, options.paths))}: no events: not one line")
        say(f"putting {counted(lines, 'line')} in order")
        decided = without_late(place(spark, staged, ends, sources), options.max_disorder_ms)
        if seq_may_repeat(ends):
            decided = without_repeated_seq(spark, decided, sources)
        report = IngestReport(
            run.run_id, len(files), lines, *_counts(decided), layout.table(EVENTS), layout.table(REJECTED)
        )
        report.require_law()
        say(f"writing {counted(report.accepted, 'event')}, {counted(report.rejected, 'rejected line')}")
        _write(spark, decided, report, options.events_per_file)
        runs.save(spark, layout.table("runs"), run.finished(report.counts()))
    return report


def _write(spark: SparkSession, decided: DataFrame, report: IngestReport, events_per_file: int) -> None:
    for path in (report.events, report.rejected_events):
        delta.remove(spark, path)
    if report.rejected:
        rejected = decided.where("rule IS NOT NULL")
        _columns(rejected, report.run_id, REJECTED).write.format("delta").save(report.rejected_events)
    else:
        delta.create(spark, report.rejected_events, TABLES[REJECTED])
    events = decided.where("rule IS NULL").withColumn("event_time", sf.timestamp_micros("time_us"))
    write_in_time_order(_columns(events, report.run_id, EVENTS), report.events, report.accepted, events_per_file)


def _columns(rows: DataFrame, run_id: str, table: str) -> DataFrame:
    return rows.withColumn("run_id", sf.lit(run_id)).select(*TABLES[table].names)


def _counts(decided: DataFrame) -> tuple[int, dict[str, int], int | None, int | None]:
    """How many events, how many rejected lines by rule, and the events' first and last time."""
    times = (sf.min("time_us").alias("first"), sf.max("time_us").alias("last"))
    counts = {row.rule: row for row in decided.groupBy("rule").agg(sf.count("*").alias("n"), *times).collect()}
    events = counts.pop(None, None)
    by_rule = {rule: row.n for rule, row in counts.items()}
    return (events.n, by_rule, events.first, events.last) if events else (0, by_rule, None, None)


def _require_room(spark: SparkSession, layout: Layout, overwrite: bool) -> None:
    if delta.is_file(spark, layout.out):
        raise UserError(f"{layout.out}: is a file; --out names a folder")
    # Rows that are still staged are those of an ingest that was interrupted: what is no table yet was to be one.
    interrupted = delta.exists(spark, layout.table(STAGING))
    for name in (EVENTS, REJECTED):
        path = layout.table(name)
        if not interrupted and delta.exists(spark, path) and not delta.is_table(spark, path):
            raise UserError(f"{path}: exists and is no Delta table; choose another --out or move it away")
    if not overwrite and delta.is_table(spark, layout.table(EVENTS)):
        raise UserError(f"{layout.table(EVENTS)}: exists; choose another --out, or --overwrite to replace it")


def _json_lines(spark: SparkSession, files: Sequence[InputFile], piece_bytes: int) -> DataFrame:
    def work(piece: Piece) -> Iterator[pa.RecordBatch]:
        return judged(piece, lines_of(piece), read_line, as_text)

    return spread(spark, in_tasks(byte_pieces(files, piece_bytes), piece_bytes), work, JUDGED)


def _parquet(spark: SparkSession, files: Sequence[InputFile], piece_bytes: int) -> DataFrame:
    """The footers first: a file that is no trace ends the ingest before any row is read."""
    footers = [[(index, file)] for index, file in enumerate(files)]
    found = spread(spark, footers, lambda footer: iter([parquet.footer_of(*footer)]), parquet.FOOTER).collect()
    for problem in (row.problem for row in sorted(found, key=lambda row: row.file) if row.problem):
        raise UserError(problem)
    pieces = [
        Piece(row.file, row.row_group, files[row.file], 0, row.bytes)
        for row in sorted(found, key=lambda row: (row.file, row.row_group))
    ]

    def work(piece: Piece) -> Iterator[pa.RecordBatch]:
        return judged(piece, parquet.rows_of(piece), read_row, parquet.row_as_text)

    return spread(spark, in_tasks(pieces, piece_bytes), work, JUDGED)


@contextmanager
def _staged(spark: SparkSession, rows: DataFrame, path: str) -> Iterator[DataFrame]:
    """The rows in files for a while: each line is judged once, and later passes read only the columns they need."""
    try:
        rows.write.mode("overwrite").parquet(path)
        yield spark.read.schema(rows.schema).parquet(path)
    finally:
        delta.remove(spark, path)

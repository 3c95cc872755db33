"""Ingest of JSON Lines and Parquet: finds the files, validates and sorts their lines, writes the tables.

Events that are late or repeat a `seq`, compared with the whole input, are rejected. Usually the totals of the pieces
rule out both, and the events stay serialized (`event_order`). Otherwise Spark compares all events as rows, and this
process their times and `seq` (`rejected_lines`). The tables are the same in all cases.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from purgatory_udf.backend.backend import Backend, LocalBackend, backend_of
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.backend.file_system import staging_folder
from purgatory_udf.backend.spark_dataset import SparkDataset
from purgatory_udf.backend.spilled_dataset import Spill, SpilledDataset
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import counted
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, EVENTS, REJECTED_EVENTS, TABLES
from purgatory_udf.launch import backend_choice
from purgatory_udf.sources.trace_files.event_order import (
    assign_seq,
    file_start_times,
    in_order,
    parts_in_order,
    totals_suffice,
    unpack_events,
    with_file_lines,
)
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, InputFile, find_files, require_outside
from purgatory_udf.sources.trace_files.piece_validation import (
    PLACE,
    PieceTotals,
    piece_starts,
    piece_totals,
    seq_may_repeat,
)
from purgatory_udf.sources.trace_files.rejected_lines import (
    refused_events,
    rejected_lines,
    without_late,
    without_repeated_seq,
)
from purgatory_udf.sources.trace_files.text_lines import FileLimits
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions, IngestReport, Source, make_source
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import partition_by_file, require_room, write_files, write_parts
from purgatory_udf.storage.output_folder import STAGING, Layout
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Counts(NamedTuple):
    """Numbers of events and of rejected lines by rule, and the first and last time of events."""

    accepted: int
    by_rule: dict[str, int]
    first_us: int | None
    last_us: int | None


class ImportDecision(NamedTuple):
    """Counts, a function that writes the table of events to a path, and the rows of `rejected_events`."""

    counts: Counts
    write: Callable[[str], None]
    rejected: Dataset


def decide_rows(
    backend: Backend,
    staged: Dataset,
    totals: Sequence[PieceTotals],
    source: Source,
    run_id: str,
    options: IngestOptions,
) -> ImportDecision:
    """Decide which events are late or repeat a `seq`, and return the rows of `events` and `rejected_events`.

    Args:
        backend: Backend that executes the comparison.
        staged: VALIDATED rows.
        totals: Totals of the pieces, in input order.
        source: The input.
        run_id: Name of the import.
        options: Options of the import.

    Raises:
        NeedsSparkError: The backend is this process, and a moment has too many events, or too many events have to be
            compared.
    """
    sources = [file.name for file in source.files]
    lines = staged.where_null("rule", null=False).select(*PLACE.names)
    rejected = lines.map(rejected_lines(totals, sources, run_id), REJECTED_EVENTS)
    is_decided = totals_suffice(totals, options.max_disorder_ms)
    cuts = file_start_times(totals, options.events_per_file) if is_decided else None
    if isinstance(backend, LocalBackend):
        if not is_decided:
            count = sum(piece.events for piece in totals)
            if count > backend_choice.most_rows_in_memory():
                raise NeedsSparkError(f"some of {count:,} events are late or repeat a seq, which may not fit in memory")
            return _decide_refused(backend, staged, totals, source, run_id, options, rejected)
        if cuts is None:
            raise NeedsSparkError("a moment has too many events for this process")
        parts = parts_in_order(staged, totals, sources, run_id, cuts)
        return ImportDecision(_summed(totals), lambda path: write_parts(parts, path, EVENTS), rejected)
    assert isinstance(staged, SparkDataset)
    if cuts is not None:
        return ImportDecision(
            _summed(totals), partial(write_files, in_order(staged, totals, sources, run_id, cuts)), rejected
        )
    from pyspark.sql import functions as sf

    rows = assign_seq(with_file_lines(unpack_events(staged), totals, sources)).withColumns(
        {"run_id": sf.lit(run_id), "rule": sf.lit(None).cast("string"), "reason": sf.lit(None).cast("string")}
    )
    compared = without_late(rows, options.max_disorder_ms)
    if seq_may_repeat(totals):
        compared = without_repeated_seq(compared, sources)
    counts = _counted(compared, totals)
    taken = compared.where("rule IS NULL").withColumn("event_time", sf.timestamp_micros("time_us"))
    events = partition_by_file(taken.select(*TABLES["events"].names), counts.accepted, options.events_per_file)
    texts = _with_text(backend, compared, totals, source).select(*REJECTED_EVENTS.names)
    return ImportDecision(counts, partial(write_files, events), rejected.union(SparkDataset.of(texts, REJECTED_EVENTS)))


def _decide_refused(
    backend: LocalBackend,
    staged: Dataset,
    totals: Sequence[PieceTotals],
    source: Source,
    run_id: str,
    options: IngestOptions,
    rejected: Dataset,
) -> ImportDecision:
    """Decide in this process which events are refused; `rejected` are the rows of other lines. See `decide_rows`."""
    sources, disorder_ms = [file.name for file in source.files], options.max_disorder_ms
    cuts = file_start_times(totals, options.events_per_file)
    if cuts is None:
        raise NeedsSparkError("a moment has too many events for this process")
    refused = refused_events(staged, totals, disorder_ms)
    starts = {(start.file, start.piece): start.lines_before for start in piece_starts(totals)}
    # The pieces of refused events are read again, for the text of these lines.
    texts = source.texts(backend, {piece: starts[piece] for piece in refused.pieces})
    rows = texts.map(refused.rejected(disorder_ms, sources, run_id), REJECTED_EVENTS)
    parts = parts_in_order(staged, totals, sources, run_id, cuts, refused)
    counts = Counts(refused.taken, _summed(totals).by_rule | dict(refused.by_rule), refused.first_us, refused.last_us)
    return ImportDecision(counts, lambda path: write_parts(parts, path, EVENTS), rejected.union(rows))


def _summed(totals: Sequence[PieceTotals]) -> Counts:
    with_events = [piece for piece in totals if piece.events]
    by_rule: Counter[str] = Counter()
    for piece in totals:
        by_rule.update(json.loads(piece.by_rule))
    first = min((piece.first_us for piece in with_events), default=None)
    last = max((piece.latest for piece in with_events), default=None)
    return Counts(sum(piece.events for piece in totals), dict(by_rule), first, last)


def _counted(compared: DataFrame, totals: Sequence[PieceTotals]) -> Counts:
    from pyspark.sql import functions as sf

    times = (sf.min("time_us").alias("first"), sf.max("time_us").alias("last"))
    counts = {row.rule: row for row in compared.groupBy("rule").agg(sf.count("*").alias("n"), *times).collect()}
    events = counts.pop(None, None)
    by_rule = {**_summed(totals).by_rule, **{rule: row.n for rule, row in counts.items()}}
    return Counts(events.n, by_rule, events.first, events.last) if events else Counts(0, by_rule, None, None)


def _with_text(backend: Backend, compared: DataFrame, totals: Sequence[PieceTotals], source: Source) -> DataFrame:
    """Return late and repeated events with their text, for which their pieces are read again."""
    refused = compared.where("rule IS NOT NULL").select("file", "piece", "line", "source", "reason", "run_id")
    touched = {(row.file, row.piece) for row in refused.select("file", "piece").distinct().collect()}
    before = {
        (start.file, start.piece): start.lines_before
        for start in piece_starts(totals)
        if (start.file, start.piece) in touched
    }
    texts = source.texts(backend, before)
    assert isinstance(texts, SparkDataset)
    # Spark would broadcast the texts, which have no limit, to all workers.
    raw = texts.frame.withColumnRenamed("text", "raw").hint("merge")
    return refused.join(raw, ["file", "line"])


log = logging.getLogger(__name__)

# Bytes of validated lines up to which an import without Spark has them in memory.
IN_MEMORY_BYTES = 128 << 20


def ingest(
    session: SparkSession | Backend,
    options: IngestOptions,
    report_phase: Callable[[str], None] = log.info,
    files: Sequence[InputFile] | None = None,
) -> IngestReport:
    """Read recorded events and write `events` and `rejected_events` below `options.out`.

    The tables depend only on the input and the options, not on the pieces of the input or the number of tasks. `events`
    is written last, so if it exists, its import has finished.

    Args:
        session: Spark session or backend that executes the import.
        options: Input, output and settings.
        report_phase: Called with a line of text at the start of each phase.
        files: The files to read; by default, those of the options' paths.

    Raises:
        UserError: The input has no lines, is in a table that is replaced, or a file or table cannot be used.
    """
    backend, layout = backend_of(session), Layout(options.out)
    require_room(backend, layout, ("events", "rejected_events"), options.overwrite)
    tables = layout.table("events"), layout.table("rejected_events")
    source = make_source(backend, options, files)
    require_outside(source.files, [*tables, layout.table(STAGING)])
    run = Run(options.run(source.files), "ingest", {"paths": list(map(str, options.paths))}, options.settings())
    size = sum(file.size for file in source.files)
    shown = f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    report_phase(f"reading {counted(len(source.files), 'file')}, {shown}")
    with _staged(backend, source, options.events_per_file, layout.table(STAGING)) as staged:
        totals = piece_totals(staged)
        lines = sum(piece.rows for piece in totals)
        if not lines:
            raise UserError(f"{', '.join(map(str, options.paths))}: no events: the input has no lines")
        report_phase(f"sorting {counted(lines, 'line')}")
        decision = decide_rows(backend, staged, totals, source, run.run_id, options)
        report = IngestReport(
            run.run_id, len(source.files), lines, *decision.counts, *tables, skipped=tuple(source.skipped)
        )
        report.require_complete()
        report_phase(f"writing {counted(report.accepted, 'event')}, {counted(report.rejected, 'rejected line')}")
        for path in tables:
            backend.files.remove(path)
        schema = COMMENTED_TABLES["rejected_events"]
        if report.rejected:
            decision.rejected.save(report.rejected_events, schema)
        else:
            backend.delta(report.rejected_events).create(report.rejected_events, schema)
        decision.write(report.events)
        run_records.save(backend, layout.table("runs"), run.finished(report.counts()))
    return report


@contextmanager
def _staged(backend: Backend, source: Source, per_file: int, path: str) -> Iterator[Dataset]:
    """Stage rows in files, so that each line is validated once and later passes read only the columns they need.

    Without Spark, few rows stay in memory. How many there are shows only when compressed files are read.
    """
    with staging_folder(backend.files, path):
        if isinstance(backend, LocalBackend):
            backend = LocalBackend(Spill(path))
        rows, folder = source.validate(backend, per_file), f"{path}/lines"
        if isinstance(rows, SpilledDataset):
            yield rows.keep_small(folder, IN_MEMORY_BYTES)
        else:
            yield rows.keep(folder)


def ingest_trace(
    session: SparkSession | Backend, paths: Sequence[str], out: str, config: Config, overwrite: bool
) -> tuple[str, str]:
    """Import files for a replay; return the table of events, and the import's name, which identifies the trace.

    If an interrupted replay is repeated, files that have been imported already are not imported again, unless
    `overwrite`.

    Raises:
        UserError: The table has the events of another trace.
    """
    backend = backend_of(session)
    events = Layout(out).table("events")
    options = IngestOptions(
        paths=paths,
        out=out,
        max_disorder_ms=config.max_disorder_ms,
        overwrite=overwrite,
        limits=FileLimits(config.max_line_bytes, config.max_unpacked),
        events_per_file=min(config.batch_events, 50_000),
    )
    name = options.run(find_files(paths, JSON_LINES))
    interrupted = backend.files.exists(Layout(out).table(STAGING))
    if not overwrite and not interrupted and backend.delta(events).is_table(events):
        first = backend.query("SELECT run_id FROM events LIMIT 1", {"events": events}).column("run_id").to_pylist()
        if first != [name]:
            raise UserError(
                f"{events}: has the events of another trace; choose another --out, or replace them with --overwrite"
            )
        log.info("the trace has been ingested already into %s; to repeat this, use --overwrite", events)
        return events, name
    report = ingest(backend, options)
    for line in report.summary():
        log.info(line)
    report.require_few_rejected(config.max_rejected)
    return events, name

"""Ingest of JSON Lines and Parquet: find the files, validate and sort their lines, write the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from purgatory_udf.backend.backend import Backend, backend_of
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES
from purgatory_udf.sources.trace_files.event_order import ends_of
from purgatory_udf.sources.trace_files.import_decisions import decided
from purgatory_udf.sources.trace_files.import_report import IngestOptions, IngestReport, counted
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, InputFile, find_files
from purgatory_udf.sources.trace_files.text_lines import FileLimits
from purgatory_udf.sources.trace_files.trace_reader import source_of
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

EVENTS, REJECTED = "events", "rejected_events"
STAGING = "_ingest"


def ingest(
    session: SparkSession | Backend,
    options: IngestOptions,
    say: Callable[[str], None] = log.info,
    files: Sequence[InputFile] | None = None,
) -> IngestReport:
    """Read recorded events and write `events` and `rejected_events` below `options.out`.

    The tables depend on the input and the options only, not on how the input was cut or how many tasks read it.
    `events` is written last: where it exists, the import that wrote it has finished.

    Args:
        session: Spark session or backend that executes the import.
        options: Input, output and settings.
        say: Called with a line of text at the start of each phase.
        files: The files to read; by default, those of the options' paths.
    """
    backend, layout = backend_of(session), Layout(options.out)
    _require_room(backend, layout, options.overwrite)
    source = source_of(backend, options, files)
    run = Run(options.run(source.files), "ingest", {"paths": list(map(str, options.paths))}, options.settings())
    size = sum(file.size for file in source.files)
    shown = f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    say(f"reading {counted(len(source.files), 'file')}, {shown}")
    with _staged(backend, source.judged(backend, options.events_per_file), layout.table(STAGING)) as staged:
        ends = ends_of(staged)
        lines = sum(end.rows for end in ends)
        if not lines:
            raise UserError(f"{', '.join(map(str, options.paths))}: no events: the input has no lines")
        say(f"putting {counted(lines, 'line')} in order")
        decision = decided(backend, staged, ends, source, run.run_id, options)
        tables = layout.table(EVENTS), layout.table(REJECTED)
        report = IngestReport(run.run_id, len(source.files), lines, *decision.counts, *tables)
        report.require_complete()
        say(f"writing {counted(report.accepted, 'event')}, {counted(report.rejected, 'rejected line')}")
        for path in tables:
            backend.files.remove(path)
        schema = COMMENTED_TABLES[REJECTED]
        if report.rejected:
            decision.rejected.save(report.rejected_events, schema)
        else:
            backend.delta(report.rejected_events).create(report.rejected_events, schema)
        decision.write(report.events)
        run_records.save(backend, layout.table("runs"), run.finished(report.counts()))
    return report


def _require_room(backend: Backend, layout: Layout, overwrite: bool) -> None:
    files = backend.files
    require_no_file(files, layout.out)
    # Staged rows show that an import was interrupted: an incomplete table is its own.
    interrupted = files.exists(layout.table(STAGING))
    for name in (EVENTS, REJECTED):
        path = layout.table(name)
        if not interrupted and files.exists(path) and not backend.delta(path).is_table(path):
            raise UserError(f"{path}: exists and is no Delta table; choose another --out or move it away")
    # Rows stay staged until the run is recorded: the same command repeats an interrupted import.
    events = layout.table(EVENTS)
    if not overwrite and not interrupted and backend.delta(events).is_table(events):
        raise UserError(f"{events}: exists; choose another --out, or --overwrite to replace it")


@contextmanager
def _staged(backend: Backend, rows: Dataset, path: str) -> Iterator[Dataset]:
    """Stage rows in files: each line is validated once, and later passes read only the columns they need.

    The staging folder stays if the import fails with another error than `UserError`; the next import recognizes by it
    that the tables are incomplete.
    """
    backend.files.make_folder(path)
    try:
        yield rows.keep(path)
    except UserError:
        backend.files.remove(path)
        raise
    backend.files.remove(path)


def ingest_trace(
    session: SparkSession | Backend, paths: Sequence[str], out: str, config: Config, overwrite: bool
) -> tuple[str, str]:
    """Import files for a replay; return the table of events, and the import's name, which identifies the trace.

    The files are imported once, however often the replay is interrupted and repeated.
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
        first = backend.query("SELECT run_id FROM {events} LIMIT 1", {"events": events}).column("run_id").to_pylist()
        if first != [name]:
            raise UserError(f"{events}: has the events of another trace; choose another --out, or --overwrite")
        log.info("the trace has been ingested already: %s", events)
        return events, name
    report = ingest(backend, options)
    for line in report.summary():
        log.info(line)
    report.require_few_rejected(config.max_rejected)
    return events, name

"""An ingest from beginning to end: find the files, read and judge their lines, put them in order, write the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.file_system import files_of, require_no_file
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, TABLES
from purgatory_udf.sources.trace_files.event_order import ends_of
from purgatory_udf.sources.trace_files.import_decisions import decided
from purgatory_udf.sources.trace_files.import_report import IngestOptions, IngestReport, counted
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, InputFile, find_files
from purgatory_udf.sources.trace_files.text_lines import FileLimits
from purgatory_udf.sources.trace_files.trace_reader import source_of
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

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
    source = source_of(spark, options, files)
    run = Run(options.run(source.files), "ingest", {"paths": list(map(str, options.paths))}, options.settings())
    size = sum(file.size for file in source.files)
    shown = f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    say(f"reading {counted(len(source.files), 'file')}, {shown}")
    with _staged(spark, source.judged(spark, options.events_per_file), layout.table(STAGING)) as staged:
        ends = ends_of(staged)
        lines = sum(end.rows for end in ends)
        if not lines:
            raise UserError(f"{', '.join(map(str, options.paths))}: no events: not one line")
        say(f"putting {counted(lines, 'line')} in order")
        decision = decided(spark, staged, ends, source, run.run_id, options)
        tables = layout.table(EVENTS), layout.table(REJECTED)
        report = IngestReport(run.run_id, len(source.files), lines, *decision.counts, *tables)
        report.require_law()
        say(f"writing {counted(report.accepted, 'event')}, {counted(report.rejected, 'rejected line')}")
        for path in tables:
            files_of(spark).remove(path)
        if report.rejected:
            rejected = decision.rejected.select(*TABLES[REJECTED].names)
            delta_tables.commented_writer(rejected, COMMENTED_TABLES[REJECTED]).format("delta").save(
                report.rejected_events
            )
        else:
            delta_tables.create(spark, report.rejected_events, COMMENTED_TABLES[REJECTED])
        decision.write(report.events)
        run_records.save(spark, layout.table("runs"), run.finished(report.counts()))
    return report


def _require_room(spark: SparkSession, layout: Layout, overwrite: bool) -> None:
    require_no_file(files_of(spark), layout.out)
    # Rows that are still staged are those of an ingest that was interrupted: what is no table yet was to be one.
    interrupted = files_of(spark).exists(layout.table(STAGING))
    for name in (EVENTS, REJECTED):
        path = layout.table(name)
        if not interrupted and files_of(spark).exists(path) and not delta_tables.is_table(spark, path):
            raise UserError(f"{path}: exists and is no Delta table; choose another --out or move it away")
    # The rows stay staged until the run is on record: an interrupted ingest is done anew by the same command.
    if not overwrite and not interrupted and delta_tables.is_table(spark, layout.table(EVENTS)):
        raise UserError(f"{layout.table(EVENTS)}: exists; choose another --out, or --overwrite to replace it")


@contextmanager
def _staged(spark: SparkSession, rows: DataFrame, path: str) -> Iterator[DataFrame]:
    """The rows in files for a while: each line is judged once, and later passes read only the columns they need.

    They stay if anything but a mistake of the user's ends the ingest: so the next one knows that it was interrupted.
    """
    files = files_of(spark)
    try:
        if local(spark):
            files.make_folder(path)
            yield rows.cache()
        else:
            rows.write.mode("overwrite").option("compression", "none").parquet(path)
            yield spark.read.schema(rows.schema).parquet(path)
    except UserError:
        files.remove(path)
        raise
    files.remove(path)


# Recorded files straight into a replay: ingested once, however often the replay is interrupted and run again.


def ingest_trace(
    spark: SparkSession, paths: Sequence[str], out: str, config: Config, overwrite: bool
) -> tuple[str, str]:
    """The events table made from these files, and the name of the ingest, which is the trace's identity."""
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
    interrupted = files_of(spark).exists(Layout(out).table(STAGING))
    if not overwrite and not interrupted and delta_tables.is_table(spark, events):
        first = spark.read.format("delta").load(events).select("run_id").first()
        if first is None or first.run_id != name:
            raise UserError(f"{events}: holds the events of another trace; choose another --out, or --overwrite")
        log.info("the trace has been ingested already: %s", events)
        return events, name
    report = ingest(spark, options)
    for line in report.summary():
        log.info(line)
    report.require_few_rejected(config.max_rejected)
    return events, name

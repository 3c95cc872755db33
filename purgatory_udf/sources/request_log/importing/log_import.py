"""`ingest --from request-log`: request logs of any number of brokers, read and taken apart by Spark in parallel.

    stretches of lines ─► requests ─┬─ fetches, by session ─┬─► operations ─────────────────┬─► in order ─► events
                                    └─ others, one by one ──┤          ▲ offsets            │               recorded
                                                            └─► facts ─┴─► timelines ─► changes
                                                                by broker and partition

Nothing is gathered in one place but what `context` needs (topics, leadership, transactions). A task holds one session's
state, or the facts of one partition at one broker, at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.file_system import files_of
from purgatory_udf.backend.task_runner import spread
from purgatory_udf.common import secrets
from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster.cluster_context import (
    Context,
    GivenMetadata,
    build_context,
    unnamed_topics,
)
from purgatory_udf.sources.request_log.cluster.cluster_facts import CLUSTER_APIS, topic_names_in_file
from purgatory_udf.sources.request_log.cluster.cluster_metadata import ClusterMetadata, read_metadata_dump
from purgatory_udf.sources.request_log.cluster.record_batches import batches_in_file
from purgatory_udf.sources.request_log.importing import import_rows, import_tasks, log_reader
from purgatory_udf.sources.request_log.importing.import_options import (
    ImportReport,
    Rename,
    RequestLogOptions,
    pseudonyms,
)
from purgatory_udf.sources.request_log.importing.import_passes import (
    Keep,
    Passed,
    Tasks,
    held,
    in_order,
    rejected,
    work,
)
from purgatory_udf.sources.request_log.importing.import_tables import NAMES, Finished, require_room, source_of, write
from purgatory_udf.sources.request_log.lines.log_files import find_logs, zone_of
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.text_lines import HERE_BYTES, byte_pieces, in_tasks
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

STAGING = "_ingest"


def ingest_request_log(
    spark: SparkSession,
    options: RequestLogOptions,
    say: Callable[[str], None] = log.info,
    logs: Sequence[InputFile] | None = None,
) -> ImportReport:
    """Read the logs and write `events`, `rejected_events` and `recorded` below `options.out`.

    `logs` are those of the options' paths, unless they are given.

    The tables are a function of the input and the options: not of how the input was cut, or how many tasks read it.
    `events` is written last, so where there is one, the import that wrote it was finished. `say` hears each phase.
    """
    layout = Layout(options.out)
    require_room(spark, layout, options.overwrite, STAGING)
    files = logs or find_logs(options.paths)
    given = given_by(options)
    # A path may tell whose a file is: with pseudonyms only its number is left.
    sources = [f"log-{number}" if options.anonymise else file.name for number, file in enumerate(files)]
    named = sources if options.anonymise else list(map(str, options.paths))
    run = Run(options.run(files), "ingest", {"paths": named}, options.settings())
    with _staging(spark, layout.table(STAGING)) as keep:
        say(f"reading {len(files):,} files, {sum(file.size for file in files) / 1e6:,.1f} MB")
        read = keep("read", _read(spark, files, options))
        rename = pseudonyms(secrets.resolve_environment(options.anonymise_key)) if options.anonymise else None
        taken = WholeLog(spark, given, source_of(sources), keep, rename, say).take(read)
        finished, bad_lines = taken.finished, taken.report.counts["bad_lines"]
        written = write(spark, layout, run.run_id, finished, bad_lines, options.events_per_file)
        done = ImportReport(run.run_id, len(files), taken.report, *written, *map(layout.table, NAMES))
        run_records.save(spark, layout.table("runs"), run.finished(done.counts()))
    return done


@dataclass(frozen=True)
class TakenLog:
    finished: Finished
    report: Report


@dataclass(frozen=True)
class WholeLog:
    """`source` names a row's file; `keep` keeps what is used more than once; `rename` makes names into pseudonyms."""

    spark: SparkSession
    given: GivenMetadata
    source: Column
    keep: Keep
    rename: Rename | None = None
    say: Callable[[str], None] = log.info

    def take(self, read: DataFrame) -> TakenLog:
        """`read` are READ rows of all lines."""
        overview = told_together(read)
        placed, context = _placed(self.spark, read, overview.begins), overview.context(self.given)
        self.say("taking requests apart, and rebuilding the logs of the partitions")
        passed = work(_requests(placed), _tasks(self.spark, context), self.keep)
        self.say("putting the events in order")
        events = self.keep("events", in_order(passed.operations, passed.said, self.source, self.rename))
        refused = rejected(placed, passed.parts, events)
        if self.rename is not None:
            # What was refused still has the names in it; a reason begins with the kind of fault.
            refused = refused.withColumns({"raw": sf.lit(""), "reason": sf.substring_index("reason", ":", 1)})
        return TakenLog(Finished(events, refused, self.source), _report(overview.tally.counts, passed, context))


def given_by(options: RequestLogOptions) -> GivenMetadata:
    """The files beside the log."""
    return GivenMetadata(
        names=topic_names_in_file(options.topics) if options.topics else {},
        cluster=read_metadata_dump(options.isr) if options.isr else ClusterMetadata(),
        batches=batches_in_file(options.batches) if options.batches else {},
        classic=options.classic,
    )


def _read(spark: SparkSession, files: Sequence[InputFile], options: RequestLogOptions) -> DataFrame:
    zone = zone_of(options.zone)
    each = min(options.piece_bytes, HERE_BYTES) if local(spark) else options.piece_bytes
    pieces = in_tasks(byte_pieces(files, each, options.limits), each)
    return spread(spark, pieces, lambda piece: log_reader.read_piece(piece, zone), log_reader.READ)


@dataclass(frozen=True)
class ToldTogether:
    """What the stretches tell together, and the requests that tell of the cluster, in the order of time."""

    begins: list[tuple[int, int, int]]
    tally: log_reader.Tally
    telling: list[Request]

    def context(self, given: GivenMetadata) -> Context:
        classic = [broker for broker, (at_once, every) in self.tally.votes.items() if at_once * 2 > every]
        racked = bool(self.tally.counts["racked"])
        span = self.tally.span_us or (0, 0)
        return build_context(self.telling, given, span, classic, self.tally.partitions, racked, self.tally.modern)


def told_together(read: DataFrame) -> ToldTogether:
    """`begins`: (file, piece, the lines before it in its file)."""
    wanted = (sf.col("row") == log_reader.END) | sf.col("api").isin(*CLUSTER_APIS)
    beside = ("row", "piece", "counts")
    collected = read.where(wanted).select(*beside, *import_rows.REQUESTS.names).collect()
    ends = sorted((row for row in collected if row.row == log_reader.END), key=lambda row: (row.file, row.piece))
    tally = log_reader.Tally.of((end.counts, end.body) for end in ends)
    if not tally.counts["lines"]:
        raise UserError("the logs hold not one line")
    begins: list[tuple[int, int, int]] = []
    file, lines = -1, 0
    for end in ends:
        lines = lines if end.file == file else 0
        begins.append((end.file, end.piece, lines))
        file, lines = end.file, lines + end.line
    before = {(file, piece): lines for file, piece, lines in begins}
    telling = [
        import_rows.RequestRow(*row[len(beside) :])._replace(line=row.line + before[row.file, row.piece])
        for row in collected
        if row.row != log_reader.END
    ]
    telling.sort(key=lambda row: (row.start_us, row.file, row.line))
    return ToldTogether(begins, tally, list(map(import_rows.request_of, telling)))


def _placed(spark: SparkSession, read: DataFrame, begins: list[tuple[int, int, int]]) -> DataFrame:
    """All rows but the stretches' ends, with their line in the whole file."""
    before = spark.createDataFrame(begins, "file INT, piece INT, lines_before BIGINT")
    placed = read.where(sf.col("row") != log_reader.END).join(sf.broadcast(before), ["file", "piece"])
    return placed.withColumn("line", sf.col("line") + sf.col("lines_before")).drop("lines_before")


def _requests(placed: DataFrame) -> DataFrame:
    return placed.where(sf.col("row") == log_reader.REQUEST).select(*import_rows.REQUESTS.names)


def _tasks(spark: SparkSession, context: Context) -> Tasks:
    handed = held(spark, context)
    works = (
        import_tasks.take_sessions_apart(handed),
        import_tasks.take_requests_apart(handed),
        import_tasks.build_timelines(handed),
    )
    return Tasks(*works, import_rows.PARTS, import_rows.CHANGES)


def _report(counts: Mapping[str, int], passed: Passed, context: Context) -> Report:
    report = Report(dict(counts))
    columns = ("part", "kind", "topic", sf.col("numbers")[0].alias("number"))
    both = passed.parts.select(*columns).unionByName(passed.said.select(*columns))
    counted = both.where(sf.col("part").isin(import_rows.COUNT, import_rows.FACT)).groupBy("part", "kind", "topic")
    summed = counted.agg(sf.sum("number").alias("number")).collect()
    for row in summed:
        if row.part == import_rows.COUNT:
            report.count(row.kind, row.number)
    topics = {row.topic for row in summed if row.part == import_rows.FACT}
    report.count("unnamed_topic", len(unnamed_topics(topics, context)))
    return report


@contextmanager
def _staging(spark: SparkSession, path: str) -> Iterator[Callable[[str, DataFrame], DataFrame]]:
    """Rows in files for a while: each phase runs once, and later ones read only the columns they need.

    They stay if anything but a mistake of the user's ends the import: so the next one knows that it was interrupted.
    """

    def keep(name: str, frame: DataFrame) -> DataFrame:
        if local(spark):
            return frame.cache()
        place = f"{path}/{name}"
        frame.write.mode("overwrite").parquet(place)
        return spark.read.schema(frame.schema).parquet(place)

    files = files_of(spark)
    files.make_folder(path)
    try:
        yield keep
    except UserError:
        files.remove(path)
        raise
    files.remove(path)

"""`ingest --from request-log`: request logs of any number of brokers, read and taken apart by Spark in parallel.

    stretches of lines ─► requests ─┬─ fetches, by session ─┬─► operations ─────────────────┬─► in order ─► events
                                    └─ others, one by one ──┤          ▲ offsets            │               recorded
                                                            └─► facts ─┴─► timelines ─► changes
                                                                by broker and partition

Nothing is gathered in one place but what `context` needs (topics, leadership, transactions). A task holds one session's
state, or the facts of one partition at one broker, at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf import secrets
from purgatory_udf.errors import UserError
from purgatory_udf.ingest.inputs import InputFile
from purgatory_udf.ingest.pieces import byte_pieces, in_tasks
from purgatory_udf.ingest.tasks import spread
from purgatory_udf.requestlog import reading, rows, tasks
from purgatory_udf.requestlog.anonymise import pseudonyms
from purgatory_udf.requestlog.batches import batches_in_file
from purgatory_udf.requestlog.cluster import Cluster, cluster_in_file
from purgatory_udf.requestlog.context import TELLING, Context, Given, build_context, nameless
from purgatory_udf.requestlog.frames import (
    PARTITION,
    counted,
    held,
    in_order,
    mapped,
    own_thread,
    rejected,
    with_offsets,
)
from purgatory_udf.requestlog.log_files import find_logs
from purgatory_udf.requestlog.options import ImportReport, RequestLogOptions
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.spark_tables import NAMES, Finished, require_room, source_of, write
from purgatory_udf.requestlog.stamp import zone_of
from purgatory_udf.requestlog.topics import names_in_file
from purgatory_udf.stream import delta, runs
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        placed, counts, asked, modern = _placed(spark, read)
        context = _context(placed, given, asked, bool(counts.counts["racked"]), modern)
        parts = keep("parts", _parts(spark, placed, context))
        say("rebuilding the logs of the partitions")
        changes = keep("changes", _changes(spark, parts, context))
        say("putting the events in order")
        events = keep("events", _events(parts, changes, sources, options))
        report = _report(counts, parts, changes, context)
        # What the contract refuses keeps its number, so that nothing else's depends on it.
        refused = _rejected(placed, parts, events, options)
        finished = Finished(events.where("rule IS NULL"), refused, source_of(sources))
        written = write(spark, layout, run.run_id, finished, options.events_per_file)
        done = ImportReport(run.run_id, len(files), report, *written, *map(layout.table, NAMES))
        runs.save(spark, layout.table("runs"), run.finished(done.counts()))
    return done


def given_by(options: RequestLogOptions) -> Given:
    """The files beside the log."""
    return Given(
        names=names_in_file(options.topics) if options.topics else {},
        cluster=cluster_in_file(options.isr) if options.isr else Cluster(),
        batches=batches_in_file(options.batches) if options.batches else {},
    )


def _read(spark: SparkSession, files: Sequence[InputFile], options: RequestLogOptions) -> DataFrame:
    zone = zone_of(options.zone)
    pieces = in_tasks(byte_pieces(files, options.piece_bytes), options.piece_bytes)
    return spread(spark, pieces, lambda piece: reading.read_piece(piece, zone), reading.READ)


def _placed(spark: SparkSession, read: DataFrame) -> tuple[DataFrame, Report, dict[str, int], set[str]]:
    """All rows but the stretches' ends, with their line in the whole file; and what the ends have counted: lines by
    cause, the partitions of topics, and the groups of newer protocols."""
    ends = read.where(sf.col("row") == reading.END).select("file", "piece", "line", "counts", "body").collect()
    counts = Report.total(json.loads(end.counts) for end in ends)
    if not counts.counts["lines"]:
        raise UserError("the logs hold not one line")
    bodies = [json.loads(end.body) for end in ends]
    asked, modern = reading.most_partitions(body["partitions"] for body in bodies), reading.modern_groups(bodies)
    begins: list[tuple[int, int, int]] = []
    file, lines = -1, 0
    for end in sorted(ends):
        lines = lines if end.file == file else 0
        begins.append((end.file, end.piece, lines))
        file, lines = end.file, lines + end.line
    before = spark.createDataFrame(begins, "file INT, piece INT, lines_before BIGINT")
    placed = read.where(sf.col("row") != reading.END).join(sf.broadcast(before), ["file", "piece"])
    return (
        placed.withColumn("line", sf.col("line") + sf.col("lines_before")).drop("lines_before"),
        counts,
        asked,
        modern,
    )


def _requests(placed: DataFrame) -> DataFrame:
    return placed.where(sf.col("row") == reading.REQUEST).select(*rows.REQUESTS.names)


def _context(placed: DataFrame, given: Given, asked: Mapping[str, int], racked: bool, modern: set[str]) -> Context:
    requests = _requests(placed)
    span = requests.agg(sf.min("arrival_us"), sf.max("answered_us")).first()
    telling = requests.where(sf.col("api").isin(*TELLING)).orderBy("start_us", "file", "line").collect()
    share = sf.avg(own_thread(sf.col("remote_us"))).alias("share")
    votes = requests.where("api = 'HEARTBEAT'").groupBy("broker").agg(share).where("share > 0.5")
    classic = [row.broker for row in votes.collect()]
    first, last = (span[0] or 0, span[1] or 0) if span else (0, 0)
    told = (rows.request_of(row.asDict()) for row in telling)
    return build_context(told, given, (first, last), classic, asked, racked, modern)


def _parts(spark: SparkSession, placed: DataFrame, context: Context) -> DataFrame:
    requests = _requests(placed)
    own = held(spark, context)
    fetches = requests.where("session IS NOT NULL")
    by_session = fetches.repartition("broker", "session").sortWithinPartitions(
        "broker", "session", "start_us", "file", "line"
    )
    others = requests.where("session IS NULL")
    return mapped(by_session, tasks.take_sessions_apart(own), rows.PARTS).unionByName(
        mapped(others, tasks.take_requests_apart(own), rows.PARTS)
    )


def _changes(spark: SparkSession, parts: DataFrame, context: Context) -> DataFrame:
    facts = parts.where(sf.col("part") == rows.FACT).select(*PARTITION, "kind", "numbers", "words")
    together = facts.repartition(*PARTITION).sortWithinPartitions(*PARTITION)
    return mapped(together, tasks.build_timelines(held(spark, context)), rows.CHANGES)


def _events(parts: DataFrame, changes: DataFrame, sources: Sequence[str], options: RequestLogOptions) -> DataFrame:
    operations = parts.where(sf.col("part") == rows.OPERATION)
    # A produce is tried when all of its partitions have been appended.
    tried = with_offsets(operations, changes).withColumn("time_us", sf.greatest("time_us", "appended_us"))
    rename = pseudonyms(secrets.resolved(options.anonymise_key)) if options.anonymise else None
    return in_order(tried, changes, source_of(sources), rename)


def _report(counts: Report, parts: DataFrame, changes: DataFrame, context: Context) -> Report:
    for part in (parts, changes):
        for cause, number in counted(part).items():
            counts.count(cause, number)
    counts.count("operations", parts.where(sf.col("part") == rows.OPERATION).count())
    topics = parts.where(sf.col("part") == rows.FACT).select("topic").distinct().collect()
    counts.count("unnamed_topic", len(nameless((row.topic for row in topics), context)))
    return counts


def _rejected(placed: DataFrame, parts: DataFrame, events: DataFrame, options: RequestLogOptions) -> DataFrame:
    found = rejected(placed, parts, events)
    if not options.anonymise:
        return found
    # What was refused still has the names in it; a reason begins with the kind of fault.
    return found.withColumns({"raw": sf.lit(""), "reason": sf.substring_index("reason", ":", 1)})


@contextmanager
def _staging(spark: SparkSession, path: str) -> Iterator[Callable[[str, DataFrame], DataFrame]]:
    """Rows in files for a while: each phase runs once, and later ones read only the columns they need.

    They stay if anything but a mistake of the user's ends the import: so the next one knows that it was interrupted.
    """

    def keep(name: str, frame: DataFrame) -> DataFrame:
        place = f"{path}/{name}"
        frame.write.mode("overwrite").parquet(place)
        return spark.read.schema(frame.schema).parquet(place)

    try:
        yield keep
    except UserError:
        delta.remove(spark, path)
        raise
    delta.remove(spark, path)

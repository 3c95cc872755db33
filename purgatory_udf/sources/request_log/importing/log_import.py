"""`ingest --from request-log`: imports request logs of any number of brokers in parallel.

    pieces of log files ─► requests ─┬─ fetches, by session ─┬─► operations ─────────────────┬─► in order ─► events
                                    └─ others, one by one ──┤          ▲ offsets            │               recorded
                                                            └─► facts ─┴─► timelines ─► changes
                                                                by broker and partition

Only the requests that `context` needs (topics, leadership, transactions) are collected on the driver. At any time, a
task holds the state of one session, or the facts about one partition at one broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from purgatory_udf.backend.backend import Backend, LocalBackend, backend_of
from purgatory_udf.backend.dataset import Dataset, Step
from purgatory_udf.backend.file_system import staging_folder
from purgatory_udf.backend.process_pool import cores
from purgatory_udf.backend.spilled_dataset import Spill, SpilledDataset
from purgatory_udf.common import secrets
from purgatory_udf.common.console import counted
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import Rejection, read_line
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import (
    Context,
    GivenMetadata,
    build_context,
    count_tiered,
    unnamed_topics,
)
from purgatory_udf.sources.request_log.cluster_facts import (
    CLUSTER_APIS,
    tiered_topics_in_file,
    topic_names_in_file,
    topic_sizes_in_file,
)
from purgatory_udf.sources.request_log.cluster_metadata import ClusterMetadata, read_metadata_dump
from purgatory_udf.sources.request_log.importing import import_rows, import_tasks, log_reader
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause, pauses_in, silences
from purgatory_udf.sources.request_log.importing.import_options import (
    ImportReport,
    Rename,
    RequestLogOptions,
    pseudonyms,
)
from purgatory_udf.sources.request_log.importing.import_passes import (
    Keep,
    LinesBefore,
    PassResults,
    SourceName,
    Steps,
    count_reads,
    counts,
    in_order,
    overdue_operations,
    rejected_requests,
    remote_fetch_wait_shown,
    run_passes,
    unordered_events,
    with_lines,
)
from purgatory_udf.sources.request_log.importing.import_tables import (
    NAMES,
    EventFiles,
    FinishedEvents,
    write_events,
    write_tables,
)
from purgatory_udf.sources.request_log.importing.settings_evidence import replica_lag_shown
from purgatory_udf.sources.request_log.inferred_settings import (
    evidence_in,
    follower_settings,
    settings_of_evidence,
    settings_of_joins,
)
from purgatory_udf.sources.request_log.internal_topics import batches_in_file
from purgatory_udf.sources.request_log.log_files import find_logs, require_distinct, zone_of
from purgatory_udf.sources.request_log.logged_request import Request
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.text_lines import byte_pieces, in_tasks, lines_of
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import require_room
from purgatory_udf.storage.output_folder import STAGING, Layout
from purgatory_udf.storage.run_records import RecordedSetting, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Size of a log up to which threads read it: compiled code does most of the work, and the rows stay in memory.
_MOST_IN_THREADS = 128 << 20
# Least size of the pieces of a log that different threads or processes read.
_LEAST_PIECE = 4 << 20
# Bytes of requests up to which the rows of an import are in memory; later steps take up to 15 times as much.
IN_MEMORY_BYTES = 32 << 20
# Bytes of logs up to which the rows of an import that are in files are not compressed. They take twice as much space as
# the logs.
_MOST_UNCOMPRESSED = 2 << 30


def ingest_request_log(
    session: SparkSession | Backend,
    options: RequestLogOptions,
    report_phase: Callable[[str], None] = log.info,
    logs: Sequence[InputFile] | None = None,
) -> ImportReport:
    """Read request logs and write `events`, `rejected_events` and `recorded` below `options.out`.

    The tables depend only on the input and the options, not on the pieces of the input or the number of tasks. `events`
    is written last, so if it exists, its import has finished.

    Args:
        session: Spark session or backend that executes the import.
        options: Input, output and settings.
        report_phase: Called with a line of text at the start of each phase.
        logs: The logs to read; by default, those of the options' paths.
    """
    backend, layout = backend_of(session), Layout(options.out)
    require_room(backend, layout, NAMES, options.overwrite)
    skipped: list[str] = []
    files = logs or find_logs(options.paths, skipped)
    require_distinct(files)
    given = given_by(options)
    # A path may identify the owner of the log: pseudonymous imports number the files.
    sources = [f"log-{number}" if options.anonymise else file.name for number, file in enumerate(files)]
    named = sources if options.anonymise else list(map(str, options.paths))
    run = Run(options.run(files), "ingest", {"paths": named}, options.settings())
    staging = layout.table(STAGING)

    def keep(name: str, rows: Dataset) -> Dataset:
        return rows.keep(f"{staging}/{name}")

    with staging_folder(backend.files, staging):
        report_phase(f"reading {counted(len(files), 'file')}, {sum(file.size for file in files) / 1e6:,.1f} MB")
        backend, read = _stored(backend, staging, files, options)
        overview = overview_of(read)
        _require_requests(overview.tally.counts, files)
        rename = pseudonyms(secrets.resolve_environment(options.anonymise_key)) if options.anonymise else None
        is_local = backend.is_on_this_machine(layout.out)
        event_files = EventFiles(staging, options.events_per_file) if is_local else None
        whole = WholeLog(
            backend,
            given,
            run.run_id,
            sources.__getitem__,
            keep,
            rename,
            report_phase,
            event_files,
        )
        converted = whole.convert(read, overview)
        bad_lines = converted.report.counts["bad_lines"]
        accepted, rejected = write_tables(
            backend,
            layout,
            run.run_id,
            converted.finished,
            sources.__getitem__,
            bad_lines,
            options.events_per_file,
        )
        events, rejected_events, recorded = map(layout.table, NAMES)
        done = ImportReport(
            run.run_id,
            len(files),
            converted.report,
            accepted,
            rejected,
            events,
            rejected_events,
            recorded,
            skipped,
            converted.settings,
            converted.pauses,
        )
        run_records.save(backend, layout.table("runs"), run.finished(done.counts()))
    return done


@dataclass(frozen=True)
class ConvertedLog:
    """Events of a whole log, counts by cause, the brokers' settings that the log shows, and their pauses."""

    finished: FinishedEvents
    report: Report
    settings: list[RecordedSetting]
    pauses: Sequence[BrokerPause]


@dataclass(frozen=True)
class WholeLog:
    """The conversion of a log that is read whole.

    Attributes:
        backend: Backend that executes the steps.
        given: Metadata given along with the log.
        run_id: Name of the import.
        source: Returns the name of a file by its number.
        keep: Computes rows once, for several uses.
        rename: Replaces names by pseudonyms.
        report_phase: Called with a line of text at the start of each phase.
        files: Where processes of this machine write the events to files, which have no tables yet. If None, the events
            are rows.
    """

    backend: Backend
    given: GivenMetadata
    run_id: str
    source: SourceName
    keep: Keep
    rename: Rename | None = None
    report_phase: Callable[[str], None] = log.info
    files: EventFiles | None = None

    def convert(self, read: Dataset, overview: Overview) -> ConvertedLog:
        """Convert the READ rows of the log."""
        context = overview.context(self.given)
        self.report_phase("converting requests, and rebuilding the logs of the partitions")
        requests = read.where_in("row", [log_reader.REQUEST]).select("piece", *import_rows.REQUESTS.names)
        passed = run_passes(requests, _steps(self.backend, context, overview.lines_before), self.keep)
        report = _report(overview.tally.counts, passed, context)
        # The other parts, operations and facts, are large and not needed any more.
        needed = [import_rows.BAD, import_rows.OVERDUE]
        passed = replace(passed, parts=passed.parts.where_in("part", needed))
        self.report_phase("sorting the events")
        # Only consumer groups depend on the sizes of topics.
        sizes = context.topic_sizes if overview.tally.consumer_brokers else []
        overdue = overdue_operations(passed)
        pauses = pauses_in(silences(requests, overdue), overdue)
        of_cluster = self.backend.dataset_of(import_rows.cluster_rows(sizes, context.topic_ids(), pauses))
        unordered = unordered_events(passed.operations, passed.timelines, passed.reads, of_cluster)
        events = self.keep("events", self._finished(unordered))
        rejected = rejected_requests(
            read, passed.parts, events, self.run_id, self.source, overview.lines_before, self.rename is not None
        )
        report.count("broker_pauses", len(pauses))
        settings = [
            *overview.settings(requests, context),
            *remote_fetch_wait_shown(passed.reads),
            *replica_lag_shown(requests, context, pauses),
        ]
        return ConvertedLog(FinishedEvents(events, rejected), report, settings, pauses)

    def _finished(self, unordered: Dataset) -> Dataset:
        if self.files is None:
            return in_order(unordered, self.source, self.rename)
        finish = import_tasks.finish_events(self.rename, self.source)
        return write_events(unordered, finish, self.files, self.run_id, self.source)


def given_by(options: RequestLogOptions) -> GivenMetadata:
    """Return the metadata in the files of the options."""
    return GivenMetadata(
        names=topic_names_in_file(options.topics) if options.topics else {},
        cluster=read_metadata_dump(options.isr) if options.isr else ClusterMetadata(),
        tiered=tiered_topics_in_file(options.topics) if options.topics else frozenset(),
        sizes=topic_sizes_in_file(options.topics) if options.topics else {},
        batches=batches_in_file(options.batches) if options.batches else {},
        classic=options.classic,
    )


def _stored(
    backend: Backend, folder: str, files: Sequence[InputFile], options: RequestLogOptions
) -> tuple[Backend, Dataset]:
    """Read the files, and return the backend for the next steps and the rows.

    How much a compressed file contains shows only when it is read. If the rows are few, they and those of the next
    steps are held in memory, and otherwise in files in a folder.
    """
    if not isinstance(backend, LocalBackend):
        return backend, _read(backend, files, options).keep(f"{folder}/read")
    expected = sum(file.expected_bytes for file in files)
    spilling = LocalBackend(Spill(folder, is_compressed=expected > _MOST_UNCOMPRESSED))
    rows = _read(spilling, files, options)
    assert isinstance(rows, SpilledDataset)
    kept = rows.keep_small(f"{folder}/read", IN_MEMORY_BYTES)
    return spilling if isinstance(kept, SpilledDataset) else backend, kept


def _read(backend: Backend, files: Sequence[InputFile], options: RequestLogOptions) -> Dataset:
    zone = zone_of(options.zone)
    expected = sum(file.expected_bytes for file in files)
    each = options.piece_bytes
    if isinstance(backend, LocalBackend):
        # Large pieces have lower fixed costs; several for each core keep all threads or processes busy until the end.
        each = min(each, log_reader.BLOCK_BYTES, max(_LEAST_PIECE, expected // (2 * cores())))
        each = _piece_bytes([file.size for file in files], each, cores())
    # The last task is started first: smaller ones at the end leave processes waiting for a shorter time.
    tasks = sorted(
        in_tasks(byte_pieces(files, each, options.limits), each),
        key=lambda pieces: sum(piece.end - piece.start for piece in pieces),
    )
    compiled = compiled_parser.is_worthwhile(expected)
    if compiled and isinstance(backend, LocalBackend):
        # Forked processes then have the code.
        compiled_parser.use()
    in_threads = compiled_parser.is_loaded() and expected <= _MOST_IN_THREADS
    return backend.run_tasks(
        tasks, lambda piece: log_reader.read_piece(piece, zone, compiled), log_reader.READ, in_threads
    )


def _piece_bytes(sizes: Sequence[int], most: int, workers: int) -> int:
    """Return a length of pieces, at most `most`, with which all workers have the same number of pieces.

    If these would be too short, `most` is returned.
    """
    each = most
    while each >= _LEAST_PIECE:
        counts = [-(-size // each) for size in sizes]
        if sum(counts) % workers == 0:
            return each
        # One piece more.
        each = max(-(-size // count) for size, count in zip(sizes, counts, strict=True) if count) - 1
    return most


@dataclass(frozen=True)
class Overview:
    """Totals of a whole log, and the requests with metadata of the cluster, in time order.

    `lines_before` has the number of lines before each piece in its file.
    """

    lines_before: LinesBefore
    tally: log_reader.Tally
    cluster_requests: list[Request]

    def context(self, given: GivenMetadata) -> Context:
        """Return the cluster's metadata for the conversion."""
        classic = [broker for broker, (own_thread, total) in self.tally.heartbeats.items() if own_thread * 2 > total]
        follower_reads = bool(self.tally.counts["racked"])
        span = self.tally.span_us or (0, 0)
        return build_context(
            self.cluster_requests,
            given,
            span,
            classic,
            self.tally.partitions,
            follower_reads,
            self.tally.modern_groups,
            self.tally.new_brokers,
            self.tally.remote_waits,
        )

    def settings(self, requests: Dataset, context: Context) -> list[RecordedSetting]:
        """Return the brokers' settings that the requests show, without those of remote fetches."""
        evidence = evidence_in(requests).collect().to_pylist()
        return [
            *settings_of_joins(self.cluster_requests, context.has_new_coordinator),
            *settings_of_evidence(evidence, context.group_sessions, [size.at_us for size in context.topic_sizes]),
            *follower_settings(self.tally.follower_fetches),
        ]


def overview_of(read: Dataset) -> Overview:
    """Collect the totals of the pieces, and the requests with metadata of the cluster, from READ rows."""
    ends = read.select("row", "file", "piece", "line", "counts", "body").where_in("row", [log_reader.END]).collect()
    rows = ends.sort_by([("file", "ascending"), ("piece", "ascending")]).to_pylist()
    tally = log_reader.Tally.of((row["counts"], row["body"]) for row in rows)
    lines_before: dict[tuple[int, int], int] = {}
    file, lines = -1, 0
    for row in rows:
        lines = lines if row["file"] == file else 0
        lines_before[row["file"], row["piece"]] = lines
        file, lines = row["file"], lines + row["line"]
    columns = ("row", "piece", *import_rows.RequestRow._fields)
    wanted = read.select(*columns).where_in("row", [log_reader.REQUEST]).where_in("api", CLUSTER_APIS)
    batches = wanted.collect().to_batches()
    requests = list(import_rows.request_rows_in(with_lines(batch, lines_before) for batch in batches))
    requests.sort(key=lambda row: (row.start_us, row.file, row.line))
    return Overview(lines_before, tally, list(map(import_rows.request_of, requests)))


# First bytes of files that are no text in UTF-8, and what to do.
_OTHER_BYTES = {
    b"\x1f\x8b": "is compressed: its name must end in .gz",
    b"\x28\xb5\x2f\xfd": "is compressed: its name must end in .zst",
    b"\xff\xfe": "is UTF-16: convert it to UTF-8",
    b"\xfe\xff": "is UTF-16: convert it to UTF-8",
}


def _require_requests(counts: Mapping[str, int], files: Sequence[InputFile]) -> None:
    """Raise `UserError` if the files have no requests, and name the format that they have instead."""
    if counts["requests"] or counts["bad_lines"] > counts["text_lines"]:
        return
    place = files[0].name if len(files) == 1 else f"{files[0].name} and {counted(len(files) - 1, 'more file')}"
    if not counts["lines"]:
        raise UserError(f"{place}: no lines; kafka.request.logger must have level DEBUG on the brokers")
    lines = counted(counts["lines"], "line")
    if counts["text_lines"]:
        raise UserError(
            f"{place}: no request in {lines}: Kafka before 2.8 wrote this log, as text; only the JSON that Kafka 2.8 "
            "and newer write can be imported"
        )
    first = next(
        (line for piece in byte_pieces(files) for chunk in lines_of(piece) for line in chunk.items if line), b""
    )
    try:
        read_line(first)
    except Rejection:
        disguise = next((text for magic, text in _OTHER_BYTES.items() if first.startswith(magic)), None)
        remedy = f"{files[0].name} {disguise}" if disguise else "record it as docs/recording.md describes"
    else:
        remedy = "the first line is an event: use --from jsonl"
    raise UserError(f"{place}: no request of Kafka's request log in {lines}; {remedy}")


def _steps(backend: Backend, context: Context, lines_before: LinesBefore) -> Steps:
    shared = backend.broadcast((context, lines_before))

    def placed(step: Step) -> Step:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            lines_before = shared()[1]
            return step(with_lines(batch, lines_before) for batch in batches)

        return run

    def known() -> Context:
        return shared()[0]

    return Steps(
        placed(import_tasks.session_step(known)),
        placed(import_tasks.share_step(known)),
        placed(import_tasks.request_step(known)),
        import_tasks.timeline_step(known),
        import_rows.PARTS,
        import_rows.CHANGES,
        bool(context.tiered),
    )


def _report(counted: Mapping[str, int], passed: PassResults, context: Context) -> Report:
    report = Report(dict(counted))
    for cause, number in counts(passed.parts, passed.timelines).items():
        report.count(cause, number)
    facts = passed.parts.select("part", "topic").where_in("part", [import_rows.FACT]).select("topic")
    topics = facts.map_columns(_distinct, facts.schema).collect().column("topic").unique().to_pylist()
    report.count("unnamed_topic", len(unnamed_topics(topics, context)))
    count_tiered(context, report)
    count_reads(passed.reads, report)
    return report


def _distinct(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the distinct values of each batch of one column."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column(0).unique()], schema=batch.schema)

"""Follows a growing topic: appends its events to tables in steps, for a replay that follows these tables.

A step is a micro-batch of messages: `EventSteps` takes events, `LogSteps` lines of request logs. It writes its rejected
lines, then its events, and last the state from which the next step starts. These writes are idempotent, so a step may
be repeated after a crash.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from glob import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, LocalBackend, SparkBackend, backend_of
from purgatory_udf.backend.dataset import Dataset, LocalDataset, no_garbage_collection
from purgatory_udf.backend.delta_store import LOG_PROPERTIES, spark_schema
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.backend.spark_dataset import SparkDataset
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.common.local_files import local_bytes
from purgatory_udf.contract import Rejection, read_line
from purgatory_udf.contract.tables import COMMENTED_TABLES, RECORDED, REJECTED_EVENTS
from purgatory_udf.contract.tables import EVENTS as EVENTS_SCHEMA
from purgatory_udf.launch.backend_choice import FOLLOWED_BYTES
from purgatory_udf.sources.kafka_topic import MESSAGES, KafkaTopic, Messages, connect, read_stream
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.carried_state import CarriedState, StepFiles, StepState, step_folder
from purgatory_udf.sources.request_log.importing.follow_step import FollowStep
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions, setting_lines
from purgatory_udf.sources.request_log.importing.import_passes import SourceName
from purgatory_udf.sources.request_log.importing.import_tables import (
    EVENTS_TABLE,
    RECORDED_TABLE,
    REJECTED_TABLE,
    FinishedEvents,
    event_rows,
    recorded_rows,
    task_sizes,
)
from purgatory_udf.sources.request_log.importing.log_import import given_by
from purgatory_udf.sources.request_log.log_files import zone_of
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions
from purgatory_udf.sources.trace_files.typed_columns import FIELDS, decode_lines
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import append_dataset, partition_by_file, write_files
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import RecordedSetting, Run
from purgatory_udf.streaming.checkpoints import Snapshots, prepare_checkpoint
from purgatory_udf.streaming.streaming_query import interrupt_on_sigterm, monitor_query, shorten_errors, stop_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

EVENTS, REJECTED, KAFKA = "events", "rejected_events", "_kafka"

# A validated message: the fields of an event, or the reason for its rejection.
VALIDATED = pa.schema(
    [
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        *FIELDS,
    ]
)
# Tables to create empty, by kind of messages.
OTHER_TABLES = {Messages.EVENTS: ("rejected_events",), Messages.REQUEST_LOG: ("rejected_events", "recorded")}

Options = IngestOptions | RequestLogOptions


class TopicSteps(ABC):
    """Base of the steps of an import, one per micro-batch: Spark runs a step or, if it is small, this process does."""

    def __init__(self, session: SparkSession | Backend, layout: Layout, run: Run, folder: str) -> None:
        self._backend = backend_of(session)
        self._layout, self._run, self._folder = layout, run, folder

    def write(self, messages: DataFrame, step: int) -> None:
        """Run the step of a micro-batch with the id `step`; the function for `foreachBatch`."""
        if self._is_small(messages, step):
            with suppress(NeedsSparkError):
                self.run(LocalBackend(), LocalDataset.of(messages.toArrow().cast(MESSAGES)), step)
                return
        self.run(self._backend, SparkDataset.of(messages, MESSAGES), step)

    @abstractmethod
    def run(self, backend: Backend, messages: Dataset, step: int) -> None:
        """Convert messages and write their rows and the state for the next step.

        Args:
            backend: Backend that executes this step; the previous step may have been executed by another one.
            messages: Rows of MESSAGES.
            step: Number of the step, from 0.
        """

    @abstractmethod
    def summary(self) -> list[str]:
        """Return counts since the import first started, as lines of text."""

    def inputs(self, step: int) -> Sequence[str]:
        """Return patterns of the files that a step reads in addition to messages."""
        return ()

    def _is_small(self, messages: DataFrame, step: int) -> bool:
        from pyspark.sql import functions as sf

        if not (isinstance(self._backend, SparkBackend) and self._backend.is_on_this_machine(self._folder)):
            return False
        earlier = local_bytes(self.inputs(step), FOLLOWED_BYTES)
        if earlier is None:
            return False
        total = messages.agg(sf.sum(sf.octet_length("value"))).first()
        return total is not None and earlier + (total[0] or 0) <= FOLLOWED_BYTES


class EventSteps(TopicSteps):
    """Steps of messages that are events.

        topic ─► validated, line by line ─┬─► late, or not a valid event ──────► rejected_events
                                          └─► in time order, numbered ──────────► events

    Events are sorted within a step. An event more than `max_disorder_ms` before the latest event of earlier steps is
    rejected as late. `seq` is assigned here; the `seq` of a message only orders events of the same microsecond.
    """

    def __init__(
        self,
        session: SparkSession | Backend,
        layout: Layout,
        run: Run,
        topic: KafkaTopic,
        options: IngestOptions,
        folder: str,
    ) -> None:
        super().__init__(session, layout, run, folder)
        self._topic = topic
        self._options = options
        self._latest_us, self._last_seq = 0, 0

    def run(self, backend: Backend, messages: Dataset, step: int) -> None:
        """Validate the messages, write their events in time order, and reject invalid and late ones."""
        self._latest_us, self._last_seq = self._before(backend, step)
        rows = messages.map(_validate_messages, VALIDATED).keep(f"{self._folder}/rows")
        horizon_us = self._latest_us - self._options.max_disorder_ms * 1000
        late = f"late: more than {self._options.max_disorder_ms} ms before the latest event of earlier steps"
        self._reject(rows, horizon_us, late, step)
        self._append(rows, horizon_us, step)
        Snapshots(backend, self._folder).keep(step, json.dumps([self._latest_us, self._last_seq]).encode())
        backend.files.remove(f"{self._folder}/rows")

    def summary(self) -> list[str]:
        """Return a line of text with the number of events and the path of the table."""
        return [f"{self._last_seq:,} events  {self._layout.table(EVENTS)}"]

    def _before(self, backend: Backend, step: int) -> tuple[int, int]:
        """Return the latest time (microseconds since the epoch) and the last `seq` of earlier steps; 0 without any."""
        snapshot = Snapshots(backend, self._folder).before(step)
        if snapshot is not None:
            latest_us, last_seq = json.loads(snapshot)
            return latest_us, last_seq
        if not step:
            return 0, 0
        # Steps of earlier versions kept no state next to the table.
        path = self._layout.table(EVENTS)
        latest = backend.query("SELECT max(time_us) AS us, max(seq) AS seq FROM events", {"events": path}).to_pylist()
        return latest[0]["us"] or 0, latest[0]["seq"] or 0

    def _reject(self, rows: Dataset, horizon_us: int, late: str, step: int) -> None:
        run_id, topic = self._run.run_id, self._topic.topic

        def rejected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                columns = {
                    "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
                    "raw": batch.column("raw"),
                    "reason": pc.coalesce(batch.column("reason"), pa.scalar(late)),
                    "source": _sources(topic, batch),
                    "line": batch.column("kafka_offset"),
                }
                yield pa.RecordBatch.from_arrays(
                    [columns[name] for name in REJECTED_EVENTS.names], schema=REJECTED_EVENTS
                )

        names = ("kafka_partition", "kafka_offset", "reason", "raw")
        invalid = rows.where_null("reason", null=False).select(*names)
        behind = rows.where_null("reason").where_below("time_us", horizon_us).select(*names)
        refused = invalid.union(behind)
        if refused.count():
            path = self._layout.table(REJECTED)
            refused.map(rejected, REJECTED_EVENTS).save(path, REJECTED_EVENTS, self._run.step(REJECTED, step))

    def _append(self, rows: Dataset, horizon_us: int, step: int) -> None:
        run_id, topic = self._run.run_id, self._topic.topic

        def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                given = {
                    "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
                    "event_time": batch.column("time_us")
                    .cast(pa.timestamp("us"))
                    .cast(EVENTS_SCHEMA.field("event_time").type),
                    "seq": batch.column("number"),
                    "source": _sources(topic, batch),
                    "line": batch.column("kafka_offset"),
                }
                columns = [given[name] if name in given else batch.column(name) for name in EVENTS_SCHEMA.names]
                yield pa.RecordBatch.from_arrays(columns, schema=EVENTS_SCHEMA)

        accepted = rows.where_null("reason").where_below("time_us", horizon_us, below=False)
        names = ", ".join(f"r.{name}" for name in VALIDATED.names)
        order = "r.time_us, r.seq IS NULL, r.seq, r.kafka_partition, r.kafka_offset"
        events = accepted.sql(
            f"SELECT {names}, row_number() OVER (ORDER BY {order}) + {self._last_seq} AS number "
            "FROM {rows} AS r ORDER BY number",
            VALIDATED.append(pa.field("number", pa.int64())),
        ).map(numbered, EVENTS_SCHEMA)
        events = events.keep(f"{self._folder}/events")
        schema = pa.schema([("n", pa.int64()), ("us", pa.int64()), ("last", pa.int64())])
        totals = events.select("time_us", "seq").sql(
            "SELECT count(*) AS n, max(time_us) AS us, max(seq) AS last FROM {rows}", schema
        )
        (total,) = totals.collect().to_pylist()
        if total["n"]:
            path, each = self._layout.table(EVENTS), self._options.events_per_file
            append_dataset(events, path, total["n"], each, self._run.step(EVENTS, step))
            self._latest_us, self._last_seq = max(self._latest_us, total["us"]), total["last"]
        self._backend.files.remove(f"{self._folder}/events")


def _sources(topic: str, batch: pa.RecordBatch) -> pa.Array:
    return pc.binary_join_element_wise(f"{topic}-", batch.column("kafka_partition").cast(pa.string()), "")


def _validate_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = [text.encode() for text in batch.column("value").to_pylist()]
        decoded = decode_lines(lines)
        for events, numbers in zip(decoded.events, decoded.numbers, strict=True):
            place = batch.take(pa.array(numbers))
            given = {
                "kafka_partition": place.column("partition"),
                "kafka_offset": place.column("offset"),
                "raw": place.column("value"),
                **dict(zip(events.schema.names, events.columns, strict=True)),
            }
            columns = [
                given.get(field.name, pa.nulls(len(numbers), field.type)).cast(field.type) for field in VALIDATED
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=VALIDATED)
        undecoded = batch.take(pa.array(decoded.undecoded, pa.int64())).to_pylist()
        rows = [row for message in undecoded if (row := _validated_message(message)) is not None]
        yield pa.RecordBatch.from_pylist(rows, schema=VALIDATED)


def _validated_message(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of a message, or None if it is blank."""
    row = {"kafka_partition": message["partition"], "kafka_offset": message["offset"], "raw": message["value"]}
    try:
        event = read_line(message["value"].encode())
    except Rejection as rejection:
        return {**row, "reason": rejection.reason}
    return None if event is None else {**row, **event}


class LogSteps(TopicSteps):
    """Steps of request-log lines. Each step appends the events that it settles, in their total order."""

    def __init__(
        self,
        session: SparkSession | Backend,
        layout: Layout,
        run: Run,
        topic: KafkaTopic,
        options: RequestLogOptions,
        folder: str,
    ) -> None:
        super().__init__(session, layout, run, folder)
        self._options = options
        self._given = given_by(options)
        self._topic = topic.topic
        self._carried: CarriedState | None = None
        # The last step, if this process has run it without Spark, and its result.
        self._last: tuple[int, StepState] | None = None
        # Name, value and certainty of the settings in the run's record.
        self._recorded: dict[str, tuple[int, bool]] = {}

    def inputs(self, step: int) -> Sequence[str]:
        """Return the pattern of the folder in which the previous step has left its state."""
        return [escape(step_folder(self._folder, step - 1))]

    def run(self, backend: Backend, messages: Dataset, step: int) -> None:
        """Convert the lines, write the events that this step settles, and hold back all other requests."""
        with no_garbage_collection() if isinstance(backend, LocalBackend) else nullcontext():
            self._take_step(backend, messages, step)

    def _take_step(self, backend: Backend, messages: Dataset, step: int) -> None:
        files = StepFiles(backend, self._folder)
        # A step changes its input, so that an attempt to repeat it has to read it.
        (number, known), self._last = self._last or (step, None), None
        is_known = number == step - 1 and isinstance(backend, LocalBackend)
        state = files.start(step, known if is_known else None)
        first, topic = state.carried.seq, self._topic
        compiled = compiled_parser.is_worthwhile(state.carried.counts.get("lines", 0) * compiled_parser.LINE_BYTES)
        read_lines = log_reader.read_messages(zone_of(self._options.zone), state.carried.until_us, compiled)
        read = files.stage(step, "read", messages.map(read_lines, log_reader.READ))

        def stage(name: str, rows: Dataset) -> Dataset:
            return files.stage(step, name, rows)

        def source(partition: int) -> str:
            return f"{topic}-{partition}"

        hold_us = self._options.hold_ms * 1000
        result = FollowStep(backend, self._given, hold_us, self._run.run_id, source, stage).run(state, read)
        carried = result.state.carried
        # Without the carried state, the next step does not read these rows, so they may precede the events.
        hold = cache(lambda: files.hold(step, result.state))
        written, total = self._append(result.finished, first, step, source, hold)
        # An event that the contract rejects keeps its number, so that no other number depends on it.
        carried.seq += total
        if total > written:
            carried.count(Report({"rejected_events": total - written}))
        ended = files.end(step, hold())
        if isinstance(backend, LocalBackend):
            self._last = step, ended
        self._carried = carried
        self._record_settings(carried.settings.settings())
        until = datetime.fromtimestamp(max(0, carried.until_us) / 1e6, UTC)
        log.info(
            "events written up to %s UTC: %s more; %s requests held back",
            f"{until:%F %T}",
            f"{written:,}",
            f"{ended.requests.count():,}",
        )

    def summary(self) -> list[str]:
        """Return lines of text: the number of events and the path of the table, then the counts of assumptions."""
        if self._carried is None:
            return []
        path = self._layout.table(EVENTS_TABLE)
        events = self._carried.seq - self._carried.counts.get("rejected_events", 0)
        head = [f"{events:,} events  {path}", *Report(self._carried.counts).sentences()]
        return [*head, *setting_lines(self._carried.settings.settings())]

    def _record_settings(self, settings: Sequence[RecordedSetting]) -> None:
        """Store the settings of the brokers that the log has shown so far in the run's record, for replays."""
        values = {setting.name: (setting.value, setting.certain) for setting in settings}
        if values != self._recorded:
            counts = {**self._run.counts, "settings": [asdict(setting) for setting in settings]}
            run_records.save(self._backend, self._layout.table("runs"), replace(self._run, counts=counts))
            self._recorded = values

    def _append(
        self, finished: FinishedEvents, first: int, step: int, source: SourceName, meanwhile: Callable[[], object]
    ) -> tuple[int, int]:
        """Append the rows of a step to the tables.

        Args:
            finished: The rows.
            first: `seq` of the first event.
            step: Number of the step.
            source: Returns the name of a row's file.
            meanwhile: Called before the events are committed, if possible while their file is written.

        Returns:
            The number of written events, and the number including those that the contract rejects.
        """
        tasks = task_sizes(finished.events)
        total = sum(task.size for task in tasks)
        count = total - sum(task.refused for task in tasks)
        run_id, run = self._run.run_id, self._run
        if finished.rejected.count():
            path = self._layout.table(REJECTED_TABLE)
            finished.rejected.save(path, REJECTED_EVENTS, run.step(REJECTED_TABLE, step))
        if count:

            def save_recorded() -> None:
                recorded = finished.events.map_columns(recorded_rows(tasks, run_id, source, first), RECORDED)
                recorded.save(self._layout.table(RECORDED_TABLE), RECORDED, run.step(RECORDED_TABLE, step))
                meanwhile()

            events = finished.events.map_columns(event_rows(tasks, run_id, source, first), EVENTS_SCHEMA)
            path, each = self._layout.table(EVENTS_TABLE), self._options.events_per_file
            append_dataset(events, path, count, each, run.step(EVENTS_TABLE, step), save_recorded)
        return count, total


def follow(spark: SparkSession, topic: KafkaTopic, options: Options) -> StreamingQuery:
    """Start the import and return its query; an earlier import with the same `out` is resumed."""
    return _followed(SparkBackend(spark), topic, options)[0]


def follow_until_stopped(spark: SparkSession, topic: KafkaTopic, options: Options) -> None:
    """Import until interrupted, with a line of progress for each step; then print the summary of the import."""
    connect(spark, topic)
    query, steps = _followed(SparkBackend(spark), topic, options)
    try:
        with interrupt_on_sigterm():
            monitor_query(query, "ingest", None)
    finally:
        for line in steps.summary():
            print(line)
        stop_queries([query])


def _followed(backend: SparkBackend, topic: KafkaTopic, options: Options) -> tuple[StreamingQuery, TopicSteps]:
    layout = Layout(options.out)
    folder = layout.table(KAFKA)
    checkpoint = f"{folder}/checkpoint"
    run = _prepare(backend, layout, topic, options, checkpoint)
    steps: TopicSteps
    if isinstance(options, RequestLogOptions):
        steps = LogSteps(backend, layout, run, topic, options, f"{folder}/held")
    else:
        steps = EventSteps(backend, layout, run, topic, options, f"{folder}/steps")
    messages = read_stream(backend.spark, topic).writeStream.foreachBatch(shorten_errors(steps.write))
    return messages.option("checkpointLocation", prepare_checkpoint(backend, checkpoint)).start(), steps


def _prepare(backend: SparkBackend, layout: Layout, topic: KafkaTopic, options: Options, checkpoint: str) -> Run:
    """Write the run's record and the empty tables, unless they exist. A crash may have left only some of them."""
    files = backend.files
    require_no_file(files, layout.out)
    trace = {"kafka": topic.bootstrap, "topic": topic.topic}
    if topic.messages is not Messages.EVENTS:
        trace["messages"] = str(topic.messages)
    events, record = layout.table(EVENTS), layout.table("runs")
    run = run_records.load(backend, record, "ingest")
    if options.overwrite:
        if run is not None:
            run_records.forget(backend, record, run)
        for name in (KAFKA, EVENTS, *OTHER_TABLES[Messages.REQUEST_LOG]):
            files.remove(layout.table(name))
        run = None
    if run is not None and run.trace != trace:
        source = ", ".join(f"{key} {value}" for key, value in run.trace.items())
        raise UserError(
            f"{events}: was imported from another source ({source}); choose another --out, or replace the table with "
            "--overwrite"
        )
    if run is None:
        if files.exists(events):
            raise UserError(
                f"{events}: the table exists, but was not imported from a topic; choose another --out, or replace it "
                "with --overwrite"
            )
        run = Run(options.run_id or f"ingest-{topic.topic}", "ingest", trace, {**options.settings(), "source": "kafka"})
        run_records.save(backend, record, run)
    for name in OTHER_TABLES[topic.messages]:
        backend.delta(layout.table(name)).create(layout.table(name), COMMENTED_TABLES[name])
    store = backend.delta(events)
    if not store.is_table(events):
        empty = backend.spark.createDataFrame([], spark_schema(COMMENTED_TABLES[EVENTS]))
        write_files(partition_by_file(empty, 0, options.events_per_file), events, **LOG_PROPERTIES)
    elif not files.exists(checkpoint) and store.count(events):
        raise UserError(f"{checkpoint}: is missing, so the offsets of the topic are unknown; restart with --overwrite")
    return run

"""Follows a growing topic: appends its events to tables in steps, for a replay that follows these tables.

Each step is one micro-batch. Messages are events or lines of request logs (`topic_steps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.backend.backend import SparkBackend
from purgatory_udf.backend.delta_store import LOG_PROPERTIES, spark_schema
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages, connect, read_stream
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.topic_steps import EventSteps, LogSteps, TopicSteps
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.storage import run_records
from purgatory_udf.storage.checkpoints import prepared
from purgatory_udf.storage.event_staging import in_files, write_files
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.query_monitor import interrupt_on_sigterm, monitor_query, stop_queries
from purgatory_udf.streaming.streaming_query import shorten_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS, KAFKA = "events", "_kafka"
# Tables to create empty, by kind of messages.
OTHER_TABLES = {Messages.EVENTS: ("rejected_events",), Messages.REQUEST_LOG: ("rejected_events", "recorded")}

Options = IngestOptions | RequestLogOptions


def follow(spark: SparkSession, topic: KafkaTopic, options: Options) -> StreamingQuery:
    """Start the import and return its query; an earlier import with the same `out` is resumed."""
    return _followed(SparkBackend(spark), topic, options)[0]


def follow_until_stopped(spark: SparkSession, topic: KafkaTopic, options: Options) -> None:
    """Import until interrupted, with a line of progress for each step; then print the counts of assumptions."""
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
    return messages.option("checkpointLocation", prepared(backend, checkpoint)).start(), steps


def _prepare(backend: SparkBackend, layout: Layout, topic: KafkaTopic, options: Options, checkpoint: str) -> Run:
    """Write the run's record and the empty tables, each unless it exists; a crash may have left only some of them."""
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
        raise UserError(f"{events}: follows {run.trace}; choose another --out, or --overwrite")
    if run is None:
        if files.exists(events):
            raise UserError(
                f"{events}: exists, but follows no topic; choose another --out, or --overwrite to replace it"
            )
        run = Run(options.run_id or f"ingest-{topic.topic}", "ingest", trace, {**options.settings(), "source": "kafka"})
        run_records.save(backend, record, run)
    for name in OTHER_TABLES[topic.messages]:
        backend.delta(layout.table(name)).create(layout.table(name), COMMENTED_TABLES[name])
    store = backend.delta(events)
    if not store.is_table(events):
        empty = backend.spark.createDataFrame([], spark_schema(COMMENTED_TABLES[EVENTS]))
        write_files(in_files(empty, 0, options.events_per_file), events, **LOG_PROPERTIES)
    elif not files.exists(checkpoint) and store.count(events):
        raise UserError(f"{checkpoint}: is missing, so the offsets of the topic are unknown; restart with --overwrite")
    return run

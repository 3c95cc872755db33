"""A topic that grows: what has come is appended to tables, step by step, for a replay that follows them.

Each step is one micro-batch of Spark's. What is in a message decides how it is written: `event_steps`, `log_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.file_system import files_of, require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, TABLES
from purgatory_udf.sources.kafka.kafka_topic import KafkaTopic, Messages, connect, growing
from purgatory_udf.sources.kafka.topic_steps import EventSteps, LogSteps
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.checkpoints import prepared
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.batch_errors import shorten_errors
from purgatory_udf.streaming.query_monitor import interrupt_on_sigterm, monitor_query, stop_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS, KAFKA = "events", "_kafka"
# Tables that are begun empty, by what is followed.
BESIDE = {Messages.EVENTS: ("rejected_events",), Messages.REQUEST_LOG: ("rejected_events", "recorded")}

Options = IngestOptions | RequestLogOptions


class Steps(Protocol):
    def write(self, messages: DataFrame, step: int) -> None: ...

    def summary(self) -> list[str]:
        """Of what was written since it was begun first, and why some of it may not be as it was."""
        ...


def follow(spark: SparkSession, topic: KafkaTopic, options: Options) -> StreamingQuery:
    """The running query; it goes on where an earlier one with the same `out` was stopped."""
    return _followed(spark, topic, options)[0]


def follow_until_stopped(spark: SparkSession, topic: KafkaTopic, options: Options) -> None:
    """Blocks; a line of progress for each step, and at the end what had to be supposed."""
    connect(spark, topic)
    query, steps = _followed(spark, topic, options)
    try:
        with interrupt_on_sigterm():
            monitor_query(query, "ingest", None)
    finally:
        for line in steps.summary():
            print(line)
        stop_queries([query])


def _followed(spark: SparkSession, topic: KafkaTopic, options: Options) -> tuple[StreamingQuery, Steps]:
    layout = Layout(options.out)
    machinery = layout.table(KAFKA)
    checkpoint = f"{machinery}/checkpoint"
    run = _begin(spark, layout, topic, options, checkpoint)
    steps: Steps
    if isinstance(options, RequestLogOptions):
        steps = LogSteps(spark, layout, run, topic, options, f"{machinery}/held")
    else:
        steps = EventSteps(spark, layout, run, topic, options, f"{machinery}/steps")
    messages = growing(spark, topic).writeStream.foreachBatch(shorten_errors(steps.write))
    return messages.option("checkpointLocation", prepared(spark, checkpoint)).start(), steps


def _begin(spark: SparkSession, layout: Layout, topic: KafkaTopic, options: Options, checkpoint: str) -> Run:
    """The run's record, then the tables, empty at first so that they can be followed from now on; each of them unless
    it is there, for the command may have been killed between any two."""
    require_no_file(files_of(spark), layout.out)
    trace = {"kafka": topic.bootstrap, "topic": topic.topic}
    if topic.messages is not Messages.EVENTS:
        trace["messages"] = str(topic.messages)
    events, record = layout.table(EVENTS), layout.table("runs")
    run = run_records.load(spark, record, "ingest")
    if options.overwrite:
        if run is not None:
            run_records.forget(spark, record, run)
        for name in (KAFKA, EVENTS, *BESIDE[Messages.REQUEST_LOG]):
            files_of(spark).remove(layout.table(name))
        run = None
    if run is not None and run.trace != trace:
        raise UserError(f"{events}: follows {run.trace}; choose another --out, or --overwrite")
    if run is None:
        if files_of(spark).exists(events):
            raise UserError(
                f"{events}: exists, and follows no topic; choose another --out, or --overwrite to replace it"
            )
        run = Run(options.run_id or f"ingest-{topic.topic}", "ingest", trace, {**options.settings(), "source": "kafka"})
        run_records.save(spark, record, run)
    for name in BESIDE[topic.messages]:
        delta_tables.create(spark, layout.table(name), COMMENTED_TABLES[name])
    if not delta_tables.is_table(spark, events):
        empty = spark.createDataFrame([], from_arrow_schema(TABLES[EVENTS]))
        write_in_time_order(empty, events, 0, options.events_per_file, **delta_tables.OF_LOG)
    elif not files_of(spark).exists(checkpoint) and spark.read.format("delta").load(events).head(1):
        raise UserError(f"{checkpoint}: is gone, and with it how far the topic was read; --overwrite begins anew")
    return run

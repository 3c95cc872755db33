"""A topic that grows: what has come is appended to tables, step by step, for a replay that follows them.

Each step is one micro-batch of Spark's. What is in a message decides how it is written: `event_steps`, `log_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.errors import UserError
from purgatory_udf.ingest.report import IngestOptions
from purgatory_udf.kafka.event_steps import EventSteps
from purgatory_udf.kafka.log_steps import LogSteps
from purgatory_udf.kafka.options import KafkaTopic, Messages
from purgatory_udf.kafka.source import connect, growing
from purgatory_udf.requestlog.importing.options import RequestLogOptions
from purgatory_udf.storage import delta, runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.stream.running import follow_to_end, stop_all, stopped_by_signal
from purgatory_udf.tables import TABLES

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
        with stopped_by_signal():
            follow_to_end(query, "ingest", None)
    finally:
        for line in steps.summary():
            print(line)
        stop_all([query])


def _followed(spark: SparkSession, topic: KafkaTopic, options: Options) -> tuple[StreamingQuery, Steps]:
    layout = Layout(options.out)
    machinery = layout.table(KAFKA)
    checkpoint = f"{machinery}/checkpoint"
    _require_room(spark, layout, checkpoint, options.overwrite)
    run = _begin(spark, layout, topic, options)
    steps: Steps
    if isinstance(options, RequestLogOptions):
        steps = LogSteps(spark, layout, run, topic, options, f"{machinery}/held")
    else:
        steps = EventSteps(spark, layout, run, topic, options)
    messages = growing(spark, topic).writeStream.foreachBatch(steps.write)
    return messages.option("checkpointLocation", checkpoint).start(), steps


def _require_room(spark: SparkSession, layout: Layout, checkpoint: str, overwrite: bool) -> None:
    if delta.is_file(spark, layout.out):
        raise UserError(f"{layout.out}: is a file; --out names a folder")
    if overwrite:
        for name in (KAFKA, EVENTS, *BESIDE[Messages.REQUEST_LOG]):
            delta.remove(spark, layout.table(name))
    events = layout.table(EVENTS)
    if delta.exists(spark, events) and not delta.exists(spark, checkpoint):
        raise UserError(f"{events}: exists, and follows no topic; choose another --out, or --overwrite to replace it")


def _begin(spark: SparkSession, layout: Layout, topic: KafkaTopic, options: Options) -> Run:
    """The tables, empty at first so that they can be followed from now on, and the run's record."""
    trace = {"kafka": topic.bootstrap, "topic": topic.topic}
    if topic.messages is not Messages.EVENTS:
        trace["messages"] = str(topic.messages)
    earlier = runs.load(spark, layout.table("runs"), "ingest")
    if delta.is_table(spark, layout.table(EVENTS)) and earlier is not None:
        if earlier.trace != trace:
            raise UserError(f"{layout.table(EVENTS)}: follows {earlier.trace}; choose another --out, or --overwrite")
        return earlier
    for name in BESIDE[topic.messages]:
        delta.create(spark, layout.table(name), TABLES[name])
    empty = spark.createDataFrame([], from_arrow_schema(TABLES[EVENTS]))
    write_in_time_order(empty, layout.table(EVENTS), 0, options.events_per_file)
    run = Run(options.run_id or f"ingest-{topic.topic}", "ingest", trace, {**options.settings(), "source": "kafka"})
    runs.save(spark, layout.table("runs"), run)
    return run

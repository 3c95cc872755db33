"""A recording's Delta tables, read into Arrow: what the fit works on fits one machine's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.recording import EVENT_COLUMNS, RECORDED_COLUMNS, Recording, recording
from purgatory_udf.query import functions as sf
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a fit needs no more of: a recording's first events are enough.
MOST_EVENTS = 3_000_000


def read_recording(spark: SparkSession, out: str, events: str | None = None) -> Recording:
    """`events` is another table than the folder's own. Of a long recording, its first events."""
    layout = Layout(out)
    path = events or layout.table("events")
    if not delta.is_table(spark, path):
        raise UserError(f"{path}: no such table (ingest makes it)")
    trace = spark.read.format("delta").load(path).where(f"seq < {MOST_EVENTS}").select(*EVENT_COLUMNS)
    return recording(trace.toArrow(), _recorded(spark, layout).select(*RECORDED_COLUMNS).toArrow())


def _recorded(spark: SparkSession, layout: Layout) -> DataFrame:
    """What the brokers did: as their logs say, else as the replay found."""
    path = layout.table("recorded")
    if delta.is_table(spark, path):
        frame = spark.read.format("delta").load(path).where("api IN ('FETCH', 'PRODUCE')")
    elif delta.is_table(spark, layout.table("completions")):
        frame = _replayed(spark, layout)
    else:
        raise UserError(
            f"{path}: no such table, nor a replay beside it (ingest --from request-log, or replay, makes one)"
        )
    return frame.where(sf.col("operation_id") < MOST_EVENTS)


def _replayed(spark: SparkSession, layout: Layout) -> DataFrame:
    completed = spark.read.format("delta").load(layout.table("completions")).where("kind IN ('fetch', 'produce')")
    expired = spark.read.format("delta").load(layout.table("expirations")).where("kind IN ('fetch', 'produce')")
    outcome = sf.when(sf.col("watched"), "completed").otherwise("at_once")
    columns = ("operation_id", sf.col("wait_ms").cast("double").alias("recorded_remote_ms"))
    both = completed.select(*columns, "bytes", sf.col("completed_at").alias("written_at"), outcome.alias("outcome"))
    both = both.union(
        expired.where("NOT after_end").select(*columns, "bytes", "expired_at", sf.lit("expired").alias("outcome"))
    )
    return both.select(
        "operation_id",
        "written_at",
        sf.col("outcome").alias("recorded_outcome"),
        "recorded_remote_ms",
        sf.lit(0.0).alias("recorded_local_ms"),
        sf.col("bytes").alias("recorded_bytes"),
        sf.lit(True).alias("recorded_complete"),
    )

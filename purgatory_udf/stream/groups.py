"""The groups of a replay from beginning to end: stream, let the clock run out, write the tables, count.

As with partitions, every step may be interrupted and run again: two streams go on from their checkpoints, events to
packets and packets to tables, and Delta takes each batch of a table once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.groups.tables import GroupTables
from purgatory_udf.groups.words import API_OF, KINDS
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.stream.group_adapter import GroupLimits
from purgatory_udf.stream.group_disagreements import counted, write_disagreements
from purgatory_udf.stream.group_queries import groups_query, table_of
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.stream.queries import delta_stream, to_delta
from purgatory_udf.stream.survey import Survey
from purgatory_udf.stream.watch import follow_to_end
from purgatory_udf.tables import GROUP_TRANSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PACKETS = pa.schema([("payload", pa.binary())])
_TABLES = ("completions", "expirations", "group_transitions")


def control_path(layout: Layout) -> str:
    """The row that lets the groups' clock run past the end of a finished trace."""
    return f"{layout.machinery}/group_control"


def replay_groups(
    spark: SparkSession, config: Config, layout: Layout, run: Run, found: Survey, events: str, files: int
) -> dict[str, Any]:
    """Replay the group events of the staged table; what to say of them in `runs`, nothing if there are none."""
    if not _has_groups(spark, events):
        return {}
    assert found.last_us is not None
    _create_tables(spark, layout)
    stream = delta_stream(spark, events, files, delta.began(spark, events))
    query = _coordinators(spark, config, layout, stream, found.last_us // 1000).trigger(availableNow=True)
    if not _clock_has_run_out(spark, layout):
        follow_to_end(query.start(), "groups", found)
        _run_out_the_clock(spark, layout, found.last_us)
    follow_to_end(query.start(), "groups", found)
    tables = GroupTables(run.run_id, found.last_us, config.drain)
    follow_to_end(_writer(spark, layout, run, tables).trigger(availableNow=True).start(), "group tables", None)
    write_disagreements(spark, layout, run, tables, spark.read.format("delta").load(layout.group_packets))
    return _counts(spark, tables, layout)


def follow_groups(
    spark: SparkSession, config: Config, layout: Layout, run: Run, events: DataFrame
) -> list[StreamingQuery]:
    """Both queries over a table of events that still grows, running until they are stopped; nothing is drained."""
    _create_tables(spark, layout)
    tables = GroupTables(run.run_id, None, True)
    return [
        _coordinators(spark, config, layout, events, None).start(),
        _writer(spark, layout, run, tables).start(),
    ]


def _create_tables(spark: SparkSession, layout: Layout) -> None:
    delta.create(spark, layout.table("group_transitions"), GROUP_TRANSITIONS)
    delta.create(spark, layout.group_packets, PACKETS)
    delta.create(spark, control_path(layout), PACKED)


def _has_groups(spark: SparkSession, events: str) -> bool:
    return bool(spark.read.format("delta").load(events).where(sf.col("type").isin(*API_OF)).select("type").head(1))


def _coordinators(
    spark: SparkSession, config: Config, layout: Layout, events: DataFrame, trace_end_ms: int | None
) -> DataStreamWriter:
    """Events to packets."""
    limits = GroupLimits(config.group, config.max_disorder_ms > 0, trace_end_ms)
    frame = groups_query(events, delta_stream(spark, control_path(layout)), config, limits)
    return to_delta(frame, layout.group_packets, layout.checkpoint("groups"), "groups")


def _clock_has_run_out(spark: SparkSession, layout: Layout) -> bool:
    """All events have gone through the query, then."""
    return bool(spark.read.format("delta").load(control_path(layout)).head(1))


def _run_out_the_clock(spark: SparkSession, layout: Layout, last_us: int) -> None:
    """One row of no group, past the first deadline that any group can have, so that every timer fires. What follows
    from that, however late, follows in the same call."""
    end_us = last_us + (INT32_MAX + 2000) * 1000
    row = spark.range(1).select(
        sf.lit(CLOCK).alias("group"),
        sf.timestamp_micros(sf.lit(end_us)).alias("event_time"),
        sf.lit(b"").alias("payload"),
    )
    row.write.format("delta").mode("append").save(control_path(layout))


def _writer(spark: SparkSession, layout: Layout, run: Run, tables: GroupTables) -> DataStreamWriter:
    """Packets to tables. The query keeps no state, so a write that Delta skips as seen leaves nothing behind."""

    def write(packets: DataFrame, number: int) -> None:
        for table in _TABLES:
            (
                table_of(packets, table, tables)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", f"{run.run_id}/{run.configuration['stream']}/groups/{table}")
                .option("txnVersion", number)
                .save(layout.table(table))
            )

    return (
        delta_stream(spark, layout.group_packets)
        .writeStream.foreachBatch(write)
        .queryName("group tables")
        .option("checkpointLocation", layout.checkpoint("group_tables"))
    )


def _counts(spark: SparkSession, tables: GroupTables, layout: Layout) -> dict[str, Any]:
    def rows(table: str) -> int:
        frame = spark.read.format("delta").load(layout.table(table))
        return (frame if table == "group_transitions" else frame.where(sf.col("kind").isin(*KINDS))).count()

    packets = spark.read.format("delta").load(layout.group_packets)
    completions, expirations = rows("completions"), rows("expirations")
    still_open = 0 if tables.drain else table_of(packets, "open", tables).count()
    return {
        "operations": completions + expirations + still_open,
        "completions": completions,
        "expirations": expirations,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": counted(spark, layout),
    }

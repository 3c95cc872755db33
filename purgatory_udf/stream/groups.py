"""The groups of a replay from beginning to end: stream, let the clock run out, count.

As with partitions, every step may be interrupted and run again: the stream goes on from its checkpoint, and Delta takes
each batch of a table once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.groups.ledger import Ledger
from purgatory_udf.groups.tables import TOLD, GroupTables
from purgatory_udf.groups.words import KINDS
from purgatory_udf.live.boards import Boards
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.stream.group_adapter import GroupLimits
from purgatory_udf.stream.group_disagreements import counted, write_disagreements
from purgatory_udf.stream.group_queries import groups_query
from purgatory_udf.stream.group_sink import GroupSink
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.stream.queries import TraceSource, delta_stream
from purgatory_udf.stream.running import follow_to_end
from purgatory_udf.stream.survey import Survey
from purgatory_udf.tables import GROUP_TRANSITIONS, PURGATORY_GAUGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def control_path(layout: Layout) -> str:
    """The row that lets the groups' clock run past the end of a finished trace."""
    return f"{layout.machinery}/group_control"


def replay_groups(
    spark: SparkSession, config: Config, layout: Layout, run: Run, found: Survey, source: TraceSource
) -> dict[str, Any]:
    """Replay the group events of the trace; what to say of them in `runs`, nothing if there are none."""
    if not found.of_groups:
        return {}
    assert found.first_us is not None and found.last_us is not None
    _create_tables(spark, layout)
    tables = GroupTables(run.run_id, found.last_us, config.drain)
    sink = _sink(spark, config, layout, run, tables, found.first_us // 1000)
    query = _coordinators(spark, config, layout, source.stream(spark), sink).trigger(availableNow=True)
    if not _clock_has_run_out(spark, layout):
        follow_to_end(query.start(), "groups", found)
        _run_out_the_clock(spark, layout, found.last_us)
    follow_to_end(query.start(), "groups", found)
    write_disagreements(spark, layout, run, spark.read.format("delta").load(layout.told))
    return _counts(spark, 0 if config.drain else sink.left_open(), layout)


def follow_groups(
    spark: SparkSession,
    config: Config,
    layout: Layout,
    run: Run,
    events: DataFrame,
    began_ms: int,
    boards: Boards | None = None,
) -> list[StreamingQuery]:
    """The query over a table of events that still grows, running until it is stopped; nothing is drained."""
    _create_tables(spark, layout)
    sink = _sink(spark, config, layout, run, GroupTables(run.run_id, None, True), began_ms)
    sink.boards = boards
    return [_coordinators(spark, config, layout, events, sink).start()]


def _sink(
    spark: SparkSession, config: Config, layout: Layout, run: Run, tables: GroupTables, began_ms: int
) -> GroupSink:
    end_us = tables.trace_end_us
    ledger = Ledger(config.group.purge_interval, began_ms, None if end_us is None else end_us // 1000)
    return GroupSink(spark, layout, f"{run.run_id}/{run.configuration['stream']}", tables, ledger)


def _create_tables(spark: SparkSession, layout: Layout) -> None:
    schemas = {
        layout.table("group_transitions"): GROUP_TRANSITIONS,
        layout.table("purgatory_gauges"): PURGATORY_GAUGES,
        layout.told: TOLD,
        control_path(layout): PACKED,
    }
    delta.create_all(spark, schemas)


def _coordinators(
    spark: SparkSession, config: Config, layout: Layout, events: DataFrame, sink: GroupSink
) -> DataStreamWriter:
    """Events to tables."""
    limits = GroupLimits(config.group, config.max_disorder_ms > 0, sink.ledger.end_ms, sink.boards is not None)
    frame = groups_query(events, delta_stream(spark, control_path(layout)), config, limits)
    return (
        frame.writeStream.foreachBatch(sink.write)
        .queryName("groups")
        .option("checkpointLocation", layout.checkpoint("groups"))
    )


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


def _counts(spark: SparkSession, still_open: int, layout: Layout) -> dict[str, Any]:
    def rows(table: str) -> int:
        frame = spark.read.format("delta").load(layout.table(table))
        return (frame if table == "group_transitions" else frame.where(sf.col("kind").isin(*KINDS))).count()

    completions, expirations = rows("completions"), rows("expirations")
    return {
        "operations": completions + expirations + still_open,
        "completions": completions,
        "expirations": expirations,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": counted(spark, layout),
    }

"""A table of events that grows in portions, a replay that follows it, and the tables that it writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.streaming_query import GROUPS
from tests.support import oracle_groups, oracle_traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = dict[str, Any]

TABLES = ("completions", "expirations", "watches", "purgatory_gauges", "group_transitions")
CONFIG = Config.model_validate({"drain": False, "group": {"min_session_timeout_ms": 0, "purge_interval": 50}})
BY_SHARD = Config.model_validate(CONFIG.model_dump() | {"grouping": "shard", "grouping_shards": 2})


def growing_trace() -> list[Event]:
    """Return recorded events of partitions and of consumer groups, interleaved, and two clock events an hour later.

    The second one is needed because only the batch after a clock event knows its time.
    """
    partitions, groups = oracle_traces.load("tiny-2").events, oracle_groups.load("tiny-3").events
    first, other = (min(event["time_us"] for event in some) for some in (partitions, groups))
    moved = [event | {"time_us": event["time_us"] - other + first, "broker": 0} for event in groups]
    events = sorted([*partitions, *moved], key=lambda event: (event["time_us"], event["seq"]))
    end_us = events[-1]["time_us"]
    events += [{"type": "clock", "time_us": end_us + seconds * 1_000_000} for seconds in (3600, 3601)]
    return [{"broker": 0} | event | {"seq": seq} for seq, event in enumerate(events, 1)]


def split_trace(events: list[Event]) -> list[list[Event]]:
    """Split a trace into three portions between milliseconds. The third is the last event."""
    *events, last = events
    at = len(events) * 2 // 3
    while events[at]["time_us"] // 1000 == events[at - 1]["time_us"] // 1000:
        at += 1
    return [events[:at], events[at:], [last]]


def append_events(spark: SparkSession, folder: Path, events: list[Event]) -> str:
    """Append to the table `folder/events`, which may lack columns of this version, and return its path."""
    path = str(folder / "events")
    rows = event_table([event | {"event_time": event["time_us"]} for event in events])
    if DeltaTable.is_deltatable(path):
        schema = pa.schema(DeltaTable(path).schema().to_arrow())
        rows = rows.select(schema.names).cast(schema)
    write_in_time_order(spark.createDataFrame(rows), path, len(events), 10_000, "append")
    return path


@contextmanager
def replay_in_thread(spark: SparkSession, options: ReplayOptions) -> Iterator[None]:
    """Run a replay in another thread. The body starts when all queries run; at its end all are stopped."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, options)
        except BaseException as error:
            errors.append(error)

    replay = threading.Thread(target=run, daemon=True)
    replay.start()
    try:
        while not all_queries_run(spark) and replay.is_alive():
            replay.join(0.1)
        yield
    finally:
        for query in spark.streams.active:
            query.stop()
        replay.join()
    assert errors == []


def all_queries_run(spark: SparkSession) -> bool:
    """Return whether all queries of a replay without share groups run. That of the groups is started last."""
    return GROUPS in {query.name for query in spark.streams.active}


def process_all_available(spark: SparkSession) -> None:
    """Wait until every query has processed its current input."""
    for query in spark.streams.active:
        query.processAllAvailable()


def sorted_rows(out: Path, name: str) -> pa.Table:
    """Return a table without its `run_id`, sorted by all columns."""
    table = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"])
    plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    return table.sort_by([(column, "ascending") for column in plain])

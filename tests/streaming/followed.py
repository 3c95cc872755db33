"""A trace for a replay that follows a table which grows in portions, and the tables that come of it."""

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
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
from tests.support import oracle_groups, oracle_traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = dict[str, Any]

TABLES = ("completions", "expirations", "watches", "purgatory_gauges", "group_transitions")
CONFIG = Config.model_validate({"drain": False, "group": {"min_session_timeout_ms": 0, "purge_interval": 50}})
BY_SHARD = Config.model_validate(CONFIG.model_dump() | {"grouping": "shard", "grouping_shards": 2})


def trace() -> list[Event]:
    """Partitions and groups side by side, each as recorded; an hour later the time is told, twice: what a batch says of
    it is known to the next one."""
    partitions, groups = oracle_traces.load("tiny-2").events, oracle_groups.load("tiny-3").events
    first, other = (min(event["time_us"] for event in some) for some in (partitions, groups))
    moved = [event | {"time_us": event["time_us"] - other + first, "broker": 0} for event in groups]
    events = sorted([*partitions, *moved], key=lambda event: (event["time_us"], event["seq"]))
    end_us = events[-1]["time_us"]
    events += [{"type": "clock", "time_us": end_us + seconds * 1_000_000} for seconds in (3600, 3601)]
    return [{"broker": 0} | event | {"seq": seq} for seq, event in enumerate(events, 1)]


def portions(events: list[Event]) -> list[list[Event]]:
    """Three, cut between milliseconds; the last one is the last event."""
    *events, last = events
    at = len(events) * 2 // 3
    while events[at]["time_us"] // 1000 == events[at - 1]["time_us"] // 1000:
        at += 1
    return [events[:at], events[at:], [last]]


def append(spark: SparkSession, folder: Path, events: list[Event]) -> str:
    frame = spark.createDataFrame(event_table([event | {"event_time": event["time_us"]} for event in events]))
    write_in_time_order(frame, str(folder / "events"), len(events), 10_000, "append")
    return str(folder / "events")


@contextmanager
def following(spark: SparkSession, options: ReplayOptions) -> Iterator[None]:
    """The command in a thread of its own, from when both its queries run until they are stopped."""
    died: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, options)
        except BaseException as error:
            died.append(error)

    replay = threading.Thread(target=run)
    replay.start()
    try:
        while len(spark.streams.active) < 2 and replay.is_alive():
            replay.join(0.1)
        yield
    finally:
        for query in spark.streams.active:
            query.stop()
        replay.join()
    assert died == []


def caught_up(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.processAllAvailable()


def rows(out: Path, name: str) -> pa.Table:
    """A table without its run, in one order."""
    table = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"])
    plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    return table.sort_by([(column, "ascending") for column in plain])

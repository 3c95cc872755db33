"""A small trace through Spark, not drained: what only newer events say reaches the rules, and what is open stays so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from purgatory_udf.config import load
from purgatory_udf.loop.engine import event_table
from purgatory_udf.storage.run_tables import RunTables
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = dict[str, Any]

WHOLE, HARD, OPEN = 101, 102, 103  # operations


def _change(ms: int, partition: int, change: str, offset: int, **more: Any) -> Event:
    where = {"type": "partition", "topic": "t", "partition": partition, "change": change, "offset": offset}
    return {"time_us": ms * 1000, "broker": 0} | where | more


def _fetch(ms: int, seq: int, **more: Any) -> Event:
    part = {"topic": "t", "partition": 0, "fetch_offset": 0, "max_bytes": 100}
    asked = {"type": "fetch", "replica_id": -1, "max_wait_ms": 500, "min_bytes": 500, "max_bytes": 1 << 20}
    said = {"isolation": "read_uncommitted", "request_id": f"r{seq}", "partitions": [part]}
    return {"time_us": ms * 1000, "broker": 0, "seq": seq} | asked | said | more


def _produce(ms: int, seq: int, ends: dict[int, int], timeout_ms: int) -> Event:
    parts = [
        {"topic": "t", "partition": partition, "base_offset": end - 1, "last_offset": end - 1, "bytes": 10}
        for partition, end in ends.items()
    ]
    asked = {"type": "produce", "acks": -1, "timeout_ms": timeout_ms, "request_id": f"r{seq}", "partitions": parts}
    return {"time_us": ms * 1000, "broker": 0, "seq": seq} | asked


EVENTS = [
    *(_change(1, partition, change, 0) for partition in (0, 1) for change in ("log_end", "high_watermark")),
    _change(10, 0, "log_end", 10, bytes=2_000, batches=1),
    _change(11, 0, "high_watermark", 10),
    _fetch(20, WHOLE),
    _fetch(30, HARD, hard_max_bytes=True),
    _produce(40, OPEN, {0: 11, 1: 1}, timeout_ms=5_000),
    _change(600, 0, "high_watermark", 11),
]


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, RunTables]:
    folder: Path = tmp_path_factory.mktemp("left-open")
    events = [{"seq": number, **event} for number, event in enumerate(EVENTS, 1)]
    pq.write_table(event_table(events), folder / "events.parquet")
    table = str(folder / "events")
    write_in_time_order(spark.read.parquet(str(folder / "events.parquet")), table, len(events), 100)
    out = str(folder / "out")
    run = run_replay(spark, ReplayOptions(table, out, load(None, ["grouping=broker", "drain=false"])))
    return run, RunTables(spark, out)


def _rows(tables: RunTables, name: str, *columns: str) -> set[tuple[Any, ...]]:
    rows = DeltaTable(tables.layout.table(name)).to_pyarrow_table().to_pylist()
    return {tuple(row[column] for column in columns) for row in rows}


def test_a_fetch_is_given_one_batch_whole_unless_its_maximum_is_hard(replayed: tuple[Run, RunTables]) -> None:
    _, tables = replayed
    columns = ("operation_id", "completed_by", "bytes", "answered_bytes")
    assert _rows(tables, "completions", *columns) == {(WHOLE, "min_bytes", 100, 2_000)}
    assert _rows(tables, "expirations", *columns) == {(HARD, "timeout", 100, 100)}


def test_what_is_open_at_the_end_has_no_watch_that_expired(replayed: tuple[Run, RunTables]) -> None:
    run, tables = replayed
    assert run.counts["open"] == 1
    assert _rows(tables, "watches", "operation_id", "partition", "status") == {
        (WHOLE, 0, "satisfied"),
        (HARD, 0, "expired"),
        (OPEN, 0, "satisfied"),
    }


def test_a_trace_without_groups_starts_no_query_of_groups(replayed: tuple[Run, RunTables]) -> None:
    run, tables = replayed
    assert "groups" not in run.counts
    checkpoints = Path(tables.layout.checkpoint("groups")).parent
    assert [entry.name for entry in checkpoints.iterdir()] == ["partitions"]

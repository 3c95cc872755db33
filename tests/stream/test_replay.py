"""The whole replay on real Spark and Delta: the same tables whatever the batches and the grouping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle_traces
import pyarrow as pa

from purgatory_udf.columnar.engine import event_table
from purgatory_udf.columnar.outcome_rows import outcomes_of
from purgatory_udf.config import load
from purgatory_udf.outcomes import Outcome
from purgatory_udf.stream.replay import ReplayOptions, run_replay
from purgatory_udf.stream.staging import write_in_time_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("completions", "expirations", "watches", "purgatory_gauges")


def _write_events(spark: SparkSession, events: list[dict[str, Any]], folder: Path) -> str:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    pq.write_table(event_table(events), folder / "events.parquet")
    frame = spark.read.parquet(str(folder / "events.parquet"))
    write_in_time_order(frame, str(folder / "events"), len(events), 50_000)
    return str(folder / "events")


def _rows(spark: SparkSession, out: Path) -> dict[str, pa.Table]:
    """Every table without its run, in one order."""
    tables = {}
    for name in TABLES:
        table = spark.read.format("delta").load(str(out / name)).drop("run_id").toArrow()
        order = [(column, "ascending") for column in table.column_names if column != "partitions"]
        tables[name] = table.sort_by(order)
    return tables


def _outcomes(tables: dict[str, pa.Table]) -> list[Outcome]:
    run = [pa.array([""] * tables[name].num_rows, pa.string()) for name in TABLES[:2]]
    completions, expirations = (
        tables[name].append_column("run_id", column) for name, column in zip(TABLES, run, strict=False)
    )
    return outcomes_of(completions, expirations)


def test_a_trace_ends_as_in_kafka_in_many_batches_by_partition_and_in_one_by_shard(
    spark: SparkSession, tmp_path: Path
) -> None:
    trace = oracle_traces.load("tiny-2")
    events = _write_events(spark, trace.events, tmp_path / "trace")
    many, one = tmp_path / "many", tmp_path / "one"
    run = run_replay(spark, ReplayOptions(events, str(many), load(None, ["batch_events=200"])))
    assert run.counts["open"] == 0
    found = _rows(spark, many)
    assert trace.rows(_outcomes(found)) == trace.outcomes
    shards = load(None, ["grouping=shard", "grouping_shards=3"])
    again = run_replay(spark, ReplayOptions(events, str(one), shards))
    assert again.run_id == run.run_id, "grouping and batches are no part of what a run answers"
    assert _rows(spark, one) == found

"""The tables of an import, written from what its tasks have finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.file_system import files_of, require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, RECORDED, TABLES
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.event_staging import write_last_in_time_order
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE = "events", "rejected_events", "recorded"
NAMES = (EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE)

_TOLD = (
    "api STRING, kind STRING, outcome STRING, remote_ms DOUBLE, local_ms DOUBLE, written_us BIGINT, "
    "error STRING, bytes BIGINT, timed_out INT, generation INT, complete BOOLEAN"
)


@dataclass(frozen=True)
class Finished:
    """`events` in their total order (`task` and `number` in it say where each stands), `rejected` (file, line, reason,
    raw); `source` names a row's file."""

    events: DataFrame
    rejected: DataFrame
    source: Column


def source_of(sources: Sequence[str]) -> Column:
    """The name of a row's `file`."""
    return sf.element_at(sf.array(*map(sf.lit, sources)), sf.col("file") + 1)


def require_room(spark: SparkSession, layout: Layout, overwrite: bool, staging: str) -> None:
    require_no_file(files_of(spark), layout.out)
    # Where rows are still staged, an import was interrupted: what is there was its own, and is made anew.
    if files_of(spark).exists(layout.table(staging)):
        return
    for path in map(layout.table, NAMES):
        if files_of(spark).exists(path) and not delta_tables.is_table(spark, path):
            raise UserError(f"{path}: exists and is no Delta table; choose another --out or move it away")
    events = layout.table(EVENTS_TABLE)
    if not overwrite and delta_tables.is_table(spark, events):
        raise UserError(f"{events}: exists; choose another --out, or --overwrite to replace it")


def write(
    spark: SparkSession, layout: Layout, run_id: str, finished: Finished, bad_lines: int, per_file: int
) -> tuple[int, int]:
    """The tables, `events` last. How many events there are, and how many were rejected: `bad_lines` lines, and what the
    contract refuses."""
    for name in NAMES:
        files_of(spark).remove(layout.table(name))
    tasks = _tasks(finished)
    refused = sum(task.refused for task in tasks)
    # What the contract refuses keeps its number, so that nothing else's depends on it.
    events = _numbered(spark, finished, run_id, tasks, 0).where("rule IS NULL")
    accepted = sum(task.size for task in tasks) - refused
    rows = events.select(*TABLES[EVENTS_TABLE].names)

    def write_others() -> None:
        if bad_lines + refused:
            _save(rejections(finished, run_id), layout, REJECTED_TABLE)
        else:
            delta_tables.create(spark, layout.table(REJECTED_TABLE), COMMENTED_TABLES[REJECTED_TABLE])
        _save(recorded(events), layout, RECORDED_TABLE)

    write_last_in_time_order(rows, layout.table(EVENTS_TABLE), accepted, per_file, write_others)
    return accepted, bad_lines + refused


def _save(rows: DataFrame, layout: Layout, table: str) -> None:
    delta_tables.commented_writer(rows, COMMENTED_TABLES[table]).format("delta").save(layout.table(table))


class _Task(NamedTuple):
    """How many events a task has finished, and how many of these the contract refuses."""

    task: int
    size: int
    refused: int


def _tasks(finished: Finished) -> list[_Task]:
    refused = sf.count("rule").alias("refused")
    last = sf.max("number").alias("last")
    sizes = finished.events.groupBy("task").agg(last, refused).orderBy("task")
    return [_Task(row.task, row.last + 1, row.refused) for row in sizes.collect()]


def numbered(spark: SparkSession, finished: Finished, run_id: str, first: int = 0) -> DataFrame:
    """Events with their `seq`, from `first` on: tasks hold ranges of the order, one after the other, and count within
    themselves."""
    return _numbered(spark, finished, run_id, _tasks(finished), first)


def _numbered(spark: SparkSession, finished: Finished, run_id: str, tasks: Sequence[_Task], first: int) -> DataFrame:
    begins: list[tuple[int, int]] = []
    total = first
    for task in tasks:
        begins.append((task.task, total))
        total += task.size
    before = spark.createDataFrame(begins, "task INT, before BIGINT")
    # What is no request's comes from no line.
    placed = sf.col("at_line") >= 0
    return finished.events.join(sf.broadcast(before), "task").withColumns(
        {
            "seq": sf.col("before") + sf.col("number"),
            "run_id": sf.lit(run_id),
            "event_time": sf.timestamp_micros("time_us"),
            "source": sf.when(placed, finished.source),
            "line": sf.when(placed, sf.col("at_line")),
        }
    )


def rejections(finished: Finished, run_id: str) -> DataFrame:
    """Rows of the table."""
    rows = finished.rejected.withColumns({"run_id": sf.lit(run_id), "source": finished.source})
    return rows.select(*TABLES[REJECTED_TABLE].names)


def recorded(events: DataFrame) -> DataFrame:
    """What the brokers recorded of the numbered events, as rows of the table."""
    parsed = events.where("recorded IS NOT NULL").withColumn("told", sf.from_json("recorded", _TOLD))
    fields = {
        name: sf.col(f"told.{name.removeprefix('recorded_')}")
        for name in RECORDED.names
        if name.startswith("recorded_") or name in ("api", "kind")
    }
    placed = {
        "operation_id": sf.col("seq"),
        "started_at": sf.col("event_time"),
        "written_at": sf.timestamp_micros("told.written_us"),
    }
    return parsed.withColumns({**placed, **fields}).select(*RECORDED.names)

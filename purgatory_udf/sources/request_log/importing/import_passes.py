"""The order of work, whether a log is read whole or step by step: who is taken apart, which facts say what, and what
dates an operation.

    requests ─┬─ fetches, by session ─┬─► parts ─┬─ facts, by partition ─► said ──┐
              └─ others, one by one ──┘          └─ operations ───────────────────┴─► dated

What a step has left comes in where its like is made: sessions' states before their fetches, facts and partitions'
states beside new facts, operations that wait beside new ones. A whole log is one step that nothing has been left to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import is_local, local
from purgatory_udf.backend.task_runner import without_collection
from purgatory_udf.sources.request_log.importing import import_rows, import_tasks, log_reader
from purgatory_udf.sources.request_log.importing.import_options import Rename
from purgatory_udf.sources.request_log.partitions.partition_status import ALL_TIME, TimeRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Spark frames of an import's rows, as both ways to read a log need them: whole, and step by step.


ORDER = [name for name, _ in import_rows.ORDER]
PARTITION = ("broker", "topic", "partition")


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def mapped(frame: DataFrame, work: Work, schema: pa.Schema, together: Sequence[str] = (), task: str = "") -> DataFrame:
    """Rows that have the columns `together` in common lie side by side, and are worked on by one task. `task` names a
    column for its number; tasks have the frame's order."""
    here: Any = frame
    if is_local():
        return here.mapApart(without_collection(work), schema, together, task)
    made = frame.mapInArrow(without_collection(work), from_arrow_schema(schema))
    return made.withColumn(task, sf.spark_partition_id()) if task else made


@dataclass(frozen=True)
class Mapping:
    """As of `mapped`."""

    frame: DataFrame
    work: Work
    together: Sequence[str] = ()


def mapped_side_by_side(mappings: Sequence[Mapping], schema: pa.Schema) -> DataFrame:
    """The rows of all of them, worked on by the same processes: one core need not wait until the other is done with one
    of them."""
    if not is_local():
        return reduce(
            lambda above, below: above.unionByName(below),
            (mapped(each.frame, each.work, schema, each.together) for each in mappings),
        )
    from purgatory_udf.backend.local.frame import mapped_apart

    frames: list[Any] = [each.frame for each in mappings]
    made = mapped_apart(
        [(frame, without_collection(each.work), each.together) for frame, each in zip(frames, mappings, strict=True)]
    )
    batches = list(chain.from_iterable(chain.from_iterable(made)))
    made_of: Any = frames[0].sparkSession.createDataFrame(pa.Table.from_batches(batches, schema))
    return made_of


def held(spark: SparkSession, value: Any) -> Callable[[], Any]:
    """The value, handed to each worker once."""
    if local(spark):
        return lambda: value
    broadcast = spark.sparkContext.broadcast(value)
    return lambda: broadcast.value


def own_thread(remote_us: Column) -> Column:
    """1 for a heartbeat that was answered by the thread that handled it, else 0."""
    return sf.when(remote_us == 0, 1).otherwise(0)


def in_order(operations: DataFrame, said: DataFrame, source: Column, rename: Rename | None = None) -> DataFrame:
    """All events in their total order: `task` and `number` in it say where each stands. `source` names a row's file."""
    changes = said.where(sf.col("part") == import_rows.CHANGE).select(*ORDER, "event")
    operations = operations.withColumn("time_us", sf.col("at_us"))
    together = operations.select(*ORDER, "event", "recorded", "offsets").unionByName(changes, allowMissingColumns=True)
    # Most changes were caused by no single request.
    name = sf.when(sf.col("line") >= 0, sf.concat(source, sf.lit(":"), sf.col("line")))
    together = together.withColumns({"request_id": name, "at_line": sf.col("line")})
    ordered = together.repartitionByRange(*ORDER).sortWithinPartitions(*ORDER)
    return mapped(ordered, import_tasks.finish_events(rename), import_rows.FINISHED, task="task")


def rejected(read: DataFrame, parts: DataFrame, events: DataFrame) -> DataFrame:
    """Lines that could not be read, bodies that could not be taken apart, events that the contract refuses."""
    lines = read.where(sf.col("row") == log_reader.BAD).select("file", "line", "reason", "raw")
    bodies = parts.where(sf.col("part") == import_rows.BAD).select(
        "file", "line", sf.col("event").alias("reason"), sf.col("recorded").alias("raw")
    )
    refused = events.where("rule IS NOT NULL").select("file", sf.col("at_line").alias("line"), "reason", "raw")
    return lines.unionByName(bodies).unionByName(refused)


def counted(frame: DataFrame) -> dict[str, int]:
    """What the tasks have counted, by cause."""
    counts = frame.where(sf.col("part") == import_rows.COUNT).select("kind", sf.col("numbers")[0].alias("number"))
    return {row.kind: row.number for row in counts.groupBy("kind").agg(sf.sum("number").alias("number")).collect()}


# Keeps, by its name, what is used more than once.
Keep = Callable[[str, "DataFrame"], "DataFrame"]

_SESSION = ("broker", "session")


@dataclass(frozen=True)
class Tasks:
    """What takes sessions' fetches apart, and all other requests; and what says the partitions' timelines. `parts` and
    `said` are the rows that they make."""

    sessions: Work
    others: Work
    timelines: Work
    parts: pa.Schema
    said: pa.Schema


@dataclass(frozen=True)
class Leavings:
    """Rows that a step has left: sessions' states, as requests come; facts and partitions' states; operations."""

    sessions: DataFrame
    facts: DataFrame
    operations: DataFrame


@dataclass(frozen=True)
class Passed:
    """`operations` are all those that are not written yet: `at_us` is when each is tried."""

    parts: DataFrame
    said: DataFrame
    operations: DataFrame


def work(
    requests: DataFrame, tasks: Tasks, keep: Keep, stretch: TimeRange = ALL_TIME, left: Leavings | None = None
) -> Passed:
    parts = keep("parts", _parts(requests, tasks, left))
    said = keep("said", _said(parts, tasks, left))
    return Passed(parts, said, _dated(parts, said, stretch, left))


def _parts(requests: DataFrame, tasks: Tasks, left: Leavings | None) -> DataFrame:
    fetches = requests.where("session IS NOT NULL")
    if left is not None:
        fetches = fetches.unionByName(left.sessions, allowMissingColumns=True)
    # A session's state comes before its fetches: it has no time.
    by_session = fetches.repartition(*_SESSION).sortWithinPartitions(
        *_SESSION, sf.col("start_us").asc_nulls_first(), "file", "line"
    )
    others = requests.where("session IS NULL")
    return mapped_side_by_side(
        [Mapping(by_session, tasks.sessions, _SESSION), Mapping(others, tasks.others)], tasks.parts
    )


def _said(parts: DataFrame, tasks: Tasks, left: Leavings | None) -> DataFrame:
    facts = parts.where(sf.col("part") == import_rows.FACT)
    columns = [*PARTITION, "part", "packed"]
    if left is not None:
        facts = left.facts.unionByName(facts)
        columns += ["event", "settled"]
    by_partition = facts.select(*columns).repartition(*PARTITION).sortWithinPartitions(*PARTITION)
    return mapped(by_partition, tasks.timelines, tasks.said, PARTITION)


def _dated(parts: DataFrame, said: DataFrame, stretch: TimeRange, left: Leavings | None) -> DataFrame:
    """A produce is tried when all of its partitions have been appended, at the offsets that their timelines found."""
    operations = parts.where(sf.col("part") == import_rows.OPERATION)
    if left is not None:
        operations = left.operations.unionByName(operations)
    offsets = (
        said.where(sf.col("part") == import_rows.PRODUCED)
        .groupBy("file", "line")
        .agg(sf.collect_list(sf.struct("slot", "base", "end")).alias("offsets"), sf.max("time_us").alias("appended_us"))
    )
    tried = sf.greatest("time_us", "appended_us", sf.lit(stretch.from_us))
    return operations.join(offsets, ["file", "line"], "left").withColumn("at_us", tried)

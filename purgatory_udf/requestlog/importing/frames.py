"""Spark frames of an import's rows, as both ways to read a log need them: whole, and step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.ingest.tasks import without_collection
from purgatory_udf.query import functions as sf
from purgatory_udf.query import is_local, local
from purgatory_udf.requestlog.importing import reading, rows, tasks
from purgatory_udf.requestlog.importing.anonymise import Rename

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDER = [name for name, _ in rows.ORDER]
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
    from purgatory_udf.local.frame import mapped_apart

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
    changes = said.where(sf.col("part") == rows.CHANGE).select(*ORDER, "event")
    operations = operations.withColumn("time_us", sf.col("at_us"))
    together = operations.select(*ORDER, "event", "recorded", "offsets").unionByName(changes, allowMissingColumns=True)
    # Most changes were caused by no single request.
    name = sf.when(sf.col("line") >= 0, sf.concat(source, sf.lit(":"), sf.col("line")))
    together = together.withColumns({"request_id": name, "at_line": sf.col("line")})
    ordered = together.repartitionByRange(*ORDER).sortWithinPartitions(*ORDER)
    return mapped(ordered, tasks.finish_events(rename), rows.FINISHED, task="task")


def rejected(read: DataFrame, parts: DataFrame, events: DataFrame) -> DataFrame:
    """Lines that could not be read, bodies that could not be taken apart, events that the contract refuses."""
    lines = read.where(sf.col("row") == reading.BAD).select("file", "line", "reason", "raw")
    bodies = parts.where(sf.col("part") == rows.BAD).select(
        "file", "line", sf.col("event").alias("reason"), sf.col("recorded").alias("raw")
    )
    refused = events.where("rule IS NOT NULL").select("file", sf.col("at_line").alias("line"), "reason", "raw")
    return lines.unionByName(bodies).unionByName(refused)


def counted(frame: DataFrame) -> dict[str, int]:
    """What the tasks have counted, by cause."""
    counts = frame.where(sf.col("part") == rows.COUNT).select("kind", sf.col("numbers")[0].alias("number"))
    return {row.kind: row.number for row in counts.groupBy("kind").agg(sf.sum("number").alias("number")).collect()}

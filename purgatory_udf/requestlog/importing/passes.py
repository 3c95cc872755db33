"""The order of work, whether a log is read whole or step by step: who is taken apart, which facts say what, and what
dates an operation.

    requests ─┬─ fetches, by session ─┬─► parts ─┬─ facts, by partition ─► said ──┐
              └─ others, one by one ──┘          └─ operations ───────────────────┴─► dated

What a step has left comes in where its like is made: sessions' states before their fetches, facts and partitions'
states beside new facts, operations that wait beside new ones. A whole log is one step that nothing has been left to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from purgatory_udf.query import functions as sf
from purgatory_udf.requestlog.importing import rows
from purgatory_udf.requestlog.importing.frames import PARTITION, Mapping, Work, mapped, mapped_side_by_side
from purgatory_udf.requestlog.partitions.stretch import ALL, Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def work(requests: DataFrame, tasks: Tasks, keep: Keep, stretch: Stretch = ALL, left: Leavings | None = None) -> Passed:
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
    facts = parts.where(sf.col("part") == rows.FACT)
    columns = [*PARTITION, "part", "packed"]
    if left is not None:
        facts = left.facts.unionByName(facts)
        columns += ["event", "settled"]
    by_partition = facts.select(*columns).repartition(*PARTITION).sortWithinPartitions(*PARTITION)
    return mapped(by_partition, tasks.timelines, tasks.said, PARTITION)


def _dated(parts: DataFrame, said: DataFrame, stretch: Stretch, left: Leavings | None) -> DataFrame:
    """A produce is tried when all of its partitions have been appended, at the offsets that their timelines found."""
    operations = parts.where(sf.col("part") == rows.OPERATION)
    if left is not None:
        operations = left.operations.unionByName(operations)
    offsets = (
        said.where(sf.col("part") == rows.PRODUCED)
        .groupBy("file", "line")
        .agg(sf.collect_list(sf.struct("slot", "base", "end")).alias("offsets"), sf.max("time_us").alias("appended_us"))
    )
    tried = sf.greatest("time_us", "appended_us", sf.lit(stretch.from_us))
    return operations.join(offsets, ["file", "line"], "left").withColumn("at_us", tried)

"""A replay's groups from its tables, held against what their coordinators logged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from purgatory_udf.fidelity.coordinators import Expired, Span, compare, facts_of, table
from purgatory_udf.fidelity.server_log import Fact
from purgatory_udf.outcomes import Transition
from purgatory_udf.printing import Table
from purgatory_udf.query import functions as sf
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("heartbeat", "join", "sync")


def logged_groups(spark: SparkSession, layout: Layout, logged: Iterable[Fact]) -> Table:
    """Of what comes after a broker's last request the broker had other news."""
    started = sf.unix_micros("started_at")
    requests = _load(spark, layout, "recorded").groupBy("broker")
    ends = requests.agg(sf.min(started).alias("first"), sf.max(started).alias("last")).collect()
    spans = {row["broker"]: Span(row["first"], row["last"]) for row in ends}
    replayed = facts_of(_transitions(_load(spark, layout, "group_transitions")), _expired(spark, layout))
    return table(compare(logged, replayed, spans))


def _transitions(rows: DataFrame) -> Iterator[Transition]:
    for row in rows.withColumn("at_us", sf.unix_micros("at")).toLocalIterator():
        yield Transition(
            row["group"],
            row["broker"],
            row["at_us"],
            row["from_state"],
            row["to_state"],
            row["reason"],
            row["generation"],
            tuple(row["members"] or ()),
        )


def _expired(spark: SparkSession, layout: Layout) -> Iterator[Expired]:
    rows = _load(spark, layout, "expirations").where(sf.col("kind").isin(*KINDS) & ~sf.col("after_end"))
    for row in rows.select("broker", "kind", "key", sf.unix_micros("expired_at").alias("at_us")).toLocalIterator():
        yield Expired(row["broker"], row["kind"], row["key"], row["at_us"])


def _load(spark: SparkSession, layout: Layout, name: str) -> DataFrame:
    return spark.read.format("delta").load(layout.table(name))

"""What only the whole input can say of an event: that it is late, or that another one has its `seq` already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATE = "late"
DUPLICATE = "duplicate seq"


def without_late(placed: DataFrame, max_disorder_ms: int) -> DataFrame:
    """Refuse, by `rule` and `reason`, what lies more than `max_disorder_ms` behind an earlier line of its file."""
    behind = sf.col("latest") - sf.col("time_us")
    late = sf.col("rule").isNull() & (behind > max_disorder_ms * 1000)
    reason = sf.format_string(
        "late: time_us %d is %d us behind %d, the greatest before it in the file (max_disorder_ms is %d)",
        "time_us",
        behind,
        "latest",
        sf.lit(max_disorder_ms),
    )
    return placed.withColumns(
        {
            "rule": sf.when(late, LATE).otherwise(sf.col("rule")),
            "reason": sf.when(late, reason).otherwise(sf.col("reason")),
        }
    )


def without_repeated_seq(spark: SparkSession, placed: DataFrame, sources: Sequence[str]) -> DataFrame:
    """Refuse every event that has the `seq` of another one, but for the first of them in input order."""
    shared = (
        placed.where("rule IS NULL")
        .groupBy("seq")
        .agg(sf.count("*").alias("events"), sf.min(sf.struct("file", "line")).alias("first"))
        .where("events > 1")
        .select("seq", "first")
    )
    names = spark.createDataFrame(list(enumerate(sources)), "first_file INT, first_source STRING")
    named = shared.join(sf.broadcast(names), shared["first.file"] == names["first_file"])
    compared = placed.join(named, "seq", "left")
    repeated = sf.col("rule").isNull() & (sf.struct("file", "line") != sf.col("first"))
    reason = sf.concat(
        sf.format_string("seq: %d: already used at %s:%d", "seq", "first_source", "first.line"),
        sf.when(sf.col("own_seq"), "").otherwise(" (this line brings none: it is its place in the input)"),
    )
    return compared.withColumns(
        {
            "rule": sf.when(repeated, DUPLICATE).otherwise(sf.col("rule")),
            "reason": sf.when(repeated, reason).otherwise(sf.col("reason")),
        }
    )

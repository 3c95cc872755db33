"""How operations ended, window by window, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.query import functions as sf
from purgatory_udf.storage.run_tables import window_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


def by_window(ended: DataFrame, window_ms: int) -> DataFrame:
    """By kind, broker, and the window in which they ended: how many on arrival, after a wait, by the timer."""
    expired, watched = sf.col("expired"), sf.col("watched")
    counts = ended.groupBy("kind", "broker", window_start("ended_at", window_ms).alias("window_start")).agg(
        sf.count("*").alias("operations"),
        sf.count_if(~expired & ~watched).alias("on_arrival"),
        sf.count_if(~expired & watched).alias("after_a_wait"),
        sf.count_if(expired).alias("expired"),
        sf.count_if("after_end").alias("after_end"),
        sf.sum("wait_ms").alias("waited_ms"),
    )
    return counts.withColumn("window_ms", sf.lit(window_ms))


def causes(ended: DataFrame) -> DataFrame:
    """By kind and what ended them: how many, and how long they had waited."""
    # Equal waits are counted first: exact quantiles of millions of waits then need memory for the different ones only.
    alike = ended.groupBy("kind", "expired", "watched", "completed_by", "wait_ms").agg(sf.count("*").alias("n"))
    return alike.groupBy("kind", "expired", "watched", "completed_by").agg(
        sf.sum("n").alias("operations"), *quantiles(sf.col("n")), sf.max("wait_ms").alias("max_ms")
    )


def quantiles(times: Column) -> list[Column]:
    """Exact quantiles of `wait_ms`, each value counted that many times, interpolated between neighbours."""
    return [sf.percentile("wait_ms", share, times).alias(name) for name, share in QUANTILES.items()]

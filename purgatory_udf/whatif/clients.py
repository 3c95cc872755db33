"""How simulated clients reacted: what they sent under each variant, and how long an answer was on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.printing import Table
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def clients_table(spark: SparkSession, folders: dict[str, str]) -> Table:
    """A row for each type of request under each variant; times are those that the client saw."""
    sent = [(row, name) for name, folder in folders.items() for row in _requests(spark, folder)]
    rows = [
        (row.type, name, row.requests, row.unanswered, row.p50, row.p99, row.throttled_ms)
        for row, name in sorted(sent, key=lambda pair: str(pair[0].type))
    ]
    columns = ("request", "variant", "sent", "never answered", "p50 ms", "p99 ms", "throttled, ms in all")
    return Table("Clients", columns, rows)


def _requests(spark: SparkSession, folder: str) -> list[Row]:
    layout = Layout(folder)
    types = spark.read.format("delta").load(layout.table("events")).select(sf.col("seq").alias("operation_id"), "type")
    asked = spark.read.format("delta").load(layout.table("truth_requests"))
    micros = sf.unix_micros("received_at") - sf.unix_micros("sent_at")
    times = [sf.round(sf.percentile(micros / 1000, share), 1).alias(f"p{int(100 * share)}") for share in (0.5, 0.99)]
    unanswered = sf.count_if(sf.col("received_at").isNull()).alias("unanswered")
    throttled = sf.sum("throttle_ms").alias("throttled_ms")
    grouped = asked.join(types, "operation_id").groupBy("type")
    return grouped.agg(sf.count("*").alias("requests"), unanswered, *times, throttled).collect()

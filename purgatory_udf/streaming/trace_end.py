"""Where the tables of a replay end: with the trace, or when everything is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import local
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.purgatory.clock import STEP_MS
from purgatory_udf.storage.delta_tables import asked
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# When a row happened. A watch that did not expire has ended by then, whatever its deadline.
_TIME = {
    "completions": "completed_at",
    "expirations": "expired_at",
    "cancellations": "cancelled_at",
    "watches": "deadline",
    "purgatory_gauges": "at",
    "group_transitions": "at",
    "told": "answered_at",
}


def until(rows: pa.RecordBatch, table: str, end_ms: int) -> pa.RecordBatch:
    """What has happened by the end of this millisecond."""
    by_then = pc.less(rows.column(_TIME[table]).cast(pa.int64()), (end_ms + 1) * 1000)
    if table == "watches":
        by_then = pc.or_(by_then, pc.not_equal(rows.column("status"), "expired"))
    return rows.filter(by_then)


def close_gauges(
    spark: SparkSession, layout: Layout, config: Config, last_us: int, latest_us: int | None = None
) -> None:
    """Let the table end with the trace, or, drained, with its last operation: at `latest_us`, if that is known."""
    until_ms = last_us // 1000
    if config.drain:
        until_ms = closing_ms(last_us, _all_over_us(spark, layout) if latest_us is None else latest_us)
    table = layout.table("purgatory_gauges")
    # A stream's last readings may come later than the last end of any operation.
    _remove(spark, table, until_ms)


def closing_ms(last_us: int, latest_us: int | None) -> int:
    """The first reading by which the trace is over and every operation has ended."""
    return -(-max((latest_us or 0) // 1000, last_us // 1000 + 1) // STEP_MS) * STEP_MS


def _remove(spark: SparkSession, table: str, until_ms: int) -> None:
    """Readings that come later."""

    def has_any(session: SparkSession) -> bool:
        late = sf.unix_micros("at") > until_ms * 1000
        return bool(session.read.format("delta").load(table).where(late).head(1))

    if not asked(spark, table, has_any):
        return
    if local(spark):
        readings = spark.read.format("delta").load(table)
        readings.where(sf.unix_micros("at") <= until_ms * 1000).write.format("delta").mode("overwrite").save(table)
    else:
        DeltaTable.forPath(spark, table).delete(f"at > timestamp_millis({until_ms})")


def _all_over_us(spark: SparkSession, layout: Layout) -> int:
    """When the last operation ended."""

    def last_us(session: SparkSession) -> int:
        over_us = 0
        # What was cancelled ended before the trace did.
        for table, ended_at in (("completions", "completed_at"), ("expirations", "expired_at")):
            # Of groups, operations complete after the trace's end, too: one timer's end may be another's completion.
            rows = session.read.format("delta").load(layout.table(table))
            ends = rows.select(sf.max(sf.unix_micros(ended_at))).first()
            assert ends is not None
            over_us = max(over_us, ends[0] or 0)
        return over_us

    return asked(spark, layout.out, last_us)

"""The open loop on Spark: each slice of time is a task, and a file of the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.simulate.open_loop.rows import slice_rows
from purgatory_udf.simulate.open_loop.workload import Workload
from purgatory_udf.storage.staging import IN_TIME_ORDER
from purgatory_udf.tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 20_000


def events_of(spark: SparkSession, workload: Workload, run_id: str, tasks: int | None = None) -> DataFrame:
    """The whole trace, in time order within and across the frame's partitions, however many there are."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from slice_rows(workload, number, run_id).combine_chunks().to_batches(ROWS_PER_BATCH)

    slices = spark.range(0, workload.slices, 1, tasks or workload.slices)
    return slices.mapInArrow(work, from_arrow_schema(EVENTS))


def write_events(events: DataFrame, path: str) -> None:
    """No shuffle: tasks are slices of time, and Delta lists their files in the order of the tasks."""
    (
        events.write.format("delta")
        .option("userMetadata", IN_TIME_ORDER)
        .option("delta.dataSkippingStatsColumns", "event_time,time_us,seq")
        .save(path)
    )

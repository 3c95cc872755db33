"""Work on pieces, spread over Spark's tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.process_pool import side_by_side
from purgatory_udf.common.worker_memory import freeze_in_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Part = TypeVar("Part")
Given = ParamSpec("Given")


def spread(
    spark: SparkSession,
    tasks: Sequence[Sequence[Part]],
    work: Callable[[Part], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """The rows that `work` makes of each part: a task of Spark's, or of one of this machine's cores, for each sequence
    of parts, which keeps their order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                for part in tasks[task]:
                    yield from work(part)

    here = local(spark)
    if here is not None:
        made = side_by_side(without_collection(lambda task: chain.from_iterable(map(work, task))), tasks)
        return here.frame_of(pa.Table.from_batches(list(chain.from_iterable(made)), schema))
    # A range of n rows in n partitions has row i in partition i: the task's number, without shuffling the work itself.
    count = max(1, len(tasks))
    in_order = spark.range(0, len(tasks), 1, count)
    return in_order.mapInArrow(freeze_in_workers(without_collection(run)), from_arrow_schema(schema))


def without_collection(work: Callable[Given, Iterator[pa.RecordBatch]]) -> Callable[Given, Iterator[pa.RecordBatch]]:
    """Rows make many small objects and no cycles: looking for cycles takes a third of the time and finds none."""

    def run(*given: Given.args, **named: Given.kwargs) -> Iterator[pa.RecordBatch]:
        gc.disable()
        try:
            yield from work(*given, **named)
        finally:
            gc.enable()

    return run

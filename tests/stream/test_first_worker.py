"""The Python worker that is there before the first task."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory_udf.stream import first_worker


def _missing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in first_worker._loading(batches):
        wanted = {"purgatory_udf.loop.run", "purgatory_udf.groups.tables", *first_worker._RULES}
        yield pa.RecordBatch.from_pydict({"missing": [", ".join(wanted - set(sys.modules))] * batch.num_rows})


def test_it_has_what_the_rules_need(spark: SparkSession) -> None:
    assert spark.range(0, 1, 1, 1).mapInArrow(_missing, "missing string").collect() == [("",)]

"""The first of Spark's Python workers, started ahead of the first task that needs one.

It takes seconds to load what the rules need, and Spark about as long to look at a trace's table for the first time and
to plan its first query; neither needs the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from purgatory_udf.query import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What the stateful queries run there.
_RULES = ("purgatory_udf.stream.partition_rules", "purgatory_udf.stream.group_rules")
_begun: set[str] = set()


def load_ahead(spark: SparkSession) -> None:
    """Begin, and go on; only where there is one machine, and none is begun yet. What goes wrong with it goes wrong with
    the first task as well, which tells of it."""
    if local(spark) or not (spark.sparkContext.master or "").startswith("local"):
        return
    application = spark.sparkContext.applicationId
    if application is not None and application not in _begun:
        _begun.add(application)
        threading.Thread(target=_load, args=(spark,), daemon=True).start()


def _load(spark: SparkSession) -> None:
    with suppress(Exception):
        spark.range(0, 1, 1, 1).mapInArrow(_loading, "id long").write.format("noop").mode("overwrite").save()


def _loading(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the worker, which is kept for what comes."""
    for module in _RULES:
        import_module(module)
    yield from batches

"""Steps of little text, taken in this process: what Spark plans and starts for one costs more than its lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.query import locally
from purgatory_udf.session import session_for
from purgatory_udf.size import FOLLOWED_BYTES, is_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Take = Callable[["SparkSession", "DataFrame"], None]


def taken(spark: SparkSession, messages: DataFrame, folder: str, take: Take, before: int | None = 0) -> None:
    """The step, taken once: here, if the messages and the `before` bytes that it goes on with are few and the tables
    lie on this machine; else by Spark. (None: more than a few.)"""
    if _is_small(spark, messages, folder, before):
        with suppress(NeedsSparkError), locally():
            here: Any = session_for("purgatory-ingest")
            take(here, here.frame_of(messages.toArrow()))
            return
    take(spark, messages)


def _is_small(spark: SparkSession, messages: DataFrame, folder: str, before: int | None) -> bool:
    from pyspark.sql import functions

    if before is None or not (spark.sparkContext.master or "").startswith("local") or not is_here(folder):
        return False
    found = messages.agg(functions.sum(functions.octet_length("value"))).first()
    return found is not None and before + (found[0] or 0) <= FOLLOWED_BYTES

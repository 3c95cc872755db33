"""Steps of little text, taken in this process: what Spark plans and starts for one costs more than its lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.query import locally_in_this_thread
from purgatory_udf.session import session_for
from purgatory_udf.size import FOLLOWED_BYTES, held, is_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Take = Callable[["SparkSession", "DataFrame"], None]


def taken(spark: SparkSession, messages: DataFrame, folder: str, take: Take, before: Sequence[str] = ()) -> None:
    """The step, taken once: here, if the messages and what it goes on with, the files `before`, are few bytes and lie
    on this machine; else by Spark."""
    if _is_small(spark, messages, folder, before):
        with suppress(NeedsSparkError), locally_in_this_thread():
            here: Any = session_for("purgatory-ingest")
            take(here, here.frame_of(messages.toArrow()))
            return
    take(spark, messages)


def _is_small(spark: SparkSession, messages: DataFrame, folder: str, before: Sequence[str]) -> bool:
    from pyspark.sql import functions

    if not (spark.sparkContext.master or "").startswith("local") or not is_here(folder):
        return False
    gone_on_with = held(before, FOLLOWED_BYTES)
    if gone_on_with is None:
        return False
    total = messages.agg(functions.sum(functions.octet_length("value"))).first()
    return total is not None and gone_on_with + (total[0] or 0) <= FOLLOWED_BYTES

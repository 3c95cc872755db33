"""What is asked of tables of this machine's disk, or written to them, and is little, is done by this process: for a
local Spark each such thing is a query, which takes it most of a second to plan, start and commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.query import is_local, local, locally_in_this_thread
from purgatory_udf.size import is_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")


def is_near(spark: SparkSession, *paths: str) -> bool:
    """Whether Spark has them so far, all of it on this machine, and they lie there."""
    if is_local() or local(spark) or not all(map(is_here, paths)):
        return False
    return (spark.sparkContext.master or "").startswith("local")


def asked(spark: SparkSession, path: str, question: Callable[[SparkSession], Answer]) -> Answer:
    """`question` is asked of a session that suits; twice if it turns out to be for Spark."""
    if is_near(spark, path):
        from purgatory_udf.local.session import LocalSession

        session: SparkSession = LocalSession()  # type: ignore[assignment]
        try:
            with locally_in_this_thread():
                return question(session)
        except NeedsSparkError:
            pass
    return question(spark)

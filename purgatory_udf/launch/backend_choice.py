"""Decides whether a job runs in this process or in Spark.

A job runs in this process if its inputs are small and on this machine, and nothing asks for Spark: no option for Spark,
no cluster as master. A job that finds that it needs Spark after all raises NeedsSparkError before any effect, and the
launcher starts it again in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from purgatory_udf.backend.input_size import is_small_and_local
from purgatory_udf.launch import submission

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend

# Opens the backend that was chosen for a job. Jobs call it when they need it, because Spark takes seconds to start.
OpenBackend: TypeAlias = "Callable[[], Backend]"


def runs_in_process(
    inputs: Iterable[str], max_bytes: int, spark_options: bool, settings: Mapping[str, str], environ: Mapping[str, str]
) -> bool:
    """Decide where a job runs.

    Args:
        inputs: The files and tables that the job reads.
        max_bytes: Their total size up to which this process takes the job; 0 for never.
        spark_options: Whether the command line has options for Spark.
        settings: Spark's settings from the command line and Spark's configuration.
        environ: Environment variables; `MASTER` names the default master.
    """
    if spark_options or not submission.is_local({"spark.master": environ.get("MASTER", "local"), **settings}):
        return False
    return max_bytes > 0 and is_small_and_local(inputs, max_bytes)


def open_local() -> Backend:
    """Return the backend of this process."""
    from purgatory_udf.backend.backend import LocalBackend

    return LocalBackend()


def spark_opener(app: str) -> OpenBackend:
    """Return a function that opens a Spark session with this name."""

    def open_spark() -> Backend:
        from purgatory_udf.backend.backend import SparkBackend
        from purgatory_udf.launch.spark_session import build_session

        return SparkBackend(build_session(app))

    return open_spark

"""Errors of `foreachBatch` functions: short enough for Spark's pattern, and still with their causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.streaming.streaming_query import BatchError, shorten_errors, shorten_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling o12.save."
FRAMES = "\n".join(f"\tat org.apache.spark.sql.Deep$.down(Deep.scala:{line})" for line in range(400))
STOPPED = f"{CALL}\n: org.apache.spark.SparkException: Job 3 cancelled\n{FRAMES}\nCaused by: java.lang.Interrupted"


def _is_interruption(spark: SparkSession, text: str) -> bool:
    """Apply the pattern that Spark applies to the errors of a stopped query."""
    jvm: Any = spark._jvm
    match = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution.PROXY_ERROR().findFirstIn(text)
    return bool(match.isDefined())


def test_spark_matches_short_errors_only(spark: SparkSession) -> None:
    """The whole text overflows the stack of Spark's pattern."""
    whole = f"{STOPPED}Exception\n{FRAMES}"
    assert _is_interruption(spark, shorten_text(whole))
    with pytest.raises(Exception, match="StackOverflowError"):
        _is_interruption(spark, f"{STOPPED}\n{FRAMES}")
    assert not _is_interruption(spark, shorten_text(f"{STOPPED}\n{FRAMES}"))
    assert not _is_interruption(
        spark, shorten_text(f"{CALL}\n" + "\n".join(f"line {number}" for number in range(10_000)))
    )


def test_stack_frames_are_removed() -> None:
    cause = "Caused by: java.io.IOException: No space left on device"
    assert (
        shorten_text(f"{CALL}\n: A: b\n{FRAMES}\n{cause}\n{FRAMES}\n{cause}\n\t... 3 more")
        == f"{CALL}\n: A: b\n{cause}"
    )


def test_first_and_last_lines_stay() -> None:
    text = shorten_text("\n".join(f"line {number}" for number in range(10_000)))
    assert text.startswith("line 0\nline 1\n") and text.endswith("\nline 9998\nline 9999")
    assert len(text) < 1_600


def test_batch_error_names_class_without_context() -> None:
    def write(batch: Any, number: int) -> None:
        raise OSError(f"{number} times\n\tat a.b.C\nCaused by: x")

    with pytest.raises(BatchError) as raised:
        shorten_errors(write)(None, 7)  # type: ignore[arg-type]
    assert str(raised.value) == "builtins.OSError: 7 times\nCaused by: x"
    assert raised.value.__suppress_context__

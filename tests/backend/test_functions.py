"""Column functions without Spark give the same results as in Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.backend.dialect import Window, locally
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.launch.spark_session import session_for

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS = [
    (1, "a", 7, 3_000_001),
    (2, "a", -7, None),
    (3, "b", None, 1_699_999_999_999_999),
    (4, None, 8, 1_700_000_000_123_456),
    (5, "a", 2**31, 5),
    (2**40, "b", 7, 12),
]
SCHEMA = "id LONG, name STRING, n LONG, us LONG"

ROW_FUNCTIONS: dict[str, Callable[[], Column]] = {
    "remainder": lambda: sf.pmod("n", sf.lit(5)),
    "remainder of parts": lambda: sf.pmod(sf.col("n") / 1000 + 0.1, sf.lit(1.0)),
    "remainder with its sign": lambda: sf.col("n") % 5,
    "quotient": lambda: sf.col("n") / 3,
    "ceiling": lambda: sf.ceil(sf.col("n") / 3),
    "floor": lambda: sf.floor(sf.col("n") / 3),
    "power of two": lambda: sf.pow(sf.lit(2), sf.floor(sf.log2(sf.greatest("n", sf.lit(1))))).cast("long"),
    "hash": lambda: sf.xxhash64("id"),
    "least": lambda: sf.least("n", "id"),
    "text": lambda: sf.concat(sf.lit("<'"), "name", sf.lit("'>")),
    "joined text": lambda: sf.concat_ws("-", "name", sf.col("n").cast("string")),
    "case": lambda: sf.when(sf.col("n") > 7, "more").when(sf.col("name") == "a", sf.col("name")),
    "null-safe equality": lambda: sf.col("name").eqNullSafe("a"),
    "in list": lambda: sf.col("name").isin("a", "c") & ~sf.col("n").isin([7]),
    "in empty list": lambda: sf.col("name").isin([]),
    "between": lambda: sf.col("n").between(0, 8),
    "timestamp": lambda: sf.unix_millis(sf.timestamp_millis(sf.floor(sf.col("us") / 1000))),
    "timestamp as text": lambda: sf.date_format(
        sf.timestamp_millis(sf.floor(sf.col("us") / 1000)), "yyyy-MM-dd HH:mm:ss.SSS"
    ),
    "array": lambda: sf.array_sort(sf.array("id", "n")),
    "filtered array": lambda: sf.filter(sf.array("id", "n"), lambda element: element > 4),
    "size": lambda: sf.size(sf.filter(sf.array("id", "n"), lambda element: element.isNotNull())),
    "range": lambda: sf.sequence(sf.lit(1).cast("long"), sf.lit(9).cast("long"), sf.lit(4).cast("long")),
    "array difference": lambda: sf.array_sort(sf.array_except(sf.array("id", "id"), sf.array(sf.lit(3).cast("long")))),
    "text before delimiter": lambda: sf.substring_index(sf.concat("name", sf.lit(": b: c")), ": ", 2),
    "text without delimiter": lambda: sf.substring_index("name", ":", 1),
    "regular expression": lambda: sf.regexp_extract(sf.lit("type=Some,name=x"), "type=([^,]+)", 1),
    "running sum": lambda: sf.sum("id").over(Window.partitionBy("name").orderBy("n", "id")),
    "next row": lambda: sf.lead("n").over(Window.partitionBy("name").orderBy(sf.desc("n"), "id")),
    "row number": lambda: sf.row_number().over(Window.partitionBy().orderBy("name", sf.col("n").desc(), "id")),
    "last value that is not null": lambda: sf.last("n", ignorenulls=True).over(
        Window.partitionBy("name").orderBy("id").rowsBetween(Window.unboundedPreceding, 0)
    ),
}

GROUP_FUNCTIONS: dict[str, Callable[[], Column]] = {
    "sum": lambda: sf.sum("n"),
    "mean": lambda: sf.avg("n"),
    "count": lambda: sf.count("*"),
    "count of values": lambda: sf.count("n"),
    "count of matches": lambda: sf.count_if(sf.col("n") > 0),
    "median": lambda: sf.percentile_approx("n", 0.5),
    "p95": lambda: sf.percentile_approx("n", 0.95),
    "weighted": lambda: sf.percentile("n", 0.9, sf.col("id") % 5),
    "latest": lambda: sf.max_by("name", sf.struct("n", "id")),
    "latest with value": lambda: sf.max_by("id", sf.when(sf.col("n").isNotNull(), sf.col("id"))),
    "first": lambda: sf.min_by("n", "id"),
    "sorted list": lambda: sf.sort_array(sf.collect_list(sf.struct("id", "n"))),
}


def result(session: SparkSession, query: Callable[[DataFrame], DataFrame]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(session.createDataFrame(ROWS, SCHEMA)).collect()]


def assert_same_as_spark(spark: SparkSession, query: Callable[[DataFrame], DataFrame]) -> None:
    expected = result(spark, query)
    assert expected
    with locally():
        assert result(session_for("functions"), query) == expected


def test_row_functions_equal_spark(spark: SparkSession) -> None:
    assert_same_as_spark(
        spark,
        lambda rows: rows.select("id", *(make().alias(name) for name, make in ROW_FUNCTIONS.items())).orderBy("id"),
    )


def test_group_functions_equal_spark(spark: SparkSession) -> None:
    assert_same_as_spark(
        spark,
        lambda rows: (
            rows.groupBy("name").agg(*(make().alias(name) for name, make in GROUP_FUNCTIONS.items())).orderBy("name")
        ),
    )


def test_joins_unions_and_orders_equal_spark(spark: SparkSession) -> None:
    def query(rows: DataFrame) -> DataFrame:
        known = rows.where("n > 0").select("name", "n", sf.lit(None).cast("string").alias("more"))
        sums = rows.groupBy("name").agg(sf.sum("n").alias("n")).withColumn("more", sf.lit("sum"))
        both = known.unionByName(sums.select("more", "n", "name"))
        long = both.unpivot(["name", "more"], ["n"], "what", "value").withColumnRenamed("value", "n").drop("what")
        pairs = long.alias("one").join(sums.alias("other"), sf.col("one.name") == sf.col("other.name"))
        chosen = pairs.where(sf.col("other.n") > 8).select("one.name", "one.n", sf.col("other.n").alias("sum"))
        sides = chosen.join(rows.select("name", "id"), ["name"], "full").join(rows.select("id", "us"), "id", "left")
        return sides.distinct().orderBy(sf.desc("n"), "id", "name").limit(5)

    assert_same_as_spark(spark, query)


@pytest.mark.parametrize("how", ["full", "left", "inner"])
def test_unmatched_rows_of_joins_equal_spark(spark: SparkSession, how: str) -> None:
    def query(rows: DataFrame) -> DataFrame:
        some = rows.where("id < 4").select("name", "id")
        others = rows.where("id > 2").select("name", "n")
        return some.join(others, ["name"], how).orderBy("name", "id", "n")

    assert_same_as_spark(spark, query)

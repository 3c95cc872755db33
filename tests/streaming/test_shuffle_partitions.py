"""The number of shuffle partitions of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.streaming.replay_run import set_shuffle_partitions, shuffle_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_two_tasks_per_core_within_bounds() -> None:
    assert [shuffle_partitions(cores) for cores in (1, 2, 4, 5, 16, 100, 5000)] == [8, 8, 8, 10, 32, 200, 200]


def test_explicit_setting_is_kept(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    try:
        set_shuffle_partitions(spark)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "200", "the session was started with a number"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))

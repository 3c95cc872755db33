"""Over how many tasks a run's groups are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.streaming.replay_run import spread, tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_two_a_core_within_bounds() -> None:
    assert [tasks(cores) for cores in (1, 2, 4, 5, 16, 100, 5000)] == [8, 8, 8, 10, 32, 200, 200]


def test_who_has_said_how_many_is_not_overruled(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    try:
        spread(spark)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "200", "for the session was begun with a number"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))

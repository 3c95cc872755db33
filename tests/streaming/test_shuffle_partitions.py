"""The number of shuffle partitions of a run, and the groups that each of them gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.rules.engine.key_shards import spark_hash
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


def test_hashes_of_names_match_spark(spark: SparkSession) -> None:
    names = ["", "shard-0", "shard-12", "shard-345", "groß", "日本"]
    row = spark.range(1).selectExpr(*(f"hash('{name}')" for name in names)).first()
    assert row is not None
    assert [value % 2**32 for value in row] == [spark_hash(name.encode()) for name in names]
